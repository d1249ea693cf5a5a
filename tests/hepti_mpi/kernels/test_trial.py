"""Whether onnxruntime can compute here is found out in a process of its own, once a board."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hepti_mpi.kernels import ort, trial, trial_graphs

DIES = "import os, signal; os.kill(os.getpid(), signal.{})"
# Says that it was imported, and what its process has of mpirun.
COUNTS = "import os; open({!r}, 'a').write(' '.join(n for n in os.environ if n.startswith(('OMPI', 'PMIX'))) + '\\n')\n"


@pytest.fixture
def board(tmp_path):
    """Ask `python -m hepti_mpi.kernels.trial` on a board whose onnxruntime has these lines; None: the installed one."""

    def ask(lines=None):
        paths = [str(Path.cwd())]
        if lines is not None:
            wheel = tmp_path / "wheels" / "onnxruntime" / "__init__.py"
            wheel.parent.mkdir(parents=True, exist_ok=True)
            if not wheel.exists() or wheel.read_text() != lines:
                wheel.write_text(lines)
            paths.insert(0, str(wheel.parents[1]))
        more = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ":".join(paths), "OMPI_COMM_WORLD_RANK": "1"}
        command = [sys.executable, "-m", "hepti_mpi.kernels.trial"]
        done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, check=True, timeout=60)
        assert done.stderr == ""
        return json.loads(done.stdout)

    return ask


def test_what_is_installed_here_computes_as_numpy_does(board):
    assert board() == {"backend": "onnxruntime", "why": "it computes what numpy does", "missing": False}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (DIES.format("SIGILL"), "dies of SIGILL"),
        (DIES.format("SIGSEGV"), "dies of SIGSEGV"),
        ("raise ImportError('libgomp.so.1: cannot open')", "fails: ImportError: libgomp.so.1: cannot open"),
    ],
)
def test_numpy_is_taken_where_onnxruntime_takes_a_process_down(board, lines, why):
    told = board(lines)

    assert told["backend"] == "numpy"
    assert told["why"].endswith(why)


def test_a_board_is_tried_once_until_its_packages_change(board, tmp_path):
    """The second start reads what the first has found out; the process knows nothing of the job that started it."""
    log = tmp_path / "imports"
    lines = COUNTS.format(str(log)) + DIES.format("SIGILL")

    assert board(lines) == board(lines)
    assert log.read_text() == "\n"

    board(lines + "\n# another version")

    assert log.read_text() == "\n\n"


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("empty_cache")
def test_what_somebody_ended_is_tried_again(monkeypatch):
    """A trial that takes too long, or that lacked memory, says nothing of the wheel."""
    monkeypatch.setattr(trial, "TIME_S", 0.01)

    assert "within 0.01 s" in trial.tried()
    assert trial.known() is None

    killed = subprocess.CompletedProcess([], -9, stderr="")
    monkeypatch.setattr(trial.subprocess, "run", lambda *_, **__: killed)

    assert trial.tried().endswith("dies of SIGKILL")
    assert trial.known() is None


@pytest.mark.usefixtures("empty_cache")
def test_a_cache_that_is_no_folder_costs_the_next_trial_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "hepti").write_text("a file in the way")
    fine = subprocess.CompletedProcess([], 0, stderr="")
    monkeypatch.setattr(trial.subprocess, "run", lambda *_, **__: fine)

    assert trial.tried() == ""
    assert trial.known() is None


@pytest.mark.parametrize("kind", ["graph", "attend", "attend_part", "cast"])
def test_wrong_numbers_are_found_whatever_computes_them(monkeypatch, kind):
    right = getattr(ort.FLOAT32, kind)

    def wrong(*arguments):
        result = right(*arguments)
        if kind == "graph":
            return lambda *arrays, **named: 1.01 * result(*arrays, **named)
        if kind == "cast":
            arguments[0].flat[0] += 1
            return None
        return 1.01 * result if kind == "attend" else (result[0], 1.01 * result[1])

    assert trial_graphs.disagreement() == ""
    monkeypatch.setattr(ort, "FLOAT32", replace(ort.FLOAT32, **{kind: wrong}))

    assert "in float32 is 0." in trial_graphs.disagreement()


def test_int8_that_is_coarser_than_its_steps_is_found(monkeypatch):
    from hepti_mpi.kernels import int8

    make = int8.INT8.graph

    def coarse(operations):
        graph = make(operations)
        return lambda x, **named: graph(x.round(1), **named)

    monkeypatch.setattr(int8, "INT8", replace(int8.INT8, graph=coarse))

    assert "in int8 is 0.0" in trial_graphs.disagreement()
