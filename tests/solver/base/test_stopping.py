"""What a person interrupts ends with one line, at any moment, and leaves nothing half-done."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from solver.base import stopping
from tests.sweeps import ALL, pairs
from weights.cli import main as weights

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys, time
from contextlib import suppress
from pathlib import Path
from solver.base import stopping
from solver.base.command import whole_file

def wait():
    print("at", moment, flush=True)
    # Not one long sleep: Python may look for signals, and sleep then, and a signal in between waits with it
    # (2 of 2400 of these programs, six at a time on two cores).
    for _ in range(6000):
        time.sleep(0.01)

def load():
    if moment == "import":
        try:
            wait()
        except:  # as some libraries do
            pass
    return main

def main(words):
    if moment == "error":
        try:
            wait()
        except KeyboardInterrupt:
            raise ImportError("numpy failed to import")
    with whole_file(Path(sys.argv[2])) as file:
        file.write_text("half")
        if moment == "swallowed":
            with suppress(KeyboardInterrupt):  # as callbacks of C libraries do
                wait()
            time.sleep(60)
        try:
            wait()
        finally:
            if moment == "clean-up":
                time.sleep(1.2)
                Path(sys.argv[3]).touch()
    return 0

moment = sys.argv[1]
stopping.run("python -m program", load, silent=moment == "silent")
"""


@contextmanager
def started(*command, ignored=()):
    """Start a program that heeds signals, whatever the shell of these tests ignores."""

    def heed():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, *map(str, command)], cwd=ROOT, preexec_fn=heed, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        yield process
        process.kill()


def ended(process, number=signal.SIGINT):
    """Send a signal; return exit code and errors."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    return process.returncode, errors


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("moment", "number"),
    pairs(["import", "work", "error", "silent"], [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]),
)
def test_one_line_and_128_and_the_signal_at_every_moment(number, moment, tmp_path):
    """Also where a library swallows what is raised while it is imported, or makes another error of it."""
    with started("-c", PROGRAM, moment, tmp_path / "out.json") as process:
        assert process.stdout.readline() == f"at {moment}\n"
        found = ended(process, number)

    assert found == (128 + number, "" if moment == "silent" else "python -m program: interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(60)
def test_what_a_library_swallows_interrupts_all_the_same(tmp_path):
    with started("-c", PROGRAM, "swallowed", tmp_path / "out.json") as process:
        assert process.stdout.readline() == "at swallowed\n"
        found = ended(process)

    assert found == (130, "python -m program: interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(60)
def test_clean_ups_may_take_their_time(tmp_path):
    with started("-c", PROGRAM, "clean-up", tmp_path / "out.json", tmp_path / "cleaned") as process:
        assert process.stdout.readline() == "at clean-up\n"
        found = ended(process)

    assert found == (130, "python -m program: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["cleaned"]


@pytest.mark.timeout(60)
def test_what_is_to_be_ignored_stays_ignored(tmp_path):
    """As Ctrl-C is in what a shell runs in the background."""
    with started("-c", PROGRAM, "work", tmp_path / "out.json", ignored=[signal.SIGINT]) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        assert ended(process, signal.SIGTERM)[0] == 143


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", ["solver", "weights", "launch", "hepti_mpi"])
def test_every_command_can_be_interrupted_while_it_is_imported(command):
    """From the first moment at which it catches SIGTERM, which Python itself does not."""
    with started("-m", command, "--help") as process:
        status = Path(f"/proc/{process.pid}/status")
        while not catches(status, signal.SIGTERM):
            assert process.poll() is None, "it has no handler"
            time.sleep(0.001)
        found = ended(process)

    assert found == (130, f"python -m {command}: interrupted\n")


def catches(status, number):
    """Return whether a process has a handler for a signal."""
    (mask,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> number - 1 & 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", [["--map", "map.svg"], *[["--out", "plan.json"], ["--compare"]] * ALL])
def test_a_planner_is_interrupted_in_the_midst_of_solving(what, tmp_path):
    """Its C libraries hold a signal up for milliseconds: one program of theirs is short."""
    words = [str(tmp_path / word) if "." in word else word for word in what]
    with started("-m", "solver", "--model", "bert-large", "--cluster", "mixed4", *words) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        while "/highspy/" not in maps.read_text():  # what solves is imported by now
            time.sleep(0.01)
        time.sleep(0.3)
        began = time.monotonic()
        found = ended(process)

    assert found == (130, "python -m solver: interrupted\n")
    assert time.monotonic() - began < 5
    assert list(tmp_path.iterdir()) == []


def test_for_a_block_another_handler_has_the_signals_that_are_heeded():
    """Not Ctrl-C where it is ignored: a comparison in a shell's background ended on it, and named a memory cap."""
    told = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopping.handled_by(lambda number, _: told.append(number)):
            for number in stopping.SIGNALS:
                signal.raise_signal(number)
        assert told == [signal.SIGTERM, signal.SIGHUP]
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == [signal.SIG_DFL] * 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("unbuffered", "command"),
    pairs(
        ["", "1"],
        [
            ("launch.front", "completion", "bash"),
            ("solver", "--model", "gpt2", "--cluster", "pi4", "--system", "single", "--json"),
            ("weights", "inspect", "MODEL"),
        ],
    ),
    ids=lambda given: given[0] if isinstance(given, tuple) else f"unbuffered={given}",
)
def test_where_nothing_can_be_printed_one_line_says_so(command, unbuffered, tmp_path, kept):
    model = tmp_path / "m.h5"
    if "MODEL" in command:
        assert weights(["synthesize", "bert-base", str(model), "--layers", "1"]) == 0
    words = [str(model) if word == "MODEL" else word for word in command]

    code, errors = printed_to_full(*words, PYTHONUNBUFFERED=unbuffered)

    assert code == 1
    kept(errors)


def test_help_that_cannot_be_printed_is_a_failure(kept):
    """Argparse passes over it, and exits with 0."""
    code, errors = printed_to_full("solver", "--help", PYTHONUNBUFFERED="")

    assert code == 1
    kept(errors)


def test_a_full_disk_of_another_file_is_not_taken_for_standard_output(capfd):
    error = OSError(errno.ENOSPC, "No space left on device")

    assert stopping.unwritten(error) is None
    assert stopping.unwritten(OSError(errno.ENOSPC, "No space left on device", "weights.h5")) is None


def printed_to_full(*command, **variables):
    """Run a module whose standard output takes nothing; return exit code and errors."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, env=os.environ | variables, stdout=full,
            stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    return done.returncode, done.stderr
