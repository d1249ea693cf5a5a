"""CPU and memory limits as files and values, for both versions of cgroups."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.lab.lab import Host
from launch.lab.limits import (
    cpu_files,
    find_cgroups,
    kills_file,
    memory_files,
    parse_kills,
    quota_us,
    weight_file,
)
from launch.lab.run import killed_line
from solver.base.errors import HeptiError
from solver.cluster.cluster import GIB

V1 = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"


def test_controllers_of_version_1_have_a_tree_each():
    found = find_cgroups(V1)

    assert (found.cpu_version, found.memory_version) == (1, 1)
    assert found.groups("lab", "pi-0") == (
        Path("/sys/fs/cgroup/cpu,cpuacct/hepti-lab.lab/pi-0"),
        Path("/sys/fs/cgroup/memory/hepti-lab.lab/pi-0"),
    )


def test_version_2_has_one_tree():
    found = find_cgroups(V2)

    assert (found.cpu_version, found.memory_version) == (2, 2)
    assert found.groups("lab") == (Path("/sys/fs/cgroup/hepti-lab.lab"),)
    assert found.cpu_group("lab", "pi-1") == found.memory_group("lab", "pi-1")


def test_machines_without_cgroups_are_refused():
    with pytest.raises(HeptiError, match="cpu and memory is mounted"):
        find_cgroups("proc /proc proc rw 0 0\n")


def test_the_period_is_the_shortest_with_a_millisecond_of_quota():
    assert quota_us(0.26) == (1040, 4000)
    assert quota_us(0.10) == (1000, 10000)
    assert quota_us(0.72) == (2880, 4000)
    assert quota_us(1.5) == (6000, 4000)


@given(st.floats(0.001, 64))
def test_a_quota_gives_its_share_and_the_kernel_takes_it(cores):
    quota, period = quota_us(cores)

    assert quota >= 1000
    assert 1000 <= period <= 1_000_000
    assert quota / period == pytest.approx(cores, rel=2e-3)


def test_the_burst_is_taken_back_before_the_quota_changes():
    assert cpu_files(1, 0.26) == [
        ("cpu.cfs_burst_us", "0"),
        ("cpu.cfs_period_us", "4000"),
        ("cpu.cfs_quota_us", "1040"),
        ("cpu.cfs_burst_us", "1040"),
    ]
    assert cpu_files(2, 0.26) == [("cpu.max.burst", "0"), ("cpu.max", "1040 4000"), ("cpu.max.burst", "1040")]


def test_labs_come_before_other_programs():
    assert weight_file(1) == ("cpu.shares", "262144")
    assert weight_file(2) == ("cpu.weight", "10000")


def test_memory_caps_leave_no_way_out_into_swap():
    assert memory_files(2, GIB) == [("memory.swap.max", "0"), ("memory.max", str(GIB))]
    assert memory_files(1, GIB) == [
        ("memory.memsw.limit_in_bytes", "-1"),
        ("memory.limit_in_bytes", str(GIB)),
        ("memory.memsw.limit_in_bytes", str(GIB)),
    ]


def test_kills_are_counted_where_the_kernel_counts_them():
    host = Path("/cg/hepti-lab.lab/pi-0")

    assert kills_file(1, host, "run-1") == host / "run-1" / "memory.oom_control"
    assert kills_file(2, host, "run-1") == host / "memory.events"
    assert parse_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n") == 3
    assert parse_kills("low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n") == 1
    assert parse_kills("") == 0


@pytest.mark.parametrize(("ranks", "who"), [(4, "rank 3"), (8, "rank 3 or 7")])
def test_a_killed_rank_is_named(ranks, who):
    host = Host("pi-3", "10.83.0.4", 1e10, 1e8, GIB)

    assert killed_line(host, 3, 4, ranks) == f"{who} on pi-3 was killed: it broke its memory cap of 1.00 GiB"
