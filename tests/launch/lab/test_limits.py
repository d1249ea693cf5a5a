"""CPU and memory limits as files and values, for both versions of cgroups."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.lab.lab import Host
from launch.lab.limits import (
    FAIR,
    REAL_TIME,
    Cgroups,
    cpu_files,
    find_cgroups,
    kills_file,
    memory_files,
    parse_kills,
    real_time_files,
    weight_file,
)
from launch.lab.run import killed_line
from solver.base.errors import HeptiError
from solver.cluster.cluster import GIB
from tests import sweeps

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


def test_the_period_is_the_shortest_in_which_the_quota_is_long_enough():
    assert FAIR.quota_us(0.26) == (1040, 4000)
    assert FAIR.quota_us(0.10) == (1000, 10000)
    assert FAIR.quota_us(0.72) == (2880, 4000)
    assert FAIR.quota_us(1.5) == (6000, 4000)
    assert REAL_TIME.quota_us(0.10) == (205, 2047)
    assert REAL_TIME.quota_us(0.04) == (200, 5000)


@pytest.mark.parametrize("brake", [FAIR, REAL_TIME])
@settings(max_examples=sweeps.count(12, 100))
@given(cores=st.floats(0.001, 0.85))
def test_a_quota_gives_its_share_and_the_kernel_takes_it(brake, cores):
    quota, period = brake.quota_us(cores)

    assert quota >= brake.shortest_quota_us
    assert brake.shortest_period_us <= period <= 1_000_000
    assert quota / period == pytest.approx(cores, rel=3e-3)


def test_the_burst_is_taken_back_before_the_quota_changes():
    assert cpu_files(1, 0.26) == [
        ("cpu.cfs_burst_us", "0"),
        ("cpu.cfs_period_us", "4000"),
        ("cpu.cfs_quota_us", "1040"),
        ("cpu.cfs_burst_us", "1040"),
    ]
    assert cpu_files(2, 0.26) == [("cpu.max.burst", "0"), ("cpu.max", "1040 4000"), ("cpu.max.burst", "1040")]


@settings(max_examples=sweeps.count(12, 100))
@given(st.lists(st.floats(0.001, 0.85), min_size=1, max_size=6))
def test_a_share_of_the_real_time_class_is_never_above_or_below_what_it_was_and_will_be(every):
    """Above, its own group may not give it; below, the kernel refuses it while groups below it have as much."""
    files, share = {"cpu.rt_period_us": 1_000_000, "cpu.rt_runtime_us": 0}, 0.0  # of a new group
    for cores in every:
        before = share
        for name, value in real_time_files(cores, files["cpu.rt_period_us"]):
            files[name] = int(value)
            share = files["cpu.rt_runtime_us"] / files["cpu.rt_period_us"]
            assert 0.99 * min(before, cores) <= share <= 1.01 * max(before, cores)
        assert share == pytest.approx(cores, rel=3e-3)


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
def test_a_killed_rank_is_named(ranks, who, kept):
    host = Host("pi-3", "10.83.0.4", 1e10, 1e8, GIB)

    assert killed_line(host, 3, 4, ranks).startswith(f"{who} on pi-3 ")
    kept(killed_line(host, 3, 4, ranks))


def test_what_is_left_of_the_real_time_class_is_less_what_labs_have(tmp_path):
    def group(name, runtime, period):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "cpu.rt_runtime_us").write_text(f"{runtime}\n")
        (tmp_path / name / "cpu.rt_period_us").write_text(f"{period}\n")

    of_its_own = Cgroups(tmp_path, Path("/memory"), 1, 1)
    assert of_its_own.real_time_left == 0  # this kernel has no such files

    group("", 950000, 1000000)
    group("hepti-lab.one", 850000, 1000000)
    assert of_its_own.real_time_left == pytest.approx(0.1)
    assert Cgroups(tmp_path, tmp_path, 1, 1).real_time_left == 0
    assert Cgroups(tmp_path, tmp_path, 2, 2).real_time_left == 0
