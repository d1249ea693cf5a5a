"""What goes wrong in the middle of a job, and what a job costs that has nothing to do."""

import json
import os
import signal
import socket
import sys
import time

import h5py
import numpy as np
import pytest

from tests import sweeps
from tests.kit.asked import check_hidden
from tests.kit.commands import complaints, hepti, mpirun, run, start, succeeded
from tests.kit.processes import cpu_seconds, ranks_of
from weights import cli as weights

MIB = 2**20
OTHERS = pytest.mark.thorough("pairs of the same two moments and two ranks")


def ask_one(process):
    print('{"tokens": [5, 6, 7]}', file=process.stdin, flush=True)
    return json.loads(process.stdout.readline())


@pytest.mark.slow("starts up to three jobs, and mpirun takes a while to see that a rank is gone")
@pytest.mark.parametrize(
    ("busy", "victim"),
    [
        pytest.param(True, 2, id="computing-2"),
        pytest.param(False, 0, id="waiting-0"),
        pytest.param(True, 0, id="computing-0", marks=OTHERS),
        pytest.param(False, 2, id="waiting-2", marks=OTHERS),
    ],
)
def test_a_killed_rank_ends_the_job_at_once(busy, victim, model, tmp_path):
    """The line that names rank and host is mpirun's: the rank itself can say nothing.

    Open MPI 5.0.11 loses this line of a rank that is killed in MPI_Init, in 10 of 20 ends, and after it in none of
    160; all else holds every time.
    """
    for attempt in range(3):
        folder = tmp_path / f"attempt-{attempt}"
        folder.mkdir()
        if stderr := end_by_a_killed_rank(busy, victim, model, folder):
            break

    assert "signal 9" in stderr
    assert socket.gethostname() in stderr.split("signal 9")[0]


def end_by_a_killed_rank(busy, victim, model, folder):
    """Kill a rank of a job; return what mpirun says of it."""
    what = ("--random", 500, "--repeat", 10**6) if busy else ("--input", "-")

    with start(*mpirun(3, "--model", model, *what, "--output", folder / "answers.jsonl")) as process:
        ranks = ranks_of(model, 3)
        if busy:
            while "3 ranks on" not in process.stderr.readline():  # said after MPI_Init, in which the line gets lost
                assert process.poll() is None
        else:
            ask_one(process)
        os.kill(ranks[victim], signal.SIGKILL)
        started = time.monotonic()
        stderr = process.communicate()[1]

    assert time.monotonic() - started < 10
    assert process.returncode == 128 + signal.SIGKILL
    assert ranks_of(model, 0) == []
    # What was answered while requests came stays; a killed rank 0 cannot give it its name.
    left = {path.name: path for path in folder.iterdir()}
    assert left.keys() == (set() if busy else {".answers.jsonl.part" if victim == 0 else "answers.jsonl"})
    assert [len(path.read_text().splitlines()) for path in left.values()] == [1] * len(left)
    return stderr


@pytest.mark.parametrize("by_mpirun", [True, False])
def test_a_job_that_is_interrupted_leaves_nothing_and_says_no_more_than_that(by_mpirun, model, tmp_path):
    """No process, and nothing half-written: what was answered is there.

    Under mpirun its ranks are silent: it ends them by SIGTERM, also where another has failed and said so.
    """
    command = mpirun(2, "--model", model, "--input", "-", "--output", tmp_path / "answers.jsonl")

    with start(*(command if by_mpirun else command[3:])) as process:
        ask_one(process)
        process.send_signal(signal.SIGINT)
        stderr = process.communicate()[1]

    said = [line for line in stderr.splitlines() if not line.startswith(("1 rank", "2 ranks", "note:", "planned for"))]
    said = [line for line in said if "no profile for this model yet" not in line]
    if by_mpirun:
        assert not any("Traceback" in line or line.startswith("python -m") for line in said), said
        assert process.returncode != 0
    else:
        assert said == ["python -m hepti_mpi: interrupted"]
        assert process.returncode == 130
    assert ranks_of(model, 0) == []
    assert {path.name for path in tmp_path.iterdir()} == {model.name, "answers.jsonl"}
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1


def test_a_rank_that_raises_ends_the_job_naming_itself_and_its_host(model, tmp_path, kept):
    job = ("--model", model, "--random", 100, "--repeat", 10, "--system", "megatron")  # all ranks have a share
    command = mpirun(3, *job, "--output", tmp_path / "answers.jsonl")
    started = time.monotonic()

    done = run(*odd(command, "fails"))

    assert time.monotonic() - started < 20
    assert done.returncode == 1
    (line,) = complaints(done)
    host = socket.gethostname()
    assert f": rank 1 on {host}: FloatingPointError: " in line
    kept(line.replace(host, "HOST"))
    assert ranks_of(model, 0) == []
    assert list(tmp_path.iterdir()) == [model]


def test_a_rank_that_is_alone_ends_in_one_line():
    """Open MPI's block about an abort would come after it."""
    end = 'from hepti_mpi.comm.group import world; print("as far as it came"); world().abort("no such thing", code=2)'

    done = run(sys.executable, "-c", end)

    (line,) = complaints(done)
    assert line.endswith(": no such thing")
    assert (done.returncode, done.stdout, done.stderr) == (2, "as far as it came\n", f"{line}\n")


def test_a_rank_without_the_file_gets_its_share_from_rank_0(converted, tmp_path):
    checkpoint = converted("roberta")
    (tmp_path / "one.jsonl").write_text('{"tokens": [5, 6, 7, 8, 9]}\n')
    job = ("--model", checkpoint.path, "--input", tmp_path / "one.jsonl", "--system", "megatron")

    succeeded(run(*odd(mpirun(3, *job, "--output", tmp_path / "hidden.npz"), "no-file")))

    check_hidden(tmp_path / "hidden.npz", {1: checkpoint.expected([5, 6, 7, 8, 9])})


def test_damage_in_a_share_that_is_sent_is_named(converted, tmp_path, kept):
    """Rank 1 holds the middle heads; rank 0, which reads them for it, finds a number that is none."""
    path = tmp_path / "model.h5"
    path.write_bytes(converted("bert").path.read_bytes())
    with h5py.File(path, "r+") as file:
        file["layers/1/attention/query/weight"][20, 1] = np.inf

    done = run(*odd(mpirun(3, "--model", path, "--random", 5, "--system", "megatron"), "no-file"))

    assert done.returncode == 2
    (line,) = complaints(done)
    kept(line.replace(socket.gethostname(), "HOST"))


def odd(command, oddity):
    """Return the command with an odd rank 1."""
    place = command.index("hepti_mpi")
    return (*command[:place], "tests.commands.odd_rank", oddity, *command[place + 1 :])


@pytest.mark.slow("two seconds of waiting are what is measured")
def test_waiting_for_the_next_request_costs_next_to_nothing(model):
    """A board that spins is a hot board: less than a tenth of a core each."""
    with start(*mpirun(3, "--model", model, "--input", "-")) as process:
        ask_one(process)
        ranks = ranks_of(model, 3)
        time.sleep(0.5)
        before = [cpu_seconds(pid) for pid in ranks]
        time.sleep(2)  # what is measured: they do nothing for so long
        spent = [cpu_seconds(pid) - earlier for pid, earlier in zip(ranks, before, strict=True)]
        ask_one(process)
        process.communicate()

    assert process.returncode == 0
    assert max(spent) < 0.2, spent


@pytest.fixture(scope="module")
def bert_large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "bert-large.h5"
    assert weights.main(["synthesize", "bert-large", str(path), "--layers", str(sweeps.count(8, 24))]) == 0
    yield path
    path.unlink()  # up to 1.3 GB


@pytest.mark.slow("400 MB of weights are made, read and computed with")
def test_a_rank_of_bert_large_needs_little_more_than_its_weights(bert_large, tmp_path):
    """No rank ever holds what others compute with: four ranks, 256 rows, block and block.

    Of 8 layers the others' shares alone are 290 MiB.
    """
    job = ("--model", bert_large, "--system", "megatron", "--random", 256, "--report", tmp_path / "report.json")

    succeeded(hepti(4, *job, timeout=120))

    for entry in json.loads((tmp_path / "report.json").read_text())["per_rank"]:
        assert entry["peak_rss_bytes"] <= entry["weights_bytes"] + 250 * MIB
