"""A profile describes every rank, fits the planner, and survives its file."""

import time
from dataclasses import replace
from functools import partial
from itertools import cycle

import numpy as np
import pytest

from hepti_mpi.base.memory import own_bytes
from hepti_mpi.kernels.products import NUMPY
from hepti_mpi.measure import profile as measure
from hepti_mpi.measure import profile_kernels, timing
from hepti_mpi.measure.profile_kernels import measure_kernels
from solver.base import clock
from solver.cluster.board import free_bytes
from solver.cluster.cluster import read_cluster, write_cluster
from solver.cluster.curves import Kernel
from solver.model.spec import TextInput, encoder
from solver.systems import make_plan

SPEC = encoder("small", hidden=64, ffn=256, heads=4, layers=2, input=TextInput(50, 128, 128))


def test_a_profile_describes_every_rank(world, monkeypatch, tmp_path):
    """Names, speeds, memory, links and all curves; the same on all ranks."""
    monkeypatch.setattr(timing, "LEAST_S", 0.005)
    monkeypatch.setattr(timing, "MOST_S", 0.05)

    cluster = measure.profile(SPEC, world, "numpy")

    assert len(set(cluster.names)) == world.size
    assert len(set(world.on_all(lambda: cluster.fingerprint))) == 1
    assert all(0 < device.memory_bytes <= 2 * free_bytes() for device in cluster.devices)
    assert all(device.curves is not None and set(device.curves.kernels) == set(Kernel) for device in cluster.devices)
    assert all(0 <= seconds < 1 for device in cluster.devices for seconds in (device.jitter_s, device.rest_s))
    assert cluster.network.bandwidth_bytes_per_s > 1e6
    path = tmp_path / "cluster.toml"
    write_cluster(cluster, path)
    assert read_cluster(path).fingerprint == cluster.fingerprint
    plan = make_plan("sequence-weighted", SPEC, cluster, 32)
    plan.check(SPEC, world.size)
    assert plan.predicted.seconds > 0


def test_what_it_measured_with_counts_as_free(world, monkeypatch):
    """Freed arrays serve again instead of going back to the kernel: of bert-large 100 MiB, once all is measured."""
    monkeypatch.setattr(timing, "LEAST_S", 0.002)
    monkeypatch.setattr(timing, "MOST_S", 0.01)
    size, held = 100 << 20, []

    def measure_unrest(*arguments):
        arrays = [np.ones(size // 250 // 8) for _ in range(250)]
        held.append(own_bytes())
        del arrays
        return 0.0, 0.0

    monkeypatch.setattr(measure, "measure_unrest", measure_unrest)
    monkeypatch.setattr(measure, "free_bytes", lambda: held.append(own_bytes()) or 1 << 30)

    measure.profile(SPEC, world, "numpy")

    with_arrays, then = held
    assert with_arrays - then > 0.9 * size


def test_more_work_takes_longer(world):
    """The curve of a product grows with the rows and with the weights."""
    seconds = measure_kernels(SPEC, NUMPY, world)[0].kernels[Kernel.PROJECT].seconds

    assert 0 < seconds[1][-1] < seconds[-1][-1]  # 2 and 256 rows
    assert 0 < seconds[-1][0] < seconds[-1][-1]  # one head's weights and the MLP's


@pytest.fixture
def unrest(world, monkeypatch):
    """Measure with a product that only sleeps, for the seconds that it is given, one call a step."""

    def measured(seconds):
        def graph(operations):
            return lambda x: time.sleep(next(seconds))

        monkeypatch.setattr(profile_kernels, "STEP_S", 0.0)
        return world.on_all(partial(profile_kernels.measure_unrest, SPEC.hidden, replace(NUMPY, graph=graph), world))

    return measured


def test_jitter_is_how_late_the_most_unsteady_rank_makes_all(world, unrest, monkeypatch):
    """The last rank takes 20 and 60 ms by turns, all others 40: steps take 40 and 60, ten more than anybody on average.

    So long that what else this machine does, some milliseconds a step, hardly counts.
    """
    monkeypatch.setattr(profile_kernels, "STEPS", 16)
    last = world.rank == world.size - 1

    found = [jitter_s for jitter_s, _ in unrest(cycle([0.02, 0.06] if last else [0.04]))]

    if world.size > 1:
        assert max(found) == found[-1] == pytest.approx(0.01, abs=0.006)
        assert max(found[:-1]) < 0.5 * found[-1]
    else:
        assert found == [0.0]


def test_rest_is_what_a_pause_saves(world, unrest, monkeypatch):
    monkeypatch.setattr(profile_kernels, "STEPS", 6)
    paused = False

    def pause(seconds, sleep=time.sleep):
        nonlocal paused
        paused = paused or seconds == profile_kernels.REST_S
        sleep(seconds)

    def seconds():
        nonlocal paused
        while True:
            fast, paused = paused, False
            yield 0.012 if fast else 0.032

    monkeypatch.setattr(time, "sleep", pause)

    found = [rest_s for _, rest_s in unrest(seconds())]

    assert found == pytest.approx([0.02] * world.size if world.size > 1 else [0.0], abs=0.008)


def test_a_profile_is_for_these_hosts_and_this_shape(world):
    """Another shape of layer, or another backend, has another fingerprint."""
    wide = encoder("wide", hidden=128, ffn=256, heads=4, layers=2, input=SPEC.input)

    found = [measure.fingerprint(SPEC, world, "numpy") for _ in range(2)]

    assert found[0] == found[1]
    assert found[0] != measure.fingerprint(wide, world, "numpy")
    assert found[0] != measure.fingerprint(SPEC, world, "onnxruntime")


def test_kernels_are_timed_in_turn(world, monkeypatch):
    """So that each finds its weights where a layer finds them, not in a cache."""
    monkeypatch.setattr(timing, "LEAST_S", 0.01)
    order = []

    seconds, pace = timing.seconds_of([partial(order.append, number) for number in range(3)], world)

    assert len(seconds) == 3
    assert pace > 0
    assert order == [0, 1, 2] * (len(order) // 3)
    assert len(order) > 3 * timing.LEAST_ROUNDS


def test_a_clock_that_stands_still_makes_no_call_free(world, monkeypatch):
    monkeypatch.setattr(timing, "fitting_clock", lambda: lambda: round(clock.now(), 2))
    calls = [partial(sum, range(10)), partial(sum, range(1_000_000)), lambda: None]

    seconds, _ = timing.seconds_of(calls, world)

    assert min(seconds) > 0
