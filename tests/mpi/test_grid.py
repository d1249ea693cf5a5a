"""Cut `grid` on every grid of the ranks: the reference, and to the byte what it should send."""

from dataclasses import replace

import numpy as np
import pytest

from hepti_mpi.kernels.backends import backend
from solver.base.spans import Partition
from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.model.blocks import Cut
from solver.model.spec import with_layers
from solver.plan.plan import BlockPlan, StreamLayout, Wire, uniform_plan
from solver.schedule.encoders.cost import price, setting
from tests import sweeps
from tests.kit.encoder_ranks import check
from tests.kit.encoders import KINDS, POST, PRE, shares
from tests.kit.plans import like
from tests.kit.sized import called, sized

BERT = like(POST, hidden=48, heads=12, ffn=120)  # 1, 2, 3 and 4 divide them


def grids(ranks):
    return [rows for rows in range(1, ranks + 1) if ranks % rows == 0]


def grid_layer(spec, rows, ranks, kind, rng):
    """Return a layer of grids of so many rows; equal, uneven or empty parts on both axes."""

    def cut(block):
        weights = shares(kind, ranks, rng)
        return BlockPlan(
            block.name,
            Cut.GRID,
            Partition.of_shares(shares(kind, ranks, rng), block.inner.count),
            Partition.of_shares(shares(kind, rows, rng), block.hidden),
            StreamLayout.ROWS,
            tuple(np.array(weights) / sum(weights)),
        )

    return tuple(map(cut, spec.blocks))


@pytest.mark.parametrize(
    ("lengths", "kind", "computes"),
    sized(sweeps.cycled(6, [[1], [2, 1], [200], [PRE.input.rows] * 2], KINDS, ["numpy", "onnxruntime"]), 2),
    ids=called,
)
def test_every_grid_gives_the_reference(lengths, kind, computes, world):
    """Also with fewer rows than ranks, odd widths, and parts without a head, a column or a row."""
    if computes == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="the extra `fast` is not installed")
    spec, computes = PRE if lengths == [PRE.input.rows] * 2 else POST, backend(computes)
    rng = np.random.default_rng([len(lengths), KINDS.index(kind)])
    for rows in grids(world.size):
        layers = [grid_layer(spec, rows, world.size, kind, rng) for _ in range(spec.layers)]
        check(spec, layers, lengths, world, computes, tile_rows=[0, 3, 16][rows % 3])


@pytest.mark.parametrize("activation", ["gelu_tanh", "relu"])
def test_a_grid_computes_every_activation(activation, world):
    rng = np.random.default_rng(5)
    spec = like(POST, activation=activation)
    for rows in grids(world.size):
        check(spec, [grid_layer(spec, rows, world.size, "uneven", rng) for _ in range(3)], [20], world)


@pytest.mark.parametrize(
    ("kind", "wire", "tile_rows"), sized(sweeps.cycled(3, KINDS, [own for own in Wire if own is own.within], [0, 5]), 2)
)
def test_bytes_of_a_grid_are_those_that_the_price_says(kind, wire, tile_rows, world):
    """Of every rank, for uneven tiles, in tiles of rows, over every wire."""
    rng = np.random.default_rng(KINDS.index(kind))
    devices = tuple(Device(f"pi-{rank}", 1e10, GIB) for rank in range(world.size))
    cluster = Cluster(devices, Link(1e8, 1e-4))
    for rows in grids(world.size):
        layers = [grid_layer(POST, rows, world.size, kind, rng)] * POST.layers
        plan = replace(uniform_plan(POST, cluster.names, layers[0]), wire=wire, tile_rows=tile_rows)

        meter = check(
            POST, layers, [40], world, tile_rows=tile_rows, wire=wire, atol=1e-4 if wire is Wire.FLOAT32 else 1
        ).meter

        steps = price(setting(POST, cluster, 40), plan).steps
        assert meter.sent_bytes == sum(step.repeats * step.sent[world.rank] for step in steps)
        assert meter.received_bytes == sum(step.repeats * step.received[world.rank] for step in steps)


@pytest.mark.sizes
def test_equal_tiles_send_what_the_papers_formula_says(world):
    """A layer: S (4 H/X (p - 1)/p + (2 F + 4 H)/Y (X - 1)/X) numbers from each of X Y ranks."""
    p, S, H, F = world.size, 24, BERT.hidden, BERT.blocks[1].kind.ffn
    if p > 4:
        return
    rng = np.random.default_rng(0)
    for X in grids(p):
        layer = grid_layer(BERT, X, p, "equal", rng)
        three, two = (
            check(with_layers(BERT, layers), [layer] * layers, [S], world).meter.sent_bytes for layers in (3, 2)
        )

        assert three - two == 4 * S * (4 * H * (p - 1) / (X * p) + (2 * F + 4 * H) * (X - 1) / p)
