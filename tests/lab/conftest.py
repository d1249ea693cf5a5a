"""Labs that the tests of this folder share. They need root and tc and take minutes: `pytest -m lab tests/lab`."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from launch.lab.lab import plan_lab
from launch.lab.up import scaled
from solver.cluster.cluster import read_cluster
from tests.kit.clusters import cluster_text

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"

# Odd speeds and an odd bandwidth beside a usual one. Both are up at the same time.
ODD = {"gflops": (13.0, 33.0), "mbps": 333, "memory_gib": 1.0}
USUAL = {"gflops": (24.6, 10.0, 12.3), "mbps": 940, "memory_gib": 1.0}


def pytest_collection_modifyitems(config, items):
    """Mark everything here, and skip it with the reason where it is not asked for or cannot run."""
    reason = None
    if "lab" not in config.option.markexpr:
        reason = "takes minutes and the machine's cores: pytest -m lab tests/lab"
    elif os.geteuid() != 0:
        reason = "needs root"
    elif missing := [tool for tool in ("ip", "tc", "mpirun", "nsenter") if shutil.which(tool) is None]:
        reason = f"needs {missing[0]}"
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.lab)
            item.add_marker(pytest.mark.slow("hosts are made, and measured"))
            item.add_marker(pytest.mark.timeout(900))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason))


class LabRunner:
    """The commands as a person types them, for one lab."""

    def __init__(self, name):
        self.name = name
        self.scale = 1.0

    def launch(self, *words, timeout=120):
        """Run `python -m launch …` to its end; `timeout` is in the lab's seconds."""
        return subprocess.run(
            [sys.executable, "-m", "launch", *map(str, words)],
            cwd=ROOT, capture_output=True, text=True, timeout=timeout / self.scale, check=False,
        )  # fmt: skip

    def lab(self, command, *words, **options):
        """Run `lab COMMAND NAME …`, which must succeed; return what it prints."""
        done = self.launch("lab", command, self.name, *words, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, program, *words, ranks=None):
        """Run a program of ours on the lab; return the JSON of its last line."""
        np = ["--np", ranks] if ranks else []
        out = self.lab("run", *np, "--", sys.executable, PROGRAMS / program, *words)
        return json.loads(out.splitlines()[-1])

    def on(self, host, *words, timeout=120):
        """Run a command on a host; it may fail."""
        return self.launch("lab", "shell", self.name, host, "--", *words, timeout=timeout)

    @contextmanager
    def running(self, program, *words, ranks=None):
        """Start a program of ours; the block begins when it has said its first word."""
        np = ["--np", str(ranks)] if ranks else []
        command = [sys.executable, "-m", "launch", "lab", "run", self.name, *np, "--", sys.executable]
        process = subprocess.Popen(
            [*command, str(PROGRAMS / program), *map(str, words)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            assert process.stdout.readline(), process.stderr.read()
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=60)


def own(word):
    """Return a lab name that no other test session on this machine uses."""
    return f"test-{word}-{os.getpid()}"


def write_cluster(path, gflops, mbps, memory_gib, links=""):
    devices = [f"gflops = {speed}\nmemory_gib = {memory_gib}" for speed in gflops]
    network = f"bandwidth_mbps = {mbps}\nlatency_us = 200"
    path.write_text(cluster_text(*devices, network=network, links=links))
    return path


def half_scale(path):
    """Return the option for half of the scale that a lab would have by itself."""
    alone = scaled(plan_lab("half", read_cluster(path)), None)
    return ("--scale", f"{alone.scale / 2:.4g}")


@contextmanager
def lab_up(word, folder, *options, half=False, **settings):
    """Bring a lab up for the block, `half` where another works beside it."""
    name = own(word)
    runner = LabRunner(name)
    path = write_cluster(folder / f"{name}.toml", **settings)
    options += half_scale(path) if half else ()
    done = runner.launch("lab", "up", path, "--json", *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    runner.measured, runner.notes, runner.scale = report["hosts"], report["notes"], report["scale"]
    try:
        yield runner
    finally:
        runner.launch("lab", "down", name)


@pytest.fixture(scope="session")
def odd(tmp_path_factory):
    """Two hosts with odd speeds and an odd bandwidth."""
    with lab_up("odd", tmp_path_factory.mktemp("odd"), half=True, **ODD) as runner:
        yield runner


@pytest.fixture(scope="session")
def usual(tmp_path_factory):
    """Three hosts at 940 Mbps, the first a Raspberry Pi 4."""
    with lab_up("usual", tmp_path_factory.mktemp("usual"), half=True, **USUAL) as runner:
        yield runner


def cgroups():
    """Return all cgroups; those that go meanwhile are passed over."""
    return [Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup")]


def leftovers(name):
    """Return everything on this machine that carries a lab's name: namespaces, links, cgroups, processes, files."""
    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    groups = [str(group) for group in cgroups() if group.name == f"hepti-lab.{name}"]
    processes = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/environ")
        if f"/run/hepti-lab/{name}/".encode() in _read(path)
    ]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    found = re.findall(rf"hepti-lab\.{name}\.\S+", namespaces) + re.findall(r"port\d+", links)
    return [*found, *groups, *processes, *map(str, Path("/run/hepti-lab").glob(name))]


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


def kill(process_id):
    os.kill(process_id, signal.SIGKILL)


def wait_until(condition, seconds=10.0):
    """Wait for something to become true; return whether it did."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False
