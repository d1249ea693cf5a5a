"""A language model over all ranks: the logits of its passes are those of the whole model, however it is split."""

from dataclasses import replace

import numpy as np
import pytest

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.wires import coding
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.program.program import PassShape, Program
from hepti_mpi.program.share import Share
from solver.plan.plan import Wire
from solver.schedule.decoders.cost import price_pass, setting_of
from solver.schedule.decoders.memory import chunk_numbers
from solver.schedule.decoders.passes import DecoderPasses
from tests import sweeps
from tests.kit.answers import boards
from tests.kit.decoder_ranks import BACKENDS, on_ranks, random_plan
from tests.kit.decoders import MODELS, Weights, logits, small_model
from tests.kit.placed import shorten
from tests.kit.sized import sized

CHUNKS = (17, 1, 1, 5, 16)  # of rows: a prefill, tokens, what a guess is checked with, a prefill behind others


def in_chunks(weights, tokens, place=1):
    """Return what computes all logits of a text in chunks: candidates are the whole vocabulary."""
    model = weights.model

    def lead(ranks, embed):
        found, start = [], 0
        for rows in CHUNKS:
            stream = np.empty((1, rows, model.hidden), np.float32)
            embed(tokens[start : start + rows], start, stream[0])
            best = ranks.compute(place, stream, [start], chosen=rows, count=model.vocab)
            own = np.empty(best.logits.shape)
            np.put_along_axis(own, best.ids, best.logits, 1)
            found.append(own)
            start += rows
        return np.concatenate(found)

    return lead


@pytest.mark.parametrize(
    ("name", "seed", "backend"), sized(sweeps.cycled(12, MODELS, sweeps.seeds(2, 20), BACKENDS), 3)
)
def test_logits_are_those_of_the_whole_model(name, seed, backend, world):
    rng = np.random.default_rng(seed)
    weights = Weights(MODELS[name], seed)
    tokens = [int(token) for token in rng.integers(0, weights.model.vocab, sum(CHUNKS))]
    plan = random_plan(world, weights.model, rng, stages=1 + seed % 2)

    found = on_ranks(world, weights, plan, in_chunks(weights, tokens), backend=backend)

    expected = logits(weights, tokens)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "seed", "backend"), sized(sweeps.cycled(12, MODELS, sweeps.seeds(2, 20), BACKENDS), 3)
)
def test_prompts_that_are_cut_by_rows_have_the_same_logits(name, seed, backend, world):
    """Contexts go to who has their rows; tokens after them are cut by heads and columns, with the keys of both."""
    rng = np.random.default_rng([2, seed])
    weights = Weights(MODELS[name], seed)
    tokens = [int(token) for token in rng.integers(0, weights.model.vocab, sum(CHUNKS))]
    plan = random_plan(world, weights.model, rng, stages=1 + seed % 2, rows_from=16)

    found = on_ranks(world, weights, plan, in_chunks(weights, tokens), backend=backend)

    expected = logits(weights, tokens)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(("name", "stages"), sized([("llama", 1), ("gemma2", 2), ("olmo2", 3)]))
def test_rows_that_nobody_asks_for_change_nothing(name, stages, world):
    """Of the last layer only those are computed whose words are asked for; what is kept of the others is."""
    rng = np.random.default_rng(5)
    weights = Weights(MODELS[name])
    tokens = [int(token) for token in rng.integers(0, weights.model.vocab, sum(CHUNKS))]

    def lead(ranks, embed):
        found, start = [], 0
        for rows, chosen in zip(CHUNKS, (0, 1, 0, 2, 5), strict=True):
            stream = np.empty((1, rows, weights.model.hidden), np.float32)
            embed(tokens[start : start + rows], start, stream[0])
            best = ranks.compute(1, stream, [start], chosen=chosen, count=1)
            start += rows
            found += [(row, float(own)) for row, (own,) in zip(range(start - chosen, start), best.logits, strict=True)]
        return found

    found = on_ranks(world, weights, random_plan(world, weights.model, rng, stages=stages), lead)

    expected = logits(weights, tokens)
    assert len(found) == 8
    for row, logit in found:
        assert abs(logit - expected[row].max()) < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("wire", "stages", "rows", "by_rows"),
    sized(sweeps.cycled(9, (Wire.FLOAT32, Wire.FLOAT16, Wire.INT8), (1, 2, 3), (1, 9), (0, 8)), 3),
)
def test_bytes_that_are_sent_are_those_that_were_priced(wire, stages, rows, by_rows, world):
    """Of every rank, of what rank 0 says and hears, too: from pass to pass of one shape."""
    rng = np.random.default_rng([stages, rows])
    weights = Weights(small_model(hidden=64))
    plan = random_plan(world, weights.model, rng, stages=stages, rows_from=by_rows, wire=wire)
    s = setting_of(weights.model, boards(*[1e9] * world.size), plan)

    def lead(ranks, embed):
        told = []
        for start in (0, rows):
            stream = np.zeros((1, rows, weights.model.hidden), np.float32)
            ranks.compute(0, stream, [start], chosen=1)
            told.append(ranks.sent_bytes.copy())
        return told[1] - told[0]

    sent = on_ranks(world, weights, plan, lead, wire)

    at_work = sorted({rank for stage in plan.stages for rank in stage.ranks})
    priced = sum(step.repeats * step.sent for step in price_pass(s, plan, rows, 0).steps)
    assert sent[at_work].tolist() == priced[at_work].tolist()


@pytest.mark.parametrize(
    ("stages", "by_rows", "seed"), sized(sweeps.cycled(6, (1, 2, 3), (0, 8), sweeps.seeds(2, 20)), 3)
)
def test_memory_of_a_pass_is_that_which_was_priced(stages, by_rows, seed, world):
    """Of every rank, to the number of four bytes, on any wire; with what arrives."""
    rng = np.random.default_rng([7, stages, seed])
    weights = Weights(small_model(layers=5, hidden=64))
    plan = random_plan(world, weights.model, rng, stages=stages, rows_from=by_rows)
    plan = replace(plan, wire=(Wire.FLOAT32, Wire.FLOAT16, Wire.INT8)[(stages + seed) % 3])
    direct, rows = Direct(world), plan.context
    share = Share(DecoderPasses(weights.model, plan), world.rank)
    WeightsSource(world, weights).complete(share.lacking())
    program = Program(share, PassShape(0, 1, rows, 1), world, direct, coding(plan.wire))

    program.run([0])

    taken = world.on_all(lambda: program.taken_bytes)
    direct.close()
    assert [-(-own // 4) for own in taken] == chunk_numbers(weights.model, plan)


@pytest.mark.parametrize("rows_from", [0, 16])
def test_layers_that_are_compiled_from_one_have_the_same_logits(rows_from, world):
    """Of seven layers four are alike in all that is done with them."""
    rng = np.random.default_rng(11)
    weights = Weights(small_model(layers=7))
    tokens = [int(token) for token in rng.integers(0, weights.model.vocab, sum(CHUNKS))]
    plan = random_plan(world, weights.model, rng, rows_from=rows_from)

    found = on_ranks(world, weights, plan, in_chunks(weights, tokens))

    expected = logits(weights, tokens)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("role", ["output", "down", "logits"])
def test_a_span_that_is_one_too_short_is_noticed(role, world, monkeypatch):
    """The last unit that somebody has of a part is computed by nobody: logits are others."""
    weights = Weights(MODELS["llama"])
    rng = np.random.default_rng(3)
    plan = random_plan(world, weights.model, rng)
    tokens = [int(token) for token in rng.integers(0, weights.model.vocab, sum(CHUNKS))]
    shorten(monkeypatch, role)

    found = on_ranks(world, weights, plan, in_chunks(weights, tokens))

    expected = logits(weights, tokens)
    assert np.abs(found - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize(("wire", "within"), [(Wire.FLOAT16, 0.02), (Wire.INT8, 0.2)])
def test_thin_wires_cost_little(wire, within, world):
    """And give the same on all ranks, or their streams would drift apart."""
    rng = np.random.default_rng(7)
    weights = Weights(MODELS["llama"])
    tokens = [int(token) for token in rng.integers(0, 50, sum(CHUNKS))]

    found = on_ranks(world, weights, random_plan(world, weights.model, rng), in_chunks(weights, tokens), wire)

    expected = logits(weights, tokens)
    assert np.abs(found - expected).max() < within * np.abs(expected).max()


@pytest.mark.parametrize(("name", "stages"), [("llama", 1), ("gemma2", 2), ("llama", 3)])
def test_several_sequences_in_one_pass_do_not_feel_each_other(name, stages, world):
    """Nor where each stage computes some of them while others compute the rest."""
    rng = np.random.default_rng(3)
    weights = Weights(MODELS[name])
    model = weights.model
    texts = [[int(token) for token in rng.integers(0, model.vocab, size)] for size in (9, 20, 1)]

    def lead(ranks, embed):
        for place, text in enumerate(texts):
            stream = np.empty((1, len(text), model.hidden), np.float32)
            embed(text, 0, stream[0])
            ranks.compute(place, stream, [0], chosen=1, count=1)
        stream = np.empty((3, 1, model.hidden), np.float32)
        for place, text in enumerate(texts):
            embed([5], len(text), stream[place])
        return ranks.compute(0, stream, [len(text) for text in texts], chosen=1, count=2)

    best = on_ranks(world, weights, random_plan(world, model, rng, stages=stages), lead)

    for place, text in enumerate(texts):
        expected = logits(weights, [*text, 5])[-1]
        assert list(best.ids[place]) == list(np.argsort(-expected)[:2])
        assert best.logits[place] == pytest.approx(np.sort(expected)[:-3:-1], rel=1e-5)


def test_what_is_forgotten_is_overwritten(world):
    """A guess that was wrong leaves keys behind: the next pass starts before them."""
    rng = np.random.default_rng(4)
    weights = Weights(MODELS["qwen3"])
    tokens = [int(token) for token in rng.integers(0, 50, 12)]

    def lead(ranks, embed):
        for start, rows in ((0, tokens[:8]), (8, [1, 2, 3, 4]), (8, tokens[8:])):
            stream = np.empty((1, len(rows), weights.model.hidden), np.float32)
            embed(rows, start, stream[0])
            best = ranks.compute(0, stream, [start], chosen=1, count=1)
        return best

    best = on_ranks(world, weights, random_plan(world, weights.model, rng), lead)

    assert best.ids[0, 0] == logits(weights, tokens)[-1].argmax()
