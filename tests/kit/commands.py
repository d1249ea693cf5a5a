"""The commands as a person starts them: from outside, in a clean environment, never without a time limit."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "HOME": os.environ.get("HOME", "/"),
    "LANG": "C.UTF-8",
    # As in the Makefile: more ranks than cores, and Open MPI refuses root without being told twice.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def heed():
    """Take Ctrl-C, which what a shell has started in the background ignores, and what that starts, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def start(*command, timeout=60, **variables):
    """Start a command with pipes for its input and output; end it when the block ends or time is up."""
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=ROOT, env=ENVIRONMENT | variables, encoding="utf-8",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed,
    )  # fmt: skip
    timer = Timer(timeout, process.terminate)
    timer.start()
    try:
        with process:
            yield process
            assert timer.is_alive(), f"{' '.join(process.args)}: took more than {timeout} s"
    finally:
        timer.cancel()
        if process.poll() is None:
            process.terminate()
            process.wait(10)


def run(*command, stdin="", **options):
    """Run a command to its end."""
    with start(*command, **options) as process:
        stdout, stderr = process.communicate(stdin)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def mpirun(ranks, *arguments):
    """Return the command that starts a job."""
    return ("mpirun", "-np", ranks, sys.executable, "-m", "hepti_mpi", *arguments)


def hepti(ranks, *arguments, **options):
    """Run a job to its end."""
    return run(*mpirun(ranks, *arguments), **options)


def weights(*arguments, **options):
    return run(sys.executable, "-m", "weights", *arguments, **options)


def solver(*arguments, **options):
    return run(sys.executable, "-m", "solver", *arguments, **options)


def succeeded(done):
    """Check that a command had nothing to complain about."""
    assert done.returncode == 0, done.stderr
    assert not complaints(done)
    return done


def complaints(done):
    """Return the lines of stderr that are ours; mpirun adds its own to those of a rank."""
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("python -m ")]
