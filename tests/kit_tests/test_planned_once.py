"""A module's tests share what is planned, and afterwards all is planned anew."""

import solver.cli
from solver.model.named import named_model
from tests.kit import planned_once
from tests.kit.clusters import pis


def test_what_is_asked_for_twice_is_planned_once(monkeypatch):
    asked = []
    monkeypatch.setattr("solver.cli.compare", lambda *arguments: asked.append(arguments) or list(arguments[3:5]))
    spec, own = named_model("minilm-l6", 1), solver.cli.compare
    with planned_once.shared():
        for rows in (8, 8, 9):
            assert solver.cli.compare(spec, pis(1), rows, "a wire", ["single"], print) == ["a wire", ["single"]]
        solver.cli.compare(spec, pis(2), 8, "a wire", ["single"], print)

    assert [(arguments[1], arguments[2]) for arguments in asked] == [(pis(1), 8), (pis(1), 9), (pis(2), 8)]
    assert solver.cli.compare is own
