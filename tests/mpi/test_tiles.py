"""Tiles are handed out as the plan says; where there is stealing, a slow rank computes fewer."""

import time

import numpy as np
import pytest

from hepti_mpi.engine.network import NetworkShare
from hepti_mpi.engine.tiles import TileTasks
from hepti_mpi.kernels.slab import Slab
from tests.convnets import emulate, plan_of, reader
from tests.solver.systems.convnets.chains import chain

NET = chain(("conv", 8), ("relu",), ("pool",), ("conv", 8), ("conv", 4), size=24)
TILES = 36


@pytest.fixture
def tensors():
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(np.float32) / 9 for name, shape in NET.tensors.items()}


def run(world, tensors, shares, *, stealing, images=3):
    """Run images, each right, and return how many tiles of the last every rank has computed."""
    plan = plan_of(NET, [(len(NET.nodes), "tiles", shares, False, (6, 6), stealing)], world.size)
    whole = plan_of(NET, [(len(NET.nodes), "rows", [1.0])], 1)
    network = NetworkShare(NET, plan, world, reader(tensors))
    (tasks,) = (slab for step in network._steps for slab in step.slabs)
    assert isinstance(tasks, TileTasks)
    for seed in range(images):
        pixels = np.random.default_rng(seed).integers(0, 256, NET.shapes["x"], dtype=np.uint8)
        if world.rank == 0:
            network.image[...] = pixels
        tasks.computed = 0
        network.run()
        if world.rank == 0:
            for value, array in emulate(NET, tensors, whole, pixels).items():
                np.testing.assert_allclose(network.outputs[value], array, rtol=0, atol=1e-5)
    world.finish_sending()
    return world.on_all(lambda: tasks.computed)


def test_without_stealing_everybody_computes_its_own(world, tensors):
    """The last rank has none, where there are several."""
    parts = [*range(1, world.size), 0] if world.size > 1 else [1]
    shares = [part / sum(parts) for part in parts]

    computed = run(world, tensors, shares, stealing=False)

    assert sum(computed) == TILES
    np.testing.assert_allclose(computed, TILES * np.array(shares), atol=1)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_computes_fewer_tiles(slow, world, tensors, monkeypatch):
    compute = Slab.run

    def slowly(slab):
        time.sleep(0.1 if world.rank == slow else 0.004)
        compute(slab)

    monkeypatch.setattr(Slab, "run", slowly)
    computed = run(world, tensors, [1 / world.size] * world.size, stealing=True, images=1)

    assert sum(computed) == TILES
    if world.size > 1:
        assert 1 <= computed[slow] < 0.6 * TILES / world.size
        # Where the machine has other work, any one of them may be late, too.
        assert np.median(np.delete(computed, slow)) > computed[slow]


def test_who_has_no_share_steals_nothing(world, tensors):
    """It holds no weights."""
    computed = run(world, tensors, [1.0, *[0.0] * (world.size - 1)], stealing=True)

    assert computed == [TILES, *[0] * (world.size - 1)]


def test_all_tiles_may_be_anothers(world, tensors):
    last = [0.0] * (world.size - 1) + [1.0]

    assert run(world, tensors, last, stealing=False) == [*[0] * (world.size - 1), TILES]
