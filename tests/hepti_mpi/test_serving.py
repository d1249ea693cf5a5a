"""A run that serves standard input for weeks: nothing in it grows with the requests."""

import gc
import json
import threading
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from hepti_mpi.comm import group as comm
from hepti_mpi.live import conductor
from hepti_mpi.live.conductor import Conductor
from hepti_mpi.requests import answers, inputs, outputs, service_lines
from hepti_mpi.requests.service_lines import print_line
from hepti_mpi.session import cli, job
from solver.live.decision import Decision
from tests.kit.encoders import POST
from weights.synthesize import synthesize

REQUESTS, SETTLED = 700, 300


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Return what serves lines in this process, alone, and returns its exit code."""
    synthesize(tmp_path / "model.h5", POST, 0)
    words = ["--model", str(tmp_path / "model.h5"), "--cluster", "mixed4", "--backend", "numpy", "--input", "-"]

    def run(lines, *more):
        monkeypatch.setattr(inputs, "read_lines", lambda: iter(lines))
        return job.run_job(cli.parse([*words, *map(str, more)]), comm.world())

    return run


def line(name):
    return json.dumps({"id": name, "tokens": [1, 2, 3]}).encode()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("writes", [True, pytest.param(False, marks=pytest.mark.thorough("the same without a file"))])
def test_more_requests_take_no_more_memory(writes, serve, tmp_path, capfd, monkeypatch):
    """Four hundred more, of other names, take less than 50 bytes each, which no name does; every tenth line is wrong.

    Of a run that holds steady, tracing sees 20 KiB more in the first requests, 2 in the fourth hundred and none in the
    tenth: what lay there before tracing began, and so is not counted, makes room for what is (as from request 1000 on,
    where tracing begins there).
    """
    monkeypatch.setattr(answers, "LAST", 10)
    held, printed = [], threading.Semaphore(0)
    for module in (service_lines, outputs):
        monkeypatch.setattr(module, "print_line", lambda entry: (print_line(entry), printed.release()))

    def lines():
        tracemalloc.start()  # not before: the planner's imports would take ten times as long
        for number in range(REQUESTS):
            if number in (SETTLED - 1, REQUESTS - 1):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
            yield line(f"request {number}") if number % 10 else b"no JSON"
            assert printed.acquire(timeout=20)  # lines are read by a thread, as many as there are

    output = ["--output", tmp_path / "answers.jsonl"] if writes else []
    try:
        code = serve(lines(), "--report", tmp_path / "report.json", *output)
    finally:
        tracemalloc.stop()

    assert code == 2  # some lines were wrong
    assert held[1] - held[0] < 50 * (REQUESTS - SETTLED), held
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["requests_answered"] == REQUESTS * 9 // 10
    assert [entry["id"] for entry in report["requests"]][::9] == [f"request {REQUESTS - 11}", f"request {REQUESTS - 1}"]
    answered = [answer for answer in capfd.readouterr().out.splitlines(keepends=True) if '"error"' not in answer]
    assert len(answered) == REQUESTS * 9 // 10
    assert not writes or (tmp_path / "answers.jsonl").read_text() == "".join(answered)


def test_an_id_that_comes_again_is_answered_again(serve, tmp_path, capfd):
    """It is an echo; in the report it has the seconds of both."""
    assert serve([line("a"), line("b"), line("a")], "--report", tmp_path / "report.json") == 0

    assert [json.loads(answer)["id"] for answer in capfd.readouterr().out.splitlines()] == ["a", "b", "a"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert {entry["id"]: len(entry["seconds"]) for entry in report["requests"]} == {"a": 2, "b": 1}


def test_where_hidden_states_are_found_by_id_none_comes_twice(serve, tmp_path, capfd):
    assert serve([line("a"), line("b"), line("a")], "--output", tmp_path / "hidden.npz") == 2

    assert "'a' stands on line 1" in capfd.readouterr().err
    with np.load(tmp_path / "hidden.npz") as hidden:
        assert sorted(hidden) == ["a", "b"]


def test_decisions_are_counted_and_the_last_are_kept(monkeypatch):
    monkeypatch.setattr(conductor, "DECISIONS", 5)
    numbers = iter(range(1000))
    decides = lambda *_, **__: Decision(None, False, f"change {next(numbers)}", "", 1.0, 1.0, 0.0)
    member = SimpleNamespace(group=SimpleNamespace(size=2), mover=SimpleNamespace(aim=None))
    found = Conductor(POST, member, SimpleNamespace(decide=decides), True, print)

    for _ in range(20):
        assert found._decide() is None

    assert found.decided == 20
    assert [entry["why"] for entry in found.decisions] == [f"change {number}" for number in range(15, 20)]
