"""The doctor, over real ssh on a lab: it finds what is planted, and nothing where nothing is."""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from tests.lab.conftest import ROOT, lab_up

BOARDS = {"gflops": (40, 40, 40, 40), "mbps": 940, "memory_gib": 1.0}
HOSTFILE = "pi-0 slots=1\npi-1 slots=1\npi-2 slots=1\npi-3 slots=1\n"

# `make test` sets it, for many ranks on few cores; it would put all ranks on the first host.
OVERSUBSCRIBE = "PRTE_MCA_rmaps_default_mapping_policy"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with lab_up("ssh", tmp_path_factory.mktemp("ssh"), "--ssh", **BOARDS) as runner:
        yield runner


@pytest.fixture(scope="module")
def doctor(lab, tmp_path_factory):
    """Run the doctor on pi-0; return its exit code and {(host, check): problem}."""
    path = tmp_path_factory.mktemp("hostfile") / "pis"

    def run(*options, hostfile=HOSTFILE):
        path.write_text(hostfile)
        done = lab.on("pi-0", sys.executable, "-m", "launch", "doctor", "--hostfile", path, "--json", *options)
        findings = json.loads(done.stdout)["findings"]
        assert all(finding["mend"] for finding in findings)
        return done.returncode, {(entry["host"], entry["check"]): entry["problem"] for entry in findings}

    return run


@contextmanager
def planting(lab):
    """Break something on hosts for the block: `plant.mount(host, over, what)` and the like; all is mended after it."""
    planted = Planted(lab)
    try:
        yield planted
    finally:
        planted.mend()


RECORDED = pytest.mark.thorough("tests/launch/doctor finds it in recorded answers")

# A look takes ten seconds: in each several hosts have a fault of their own.


@pytest.fixture(scope="module")
def software(lab, doctor, tmp_path_factory):
    """Look at another Python on pi-1, another package on pi-2, and pi-3 bound to one core."""
    metadata_file = tmp_path_factory.mktemp("metadata") / "METADATA"
    facts = next(path for path in metadata.files("numpy") if path.name == "METADATA").locate()
    right = f"Version: {metadata.version('numpy')}"
    metadata_file.write_text(Path(facts).read_text().replace(right, "Version: 1.19.5", 1))
    with planting(lab) as plant:
        if other_python()[1] is not None:
            plant.mount("pi-1", Path(sys.executable).resolve(), other_python()[0])
        plant.mount("pi-2", facts, metadata_file)
        pid = plant.sshd("pi-3")
        plant.run("taskset", "-p", "1", pid, mend=["taskset", "-p", "3", pid])
        return doctor()


@pytest.fixture(scope="module")
def boards(lab, doctor, tmp_path_factory):
    """Look at a dead interface on pi-1, little memory on pi-2, and no interpreter on pi-3."""
    with planting(lab) as plant:
        # wlan0 is up and has an address, but is joined to nothing.
        wlan0 = ("type", "veth", "peer", "name", "air")
        plant.inside("pi-1", "link", "add", "wlan0", *wlan0, mend=["link", "del", "wlan0"])
        address = ("192.168.77.2/24", "dev", "wlan0")
        plant.inside("pi-1", "address", "add", *address, mend=["address", "flush", "dev", "wlan0"])
        plant.inside("pi-1", "link", "set", "wlan0", "up", mend=["link", "set", "wlan0", "down"])
        plant.mount("pi-3", Path(sys.executable).parent, tmp_path_factory.mktemp("empty"))
        lab.lab("set", "pi-2", "memory_gib=0.15")
        try:
            return doctor()
        finally:
            lab.lab("set", "pi-2", "memory_gib=1")


@pytest.fixture(scope="module")
def keys(lab, doctor):
    """Look at pi-3, which lets nobody in, and at pi-1 and pi-2, which do not reach each other."""
    file = Path(f"/run/hepti-lab/{lab.name}/ssh/pi-3/authorized_keys")
    text = file.read_text()
    route = ("blackhole", "10.83.0.3/32")
    with planting(lab) as plant:
        plant.inside("pi-1", "route", "add", *route, mend=["route", "del", *route])
        file.write_text("")
        try:
            return doctor()
        finally:
            file.write_text(text)


@pytest.fixture(scope="module")
def weights(lab, doctor, models, tmp_path_factory):
    """Look at other weights on pi-1, and none on pi-3."""
    right, wrong = models
    with planting(lab) as plant:
        plant.mount("pi-1", right, wrong)
        plant.mount("pi-3", right.parent, tmp_path_factory.mktemp("empty"))
        return doctor("--model", right)


@pytest.fixture(scope="module")
def slots(doctor):
    """Look at three wrong lines of a hostfile."""
    return doctor(hostfile="pi-0 slots=1\npi-1 slots=2\npi-2\npi-3 slots=1\npi-3 slots=1\n")


def other_python():
    """Return where this machine's own Python is and its version; None where that is the one that runs this."""
    found = shutil.which("python3", path="/usr/bin")
    if found is None:
        return None, None
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    return Path(found).resolve(), None if version == sys.version.split()[0] else version


def of(host, look):
    """Return {check: problem} of a host, of a look that found something."""
    code, found = look

    assert code == 1
    return {check: problem for (where, check), problem in found.items() if where == host}


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


@RECORDED
def test_a_healthy_lab_has_no_findings(doctor, models):
    assert doctor("--model", models[0]) == (0, {})


@pytest.mark.thorough("every run over ssh needs it")
def test_mpirun_works_over_ssh_without_any_flag(lab, tmp_path):
    """As the README says it: hostfile, ssh, nothing else."""
    path = tmp_path / "pis"
    path.write_text(HOSTFILE)
    program = [sys.executable, "-c", "import socket; print(socket.gethostname())"]
    plain = ("env", "-u", OVERSUBSCRIBE, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
    done = lab.on("pi-0", *plain, "mpirun", "-np", "4",
                  "--hostfile", path, *program)  # fmt: skip

    assert sorted(done.stdout.split()) == ["pi-0", "pi-1", "pi-2", "pi-3"]


@RECORDED
def test_no_ssh_to_a_host_is_found(keys):
    problems = of("pi-3", keys)

    assert problems.keys() == {"ssh"}
    assert "Permission denied" in problems["ssh"]
    assert not of("pi-0", keys)


@RECORDED
def test_no_ssh_between_two_workers_is_found(keys):
    assert of("pi-1", keys).keys() == of("pi-2", keys).keys() == {"ssh between hosts"}
    assert "cannot ssh to pi-2" in of("pi-1", keys)["ssh between hosts"]


@RECORDED
def test_another_python_is_found(software):
    version = other_python()[1]
    if version is None:
        pytest.skip("there is no second Python here")

    assert of("pi-1", software)["python"] == f"Python is {version}, on pi-0 {sys.version.split()[0]}"
    assert not of("pi-0", software)


@RECORDED
def test_another_package_version_is_found(software):
    assert of("pi-2", software) == {"package": f"numpy is 1.19.5, on pi-0 {metadata.version('numpy')}"}


@RECORDED
@pytest.mark.parametrize("host", ["pi-1", "pi-2", "pi-3"])
def test_two_ranks_on_a_host_are_found(host, slots):
    """Two slots, as many as there are cores, two lines."""
    assert of(host, slots).keys() == {"slots"}


@RECORDED
def test_binding_to_one_core_is_found(software):
    assert of("pi-3", software).keys() == {"binding"}


@RECORDED
def test_other_weights_are_found(weights):
    problems = of("pi-1", weights)

    assert problems.keys() == {"weights"}
    assert "has fingerprint" in problems["weights"]


@RECORDED
def test_a_board_but_rank_0_s_may_lack_the_weights(weights):
    assert not of("pi-3", weights)
    assert not of("pi-0", weights)
    assert not of("pi-2", weights)


def test_what_is_wrong_is_found_on_its_board_and_nothing_on_another(boards):
    """Another Python's place, too little memory, a dead interface: over real ssh, of a look at all of them at once."""
    dead, short, bare = (of(host, boards) for host in ("pi-1", "pi-2", "pi-3"))

    assert (dead.keys(), short.keys(), bare.keys()) == ({"interface"}, {"memory"}, {"interpreter"})
    assert "wlan0 (192.168.77.2)" in dead["interface"]
    assert "No such file" in bare["interpreter"]
    assert not of("pi-0", boards)


@pytest.mark.thorough("it takes a look of its own")
def test_a_right_hostfile_is_written(lab, tmp_path):
    """From a wrong one, the hosts tried."""
    wrong, right = tmp_path / "wrong", tmp_path / "right"
    wrong.write_text("pi-0\npi-1 slots=4\npi-1\n")
    done = lab.on("pi-0", sys.executable, "-m", "launch", "hostfile", wrong, "pi-2", "--out", right)

    assert done.returncode == 0, done.stderr
    assert right.read_text() == "pi-0 slots=1\npi-1 slots=1\npi-2 slots=1\n"


@pytest.mark.thorough("it takes a look of its own")
def test_a_hostfile_with_a_host_that_does_not_answer_is_not_written(lab, tmp_path):
    right = tmp_path / "right"
    done = lab.on("pi-0", sys.executable, "-m", "launch", "hostfile", "pi-0", "pi-9", "--out", right)

    assert done.returncode == 2
    assert "pi-9: its name does not resolve" in done.stderr
    assert not right.exists()
