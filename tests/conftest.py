"""What all tests share."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

# Before numpy and torch are imported: their threads of several tests at once would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tables are as wide as where there is no terminal; pytest-xdist says 80.
os.environ.pop("COLUMNS", None)

import pytest
from hypothesis import HealthCheck, settings

from tests import sweeps
from tests.kit.durations import Durations
from tests.kit.kept import Kept

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What is drawn is no matter of how busy the machine is; and as the few cases of a sweep, it is the same every time.
settings.register_profile(
    "sweeps", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not sweeps.ALL
)
settings.load_profile("sweeps")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Let HEPTI_TEST_SEED repeat what hypothesis draws, too."""
    if sweeps.ALL and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = sweeps.SEED
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave to `make test-all` what is thorough: the same promise at another size, seed or level."""
    for item in items:
        for mark in item.iter_markers():
            assert mark.name not in ("slow", "thorough") or mark.args, f"{item.nodeid}: @{mark.name} says its reason"
    left = [item for item in items if not sweeps.ALL and item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Say what ended a worker of pytest-xdist that went down: minus a signal, or its exit code."""
    if error:
        process = node.gateway._io.popen
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        print(f"\n{node.gateway.id} (process {process.pid}) ended with {process.returncode}", file=sys.stderr)


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch):
    """On a busy machine short work may take long enough to say how far it is."""
    monkeypatch.setattr("solver.base.progress._LINE_S", 600.0)


@pytest.fixture
def kept(request, tmp_path):
    """Return what asserts that a text is as it is kept beside the test: `tests/kit/kept.py`."""
    return Kept(request.node, tmp_path)


def pytest_report_header():
    """Say which sweep this is, so that it can be repeated."""
    return f"sweeps: all cases, HEPTI_TEST_SEED={sweeps.SEED}" if sweeps.ALL else "sweeps: a few cases of each"
