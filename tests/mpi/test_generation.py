"""Answers token by token are those of the whole model, however it is split, and whatever was said before."""

from dataclasses import replace

import numpy as np
import pytest

from hepti_mpi.decoding.generation import Generation
from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.prompts import Prompt
from hepti_mpi.requests.sampling import Sampling
from tests import sweeps
from tests.decoders import MODELS, Weights, logits
from tests.mpi.test_decoder_passes import on_ranks, random_plan

GREEDY = Sampling()


def greedy(weights, tokens, count):
    """Return what a greedy model says behind a text."""
    known = list(tokens)
    for _ in range(count):
        known.append(int(logits(weights, known)[-1].argmax()))
    return known[len(tokens) :]


def texts(rng, vocab, *sizes):
    return [tuple(int(token) for token in rng.integers(0, vocab, size)) for size in sizes]


def answers(world, weights, plan, prompts, ending=None, sampling=GREEDY, *, speculates=False):
    """Return the tokens, the reason to end, and what was known, of every answer by its prompt's id."""

    def lead(ranks, embedding):
        generation = Generation(
            weights.model, ranks, embedding, None, ending or Ending(6), sampling, speculates=speculates
        )
        asked = [Prompt(number, tokens) for number, tokens in enumerate(prompts)]
        return {
            answer.prompt.id: (answer.text.tokens, answer.text.finish_reason, answer.known)
            for answer in generation.answer(asked)
        }

    return on_ranks(world, weights, plan, lead)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("speculates", [False, True])
def test_greedy_answers_are_those_of_the_whole_model(name, speculates, world):
    rng = np.random.default_rng(11)
    weights = Weights(MODELS[name])
    prompts = texts(rng, weights.model.vocab, 1, 30)

    found = answers(world, weights, random_plan(world, weights.model, rng), prompts, speculates=speculates)

    assert [found[number][0] for number in range(2)] == [greedy(weights, prompt, 6) for prompt in prompts]


@pytest.mark.parametrize("seed", sweeps.seeds(3, 20))
def test_several_at_a_time_are_as_one_by_one(seed, world):
    rng = np.random.default_rng(seed)
    weights = Weights(MODELS["qwen3"], seed)
    prompts = texts(rng, weights.model.vocab, *rng.integers(1, 40, 7))
    one = random_plan(world, weights.model, rng, stages=1 + seed % 2)
    plan = random_plan(world, weights.model, rng, stages=1 + seed % 2, sequences=3)

    found = answers(world, weights, plan, prompts, Ending(9))

    assert len(found) == len(prompts)
    assert {number: answer[0] for number, answer in found.items()} == {
        number: answer[0] for number, answer in answers(world, weights, one, prompts, Ending(9)).items()
    }


def test_what_a_text_begins_with_is_not_computed_again(world):
    rng = np.random.default_rng(5)
    weights = Weights(MODELS["llama"])
    (first,) = texts(rng, 50, 20)
    said = greedy(weights, first, 6)
    second = (*first, *said, 7, 8)
    prompts = [first, second, second, first[:10]]

    found = answers(world, weights, random_plan(world, weights.model, rng, sequences=1), prompts)

    assert [found[number][0] for number in range(4)] == [greedy(weights, prompt, 6) for prompt in prompts]
    # Of the last token of an answer nothing is kept; of a prompt the last token is always computed.
    assert [found[number][2] for number in range(4)] == [0, 25, 27, 9]


def test_a_guess_is_taken_as_far_as_the_model_agrees(world):
    """A text that goes on repeating itself: most of its tokens come several a pass, and none is another."""
    weights = Weights(MODELS["llama"])
    prompt = tuple([3, 9, 4] * 12)
    rng = np.random.default_rng(0)
    passes = []

    def lead(ranks, embedding):
        compute = ranks.compute
        ranks.compute = lambda *args, **facts: passes.append(args[1].shape[1]) or compute(*args, **facts)
        generation = Generation(weights.model, ranks, embedding, None, Ending(40), GREEDY, speculates=True)
        generation._lookup.measured({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0})
        (answer,) = generation.answer([Prompt(1, prompt)])
        return answer.text.tokens, passes

    found, rows = on_ranks(world, weights, random_plan(world, weights.model, rng, context=128), lead)

    assert found == greedy(weights, prompt, 40)
    behind = rows[rows.index(len(prompt)) + 1 :]
    assert sum(behind) > len(behind)  # something was guessed


def test_an_answer_ends_with_the_context(world):
    rng = np.random.default_rng(2)
    weights = Weights(MODELS["llama"])
    (prompt,) = texts(rng, 50, 60)

    found = answers(world, weights, random_plan(world, weights.model, rng, context=64), [prompt], Ending(50))

    assert found[0][:2] == (greedy(weights, prompt, 5), "length")


def test_the_token_that_ends_an_answer_ends_it(world):
    rng = np.random.default_rng(2)
    weights = Weights(MODELS["llama"])
    (prompt,) = texts(rng, 50, 12)
    said = greedy(weights, prompt, 8)
    eos = said[3]
    until = said.index(eos)

    found = answers(world, weights, random_plan(world, weights.model, rng), [prompt], Ending(8, (eos,)))

    assert found[0][:2] == (said[: until + 1], "stop")


def test_what_is_drawn_depends_on_the_seed_alone(world):
    rng = np.random.default_rng(2)
    weights = Weights(MODELS["llama"])
    (prompt,) = texts(rng, 50, 12)

    def drawn(seed):
        sampling = Sampling(temperature=1.5, top_p=0.9, seed=seed)
        return answers(world, weights, random_plan(world, weights.model, rng), [prompt], Ending(20), sampling)[0][0]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize("name", MODELS)
def test_an_int8_cache_costs_little(name, world):
    """As much as rounding does: a sixteenth of its scale a number, and a text beyond its sample is not cut off."""
    rng = np.random.default_rng(9)
    weights = Weights(MODELS[name])
    (text,) = texts(rng, weights.model.vocab, 50)

    def lead(ranks, embedding):
        generation = Generation(weights.model, ranks, embedding, None, Ending(1), GREEDY, speculates=False)
        found = []
        for start, rows in ((0, 20), (20, 1), (21, 29)):
            stream = np.empty((1, rows, weights.model.hidden), np.float32)
            embedding(text[start : start + rows], start, stream[0])
            best = ranks.compute(0, stream, [start], chosen=rows, count=weights.model.vocab)
            own = np.empty(best.logits.shape)
            np.put_along_axis(own, best.ids, best.logits, 1)
            found.append(own)
        assert generation
        return np.concatenate(found)

    found = on_ranks(world, weights, random_plan(world, weights.model, rng, cache="int8"), lead)

    expected = logits(weights, text)
    assert np.sqrt(np.square(found - expected).mean()) < 0.05 * np.sqrt(np.square(expected).mean())


@pytest.mark.parametrize("cache", ["float32", "int8"])
@pytest.mark.parametrize("name", ["llama", "one-kv-head", "qwen3", "gpt2"])
@pytest.mark.parametrize("seed", sweeps.seeds(2, 10))
def test_a_change_of_plan_between_tokens_changes_no_token(name, seed, cache, world):
    """Keys and values go with their heads, of all sequences; halves that stay where they are stay as they are."""
    rng = np.random.default_rng(seed)
    weights = Weights(MODELS[name], seed)
    model = weights.model
    facts = {"context": 64, "sequences": 2, "cache": cache}
    plans = [random_plan(world, model, rng, stages=1 + (seed + number) % 2, **facts) for number in range(3)]
    plans.append(replace(plans[-1], words=plans[-1].words))
    prompts = texts(rng, model.vocab, 21, 9)

    def answered(changes):
        def lead(ranks, embedding):
            generation = Generation(model, ranks, embedding, None, Ending(12), GREEDY, speculates=False)
            passes, compute = [], ranks.compute

            def changing(*args, **options):
                best = compute(*args, **options)
                passes.append(best)
                if changes and len(passes) in (4, 7, 9):
                    generation.change(plans[1 + (4, 7, 9).index(len(passes))])
                return best

            ranks.compute = changing
            asked = [Prompt(number, tokens) for number, tokens in enumerate(prompts)]
            return {answer.prompt.id: answer.text.tokens for answer in generation.answer(asked)}

        return on_ranks(world, weights, plans[0], lead)

    assert answered(changes=True) == answered(changes=False)
