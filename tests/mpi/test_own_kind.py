"""Kinds of blocks that only this test has, made by the steps of docs/architecture.md: planned, priced, and run.

One of an encoder, and one of a language model.
"""

import inspect
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest

from hepti_mpi.engine import layers
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.layers import BlockKernels
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels.backends import backend
from hepti_mpi.kernels.kinds.numpy_run import NUMBERS
from hepti_mpi.kernels.kinds.runs import NODES
from hepti_mpi.kernels.products import AddResidual, Linear, Norm
from hepti_mpi.measure.random_decoder import RandomDecoder
from solver.base.spans import Partition
from solver.cluster.curves import Kernel
from solver.cluster.decoder_curves import DecoderPart
from solver.model.blocks import Block, BlockKind, Cut
from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.every import KINDS
from solver.model.kinds.part import HIDDEN, ROW, Part, PartTensor, TensorUse, Value
from solver.model.kinds.weight import Weight
from solver.model.spec import ModelSpec, Run, TextInput, attention_block, mlp_block, residual, tensor_shapes
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.file import plan_from_json
from solver.plan.plan import BlockPlan, Plan, StreamLayout, block_by_rows, blockwise_plan
from solver.plan.writing import plan_to_json
from solver.programs.planner import solve
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import price_pass, setting_of
from solver.schedule.encoders import steps
from solver.schedule.encoders.cost import price, setting
from solver.schedule.encoders.stages import price_plan
from solver.schedule.encoders.steps import ByTiles, Call, Lay
from solver.show.schedule_table import schedule_rows
from solver.systems import make_plan
from solver.systems.decoders import SYSTEMS, plan_decoder
from tests import sweeps
from tests.kit import decoders, reference
from tests.kit.answers import boards
from tests.kit.clusters import pis
from tests.kit.decoder_ranks import on_ranks, random_plan
from tests.kit.decoders import Weights, logits, small_model
from tests.kit.encoders import tensors_of
from tests.kit.in_memory import layers_of
from tests.kit.placed import shorten
from tests.kit.sized import sized
from weights.file.store import WeightsFile
from weights.synthesize import synthesize

H = 40


# 1. What it is: x + tanh(x W^T + b), by rows only.
@dataclass(frozen=True, slots=True)
class Gate(BlockKind):
    """A product with the stream's width, and tanh."""

    name: ClassVar[str] = "gate"

    def tensors(self, name, stream):
        """One square matrix, its bias, and the norm."""
        shapes = {"weight": Weight((stream.hidden,) * 2, 1), "bias": Weight((stream.hidden,))}
        found = [PartTensor(f"{name}/{leaf}", weight, TensorUse.INTO) for leaf, weight in shapes.items()]
        return {tensor.leaf: tensor for tensor in (*found, *stream.norm_tensors(f"{name}/norm"))}

    def parts(self, name, stream, x):
        """One, of all rows."""
        own = tuple(tensor for tensor in self.tensors(name, stream).values() if tensor.use is TensorUse.INTO)
        made = stream.value(name, x.shape[0])
        return (Part(f"{name}/gate", self, stream, "gate", {ROW: x.shape[0]}, (x,), made, own, cut=True),)


# 2. What it does, step by step.
def gate_steps(block, cut, norm, input_gathered):
    product = Call("gate", Kernel.PROJECT, block.hidden**2)
    return [Lay(), ByTiles((product,)), steps.close(block, norm)], ()


# 3. What computes it.
def gate_kernels(make, share, w):
    norm = Norm(w["norm"], w["norm_bias"], share.block.stream.eps)
    gate = Linear(w["into"], w["into_bias"], "tanh")
    # Who has no rows of it has no matrix.
    last = [gate, AddResidual(np.zeros(H, np.float32)), norm]
    return BlockKernels({("gate", "join"): make(last)} if w["into"].size else {})


@pytest.fixture(autouse=True)
def gate(monkeypatch):
    """Let all three tables know it, and the oracle."""
    monkeypatch.setitem(KINDS, Gate.name, Gate)
    monkeypatch.setitem(steps.KINDS, Gate, gate_steps)
    monkeypatch.setitem(layers.KINDS, Gate, gate_kernels)
    compute = lambda x, w, block: np.tanh(x @ w["weight"].T + w["bias"])
    monkeypatch.setitem(reference.BLOCKS, Gate.name, compute)


TEXT = TextInput(vocab=97, positions=600, max_rows=600)
ATTENTION, MLP, GATE = attention_block(H, 5), mlp_block(H, 83), Block(Gate(), residual(H, "post", 1e-12))
ALIKE = ModelSpec("gated", H, (Run(3, (ATTENTION, GATE, MLP)),), TEXT)
UNLIKE = ModelSpec(
    "mixed",
    H,
    (Run(1, (GATE,)), Run(2, (ATTENTION, MLP)), Run(1, (attention_block(H, 8), GATE)), Run(1, (GATE,))),
    TEXT,
)
SPEEDS = (20, 60, 5, 40, 30, 25, 70, 10)


def check(spec, plan, lengths, world, computes):
    """Run a batch as a plan says, and compare rank 0's result with the oracle's."""
    plan.check(spec, world.size)
    stack = Stack(spec, plan, layers_of(tensors_of(spec).__getitem__, spec, plan, world, computes), world, computes)
    batch = Batch.of_lengths(lengths)
    x = np.random.default_rng(3).standard_normal((batch.rows, H), np.float32)

    hidden = stack.run(batch, x if world.rank == 0 else None, count=True)
    world.finish_sending()

    if world.rank == 0:
        bare = replace(spec, embedding_norm=False)
        nothing = {**tensors_of(spec), "embeddings/word": np.zeros((97, H))}
        expected = [
            reference.forward(bare, {**nothing, "embeddings/position": x[rows.slice]}, np.zeros(rows.size, int))
            for rows in batch.requests
        ]
        np.testing.assert_allclose(hidden, np.concatenate(expected), rtol=0, atol=1e-4)
    return stack


@pytest.mark.parametrize(("mbps", "computes"), sized(sweeps.cycled(2, [940, 40], ["numpy", "onnxruntime"]), 2))
def test_planner_finds_a_plan_that_runs_as_priced(mbps, computes, world):
    cluster, rows = pis(*SPEEDS[: world.size], mbps=mbps), 70

    plan = world.from_root((lambda: solve(ALIKE, cluster, rows).plan) if world.rank == 0 else None)

    assert [block.block for block in plan.layer(0)] == ["attention", "gate", "mlp"]
    assert plan_from_json(plan_to_json(plan), Plan) == plan
    assert plan.predicted == price(setting(ALIKE, cluster, rows), plan).prediction
    listed = schedule_rows(cluster, price_plan(ALIKE, cluster, plan, rows))
    assert {"gate", "output", "up"} <= {name for row in listed for name in row.computes + row.meanwhile}
    stack = check(ALIKE, plan, [rows], world, backend(computes))
    assert sum(world.on_all(lambda: stack.meter.sent_bytes)) == plan.predicted.bytes_on_wire


@pytest.mark.parametrize(
    ("cut", "kind"), sized(sweeps.cycled(3, [Cut.ROWS, Cut.BLOCK, Cut.COLUMNS], ["uneven", "empty"]), 3)
)
def test_it_stands_beside_blocks_of_any_cut_and_in_layers_that_are_unlike(cut, kind, world):
    rng = np.random.default_rng([world.size, kind == "empty"])

    def drawn():
        weights = rng.pareto(0.7, world.size) + 0.01
        if kind == "empty":
            weights[1:] *= rng.random(world.size - 1) < 0.5
        return (weights / weights.sum()).tolist()

    def block(own):
        if cut is Cut.ROWS or own.inner is None:
            return block_by_rows(own, drawn())
        columns = Partition.of_shares(drawn(), H) if cut is Cut.COLUMNS else None
        return BlockPlan(own.name, cut, Partition.of_shares(drawn(), own.inner.count), columns, StreamLayout.FULL)

    plan = blockwise_plan(UNLIKE, [f"pi-{rank}" for rank in range(world.size)], block)
    check(UNLIKE, plan, [9, 1, 23], world, backend("numpy"))


def test_who_has_no_rows_of_it_holds_no_matrix_of_it(world):
    names = [f"pi-{rank}" for rank in range(world.size)]
    shares = [0.0] * (world.size - 1) + [1.0]
    plan = blockwise_plan(UNLIKE, names, lambda block: block_by_rows(block, shares))
    cluster = pis(*SPEEDS[: world.size])

    held = price(setting(UNLIKE, cluster, 16), plan).weights_bytes

    matrices = sum(
        4 * int(np.prod(shape)) for name, shape in tensor_shapes(UNLIKE).items()
        if name.startswith("layers/") and (len(shape) > 1 or "query/bias" in name)
    )  # fmt: skip
    assert held[-1] >= matrices
    assert all(size < matrices for size in held[1:-1])


def test_a_weights_file_and_systems_that_need_no_alike_layers_know_it(tmp_path, world):
    cluster = pis(*SPEEDS[: world.size])
    if world.rank == 0:
        synthesize(tmp_path / "mixed.h5", UNLIKE)
        with WeightsFile(tmp_path / "mixed.h5") as file:
            assert file.spec == UNLIKE
    plan = make_plan("sequence-weighted", UNLIKE, cluster, 30)
    check(UNLIKE, plan, [30], world, backend("onnxruntime"))


# Of a language model: x + (sigmoid(x W1) * (x W3)) W2, cut along an axis of its own.
# 1. What it is.
GATES = "gates"


@dataclass(frozen=True, slots=True)
class Gated(BlockKind):
    name: ClassVar[str] = "gated"
    axis: ClassVar[str] = GATES
    curve: ClassVar[str] = "mlp"

    gates: int

    def resized(self, total):
        return replace(self, gates=total)

    def tensors(self, name, stream):
        uses = {"one": (TensorUse.INTO, 1), "three": (TensorUse.INTO, 1), "two": (TensorUse.OUT, 0)}
        return stream.with_norms(
            name,
            (
                PartTensor(f"{name}/{leaf}/weight", Weight((self.gates, stream.hidden), summed), use, GATES, self.gates)
                for leaf, (use, summed) in uses.items()
            ),
        )

    def parts(self, name, stream, x):
        tensors, axes = self.tensors(name, stream), {ROW: x.shape[0], GATES: self.gates}
        inner = Value(f"{name}/open", tuple(axes), tuple(axes.values()))
        into = tuple(tensors[leaf] for leaf in tensors if leaf.startswith(("norm/", "one/", "three/")))
        return (
            Part(f"{name}/gates", self, stream, "gates", axes, (x,), inner, into),
            Part(f"{name}/shut", self, stream, "shut", axes | {HIDDEN: x.shape[1]}, (inner,),
                 stream.value(name, x.shape[0]), (tensors["two/weight"],), cut=True),
        )  # fmt: skip


# 2. What computes it: numpy, and nodes of graphs.
def gates(own, values):
    n = own.read(values)
    values[own.part.writes.name] = own.product(n, "three") / (1 + np.exp(-own.product(n, "one")))


def shut(own, values):
    values[own.part.writes.name] = own.product(values[own.part.reads[0].name], "two")


def add_gates(graph, part, region):
    n, one, three = graph.read(part), f"{part.block}/one", f"{part.block}/three"
    for leaf, name in (("one", one), ("three", three)):
        graph.product(n, name, graph.matrix(part, f"{leaf}/weight", region))
    graph.node("Mul", [graph.node("Sigmoid", [one], f"{part.block}/sigmoid"), three], part.writes.name)


def add_shut(graph, part, region):
    graph.product(graph.value(part.reads[0]), part.writes.name, graph.matrix(part, "two/weight", region))


def gated(n, prefix, kind, model, read, bias):
    """Return what the block computes, by its formula: the oracle."""
    one, two, three = (read(f"{prefix}/{leaf}/weight") for leaf in ("one", "two", "three"))
    return (n @ three.T / (1 + np.exp(-n @ one.T))) @ two


@pytest.fixture
def gated_model(monkeypatch):
    """Let all tables know it, and the oracle; return a model whose layers have it at any place, and some twice."""
    monkeypatch.setitem(KINDS, Gated.name, Gated)
    monkeypatch.setitem(decoders.BLOCKS, Gated.name, gated)
    for role, numbers, nodes in (("gates", gates, add_gates), ("shut", shut, add_shut)):
        monkeypatch.setitem(NUMBERS, role, numbers)
        monkeypatch.setitem(NODES, role, nodes)
    (attention, mlp), own = small_model().layers[0], Gated(gates=72)
    layers = (attention, own, mlp), (own, attention), (mlp, own, attention, own), (attention, own, mlp)
    return replace(small_model(), layers=layers)


def test_a_kind_of_a_language_model_is_few_lines():
    made = (Gated, gates, shut, add_gates, add_shut)

    assert sum(len(inspect.getsource(own).splitlines()) for own in made) <= 60


def test_a_model_with_it_is_read_as_it_was_written(gated_model):
    names = list(decoder_tensors(gated_model))

    assert Decoder.from_json(gated_model.to_json()) == gated_model
    assert names.index("layers/2/gated/two/weight") < names.index("layers/2/attention/output/weight")
    assert names.index("layers/2/attention/output/weight") < names.index("layers/2/gated.2/two/weight")


def test_every_system_plans_a_model_with_it(gated_model):
    cluster, asked = boards(2e6, 6e6, 5e5), TokenRequest(prompt=19, tokens=6, context=64)
    for system in SYSTEMS:
        plan = plan_decoder(system, gated_model, cluster, asked)

        plan.check(gated_model, 3)
        assert all(stage.shares[GATES].total == 72 for stage in plan.stages)


@pytest.mark.parametrize("backend", ["numpy", "onnxruntime"])
def test_a_profile_measures_it_where_it_is_priced_as_what_is_measured(backend, gated_model):
    """The first block of a model that has the curve of the MLP is the one that is timed."""
    random = RandomDecoder(gated_model, "int4", backend)
    for size in random.sizes(DecoderPart.MLP):
        random.call(DecoderPart.MLP, size, 2)()

    assert isinstance(random.kind(DecoderPart.MLP), Gated)
    assert random.bytes_of(DecoderPart.MLP, 32) == 40 * 4 + 2 * 32 * 64 * 0.625 + 40 * 20


def logits_and_bytes(ranks, tokens, then):
    """Return the likeliest logit of every row of a prompt, of tokens, and of a guess; and what was sent for a token.

    Before the guess another plan is gone over to.
    """
    found, sent, start = [], [], 0
    for rows in (19, 1, 1, 4):
        if rows == 4:
            ranks.prepare(then, 60.0)  # so long all ranks may get what they lack
            assert ranks.work()
            ranks.change([0, start, 0])
        found.append(
            ranks.compute(1, np.array([tokens[start : start + rows]]), [start], chosen=rows, count=1).logits[:, 0]
        )
        sent.append(ranks.sent_bytes.copy())
        start += rows
    return np.concatenate(found), sent[2] - sent[1]


def check_decoder(world, model, plan, backend, then=None):
    """Run passes as a plan says, compare with the oracle, and what was sent for a token with what was priced."""
    weights, tokens = Weights(model), np.random.default_rng(1).integers(0, model.vocab, 25).tolist()
    lead = partial(logits_and_bytes, tokens=tokens, then=then or plan)

    found, sent = on_ranks(world, weights, plan, lead, backend=backend)

    expected = logits(weights, tokens)
    assert np.abs(found - expected.max(1)).max() < 1e-5 * np.abs(expected).max()
    s = setting_of(model, boards(*[1e6] * world.size), plan)
    priced = sum(step.repeats * step.sent for step in price_pass(s, plan, 1, 20).steps)
    at_work = sorted({rank for stage in plan.stages for rank in stage.ranks})
    assert sent[at_work].tolist() == priced[at_work].tolist()


@pytest.mark.parametrize("backend", sized(["numpy", "onnxruntime"], 2))
def test_a_language_model_with_it_is_planned_and_runs_as_priced(backend, gated_model, world):
    cluster = boards(*(1e5 * speed for speed in SPEEDS[: world.size]), precision="float32")
    asked = TokenRequest(prompt=19, tokens=6, context=64, sequences=3, precision="float32")

    plan = world.from_root((lambda: plan_decoder("hepti", gated_model, cluster, asked)) if world.rank == 0 else None)

    assert plan_from_json(plan_to_json(plan, gated_model), DecoderPlan, gated_model) == plan
    assert {axis for stage in plan.stages for axis in stage.shares} == {"heads", "columns", GATES}
    assert len({*plan.stages[0].shares[GATES].counts}) > (world.size > 1)
    steps = price_pass(setting_of(gated_model, cluster, plan), plan, 1, 3).steps
    assert sum(step.repeats for step in steps if "mlp" in step.computes) == 8  # blocks that are priced so
    check_decoder(world, gated_model, plan, backend)


@pytest.mark.parametrize(
    ("stages", "rows_from", "backend", "outputs"),
    sized(sweeps.cycled(4, [1, 2], [0, 8], ["numpy", "onnxruntime"], [(), (GATES,)]), 3),
)
def test_it_is_cut_unevenly_by_rows_and_otherwise_from_a_token_on(
    stages, rows_from, backend, outputs, gated_model, world
):
    """Also by columns of its result."""
    rng = np.random.default_rng([world.size, stages, rows_from])
    facts = {"stages": stages, "rows_from": rows_from, "outputs": outputs}
    plan, then = (random_plan(world, gated_model, rng, **facts) for _ in "ab")

    check_decoder(world, gated_model, plan, backend, then)


def test_a_span_of_it_that_is_one_too_short_is_noticed(gated_model, world, monkeypatch):
    plan = random_plan(world, gated_model, np.random.default_rng(3))
    shorten(monkeypatch, "shut")

    with pytest.raises(AssertionError):
        check_decoder(world, gated_model, plan, "numpy")
