"""Tiles are handed out as the plan says; with stealing, a slow rank computes fewer; strips are of the same image."""

import time
from functools import partial

import numpy as np
import pytest

from hepti_mpi.engine.tiles import TileTasks
from hepti_mpi.kernels.slab import Slab
from solver.schedule.networks.segment_steps import net_setting, price_segments
from tests import sweeps
from tests.kit.chains import boards, chain
from tests.kit.convnets import emulate, plan_of, random_shares
from tests.kit.in_memory import network_of
from tests.kit.sized import sized

NET = chain(("conv", 8), ("relu",), ("pool",), ("conv", 8), ("conv", 4), size=24)
TILES = 36


@pytest.fixture
def tensors():
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(np.float32) / 9 for name, shape in NET.tensors.items()}


def made(world, tensors, shares, grid=(6, 6), *, stealing, reuse=False):
    """Return this rank's share of the network, cut by tiles, and what it does of these."""
    plan = plan_of(NET, [(len(NET.nodes), "tiles", tuple(shares), False, grid, stealing, reuse)], world.size)
    network = network_of(tensors, NET, plan, world)
    (tasks,) = tasks_of(network)
    return network, tasks


def tasks_of(network):
    """Return what a rank does of segments that are cut by tiles."""
    timed = (call for _, calls in network.program._blocks for call in calls if isinstance(call, partial))
    owners = (getattr(argument, "__self__", None) for call in timed for argument in call.args)
    return [own for own in owners if isinstance(own, TileTasks)]


def errors(world, network, tensors, seed):
    """Run an image and return the errors of its outputs, on rank 0."""
    pixels = np.random.default_rng(seed).integers(0, 256, NET.shapes["x"], dtype=np.uint8)
    if world.rank == 0:
        network.image[...] = pixels
    network.run()
    if world.rank:
        return []
    whole = emulate(NET, tensors, plan_of(NET, [(len(NET.nodes), "rows", [1.0])], 1), pixels)
    return [np.abs(network.outputs[value] - array).max() for value, array in whole.items()]


def run(world, tensors, shares, grid=(6, 6), *, stealing, reuse=False, images=3):
    """Run images, each right, and return how many tiles of the last every rank has computed."""
    network, tasks = made(world, tensors, shares, grid, stealing=stealing, reuse=reuse)
    for seed in range(images):
        tasks.computed = 0
        assert max(errors(world, network, tensors, seed), default=0) < 1e-5
    world.finish_sending()
    return world.on_all(lambda: tasks.computed)


@pytest.mark.sizes
def test_without_stealing_everybody_computes_its_own(world, tensors):
    """The last rank has none, where there are several."""
    parts = [*range(1, world.size), 0] if world.size > 1 else [1]
    shares = [part / sum(parts) for part in parts]

    computed = run(world, tensors, shares, stealing=False)

    assert sum(computed) == TILES
    np.testing.assert_allclose(computed, TILES * np.array(shares), atol=1)


@pytest.mark.parametrize(
    ("grid", "stealing", "seed"),
    sized(sweeps.cycled(6, [(2, 2), (3, 3), (2, 3), (5, 1)], [False, True], range(3)), 2),
)
def test_tiles_that_take_strips_wait_for_those_that_give_them(seed, stealing, grid, world, tensors):
    shares = random_shares(np.random.default_rng(seed), world.size)

    computed = run(world, tensors, shares, grid, stealing=stealing, reuse=True)

    assert sum(computed) == grid[0] * grid[1]


def test_strips_of_an_earlier_image_would_be_seen(world, tensors, monkeypatch):
    """What comes of the second image's strips is thrown away; on one rank, too."""
    network, tasks = made(world, tensors, [1 / world.size] * world.size, stealing=True, reuse=True)
    first, left = errors(world, network, tensors, 0), tasks.left

    def thrown_away(number):
        return {name: array.copy() if ":" in name else array for name, array in left(number).items()}

    monkeypatch.setattr(tasks, "left", thrown_away)
    second = errors(world, network, tensors, 1)
    world.finish_sending()

    assert max(first, default=0) < 1e-5
    assert min(second, default=1) > 1e-2


@pytest.mark.parametrize("reuse", [False, True])
def test_ranks_send_the_bytes_that_are_predicted(reuse, world, tensors):
    """Rank 0 sends the numbers of tiles, too, and that there are no more."""
    network, tasks = made(world, tensors, [1 / world.size] * world.size, (3, 3), stealing=False, reuse=reuse)
    errors(world, network, tensors, 0)
    world.finish_sending()
    sent = world.on_all(lambda: network.meter.sent_bytes)

    price = price_segments(net_setting(NET, boards(*[1.0] * world.size)), network.plan)

    expected = sum(step.sent for step in price.steps)
    expected[0] += 8 * (sum(owner > 0 for owner in tasks.owners) + world.size - 1)
    assert sent == expected.tolist()


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


@pytest.mark.sizes
def test_who_has_no_share_steals_nothing(world, tensors):
    """It holds no weights."""
    computed = run(world, tensors, [1.0, *[0.0] * (world.size - 1)], stealing=True)

    assert computed == [TILES, *[0] * (world.size - 1)]


def test_all_tiles_may_be_anothers(world, tensors):
    last = [0.0] * (world.size - 1) + [1.0]

    assert run(world, tensors, last, stealing=False) == [*[0] * (world.size - 1), TILES]
