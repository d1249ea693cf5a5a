"""Random convolutional networks under random plans give what one rank alone gives, for any number of ranks."""

from dataclasses import replace

import numpy as np
import pytest

from hepti_mpi.comm.wires import coding
from solver.plan.plan import Wire
from solver.schedule.networks import memory
from tests import sweeps
from tests.kit.convnets import emulate, plan_of, random_net, random_plan
from tests.kit.in_memory import network_of
from tests.kit.sized import sized


@pytest.mark.parametrize(("seed", "tiles"), sized(sweeps.cycled(16, sweeps.seeds(16, 40), [False, True]), 6))
def test_ranks_compute_what_one_rank_does(seed, tiles, world, monkeypatch):
    """Also where several graphs compute a product."""
    if seed % 4 < 2:
        monkeypatch.setattr(memory, "LARGE_PRODUCT", 24)
    rng = np.random.default_rng([seed, world.size])
    net, tensors = random_net(rng, verbatim=seed % 2 == 0)
    pixels = rng.integers(0, 256, net.shapes["x"], dtype=np.uint8)
    plan = random_plan(net, rng, world.size, tiles=tiles)
    network = network_of(tensors, net, plan, world)
    if world.rank == 0:
        network.image[...] = pixels
    for _ in range(2):  # the second time arrays have numbers of the first
        network.run()
    world.finish_sending()

    if world.rank == 0:
        whole = emulate(net, tensors, plan_of(net, [(len(net.nodes), "rows", [1.0])], 1), pixels)
        for value, array in network.outputs.items():
            np.testing.assert_allclose(array, whole[value], rtol=0, atol=1e-5 * max(np.abs(whole[value]).max(), 1e-6))


@pytest.mark.parametrize(
    ("seed", "tiles", "wire"),
    sized(sweeps.cycled(16, sweeps.seeds(16, 40), [False, True], [Wire.FLOAT32, Wire.FLOAT16, Wire.INT8]), 6),
)
def test_memory_of_an_image_is_that_which_was_priced(seed, tiles, wire, world, monkeypatch):
    """Of every rank, to the byte; with what arrives, and lies between graphs."""
    monkeypatch.setattr(memory, "LARGE_PRODUCT", 24)
    monkeypatch.setattr(world, "coding", coding(wire))
    rng = np.random.default_rng([seed, world.size, 1])
    net, tensors = random_net(rng, verbatim=seed % 2 == 0)
    plan = replace(random_plan(net, rng, world.size, tiles=tiles), wire=wire)
    network = network_of(tensors, net, plan, world)

    network.run()

    world.finish_sending()
    assert world.on_all(lambda: network.program.taken_bytes) == memory.places_bytes(net, plan)
