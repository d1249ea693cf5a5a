"""A language model over all ranks: the logits of its passes are those of the whole model, however it is split."""

from dataclasses import replace

import numpy as np
import pytest

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.wires import coding
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.program.program import PassShape, Program
from hepti_mpi.program.share import Share
from solver.base.spans import Partition, largest_remainder
from solver.model.kinds.part import FFN, HEAD
from solver.plan.plan import Wire
from solver.schedule.decoders.cost import price_pass, price_token, setting_of
from solver.schedule.decoders.memory import chunk_numbers
from solver.schedule.decoders.passes import DecoderPasses
from tests import sweeps
from tests.kit.answers import boards
from tests.kit.decoder_ranks import BACKENDS, on_ranks, random_plan
from tests.kit.decoders import MODELS, Weights, logits, small_model
from tests.kit.placed import shorten
from tests.kit.sized import sized
from weights.decoders import forward
from weights.decoders.file import DecoderFile, DecoderWriter

# How else than by heads, columns and words alone, as of `random_plan`.
CUTS = {
    "summands": {},
    "rows": {"rows_from": 8},
    "rows of the output product": {"rows_from": 8, "rows_end": True},
    "columns": {"outputs": (HEAD, FFN)},
    "keys": {"keys": 9},
    "hidden": {"hidden": True},
}
CHUNKS = (17, 1, 1, 5, 16)  # of rows: a prefill, tokens, what a guess is checked with, a prefill after others


def in_chunks(weights, tokens, place=1):
    """Return what computes all logits of a text in chunks: candidates are the whole vocabulary."""
    model = weights.model

    def lead(ranks):
        found, start = [], 0
        for rows in CHUNKS:
            best = ranks.compute(
                place, np.array([tokens[start : start + rows]]), [start], chosen=rows, count=model.vocab
            )
            own = np.empty(best.logits.shape)
            np.put_along_axis(own, best.ids, best.logits, 1)
            found.append(own)
            start += rows
        return np.concatenate(found)

    return lead


def error_of(world, weights, plan, tokens, backend):
    """Return the largest error of the ranks' logits, as a part of the whole model's largest."""
    found = on_ranks(world, weights, plan, in_chunks(weights, tokens), backend=backend)
    expected = logits(weights, tokens)
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(("name", "seed", "backend"), sized(sweeps.cycled(12, MODELS, sweeps.seeds(2, 5), BACKENDS), 6))
def test_logits_are_those_of_the_whole_model(name, seed, backend, world):
    rng = np.random.default_rng(seed)
    weights = Weights(MODELS[name], seed)
    tokens = rng.integers(0, weights.model.vocab, sum(CHUNKS)).tolist()
    plan = random_plan(world, weights.model, rng, stages=1 + seed % 2)

    assert error_of(world, weights, plan, tokens, backend) < 1e-5


@pytest.mark.parametrize(("name", "seed", "backend"), sized(sweeps.cycled(12, MODELS, sweeps.seeds(2, 5), BACKENDS), 6))
def test_prompts_that_are_cut_by_rows_have_the_same_logits(name, seed, backend, world):
    """Contexts go to who has their rows; tokens after them are cut by heads and columns, with the keys of both."""
    rng = np.random.default_rng([2, seed])
    weights = Weights(MODELS[name], seed)
    tokens = rng.integers(0, weights.model.vocab, sum(CHUNKS)).tolist()
    plan = random_plan(world, weights.model, rng, stages=1 + seed % 2, rows_from=16)

    assert error_of(world, weights, plan, tokens, backend) < 1e-5


@pytest.mark.parametrize(
    ("name", "seed", "backend", "also"),
    sized(sweeps.cycled(15, MODELS, sweeps.seeds(2, 5), BACKENDS, ({}, {"outputs": (FFN,)}, {"keys": 31})), 6),
)
def test_prompts_whose_output_products_are_cut_by_rows_have_the_same_logits(name, seed, backend, also, world):
    """Contexts go to who has their rows, and what comes of them to all; beside results by columns, and keys by tokens.

    The MLP is cut by columns as for tokens.
    """
    rng = np.random.default_rng([9, seed])
    weights = Weights(replace(MODELS[name], hidden=96), seed)
    tokens = rng.integers(0, weights.model.vocab, sum(CHUNKS)).tolist()
    plan = random_plan(world, weights.model, rng, stages=1 + seed % 2, rows_from=16, rows_end=True, **also)

    assert error_of(world, weights, plan, tokens, backend) < 1e-5


@pytest.mark.parametrize(
    ("name", "seed", "backend", "rows_from"),
    sized(sweeps.cycled(12, MODELS, sweeps.seeds(2, 4), BACKENDS, (0, 16)), 6),
)
def test_blocks_whose_results_are_cut_by_columns_have_the_same_logits(name, seed, backend, rows_from, world):
    """Those of attention, of the MLP, or of both, beside prompts that are cut by rows, too."""
    rng = np.random.default_rng([5, seed])
    weights = Weights(replace(MODELS[name], hidden=96), seed)
    tokens = rng.integers(0, weights.model.vocab, sum(CHUNKS)).tolist()
    outputs = ((FFN,), (HEAD,), (HEAD, FFN))[seed % 3]
    plan = random_plan(world, weights.model, rng, stages=1 + seed % 2, outputs=outputs, rows_from=rows_from)

    assert error_of(world, weights, plan, tokens, backend) < 1e-5


@pytest.mark.parametrize(
    ("name", "seed", "backend", "keys"), sized(sweeps.cycled(16, MODELS, sweeps.seeds(2, 3), BACKENDS, (5, 64, 31)), 8)
)
def test_keys_that_are_shared_out_by_tokens_give_the_same_logits(name, seed, backend, keys, world):
    """Every few tokens, or the context as a whole; beside results by columns, and prompts by rows, too."""
    rng = np.random.default_rng([6, seed, keys])
    weights = Weights(replace(MODELS[name], hidden=96), seed)
    tokens = rng.integers(0, weights.model.vocab, sum(CHUNKS)).tolist()
    also = ({}, {"outputs": (HEAD,)}, {"rows_from": 16}, {"outputs": (FFN,)})[int(rng.integers(4))]
    plan = random_plan(world, weights.model, rng, stages=1 + seed % 2, keys=keys, **also)

    assert error_of(world, weights, plan, tokens, backend) < 1e-5


@pytest.mark.parametrize(("name", "seed", "backend"), sized(sweeps.cycled(12, MODELS, sweeps.seeds(2, 4), BACKENDS), 6))
def test_logits_that_are_sums_over_ranks_are_the_same(name, seed, backend, world):
    """Of a head that is cut by what it sums over; who has its words gets their sums."""
    rng = np.random.default_rng([8, seed])
    weights = Weights(replace(MODELS[name], hidden=96), seed)
    tokens = rng.integers(0, weights.model.vocab, sum(CHUNKS)).tolist()
    plan = random_plan(world, weights.model, rng, stages=1 + seed % 2, hidden=True)

    assert error_of(world, weights, plan, tokens, backend) < 1e-5


@pytest.mark.parametrize(
    ("precision", "cuts", "backend"),
    sized(sweeps.cycled(6, ("int8", "int4", "int4m"), ("columns", "hidden", "keys"), BACKENDS[:2]), 5),
)
def test_in_blocks_every_cut_has_the_logits_of_the_whole_model(precision, cuts, backend, world, folder):
    """Of the numbers that they are by numpy, where onnxruntime rounds activations."""
    rng = np.random.default_rng([9, len(precision)])
    model = small_model(hidden=96, ffn=160, d=32, vocab=90)
    if world.rank == 0:
        with DecoderWriter(folder / "m.h5", model, "test", precision) as writer:
            for name, array in Weights(model).arrays.items():
                writer.write(name, 0, array)
    world.barrier()
    tokens = [int(token) for token in rng.integers(0, model.vocab, sum(CHUNKS))]
    plan = random_plan(world, model, rng, precision=precision, **CUTS[cuts])

    with DecoderFile(folder / "m.h5") as weights:
        found = on_ranks(world, weights, plan, in_chunks(weights, tokens), backend=backend)
        expected = forward.logits(model, weights.read, tokens)

    error = np.sqrt(np.square(found - expected).mean()) / np.sqrt(np.square(expected).mean())
    assert error < (1e-5 if backend == "numpy" else 0.03)


@pytest.mark.parametrize(
    ("name", "stages", "by_rows"),
    sized([("llama", 1, False), ("gemma2", 2, False), ("olmo2", 3, False), ("llama", 1, True), ("gemma2", 2, True)], 5),
)
def test_rows_that_nobody_asks_for_change_nothing(name, stages, by_rows, world):
    """Of the last layer only those are computed whose words are asked for; what is kept of the others is.

    So it is with prompts that are cut by rows, where the rank of the last rows has all words, and needs nothing more.
    """
    rng = np.random.default_rng(5)
    weights = Weights(MODELS[name])
    tokens = rng.integers(0, weights.model.vocab, sum(CHUNKS)).tolist()

    def lead(ranks):
        found, start = [], 0
        for rows, chosen in zip(CHUNKS, (0, 1, 0, 2, 5), strict=True):
            best = ranks.compute(1, np.array([tokens[start : start + rows]]), [start], chosen=chosen, count=1)
            start += rows
            found += [(row, float(own)) for row, (own,) in zip(range(start - chosen, start), best.logits, strict=True)]
        return found

    plan = random_plan(world, weights.model, rng, stages=stages, rows_from=16 * by_rows)
    if by_rows:
        *before, last = plan.stages
        every = range(world.size)
        last = replace(last, rows=tuple(int(rank in last.ranks) for rank in every))
        words = Partition.of_counts(weights.model.vocab * (rank == last.ranks[-1]) for rank in every)
        plan = replace(plan, stages=(*before, last), words=words)

    found = on_ranks(world, weights, plan, lead)

    expected = logits(weights, tokens)
    assert len(found) == 8
    for row, logit in found:
        assert abs(logit - expected[row].max()) < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("wire", "stages", "rows", "cuts"),
    sized(sweeps.cycled(9, (Wire.FLOAT32, Wire.FLOAT16, Wire.INT8), (1, 2, 3), (1, 9), CUTS), 5),
)
def test_bytes_that_are_sent_are_those_that_were_priced(wire, stages, rows, cuts, world):
    """Of every rank, of what rank 0 says and hears, too: from pass to pass of one shape."""
    rng = np.random.default_rng([stages, rows])
    weights = Weights(small_model(hidden=64))
    plan = random_plan(world, weights.model, rng, stages=stages, wire=wire, **CUTS[cuts])
    s = setting_of(weights.model, boards(*[1e9] * world.size), plan)

    def lead(ranks):
        told = []
        for start in (0, rows):
            ranks.compute(0, np.zeros((1, rows), np.int64), [start], chosen=1)
            told.append(ranks.sent_bytes.copy())
        return told[1] - told[0]

    sent = on_ranks(world, weights, plan, lead, wire)

    at_work = sorted({rank for stage in plan.stages for rank in stage.ranks})
    priced = sum(step.repeats * step.sent for step in price_pass(s, plan, rows, 0).steps)
    assert sent[at_work].tolist() == priced[at_work].tolist()


@pytest.mark.parametrize(("stages", "sequences"), [(1, 3), (2, 3), (3, 5)])
def test_bytes_of_sequences_on_their_way_through_stages_are_those_that_were_priced(stages, sequences, world):
    rng = np.random.default_rng([9, stages])
    weights = Weights(MODELS["llama"])
    plan = random_plan(world, weights.model, rng, stages=stages, sequences=sequences)
    s = setting_of(weights.model, boards(*[1e9] * world.size), plan)

    def lead(ranks):
        told = []
        for start in (0, 1):
            ranks.compute(0, np.zeros((sequences, 1), np.int64), [start] * sequences, chosen=1)
            told.append(ranks.sent_bytes.copy())
        return told[1] - told[0]

    sent = on_ranks(world, weights, plan, lead)

    at_work = sorted({rank for stage in plan.stages for rank in stage.ranks})
    priced = sum(step.repeats * step.sent for step in price_token(s, plan, 0).steps)
    assert sent[at_work].tolist() == priced[at_work].tolist()


@pytest.mark.parametrize(("stages", "cuts", "seed"), sized(sweeps.cycled(6, (1, 2, 3), CUTS, sweeps.seeds(2, 8)), 4))
def test_memory_of_a_pass_is_that_which_was_priced(stages, cuts, seed, world):
    """Of every rank, to the number of four bytes, on any wire; with what arrives."""
    rng = np.random.default_rng([7, stages, seed])
    weights = Weights(small_model(layers=5, hidden=64))
    plan = random_plan(world, weights.model, rng, stages=stages, **CUTS[cuts])
    plan = replace(plan, wire=(Wire.FLOAT32, Wire.FLOAT16, Wire.INT8)[(stages + seed) % 3])
    direct, rows = Direct(world), plan.context
    share = Share(DecoderPasses(weights.model, plan), world.rank)
    WeightsSource(world, weights).complete(share.lacking())
    program = Program(share, PassShape(0, 1, rows, 1), world, direct, coding(plan.wire))

    program.run([0])

    taken = world.on_all(lambda: program.taken_bytes)
    direct.close()
    assert [-(-own // 4) for own in taken] == chunk_numbers(weights.model, plan)


@pytest.mark.parametrize(("stages", "cuts", "seed"), sized(sweeps.cycled(5, (1, 2), CUTS, sweeps.seeds(2, 8)), 4))
def test_a_pass_compiled_after_others_is_that_compiled_from_new(stages, cuts, seed, world):
    """To the last bit, and in as much memory: what it has from passes of other lengths is what it would find itself."""
    rng = np.random.default_rng([9, stages, seed])
    weights = Weights(small_model(layers=5, hidden=64))
    plan = random_plan(world, weights.model, rng, stages=stages, **CUTS[cuts])
    direct, found = Direct(world), []

    def share_of():
        share = Share(DecoderPasses(weights.model, plan), world.rank)
        WeightsSource(world, weights).complete(share.lacking())
        return share

    kept = share_of()
    for rows in (33, 20, 33):
        both = [
            Program(share, PassShape(0, 1, rows, chosen), world, direct, coding(plan.wire))
            for chosen in (1, rows)
            for share in (kept, share_of())
        ]
        given = rng.integers(0, weights.model.vocab, both[0].given.shape)  # tokens, or a stream
        for program in both:
            program.given[...] = given
            program.run([0])
        for one, other in (both[:2], both[2:]):
            pairs = zip(one.logits, other.logits, strict=True)
            same = all(np.array_equal(own[1], new[1]) for own, new in pairs)
            found.append(same and one.taken_bytes == other.taken_bytes)

    found.append(kept.own_pass.cache_info().hits >= 2)
    found = world.on_all(lambda: found)
    direct.close()
    assert np.all(found)


@pytest.mark.parametrize("rows_from", [0, 16])
def test_layers_that_are_compiled_from_one_have_the_same_logits(rows_from, world):
    """Of seven layers four are alike in all that is done with them."""
    rng = np.random.default_rng(11)
    weights = Weights(small_model(layers=7))
    tokens = rng.integers(0, weights.model.vocab, sum(CHUNKS)).tolist()
    plan = random_plan(world, weights.model, rng, rows_from=rows_from)

    found = on_ranks(world, weights, plan, in_chunks(weights, tokens))

    expected = logits(weights, tokens)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("stages", "sequences"), [(1, 1), (2, 3), (3, 1)])
def test_an_embedding_that_is_cut_by_words_makes_the_same_stream(stages, sequences, backend, world):
    """With a scale, after it one stage or several, and several sequences on their way through these."""
    rng = np.random.default_rng([stages, sequences])
    weights = Weights(MODELS["gemma2"])
    texts = [rng.integers(0, weights.model.vocab, size).tolist() for size in (9, 20, 11)[:sequences]]
    plan = random_plan(world, weights.model, rng, stages=stages, embeds=True)

    def lead(ranks):
        for place, text in enumerate(texts):
            ranks.compute(place, np.array([text]), [0], chosen=1)
        return ranks.compute(0, np.full((sequences, 1), 5), [*map(len, texts)], chosen=1)

    best = on_ranks(world, weights, plan, lead, backend=backend)

    for place, text in enumerate(texts):
        assert best.logits[place] == pytest.approx(logits(weights, [*text, 5])[-1].max(), rel=1e-5)


@pytest.mark.parametrize(
    ("role", "cuts"),
    [("words", None), ("output", "summands"), ("down", "summands"), ("logits", "summands"), ("sums", "hidden")],
)
def test_a_span_that_is_one_too_short_is_noticed(role, cuts, world, monkeypatch):
    """The last unit that somebody has of a part is computed by nobody: logits are others."""
    weights = Weights(replace(MODELS["llama"], hidden=640))
    rng = np.random.default_rng(3)
    plan = random_plan(world, weights.model, rng, **(CUTS[cuts] if cuts else {}), embeds=role == "words")
    if plan.hidden is not None:  # by several units each
        ranks = [float(rank in plan.stages[0].ranks) for rank in range(world.size)]
        plan = replace(plan, hidden=Partition.of_counts(32 * own for own in largest_remainder(ranks, 640 // 32)))
    tokens = [weights.model.vocab - 1, *rng.integers(0, weights.model.vocab, sum(CHUNKS) - 1).tolist()]
    shorten(monkeypatch, role)

    found = on_ranks(world, weights, plan, in_chunks(weights, tokens))

    expected = logits(weights, tokens)
    assert np.abs(found - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("wire", "within", "cuts"), [(*wire, cuts) for cuts in CUTS for wire in ((Wire.FLOAT16, 0.02), (Wire.INT8, 0.2))]
)
def test_thin_wires_cost_little(wire, within, cuts, world):
    """And give the same on all ranks, or their streams would drift apart."""
    rng = np.random.default_rng(7)
    weights = Weights(replace(MODELS["llama"], hidden=96))
    tokens = [int(token) for token in rng.integers(0, 50, sum(CHUNKS))]

    plan = random_plan(world, weights.model, rng, **CUTS[cuts])
    found = on_ranks(world, weights, plan, in_chunks(weights, tokens), wire)

    expected = logits(weights, tokens)
    assert np.abs(found - expected).max() < within * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "stages", "cuts"),
    [
        ("llama", 1, "summands"),
        ("gemma2", 2, "summands"),
        ("llama", 3, "columns"),
        ("llama", 1, "keys"),
        ("gemma2", 2, "keys"),
        ("gemma2", 2, "hidden"),
    ],
)
def test_several_sequences_in_one_pass_do_not_feel_each_other(name, stages, cuts, world):
    """Nor where each stage computes some of them while others compute the rest."""
    rng = np.random.default_rng(3)
    weights = Weights(replace(MODELS[name], hidden=96))
    model = weights.model
    texts = [[int(token) for token in rng.integers(0, model.vocab, size)] for size in (9, 20, 1)]

    def lead(ranks):
        for place, text in enumerate(texts):
            ranks.compute(place, np.array([text]), [0], chosen=1, count=1)
        return ranks.compute(0, np.full((3, 1), 5), [len(text) for text in texts], chosen=1, count=2)

    best = on_ranks(world, weights, random_plan(world, model, rng, stages=stages, **CUTS[cuts]), lead)

    for place, text in enumerate(texts):
        expected = logits(weights, [*text, 5])[-1]
        assert list(best.ids[place]) == list(np.argsort(-expected)[:2])
        assert best.logits[place] == pytest.approx(np.sort(expected)[:-3:-1], rel=1e-5)


@pytest.mark.parametrize("cuts", ["summands", "keys"])
def test_what_is_forgotten_is_overwritten(cuts, world):
    """A guess that was wrong leaves keys behind: the next pass starts before them."""
    rng = np.random.default_rng(4)
    weights = Weights(MODELS["qwen3"])
    tokens = [int(token) for token in rng.integers(0, 50, 12)]

    def lead(ranks):
        for start, rows in ((0, tokens[:8]), (8, [1, 2, 3, 4]), (8, tokens[8:])):
            best = ranks.compute(0, np.array([rows]), [start], chosen=1, count=1)
        return best

    best = on_ranks(world, weights, random_plan(world, weights.model, rng, **CUTS[cuts]), lead)

    assert best.ids[0, 0] == logits(weights, tokens)[-1].argmax()
