"""Whatever the cuts, shares and batches, the layers give what the oracle gives."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels import embeddings
from hepti_mpi.kernels.backends import backend
from hepti_mpi.kernels.products import NUMPY
from solver.base.spans import Partition, Span
from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.model.blocks import Cut
from solver.model.spec import ImageInput, TextInput, encoder, tensor_shapes
from solver.plan.file import read_plan
from solver.plan.plan import BlockPlan, Keys, Layout, Plan, Stage, Wire, layer_by_rows
from solver.plan.routes import Route
from solver.schedule.cost import predict
from tests import sweeps
from tests.kit import reference
from tests.kit.in_memory import layers_of
from tests.kit.plans import like
from tests.kit.sized import called, sized
from weights.synthesize import synthetic_rows

DATA = Path(__file__).parents[1] / "data" / "plans"
TEXT = TextInput(vocab=97, positions=600, max_rows=600, token_types=2)
POST = encoder("post", hidden=40, ffn=83, heads=5, layers=3, input=TEXT)
PRE = encoder(
    "pre", hidden=56, ffn=101, heads=7, layers=3, norm="pre", embedding_norm=False, final_norm=True,
    input=ImageInput(height=24, width=40, patch=8),
)  # fmt: skip
LAYOUTS = (Layout.FULL, Layout.ROWS)
KINDS = ("equal", "uneven", "empty")
CUTS = [
    (cut, norm)
    for cut in (Cut.ROWS, Cut.COLUMNS, Cut.BLOCK, Cut.GRID)
    for norm in LAYOUTS
    if cut not in (Cut.ROWS, Cut.GRID) or norm is Layout.ROWS
]


@cache
def tensors_of(spec):
    return {name: synthetic_rows(name, shape, Span(0, shape[0])) for name, shape in tensor_shapes(spec).items()}


def make_stack(spec, plan, tensors, world, computes, wire):
    plan.check(spec, world.size)
    return Stack(spec, plan, layers_of(tensors.__getitem__, spec, plan, world, computes), world, computes, wire)


def shares(kind, ranks, rng):
    """Return weights of the ranks: equal, very uneven, or with empty ones."""
    if kind == "equal":
        return [1.0] * ranks
    weights = rng.pareto(0.7, ranks) + 0.01
    if kind == "empty":
        weights[rng.random(ranks) < 0.5] = 0
        if not weights.any():
            weights[rng.integers(ranks)] = 1
    return weights.tolist()


def block_plan(block, cut, norm, draw, route, rng):
    columns = None
    if cut is Cut.COLUMNS:
        columns = Partition.of_shares(draw(), block.hidden)
    elif cut is Cut.GRID:
        ranks = len(draw())
        rows = rng.choice([rows for rows in range(1, ranks + 1) if ranks % rows == 0])
        columns = Partition.of_shares(draw(rows), block.hidden)
    return BlockPlan(
        block.name,
        cut,
        inner=None if cut is Cut.ROWS else Partition.of_shares(draw(), block.inner.count),
        columns=columns,
        norm=norm,
        rows=tuple(np.array(weights) / sum(weights)) if norm is Layout.ROWS and (weights := draw()) else None,
        route=route,
    )


def random_layer(spec, attention, mlp, kind, ranks, rng):
    def draw(parts=ranks):
        return shares(kind, parts, rng)

    cuts, routes = (attention, mlp), rng.choice(list(Route), 2)
    return tuple(
        block_plan(block, *cut, draw, Route(route), rng)
        for block, cut, route in zip(spec.blocks, cuts, routes, strict=True)
    )


@cache
def expected(spec, lengths):
    """Return a batch of random requests and the oracle's answers."""
    rng = np.random.default_rng(1)
    if isinstance(spec.input, TextInput):
        contents = [rng.integers(0, spec.input.vocab, rows) for rows in lengths]
    else:
        image = spec.input
        contents = [rng.standard_normal((3, image.height, image.width), np.float32) for _ in lengths]
    return contents, [reference.forward(spec, tensors_of(spec), content) for content in contents]


def check(spec, layers, lengths, world, computes=NUMPY, tile_rows=0, atol=1e-4, wire=Wire.FLOAT32):
    """Run a batch through the stack, its rows in tiles, and compare rank 0's result with the oracle's."""
    stage = Stage(
        tuple(f"pi-{rank}" for rank in range(world.size)),
        tuple((Span(number, number + 1), layer) for number, layer in enumerate(layers)),
    )
    return check_plan(spec, Plan((stage,), spec.name, tile_rows=tile_rows), lengths, world, computes, atol, wire)


def check_plan(spec, plan, lengths, world, computes=NUMPY, atol=1e-4, wire=Wire.FLOAT32):
    """Run a batch as a plan says, and compare rank 0's result with the oracle's."""
    tensors = tensors_of(spec)
    stack = make_stack(spec, plan, tensors, world, computes, wire)
    contents, answers = expected(spec, tuple(lengths))
    batch = Batch.of_lengths(lengths)
    embedded = np.concatenate([embeddings.embed(spec, tensors, content) for content in contents])

    hidden = stack.run(batch, embedded if world.rank == 0 else None, count=True)
    world.finish_sending()

    assert hidden.dtype == np.float32
    if world.rank == 0:
        hidden = embeddings.last_hidden(spec, tensors, hidden)
        np.testing.assert_allclose(hidden, np.concatenate(answers), rtol=0, atol=atol)
    else:
        assert not hidden.size
    return stack


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
    plan = read_plan(DATA / f"{name}.json")

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
    """With and without K and V, behind every MLP, each block with shares and a route of its own."""
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
