"""A kind of a language model's block that only this test has: its parts, its nodes and its numbers, placed and run."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from hepti_mpi.kernels.kinds.numpy_run import NUMBERS
from hepti_mpi.kernels.kinds.runs import NODES
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.part import FFN, ROW
from solver.schedule.decoders.cost import price_pass, setting_of
from solver.schedule.decoders.steps import BY_ROWS, CUTS
from tests.kit.answers import boards
from tests.kit.decoder_ranks import on_ranks, random_plan
from tests.kit.decoders import MODELS, Weights, logits
from tests.kit.sized import sized


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvedMlp(Mlp):
    """Half of what an MLP computes: its second product is a part of its own."""

    def parts(self, name, stream, x):
        up, down = Mlp.parts(self, name, stream, x)
        return replace(up, kind=self), replace(down, kind=self, role="halved")


def add_halved(graph, part, region):
    (inner,), half = part.reads, graph.constant(f"{part.name}.half", np.array(0.5, np.float32))
    y = graph.product(graph.value(inner), f"{part.name}.whole", graph.matrix(part, "down/weight", region))
    graph.made.add(graph.node("Mul", [y, half], part.writes.name))


def halved(own, values):
    (inner,) = own.part.reads
    values[own.part.writes.name] = 0.5 * own.product(values[inner.name], "down")


@pytest.mark.sizes
@pytest.mark.parametrize(("backend", "rows_from"), sized([("onnxruntime", 0), ("numpy", 8), ("onnxruntime", 8)]))
def test_a_kind_of_ones_own_is_cut_priced_and_run(backend, rows_from, world, monkeypatch):
    """As docs/architecture.md says: along which axes ranks cut its part, and what adds it to a graph and to numpy."""
    for table, entry in ((NODES, add_halved), (NUMBERS, halved), (CUTS, FFN), (BY_ROWS, ROW)):
        monkeypatch.setitem(table, "halved", entry)
    rng, weights = np.random.default_rng(5), Weights(MODELS["llama"])
    tokens = [int(token) for token in rng.integers(0, weights.model.vocab, 19)]
    expected = logits(weights, tokens)
    mlp = HalvedMlp(ffn=weights.model.layers[0].mlp.ffn)
    weights.model = replace(weights.model, layers=tuple(replace(own, mlp=mlp) for own in weights.model.layers))
    for name, array in weights.arrays.items():
        if name.endswith("down/weight"):
            array *= 2
    plan = random_plan(world, weights.model, rng, rows_from=rows_from)

    def lead(ranks, embed):
        stream = np.empty((1, len(tokens), weights.model.hidden), np.float32)
        embed(tokens, 0, stream[0])
        best = ranks.compute(0, stream, [0], chosen=len(tokens), count=1)
        return best.logits[:, 0]

    found = on_ranks(world, weights, plan, lead, backend=backend)

    assert np.abs(found - expected.max(1)).max() < 1e-5 * np.abs(expected).max()
    s = setting_of(weights.model, boards(*[1e9] * world.size), plan)
    assert "mlp" in [name for step in price_pass(s, plan, len(tokens), 0).steps for name in step.computes]
