"""Whatever the cuts, shares and batches, the layers give what the oracle gives."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hepti_mpi.kernels.backends import backend
from solver.base.spans import Partition
from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.model.blocks import Cut
from solver.plan.file import read_plan
from solver.plan.plan import BlockPlan, Keys, Plan, Wire, layer_by_rows
from solver.plan.routes import Route
from solver.schedule.encoders.cost import predict
from tests import sweeps
from tests.kit.encoder_ranks import check, check_plan
from tests.kit.encoders import CUTS, KINDS, POST, PRE, random_layer
from tests.kit.plans import like
from tests.kit.sized import called, sized

DATA = Path(__file__).parents[1] / "data" / "plans"


@pytest.mark.parametrize(("attention", "mlp", "kind"), sized(sweeps.cycled(36, CUTS, CUTS, KINDS), 7), ids=called)
def test_every_pair_of_cuts_gives_the_reference(attention, mlp, kind, world):
    """Equal, uneven and empty shares, each block with shares of its own; a ragged batch of texts."""
    rng = np.random.default_rng(0)
    layers = [random_layer(POST, attention, mlp, kind, world.size, rng) for _ in range(POST.layers)]
    check(POST, layers, [3, 1, 17, 2, 30], world, tile_rows=7)


@pytest.mark.parametrize(
    ("attention", "mlp", "kind"), sized(sweeps.cycled(6, CUTS, [*CUTS[2:], *CUTS[:2]], KINDS), 4), ids=called
)
def test_every_pair_of_cuts_gives_the_reference_with_norms_in_front(attention, mlp, kind, world):
    """The same for the pre-norm family; a batch of images."""
    rng = np.random.default_rng(2)
    layers = [random_layer(PRE, attention, mlp, kind, world.size, rng) for _ in range(PRE.layers)]
    check(PRE, layers, [PRE.input.rows] * 2, world, tile_rows=4)


@pytest.mark.parametrize(("rows", "seed"), sized(sweeps.cycled(8, [1, 2, 5, 511], range(8)), 3))
def test_any_mixture_of_cuts_gives_the_reference(rows, seed, world):
    """Every layer is cut in another way, with shares of every kind, at any length."""
    rng = np.random.default_rng([seed, rows])
    spec = like(POST, layers=5, activation=["gelu", "gelu_tanh", "relu"][seed % 3])
    layers = []
    for _ in range(spec.layers):
        attention, mlp = (CUTS[rng.integers(len(CUTS))] for _ in range(2))
        kind = KINDS[rng.integers(3)]
        layers.append(random_layer(spec, attention, mlp, kind, world.size, rng))
    check(spec, layers, [rows], world, tile_rows=[0, 1, 16, 100][seed % 4])


@pytest.mark.parametrize("name", ["rows", "block", "mixture", "grid", "pipeline"])
def test_plan_files_of_the_first_version_are_read_and_run(name, world):
    if world.size != 3:
        pytest.skip("the files are for three devices")
    plan = read_plan(DATA / f"{name}.json", Plan)

    check_plan(POST, plan, [12, 1, 30], world, atol=1e-2 if plan.wire is Wire.FLOAT16 else 1e-4, wire=plan.wire)


@pytest.mark.parametrize("activation", sized(["gelu", "gelu_tanh", "relu"], 3))
def test_packed_weights_give_the_reference(activation, world):
    """The backend on onnxruntime, on a mixture of all cuts with empty shares."""
    pytest.importorskip("onnxruntime", reason="the extra `fast` is not installed")
    rng = np.random.default_rng(3)
    spec = like(POST, activation=activation, layers=len(CUTS))
    layers = [
        random_layer(spec, attention, mlp, "empty", world.size, rng)
        for attention, mlp in zip(CUTS, reversed(CUTS), strict=True)
    ]
    check(spec, layers, [3, 1, 30], world, backend("onnxruntime"), tile_rows=8)


@pytest.mark.sizes
def test_ranks_without_a_share_send_and_receive_nothing(world):
    """A device that makes things worse gets nothing, and costs nothing."""
    weights = [0.0] * world.size
    weights[-1] = 1.0
    by_rows = layer_by_rows(POST.blocks, weights)
    by_block = tuple(
        BlockPlan(block.name, Cut.BLOCK, inner=Partition.of_shares(weights, block.inner.count)) for block in POST.blocks
    )
    stack = check(POST, [(by_rows[0], by_block[1]), (by_block[0], by_rows[1]), by_block], [12], world)

    # The last rank gets the embedded rows from rank 0 and gives the result back: nothing else moves.
    moved = 12 * POST.hidden * 4 if world.size > 1 else 0
    expected = {0: moved, world.size - 1: moved}.get(world.rank, 0)
    assert stack.meter.sent_bytes == expected
    assert stack.meter.received_bytes == expected


@pytest.mark.parametrize(("tile_rows", "route"), sized(sweeps.cycled(6, [0, 5, 12], Route), 4))
def test_every_route_brings_the_rows_of_uneven_owners(route, tile_rows, world):
    """One rank has most of the rows: its tiles are passed on by others."""
    weights = [0.7, *[0.3 / max(world.size - 1, 1)] * (world.size - 1)]
    by_rows = layer_by_rows(POST.blocks, np.array(weights) / sum(weights))
    layer = tuple(replace(block, route=route) for block in by_rows)
    stack = check(POST, [layer] * 3, [61], world, tile_rows=tile_rows)

    received = 3 * 2 * (61 - Partition.of_shares(weights, 61)[world.rank].size) * POST.hidden * 4  # K and V
    if world.rank > 0:
        assert stack.meter.received_bytes == received + Partition.of_shares(weights, 61)[world.rank].size * 160


def with_keys(layer, ranks, rng):
    """Return a layer whose attention gathers its input; every rank has a way to its keys of its own."""
    ways = tuple(Keys(way) for way in rng.choice(list(Keys), ranks))
    attention, mlp = layer
    return replace(attention, keys=ways), mlp


@pytest.mark.parametrize(("mlp", "kind", "spec"), sized(sweeps.cycled(6, CUTS, KINDS, [POST, PRE]), 4), ids=called)
def test_gathering_the_input_instead_of_keys_gives_the_reference(mlp, kind, spec, world):
    """With and without K and V, after every MLP, each block with shares and a route of its own."""
    rng = np.random.default_rng(6)
    lengths = [3, 1, 17, 2, 30] if spec is POST else [16, 16]
    layers = [random_layer(spec, CUTS[0], mlp, kind, world.size, rng) for _ in range(spec.layers)]
    check(spec, [with_keys(layer, world.size, rng) for layer in layers], lengths, world, tile_rows=7)


def test_packed_weights_without_keys_give_the_reference(world):
    pytest.importorskip("onnxruntime", reason="the extra `fast` is not installed")
    rng = np.random.default_rng(7)
    layers = [random_layer(POST, CUTS[0], CUTS[0], "uneven", world.size, rng) for _ in range(POST.layers)]
    check(POST, [with_keys(layer, world.size, rng) for layer in layers], [3, 30], world, backend("onnxruntime"))


@pytest.mark.parametrize("wire", sized([Wire.FLOAT32, Wire.FLOAT16, Wire.INT8], 3))
def test_gathering_the_input_sends_a_row_once_a_layer(wire, world):
    """To the byte: (p - 1) S H numbers a layer, and what rank 0 hands out and gets back; as the price says."""
    weights = (1 / world.size,) * world.size
    attention, mlp = layer_by_rows(POST.blocks, weights)
    layer = replace(attention, keys=(Keys.PROJECTED,) * world.size), mlp
    stack = check(POST, [layer] * POST.layers, [40], world, wire=wire, atol=0.3)

    sent = sum(world.on_all(lambda: stack.meter.sent_bytes))
    away = 2 * (40 - Partition.of_shares(weights, 40)[0].size)
    assert sent == wire.row_bytes(POST.hidden) * (POST.layers * (world.size - 1) * 40 + away)
    cluster = Cluster(tuple(Device(name, 1e10, GIB) for name in stack.plan.devices), Link(1e8, 1e-4))
    assert sent == predict(POST, cluster, replace(stack.plan, wire=wire), 40).bytes_on_wire


@pytest.mark.parametrize(
    ("attention", "mlp", "wire", "kind"),
    sized(sweeps.cycled(14, CUTS, [*CUTS[3:], *CUTS[:3]], [Wire.FLOAT32, Wire.FLOAT16, Wire.INT8], KINDS), 7),
    ids=called,
)
def test_bytes_are_those_that_the_price_says(attention, mlp, wire, kind, world):
    """Every pair of cuts, of routes and groups of heads at random; with what rank 0 hands out and gets back."""
    rng = np.random.default_rng(8)
    layers = [random_layer(POST, attention, mlp, kind, world.size, rng) for _ in range(POST.layers)]
    stack = check(POST, layers, [40], world, wire=wire, atol=0.4, tile_rows=7)

    sent = sum(world.on_all(lambda: stack.meter.sent_bytes))
    cluster = Cluster(tuple(Device(name, 1e10, GIB) for name in stack.plan.devices), Link(1e8, 1e-4))
    assert sent == predict(POST, cluster, replace(stack.plan, wire=wire), 40).bytes_on_wire


@pytest.mark.parametrize(
    ("wire", "cuts"),
    sweeps.cycled(3, [Wire.FLOAT16, Wire.INT8], [(CUTS[0], CUTS[0]), (CUTS[3], CUTS[4]), (CUTS[2], CUTS[2])]),
    ids=called,
)
def test_thin_wires_round_and_send_less(wire, cuts, world):
    """Half or a quarter of the bytes; the result is near the reference, and nearer with more bits."""
    error = {Wire.FLOAT16: 0.01, Wire.INT8: 0.2}[wire]
    layers = [random_layer(POST, *cuts, "equal", world.size, np.random.default_rng(4)) for _ in range(POST.layers)]
    exact = check(POST, layers, [40], world).meter
    thin = check(POST, layers, [40], world, atol=error, wire=wire).meter

    width = POST.hidden
    share = {Wire.FLOAT16: 0.5, Wire.INT8: (width + 4) / (4 * width)}[wire]
    assert thin.sent_bytes == pytest.approx(share * exact.sent_bytes, rel=0.2 if wire is Wire.INT8 else 0)
