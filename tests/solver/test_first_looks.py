"""What cannot work is refused before anything is planned, in words that say what to do."""

import pytest

from solver.cli import main
from tests.kit import inside


def said(*words):
    done = inside.run(main, *words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("words", [["--objective", "throughput"], ["--system", "hepti-throughput"]])
def test_a_picture_of_a_networks_plan_for_throughput_is_refused_at_once(words, tmp_path, monkeypatch):
    """Nothing is planned: the planner may not even be called."""
    monkeypatch.setattr("solver.network_cli.solve_replicas", None)
    picture = tmp_path / "plan.svg"

    assert "--plot" in said("--model", "resnet50", "--cluster", "mixed4", *words, "--plot", picture)
    assert not picture.exists()
