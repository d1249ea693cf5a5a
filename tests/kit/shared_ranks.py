"""Ranks that jobs share, one after the other: what `mpirun -np N python -m hepti_mpi WORDS` does, without its start.

`jobs(ranks, …)` takes and returns what `commands.hepti` does. Ranks are started at the first job on so many, and stay
until the tests end. What ends a rank, by a signal or an abort, is for `commands.hepti`: such a job is alone.

    mpirun … python -m tests.kit.shared_ranks

is the program of these ranks. Rank 0 reads jobs, one a line of JSON, and answers each with what it did.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

from tests.kit.commands import ENVIRONMENT, ROOT, heed

POLL_S = 0.005
JOB_S = 60
TAG = 4711  # of no message of a job


def main():
    from hepti_mpi import __main__ as program

    program.limit_threads()
    from hepti_mpi.comm.mpi import MPI, start
    from hepti_mpi.requests import outputs

    start()
    outputs._straight = lambda: None  # past these ranks' own output, to mpirun's, which has our answers
    world = MPI.COMM_WORLD.Dup()
    with os.fdopen(os.dup(0)) as told, os.fdopen(os.dup(1), "w") as answers:
        while (job := _next(world, told)) is not None:
            code, said, complained = _run(program.main, job)
            codes = world.gather((code, complained))
            if world.rank == 0:
                # As mpirun does: the code of the rank that fails, and what any of them complains of.
                code = max(code for code, _ in codes)
                print(json.dumps([code, said, "".join(text for _, text in codes)]), file=answers, flush=True)


def _next(world, told):
    """Return the next job on all ranks, which wait for it asleep; None: there is none."""
    if world.rank == 0:
        line = told.readline()
        for rank in range(1, world.size):
            world.send(line, rank, TAG)
    else:
        while not world.iprobe(0, TAG):
            time.sleep(POLL_S)
        line = world.recv(source=0, tag=TAG)
    return json.loads(line) if line else None


def _run(run, job):
    """Run a job with files as standard input, output and errors; return its code and what it wrote."""
    before = dict(os.environ)
    os.environ.update(job["variables"])
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        stdin.write(job["stdin"].encode())
        stdin.seek(0)
        with _in_place(stdin, out, errors):
            code = run(job["words"])
        texts = [_content(file) for file in (out, errors)]
    os.environ.clear()
    os.environ.update(before)
    return code, *texts


@contextmanager
def _in_place(*files):
    """Let descriptors 0, 1 and 2 be these files."""
    kept = [os.dup(number) for number in range(3)]
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    try:
        yield
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _content(file):
    file.seek(0)
    return file.read().decode()


_started = {}


def _ranks(count):
    """Return the process that has so many ranks."""
    if count not in _started or _started[count].poll() is not None:
        command = ["mpirun", "-np", str(count), sys.executable, "-m", "tests.kit.shared_ranks"]
        # Where mpirun itself writes is no terminal, wherever the tests write: tables are as wide as without one.
        _started[count] = subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, preexec_fn=heed,
        )  # fmt: skip
    return _started[count]


def end():
    """End all ranks: Open MPI 5 does not tell them that their input has ended."""
    for process in _started.values():
        process.terminate()
        process.communicate(timeout=10)
    _started.clear()


def jobs(ranks, *words, stdin="", timeout=JOB_S, **variables):
    """Run a job to its end on shared ranks; return what it did, as `subprocess.run` does."""
    process, words = _ranks(ranks), [str(word) for word in words]
    print(json.dumps({"words": words, "stdin": stdin, "variables": variables}), file=process.stdin, flush=True)
    line = process.stdout.readline()
    assert line, f"{' '.join(words)}: ended its ranks with {process.wait(timeout)}"
    return subprocess.CompletedProcess(words, *json.loads(line))


if __name__ == "__main__":
    main()
