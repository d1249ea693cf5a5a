"""Whoever waits is told that it goes on."""

import re
import time

from solver.base import progress


def test_long_work_gives_signs_of_life_and_short_work_none(monkeypatch, capsys):
    with progress.signs_of_life("planning"):
        pass
    assert not capsys.readouterr().err

    monkeypatch.setattr(progress, "_LINE_S", 0.01)
    with progress.signs_of_life("planning"):
        said = ""
        while said.count("\n") < 2:  # an event, not a time
            time.sleep(0.001)
            said += capsys.readouterr().err
    assert re.match(r"planning: 0 s so far\n", said)
