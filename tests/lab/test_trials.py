"""Hosts that are restarted, disks that are full, and the trials of a service that need them, in short."""

import json

import pytest

from tests.lab.conftest import LabRunner, lab_up, own, write_cluster

SMALL = {"gflops": (13.0, 13.0, 10.0), "mbps": 940, "memory_gib": 1.0}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Three hosts with sshd."""
    with lab_up("hosts", tmp_path_factory.mktemp("hosts"), "--ssh", half=True, **SMALL) as lab:
        yield lab


def test_a_host_that_was_killed_is_booted_and_only_then(lab):
    """Over ssh, as others reach it."""
    reach = ("ssh", "-o", "BatchMode=yes", "pi-1", "true")
    up = lab.launch("lab", "boot", lab.name, "pi-1")
    assert (up.returncode, up.stdout) == (2, "")
    assert "pi-1 is up, with 1 processes" in up.stderr
    lab.lab("kill", "pi-1")
    assert lab.on("pi-0", *reach).returncode

    lab.lab("boot", "pi-1")

    assert lab.on("pi-0", *reach).returncode == 0


def test_a_full_disk_takes_nothing_until_it_is_cleared(lab):
    """Neither a byte nor a folder; what was there stays."""
    write, make = 'echo word > "$TMPDIR/file"', 'mkdir "$TMPDIR/folder"'
    assert lab.on("pi-1", "bash", "-c", write).returncode == 0
    lab.lab("fill", "pi-1")
    for command in (write.replace("file", "other"), make):
        assert "No space left" in lab.on("pi-1", "bash", "-c", command).stderr
    assert lab.on("pi-0", "bash", "-c", make).returncode == 0
    assert lab.on("pi-1", "bash", "-c", 'cat "$TMPDIR/file"').stdout == "word\n"
    assert json.loads(lab.lab("status", "--json"))["hosts"][1]["disk_full"]

    lab.lab("clear", "pi-1")

    assert lab.on("pi-1", "bash", "-c", f"{make} && rm -r $TMPDIR/folder $TMPDIR/file").returncode == 0


def trial(name, tmp_path, *options):
    """Run a trial of a service on a lab of its own; return its report."""
    path = write_cluster(tmp_path / f"{own(name)}.toml", **SMALL)
    return LabRunner(path.stem).launch("bench", name, "--cluster", path, "--json", *options, timeout=600)


def test_full_disks_and_hosts_that_are_restarted_lose_nothing(tmp_path):
    sorts = ["disk full", "host restarted", "rank 0's host restarted"]
    done = trial("faults", tmp_path, "--sorts", ",".join(sorts), "--faults", 3, "--requests", 20)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["lost"], report["again"], report["different"], report["left"]) == ([], 0, 0, 0), report
    assert sorted(fault["fault"] for fault in report["faults"]) == sorts


def test_a_short_day_loses_nothing_and_leaves_nothing(tmp_path):
    """Latency and memory are shown by a long one, on a machine of its own."""
    done = trial("day", tmp_path, "--requests", 400, "--clients", 16, "--every", 10)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["lost"], report["restarts"], report["left"]) == ([], 0, 0), report
    assert report["requests"] >= 400
    assert sum(map(len, report["replans"].values())), report
    # One may be closed that was open at first: of whoever asked whether the service is ready.
    assert len(report["processes"]) == 7
    assert max(found["descriptors"] for found in report["processes"]) <= 0
