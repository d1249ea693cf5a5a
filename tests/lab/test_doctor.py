"""The doctor, over real ssh on a lab: it finds what is planted, and nothing where nothing is."""

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.lab.conftest import ROOT, lab_up

PI4X3 = {"gflops": (24.6, 24.6, 24.6, 24.6), "mbps": 940, "memory_gib": 1.0}
HOSTFILE = "pi-0 slots=1\npi-1 slots=1\npi-2 slots=1\npi-3 slots=1\n"

# `make test` sets it, for many ranks on few cores; it would put all ranks on the first host.
OVERSUBSCRIBE = "PRTE_MCA_rmaps_default_mapping_policy"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with lab_up("ssh", tmp_path_factory.mktemp("ssh"), "--ssh", **PI4X3) as runner:
        yield runner


@pytest.fixture
def doctor(lab, tmp_path):
    """Run the doctor on pi-0; return its exit code and {(host, check): problem}."""

    def run(*options, hostfile=HOSTFILE):
        path = tmp_path / "pis"
        path.write_text(hostfile)
        done = lab.on("pi-0", sys.executable, "-m", "launch", "doctor", "--hostfile", path, "--json", *options)
        findings = json.loads(done.stdout)["findings"]
        assert all(finding["mend"] for finding in findings)
        return done.returncode, {(entry["host"], entry["check"]): entry["problem"] for entry in findings}

    return run


@pytest.fixture
def plant(lab):
    """Break something on a host for one test: `plant.mount(host, over, what)` and the like; all is mended after it."""
    planted = Planted(lab)
    yield planted
    planted.mend()


class Planted:
    """Faults on hosts, and how to take them back."""

    def __init__(self, lab):
        self.lab = lab
        self.mends = []

    def sshd(self, host):
        """Return the process number of a host's sshd: its sessions inherit what is done to it."""
        inside = subprocess.run(
            ["ip", "netns", "pids", f"hepti-lab.{self.lab.name}.{host}"], capture_output=True, text=True, check=True
        )
        return next(pid for pid in inside.stdout.split() if Path(f"/proc/{pid}/comm").read_text() == "sshd\n")

    def run(self, *words, mend):
        """Run a command that breaks something, and note the one that takes it back."""
        subprocess.run([str(word) for word in words], check=True)
        self.mends.append([str(word) for word in mend])

    def mount(self, host, over, what):
        """Put a file in the place of another, for sessions on one host only."""
        enter = ["nsenter", f"--target={self.sshd(host)}", "--mount"]
        self.run(*enter, "mount", "--bind", what, over, mend=[*enter, "umount", over])

    def inside(self, host, *words, mend):
        """Run `ip` in a host's network namespace."""
        ip = ["ip", "-n", f"hepti-lab.{self.lab.name}.{host}"]
        self.run(*ip, *words, mend=[*ip, *mend])

    def mend(self):
        """Take everything back."""
        for words in reversed(self.mends):
            subprocess.run(words, check=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two weights files of the same shape with different numbers."""
    folder = tmp_path_factory.mktemp("models")
    paths = [folder / "right.h5", folder / "wrong.h5"]
    for seed, path in enumerate(paths):
        command = [
            sys.executable,
            "-m",
            "weights",
            "synthesize",
            "minilm-l6",
            path,
            "--layers",
            "1",
            "--seed",
            str(seed),
        ]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return paths


def test_a_healthy_lab_has_no_findings(doctor, models):
    assert doctor("--model", models[0]) == (0, {})


def test_mpirun_works_over_ssh_without_any_flag(lab, tmp_path):
    """As the README says it: hostfile, ssh, nothing else."""
    path = tmp_path / "pis"
    path.write_text(HOSTFILE)
    program = [sys.executable, "-c", "import socket; print(socket.gethostname())"]
    plain = ("env", "-u", OVERSUBSCRIBE, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
    done = lab.on("pi-0", *plain, "mpirun", "-np", "4",
                  "--hostfile", path, *program)  # fmt: skip

    assert sorted(done.stdout.split()) == ["pi-0", "pi-1", "pi-2", "pi-3"]


def test_no_ssh_to_a_host_is_found(doctor, lab):
    keys = Path(f"/run/hepti-lab/{lab.name}/ssh/pi-3/authorized_keys")
    text = keys.read_text()
    keys.write_text("")
    try:
        code, found = doctor()
    finally:
        keys.write_text(text)

    assert code == 1
    assert found.keys() == {("pi-3", "ssh")}
    assert "Permission denied" in found["pi-3", "ssh"]


def test_no_ssh_between_two_workers_is_found(doctor, plant):
    plant.inside(
        "pi-1", "route", "add", "blackhole", "10.83.0.3/32", mend=["route", "del", "blackhole", "10.83.0.3/32"]
    )
    code, found = doctor()

    assert code == 1
    assert found.keys() == {("pi-1", "ssh between hosts"), ("pi-2", "ssh between hosts")}
    assert "cannot ssh to pi-2" in found["pi-1", "ssh between hosts"]


def test_another_python_is_found(doctor, plant):
    other = shutil.which("python3", path="/usr/bin")
    version = (
        other and subprocess.run([other, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    )
    if version in (None, sys.version.split()[0]):
        pytest.skip("there is no second Python here")
    plant.mount("pi-1", Path(sys.executable).resolve(), Path(other).resolve())
    code, found = doctor()

    assert code == 1
    assert found["pi-1", "python"] == f"Python is {version}, on pi-0 {sys.version.split()[0]}"
    assert {host for host, _ in found} == {"pi-1"}


def test_another_package_version_is_found(doctor, plant, tmp_path):
    facts = next(path for path in metadata.files("numpy") if path.name == "METADATA").locate()
    changed = tmp_path / "METADATA"
    changed.write_text(Path(facts).read_text().replace(f"Version: {metadata.version('numpy')}", "Version: 1.19.5", 1))
    plant.mount("pi-2", facts, changed)
    code, found = doctor()

    assert code == 1
    assert found == {("pi-2", "package"): f"numpy is 1.19.5, on pi-0 {metadata.version('numpy')}"}


def test_an_interpreter_elsewhere_is_found(doctor, plant, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    plant.mount("pi-2", Path(sys.executable).parent, empty)
    code, found = doctor()

    assert code == 1
    assert found.keys() == {("pi-2", "interpreter")}
    assert "No such file" in found["pi-2", "interpreter"]


@pytest.mark.parametrize("line", ["pi-1 slots=2", "pi-1", "pi-1 slots=1\npi-1 slots=1"])
def test_two_ranks_on_a_host_are_found(doctor, line):
    code, found = doctor(hostfile=HOSTFILE.replace("pi-1 slots=1", line))

    assert code == 1
    assert found.keys() == {("pi-1", "slots")}


def test_binding_to_one_core_is_found(doctor, plant):
    pid = plant.sshd("pi-3")
    plant.run("taskset", "-p", "1", pid, mend=["taskset", "-p", "3", pid])
    code, found = doctor()

    assert code == 1
    assert found.keys() == {("pi-3", "binding")}


def test_too_little_memory_is_found(doctor, lab):
    lab.lab("set", "pi-2", "memory_gib=0.15")
    try:
        code, found = doctor()
    finally:
        lab.lab("set", "pi-2", "memory_gib=1")

    assert code == 1
    assert found.keys() == {("pi-2", "memory")}


def test_other_weights_are_found(doctor, plant, models):
    right, wrong = models
    plant.mount("pi-1", right, wrong)
    code, found = doctor("--model", right)

    assert code == 1
    assert found.keys() == {("pi-1", "weights")}
    assert "most hosts have" in found["pi-1", "weights"]


def test_missing_weights_are_found(doctor, plant, models, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    plant.mount("pi-3", models[0].parent, empty)
    code, found = doctor("--model", models[0])

    assert code == 1
    assert found.keys() == {("pi-3", "weights")}


def test_a_dead_interface_is_found(doctor, plant):
    """wlan0 is up and has an address, but is joined to nothing."""
    plant.inside("pi-1", "link", "add", "wlan0", "type", "veth", "peer", "name", "air", mend=["link", "del", "wlan0"])
    plant.inside("pi-1", "address", "add", "192.168.77.2/24", "dev", "wlan0", mend=["address", "flush", "dev", "wlan0"])
    plant.inside("pi-1", "link", "set", "wlan0", "up", mend=["link", "set", "wlan0", "down"])
    code, found = doctor()

    assert code == 1
    assert found.keys() == {("pi-1", "interface")}
    assert "wlan0 (192.168.77.2) is up, but its cable is not" in found["pi-1", "interface"]


def test_a_right_hostfile_is_written(lab, tmp_path):
    """From a wrong one, the hosts tried."""
    wrong, right = tmp_path / "wrong", tmp_path / "right"
    wrong.write_text("pi-0\npi-1 slots=4\npi-1\n")
    done = lab.on("pi-0", sys.executable, "-m", "launch", "hostfile", wrong, "pi-2", "--out", right)

    assert done.returncode == 0, done.stderr
    assert right.read_text() == "pi-0 slots=1\npi-1 slots=1\npi-2 slots=1\n"


def test_a_hostfile_with_a_host_that_does_not_answer_is_not_written(lab, tmp_path):
    right = tmp_path / "right"
    done = lab.on("pi-0", sys.executable, "-m", "launch", "hostfile", "pi-0", "pi-9", "--out", right)

    assert done.returncode == 2
    assert "pi-9 does not answer ssh" in done.stderr
    assert not right.exists()
