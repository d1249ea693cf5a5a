"""Emulated boards that the tests of this folder share. They take minutes: `make test-arm`, which first makes them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import checkpoints
from tests.kit.commands import ENVIRONMENT, ROOT

HERE = Path(__file__).parent
BOARDS = ROOT / ".arm"

# Like and unlike boards; both get a share of every layer.
CLUSTER = """
format = "hepti-cluster/1"
[[device]]
name = "pi-5"
gflops = 40
memory_gib = 1
[[device]]
name = "pi-4"
gflops = 24.6
memory_gib = 1
[network]
bandwidth_mbps = 940
latency_us = 200
"""


def pytest_collection_modifyitems(config, items):
    """Mark everything here, and skip it with the reason where it is not asked for or cannot run."""
    reason = None
    if "arm" not in config.option.markexpr:
        reason = "emulated boards take minutes: make test-arm"
    elif not (BOARDS / "made-of").exists():
        reason = "there are no emulated boards: make test-arm makes them"
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.arm)
            item.add_marker(pytest.mark.slow("its boards are emulated"))
            item.add_marker(pytest.mark.timeout(900))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason))


def board(name):
    """Return the Python of a board: "x86", which is this machine, "cortex-a72", "cortex-a76" or "broken"."""
    return sys.executable if name == "x86" else str(BOARDS / name)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arm")
    (folder / "cluster.toml").write_text(CLUSTER)
    return folder


@pytest.fixture(scope="session")
def environment(folder):
    """Return what a command on these boards needs, with a cache that knows of no trial of another session."""
    # PMIx's shared memory at fixed addresses does not survive the emulator.
    return ENVIRONMENT | {"PYTHONPATH": str(ROOT), "PMIX_MCA_gds": "hash", "XDG_CACHE_HOME": str(folder / "cache")}


@pytest.fixture(scope="session")
def run(environment):
    """Run a command to its end; it may fail."""

    def run(*words, timeout=600):
        command = [str(word) for word in words]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )

    return run


@pytest.fixture(scope="session")
def checkpoint(folder):
    checkpoints.make_checkpoint("bert", folder / "bert")
    return folder / "bert"
