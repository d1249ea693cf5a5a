"""`bench compare` and its parts as a person meets them: one line and exit code 2 for what is wrong."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.base import shell
from launch.compare.model import bench_model
from launch.compare.stage import hosts_stage
from launch.start.mpirun import IN_THE_WAY, SSH_OPTIONS, mpirun_command
from solver.base.errors import HeptiError
from tests.kit import refusals

ROOT = Path(__file__).parents[3]
REFUSED = ROOT / "tests/launch/refusals/compare.txt"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gets as far")


def refused(done):
    """Return the one line that a refusal is."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_mistakes_are_one_line_before_anything_starts(tmp_path):
    refusals.check(REFUSED, {"python -m launch": main}, tmp_path)


@needs_root
def test_a_missing_tool_is_named_with_its_package(tmp_path):
    command = [sys.executable, "-m", "launch", "bench", "compare"]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60, "env": {"PATH": str(tmp_path)}}
    done = subprocess.run(command, check=False, **options)

    assert "needs the program ip" in refused(done)


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to become nobody")
def test_without_root_one_line_says_so():
    command = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-m", "launch", "bench", "compare"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if "launch:" not in done.stderr:
        pytest.skip("nobody may not run this interpreter")

    assert "a lab needs root" in refused(done)


def test_a_named_model_is_made_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = bench_model("vit-base", 1)
    made = first.path.stat().st_mtime_ns

    assert first.path == tmp_path / "hepti" / "vit-base-1-random.h5"
    assert (first.spec.name, first.spec.layers) == ("vit-base", 1)
    assert bench_model("vit-base", 1) == first
    assert first.path.stat().st_mtime_ns == made


def test_a_file_that_is_no_model_is_refused_in_its_own_words(tmp_path):
    path = tmp_path / "model.h5"
    path.write_text("nothing")

    with pytest.raises(HeptiError, match=r"model\.h5"):
        bench_model(str(path), None)


def test_hosts_of_a_hostfile_have_one_rank_each(tmp_path):
    path = tmp_path / "pis"
    path.write_text("pi-0 slots=1\npi-1 slots=4\npi-0 slots=2\n")
    stage = hosts_stage(path)

    assert (stage.name, stage.hosts) == ("pis", ("pi-0", "pi-1"))


def test_hosts_of_a_hostfile_are_reached_as_every_other_job_reaches_them(tmp_path, monkeypatch):
    """Where ssh would ask for a password it fails, and what README sets for one machine is not passed on."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\nenv\n")
    mpirun.chmod(0o755)
    told = {**os.environ, IN_THE_WAY[0]: ":oversubscribe", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    monkeypatch.setattr(shell, "environment", lambda: told)
    (tmp_path / "pis").write_text("pi-0\npi-1\n")

    assert hosts_stage(tmp_path / "pis").mpirun(["hostname"], tmp_path / "log") == 0
    log = (tmp_path / "log").read_text()
    assert "=".join(SSH_OPTIONS) in log
    assert IN_THE_WAY[0] not in log


def test_a_program_runs_on_this_host_without_ssh_where_it_would_under_mpirun(tmp_path):
    path = tmp_path / "pis"
    path.write_text("localhost\n")
    code, out, _ = hosts_stage(path).alone(0, [sys.executable, "-c", "import os; print(os.getcwd())"])

    assert (code, out.strip()) == (0, str(Path.cwd()))


def test_real_hosts_are_reached_by_ssh():
    assert "plm_ssh_agent" not in mpirun_command(2, 2, Path("/f"), None, ["x"])
