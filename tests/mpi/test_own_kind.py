"""A kind of block that only this test has, made by the steps of docs/architecture.md: planned, priced, and run."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from hepti_mpi.engine import layers
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.layers import BlockKernels
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels.backends import backend
from hepti_mpi.kernels.products import AddResidual, Linear, Norm
from solver.base.spans import Partition
from solver.cluster.curves import Kernel
from solver.model import spec as model
from solver.model.blocks import Block, BlockKind, Cut
from solver.model.kinds.part import PartTensor, TensorUse
from solver.model.kinds.weight import Weight
from solver.model.spec import ModelSpec, Run, TextInput, attention_block, mlp_block, residual, tensor_shapes
from solver.plan.file import plan_from_json
from solver.plan.plan import BlockPlan, Plan, StreamLayout, block_by_rows, blockwise_plan
from solver.plan.writing import plan_to_json
from solver.programs.planner import solve
from solver.schedule.encoders import steps
from solver.schedule.encoders.cost import price, setting
from solver.schedule.encoders.stages import price_plan
from solver.schedule.encoders.steps import ByTiles, Call, Lay
from solver.show.schedule_table import schedule_rows
from solver.systems import make_plan
from tests import sweeps
from tests.kit import reference
from tests.kit.clusters import pis
from tests.kit.encoders import tensors_of
from tests.kit.in_memory import layers_of
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


# 2. What it does, step by step.
def gate_steps(block, cut, norm, input_gathered):
    product = Call("gate", Kernel.PROJECT, block.hidden**2)
    return [Lay(), ByTiles((product,)), steps.close(block, norm)], ()


# 3. What computes it.
def gate_kernels(make, share, w):
    norm = Norm(w["norm"], w["norm_bias"], share.block.stream.eps)
    gate = Linear(w["into"], w["into_bias"], "tanh")
    # Who has no rows of it has no matrix.
    last = make([gate, AddResidual(np.zeros(H, np.float32)), norm] if w["into"].size else [norm])
    return BlockKernels((), w["into_bias"], last, last, None, 0)


@pytest.fixture(autouse=True)
def gate(monkeypatch):
    """Let all three tables know it, and the oracle."""
    monkeypatch.setitem(model.KINDS, Gate.name, Gate)
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
