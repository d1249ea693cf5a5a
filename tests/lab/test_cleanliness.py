"""Nothing outlives its command: not a run that is killed, not a lab that is down or has crashed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.lab import run as lab_run
from launch.lab.agent import on_host
from launch.lab.down import machine_cgroups, remove_groups
from launch.lab.down import processes as machine_processes
from launch.lab.lab import load_lab
from launch.lab.limits import cpu_files, real_time_files
from launch.lab.up import another, awake
from tests import sweeps
from tests.lab.conftest import (
    PROGRAMS,
    ROOT,
    LabRunner,
    cgroups,
    kill,
    lab_up,
    leftovers,
    own,
    wait_until,
    write_cluster,
)

CYCLES = sweeps.count(0, 9)
SMALL = {"gflops": (24.6, 10.0), "mbps": 940, "memory_gib": 0.5}


@pytest.mark.parametrize("seconds", [1.5, pytest.param(3, marks=pytest.mark.thorough("another moment"))])
def test_ctrl_c_while_a_lab_comes_up_is_one_line(seconds, tmp_path):
    """As a terminal sends it: to all processes of the group, those that measure among them."""
    path = write_cluster(tmp_path / f"{own('stop')}.toml", **SMALL)
    command = [sys.executable, "-m", "launch", "lab", "up", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)

    assert (process.returncode, errors.splitlines()[-1:]) == (130, ["python -m launch: interrupted"])
    assert "Traceback" not in errors
    assert leftovers(own("stop")) == []


def test_what_joins_a_lab_while_it_goes_down_goes_with_it():
    """A ticker's shell does, when Ctrl-C falls between its start and its first line."""
    group = machine_cgroups().memory_group(own("late")) / "ticker"
    group.mkdir(parents=True)
    late = ["bash", "-c", f"echo $$ > {group}/cgroup.procs && exec sleep 60"]
    with subprocess.Popen(late) as process:
        assert wait_until(lambda: machine_processes(group))

        remove_groups(group.parent)

        assert process.wait(5) == -signal.SIGKILL
    assert not group.parent.exists()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Give a lab that was up again after a crash."""
    folder = tmp_path_factory.mktemp("kill")
    path = write_cluster(folder / f"{own('kill')}.toml", **SMALL)
    process = subprocess.Popen([sys.executable, "-m", "launch", "lab", "up", str(path)], cwd=ROOT)
    time.sleep(2)
    kill(process.pid)
    process.wait()
    with lab_up("kill", folder, **SMALL) as lab:
        yield lab
    assert leftovers(own("kill")) == []


def test_up_after_a_crash_starts_afresh(small):
    assert small.json("hosts.py") == ["pi-0", "pi-1"]


def processes(lab, host="*", run="run-*"):
    """Return the processes of runs on the hosts of a lab."""
    groups = [group for group in cgroups() if group.match(f"hepti-lab.{lab.name}/{host}/{run}")]
    return {int(process) for group in groups for process in machine_processes(group)}


@pytest.mark.parametrize(
    "victim",
    ["launcher", "mpirun", pytest.param("rank 0", marks=pytest.mark.thorough("as rank 1")), "rank 1", "daemon"],
)
def test_a_run_killed_in_the_middle_leaves_no_process(small, victim):
    with small.running("idle.py") as process:
        running = processes(small)
        first, second = processes(small, "pi-0"), processes(small, "pi-1")
        ranks = {pid for pid in running if command(pid).startswith(sys.executable)}
        mpirun = next(iter(first - ranks))
        chosen = {
            "launcher": process.pid,
            "mpirun": mpirun,
            "rank 0": next(iter(first & ranks)),
            "rank 1": next(iter(second & ranks)),
            "daemon": next(iter(second - ranks)),
        }[victim]
        kill(chosen)

        assert wait_until(lambda: not processes(small), 20), [command(pid) for pid in processes(small)]
        assert wait_until(lambda: process.poll() is not None)


def test_ctrl_c_ends_a_run(small):
    command_line = [
        sys.executable,
        "-m",
        "launch",
        "lab",
        "run",
        small.name,
        "--",
        sys.executable,
        PROGRAMS / "idle.py",
    ]
    process = subprocess.Popen(command_line, cwd=ROOT, stdout=subprocess.PIPE, text=True, process_group=0)
    process.stdout.readline()
    os.killpg(process.pid, 2)

    assert process.wait(timeout=20) != 0
    assert processes(small) == set()


def test_another_lab_has_the_same_limits_stands_still_until_it_is_awake_and_goes(small):
    limits = quotas(small.name)
    with another(load_lab(small.name), own("twin")) as twin:
        idle = subprocess.Popen(on_host(twin, twin.hosts[1], ["sleep", "60"]))
        assert wait_until(lambda: processes(twin, run="shell"))
        with awake(twin):
            assert wait_until(lambda: state_of(idle.pid) == "S")
            assert quotas(twin.name) == limits
        assert wait_until(lambda: state_of(idle.pid) == "T")
        with awake(twin):
            assert wait_until(lambda: state_of(idle.pid) == "S")

    assert quotas(small.name) == limits
    assert idle.wait(timeout=10) == -9
    assert leftovers(own("twin")) == []


def test_a_run_that_has_lost_a_host_ends_when_told(small):
    """A host whose cable is cut keeps mpirun waiting without a word."""
    with small.running("idle.py") as process:
        small.lab("cut", "pi-1")
        try:
            process.terminate()

            assert process.wait(timeout=40) != 0
            assert processes(small) == set()
        finally:
            small.lab("mend", "pi-1")


def test_an_mpirun_that_runs_nothing_and_does_not_end_is_ended(small, tmp_path, monkeypatch, capfd, kept):
    """As it does where programs end as soon as they have begun."""
    waits = tmp_path / "mpirun"
    waits.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(1000)\n")
    waits.chmod(0o755)
    monkeypatch.setattr(lab_run.shell, "environment", lambda: os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    monkeypatch.setattr(lab_run, "IDLE_S", 2.0)

    assert lab_run.run(load_lab(small.name), 2, ["hostname"]) == 1

    kept(capfd.readouterr().err)
    assert processes(small) == set()


def test_a_program_that_is_not_there_is_one_line(small):
    done = small.launch("lab", "run", small.name, "--", "nosuchprog")

    assert done.returncode == 2
    assert done.stderr.count("there is no program nosuchprog") == 1


def test_down_clears_away_what_a_crash_left(tmp_path):
    """`up` killed at different moments; the state file may not even exist."""
    runner = LabRunner(own("crash"))
    path = write_cluster(tmp_path / f"{own('crash')}.toml", **SMALL)
    for seconds in (1.0, 2.0, 3.5):
        process = subprocess.Popen([sys.executable, "-m", "launch", "lab", "up", str(path)], cwd=ROOT)
        time.sleep(seconds)
        kill(process.pid)
        process.wait()
        runner.launch("lab", "down", runner.name)  # which finds nothing where nothing was made yet

        assert leftovers(runner.name) == []


def test_up_run_down_leaves_nothing(small, tmp_path):
    """Of the lab of all tests here, which is the last to need it, and in `make test-all` again and again."""
    take_down(small)
    for _ in range(CYCLES):
        with lab_up("cycle", tmp_path, **SMALL) as lab:
            take_down(lab)


def take_down(lab):
    """Take a lab down twice at once: the second command waits for the first, and finds nothing."""
    assert lab.json("hosts.py") == ["pi-0", "pi-1"]
    command = [sys.executable, "-m", "launch", "lab", "down", lab.name]
    both = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted((process.communicate()[1], process.returncode) for process in both)

    assert [code for _, code in said] == [0, 2]
    assert said[0][0] == ""
    assert f"lab {lab.name} is not up" in said[1][0]
    assert leftovers(lab.name) == []


def quotas(lab):
    """Return what holds its first two hosts to their shares."""
    cgroups = machine_cgroups()
    files = real_time_files(0.5, 0) if load_lab(lab).real_time else cpu_files(cgroups.cpu_version, 0.5)
    groups = [cgroups.cpu_group(lab, host) for host in ("pi-0", "pi-1")]
    return [{name: (group / name).read_text() for name, _ in files} for group in groups]


def state_of(pid):
    """Return the letter of a process's state: S sleeps, T stands still."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
