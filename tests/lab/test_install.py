"""From boards with nothing but Python to an answer: `hepti install` over ssh, then `hepti run`; and the Ansible role.

pi-0 is the person's machine, with an environment of wheels; the others have nothing where that lies: over its folder,
over the environment that runs this and over the cache each has mounted an empty folder of its own. No host of a lab has
a way to the Internet: this machine has fetched the wheels before.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.conftest import ROOT, lab_up
from tests.lab.test_doctor import Planted

BOARDS = ("pi-1", "pi-2", "pi-3")
MOST_LIGHT_BYTES = 120e6  # without onnxruntime's packages
# 600 MB of tmpfs are a board's memory, too.
SETTINGS = {"gflops": (40, 40, 30, 30), "mbps": 940, "memory_gib": 2.0}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder whose `env` is an environment as a person has it, and whose `cache` has the wheels for boards."""
    folder = tmp_path_factory.mktemp("home")
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}

    def pack(python):
        here = f"localhost,{socket.gethostname()}"  # the first gets the full set, the second a light one
        words = ["-m", "launch", "install", "--hosts", here, "--wheels", folder / "wheels", "--json"]
        done = subprocess.run(
            [python, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return Path(json.loads(done.stdout)["boards"][0]["wheels"])

    shutil.unpack_archive(pack(sys.executable), folder / "unpacked", "tar")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    subprocess.run(["sh", folder / "unpacked" / "install.sh", sys.executable, folder / "env"], check=True)
    del environment["PYTHONPATH"]
    pack(folder / "env" / "bin" / "python")
    (folder / "cwd").mkdir()
    subprocess.run(
        [sys.executable, "-m", "weights", "synthesize", "minilm-l6", folder / "cwd" / "minilm.h5", "--layers", "1"],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with lab_up("install", tmp_path_factory.mktemp("lab"), "--ssh", **SETTINGS) as runner:
        yield runner


@pytest.fixture
def bare(lab, home):
    """Let boards have nothing of ours for a test."""
    cache = Path.home() / ".cache" / "hepti"
    cache.mkdir(parents=True, exist_ok=True)
    planted = Planted(lab)
    try:
        for board in BOARDS:
            enter = ["nsenter", f"--target={planted.sshd(board)}", "--mount"]
            for folder in (home, Path(sys.prefix), cache):
                planted.run(*enter, "mount", "-t", "tmpfs", "tmpfs", folder, mend=[*enter, "umount", "-l", folder])
        yield
    finally:
        planted.mend()


@pytest.fixture
def on_pi_0(bare, lab, home):
    """Run a program on pi-0 as a person there does, in a folder that boards do not have."""

    def run(program, *words):
        variables = [f"XDG_CACHE_HOME={home}/cache", f"PATH={home}/env/bin:{Path(sys.prefix)}/bin:/usr/bin:/bin"]
        alone = ["env", "-C", home / "cwd", "-u", "PYTHONPATH", *variables]
        return lab.on("pi-0", *alone, program, *words, timeout=900)

    return run


def test_from_nothing_to_an_answer(on_pi_0, home):
    """Installed, nothing done the second time, and all three boards compute."""
    model = home / "cwd" / "minilm.h5"
    install = ("hepti", "install", "--hosts", ",".join(BOARDS), "--model", model.name, "--json")
    reports = []
    for _ in range(2):
        done = on_pi_0(*install)
        assert done.returncode == 0, done.stdout + done.stderr
        reports.append(json.loads(done.stdout))
    first, second = (report["boards"] for report in reports)

    assert reports[0]["healthy"]
    assert [board["set"]["full"] for board in first] == [True, False, False]
    assert all(board["done"].startswith("installed ") and "got minilm.h5" in board["done"] for board in first)
    assert [board["done"] for board in second] == ["was right already; has minilm.h5"] * 3
    assert max(board["size_bytes"] - board["kernels_bytes"] for board in first[1:]) < MOST_LIGHT_BYTES

    share = ("--model", model, "--random", "16", "--system", "megatron", "--report", home / "report.json")
    done = on_pi_0("hepti", "run", "--hosts", ",".join(BOARDS), *share)

    assert done.returncode == 0, done.stderr
    assert "3 ranks on 3 hosts: pi-1" in done.stderr


def test_the_ansible_role_does_the_same(on_pi_0, home):
    """Twice: the second time nothing changes, and the command finds all as it would have made it."""
    model = home / "cwd" / "minilm.h5"
    variables = {"hepti_wheels": str(home / "wheels"), "hepti_model": str(model)}
    play = ("-i", ",".join(BOARDS), "-e", json.dumps(variables), ROOT / "deploy" / "install.yml")
    recaps = []
    for _ in range(2):
        done = on_pi_0("ansible-playbook", *play)
        assert done.returncode == 0, done.stdout + done.stderr
        recaps.append(done.stdout.partition("PLAY RECAP")[2])

    assert recaps[0].count("changed=0") == 0
    assert recaps[1].count("changed=0") == 3
    done = on_pi_0("hepti", "install", "--hosts", ",".join(BOARDS), "--json")
    assert [board["done"] for board in json.loads(done.stdout)["boards"]] == ["was right already"] * 3
    done = on_pi_0("hepti", "run", "--hosts", ",".join(BOARDS), "--model", model, "--random", "16")
    assert done.returncode == 0, done.stderr
