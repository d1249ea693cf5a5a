"""At which scale a machine carries a lab."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.lab.capacity import (
    USABLE,
    choose_scale,
    core_count,
    memory_notes,
    placed,
    require_capacity,
    told_core_speed,
)
from launch.lab.lab import plan_lab
from launch.lab.limits import REAL_TIME_CORES
from solver.base.errors import HeptiError
from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.cluster.named import find_cluster
from tests import sweeps


def lab_of(gflops, memory_gib=1.0):
    devices = tuple(Device(f"pi-{n}", speed * 1e9, round(memory_gib * GIB)) for n, speed in enumerate(gflops))
    return plan_lab("lab", Cluster(devices, Link(940e6 / 8, 2e-4), {}))


def running(lab, core_gflops, scale):
    """Return the lab with the quotas of a scale, on cores of some speed."""
    hosts = tuple(replace(host, core_flop_per_s=core_gflops * 1e9 / scale) for host in lab.hosts)
    return replace(lab, hosts=hosts, scale=scale)


@pytest.mark.parametrize(
    ("gflops", "core_gflops", "scale"),
    [((24.6,), 93, 1.0), ((24.6, 70, 24.6, 10), 93, 0.91), ((24.6, 70, 24.6, 10), 30, 0.29), ((70,) * 8, 30, 0.067)],
)
def test_a_scale_leaves_room_for_cores_that_become_a_third_slower(gflops, core_gflops, scale):
    """Two cores; whole where it fits, else the largest of two digits."""
    lab = lab_of(gflops)

    assert choose_scale(lab, core_gflops * 1e9, 2 * USABLE) == scale
    cores = sum(host.cores for host in running(lab, core_gflops * 2 / 3, scale).hosts)
    assert cores <= 2 * USABLE


@settings(max_examples=sweeps.count(12, 100))
@given(
    st.lists(st.floats(1, 300), min_size=1, max_size=32),
    st.floats(1, 400),
    st.integers(1, 64),
)
def test_a_chosen_scale_always_fits(gflops, core_gflops, cores):
    scale = choose_scale(lab_of(gflops), core_gflops * 1e9, cores * USABLE)

    assert 0 < scale <= 1
    assert sum(host.cores for host in running(lab_of(gflops), core_gflops, scale).hosts) <= cores * USABLE


def test_hosts_at_a_scale_have_that_fraction_of_their_quota():
    whole, half = (running(plan_lab("lab", find_cluster("mixed4")), 93, scale) for scale in (1.0, 0.5))

    assert [host.cores for host in half.hosts] == pytest.approx([host.cores / 2 for host in whole.hosts])
    assert [host.compute_flop_per_s for host in half.hosts] == [host.compute_flop_per_s for host in whole.hosts]


def test_a_scale_that_is_too_large_is_refused_with_one_that_fits():
    speed = 60.0 * core_count()
    with pytest.raises(HeptiError, match=rf"{speed:.0f} GFLOP/s.* --scale 0.47 "):
        require_capacity(running(lab_of((speed,)), 30, 1.0))
    require_capacity(running(lab_of((speed,)), 30, 0.47))


def test_hosts_of_the_real_time_class_share_what_the_kernel_gives_out_once():
    """Whichever core they are on, and however many there are."""
    lab = replace(running(lab_of((20, 20)), 30, 1.0), real_time=True)

    with pytest.raises(HeptiError, match=rf"{REAL_TIME_CORES:.0%} of a core .* 26: "):
        require_capacity(lab)
    require_capacity(replace(running(lab_of((20, 20)), 30, 0.6), real_time=True))


def test_hosts_are_placed_where_there_is_most_left(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})

    assert [host.core for host in placed(lab_of((24.6, 70, 24.6, 10))).hosts] == [1, 0, 1, 1]


def test_a_host_that_would_get_nothing_is_named(kept):
    with pytest.raises(HeptiError) as caught:
        require_capacity(running(lab_of((50, 0.5)), 50, 0.01))
    kept(caught.value)


def test_memory_caps_above_the_machines_memory_are_a_note():
    """Eight Pi 5 with 8 GiB fit a machine of 24: a cap takes nothing."""
    assert memory_notes(lab_of((10,), 0.01)) == []
    (note,) = memory_notes(lab_of((10,) * 8, 2**13))
    assert "add up to 65536.0 GiB" in note


@pytest.mark.parametrize("told", ["abc", "", "0", "-3", "nan", "inf"])
def test_a_core_speed_that_is_none_is_refused(told, monkeypatch):
    monkeypatch.setenv("HEPTI_LAB_CORE_GFLOPS", told)

    with pytest.raises(HeptiError, match=f"HEPTI_LAB_CORE_GFLOPS is '{told}'"):
        told_core_speed()


def test_the_core_speed_is_the_one_that_is_told(monkeypatch):
    monkeypatch.setenv("HEPTI_LAB_CORE_GFLOPS", "30")
    assert told_core_speed() == 30e9
    monkeypatch.delenv("HEPTI_LAB_CORE_GFLOPS")
    assert told_core_speed() is None
