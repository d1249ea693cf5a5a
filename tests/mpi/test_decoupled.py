"""Whoever has which sub-blocks, and however original layers are cut, decoupled models give what the oracle gives."""

import numpy as np
import pytest

from hepti_mpi.kernels.backends import backend
from solver.base.spans import Span
from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.plan.plan import Plan, Stage, Wire
from solver.schedule.encoders.cost import price, setting
from tests import sweeps
from tests.kit.decoupled import ORIGINALS, original, random_layers, sub_blocks
from tests.kit.encoder_ranks import check
from tests.kit.encoders import KINDS, POST, PRE, TEXTS
from tests.kit.plans import like
from tests.kit.sized import called, sized

IMAGES = like(PRE, layers=4, groups=2, sub_blocks=7)
MIXED = [3, 1, 17, 2, 30]


@pytest.mark.parametrize(
    ("kind", "how", "spec"), sized(sweeps.cycled(6, KINDS, ORIGINALS, [TEXTS, IMAGES]), 3), ids=called
)
def test_every_share_of_sub_blocks_gives_the_reference(spec, how, kind, world):
    """Equal, uneven and empty shares of a ragged batch, the original layers computed in each of three ways."""
    rng = np.random.default_rng([world.size, ORIGINALS.index(how)])
    lengths = MIXED if spec is TEXTS else [IMAGES.input.rows] * 2

    check(spec, random_layers(spec, how, kind, world.size, rng), lengths, world)


@pytest.mark.parametrize("seed", sized(sweeps.seeds(3, 8), 3))
def test_original_layers_may_have_any_cut(seed, world):
    """Cuts by rows among them, each layer another, and sub-blocks that change hands within a group."""
    rng = np.random.default_rng([seed, world.size])
    layers = [
        sub_blocks(TEXTS, "empty", world.size, rng)
        if TEXTS.run(number).parts > 1
        else original(TEXTS, "any", "empty", world.size, rng)
        for number in range(TEXTS.layers)
    ]

    check(TEXTS, layers, MIXED, world, tile_rows=int(rng.integers(0, 9)))


@pytest.mark.parametrize("how", ORIGINALS[-sweeps.count(1, 3) :])
def test_onnxruntime_gives_the_reference(how, world):
    rng = np.random.default_rng(world.size)

    check(TEXTS, random_layers(TEXTS, how, "uneven", world.size, rng), MIXED, world, backend("onnxruntime"))


@pytest.mark.parametrize(
    ("seed", "how", "wire"),
    sized(sweeps.cycled(6, range(4), [*ORIGINALS, "any"], [Wire.FLOAT32, Wire.FLOAT16, Wire.INT8]), 4),
)
def test_bytes_on_the_wire_are_those_that_the_price_says(seed, how, wire, world):
    rng = np.random.default_rng([seed, world.size])
    kind = ["equal", "uneven", "empty", "empty"][seed]
    layers = random_layers(TEXTS, how, kind, world.size, rng)
    atol = {Wire.FLOAT32: 1e-4, Wire.FLOAT16: 0.1, Wire.INT8: 2.0}[wire]

    stack = check(TEXTS, layers, [40], world, atol=atol, wire=wire)

    sent = sum(world.on_all(lambda: stack.meter.sent_bytes))
    names = tuple(f"pi-{rank}" for rank in range(world.size))
    runs = tuple((Span(number, number + 1), layer) for number, layer in enumerate(layers))
    plan = Plan((Stage(names, runs),), TEXTS.name, wire=wire)
    cluster = Cluster(tuple(Device(name, 1e10, GIB) for name in names), Link(1e8, 1e-4))
    assert sent == price(setting(TEXTS, cluster, 40), plan).prediction.bytes_on_wire


@pytest.mark.sizes
def test_bytes_of_a_request_are_those_of_the_paper(world):
    """Equal shares: into the first group, (p - 1) / p S H; out of each, with all gathering, (p - 1) S H; no more.

    Systems.md 3.2: N_b (p - 1) / p S H a device, where Megatron has 4 L.
    """
    p, S = world.size, 40
    spec = like(POST, hidden=60 * p, heads=2 * p, layers=6, groups=3, sub_blocks=2 * p)
    rng = np.random.default_rng(p)

    stack = check(spec, random_layers(spec, "whole", "equal", p, rng), [S], world)

    sent = sum(world.on_all(lambda: stack.meter.sent_bytes))
    element_bytes = 4 * S * spec.hidden
    assert sent == (p - 1) * element_bytes // p + spec.groups * (p - 1) * element_bytes


@pytest.mark.sizes
def test_nothing_is_sent_within_a_group(world):
    """However many decoupled layers a group has, a request sends the same."""
    sent = []
    for layers in (2, 8):
        spec = like(TEXTS, layers=layers, groups=1)
        rng = np.random.default_rng(world.size)
        stack = check(spec, random_layers(spec, "one device", "uneven", world.size, rng), [12], world)
        sent.append(sum(world.on_all(lambda stack=stack: stack.meter.sent_bytes)))

    assert sent[0] == sent[1]
