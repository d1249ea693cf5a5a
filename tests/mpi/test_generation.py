"""Answers token by token are those of the whole model, however it is split, and whatever was said before."""

from dataclasses import replace

import numpy as np
import pytest

from hepti_mpi.decoding.generation import GUESSED_ROWS, TIMES, Generation
from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.lookup import Lookup
from hepti_mpi.requests.prompts import Prompt, Wishes
from hepti_mpi.requests.sampling import Sampling
from tests import sweeps
from tests.kit.decoder_ranks import BACKENDS, on_ranks, random_plan
from tests.kit.decoders import MODELS, Weights, logits
from tests.kit.sized import sized

GREEDY = Sampling()


def greedy(weights, tokens, count):
    """Return what a greedy model says after a text."""
    known = list(tokens)
    for _ in range(count):
        known.append(int(logits(weights, known)[-1].argmax()))
    return known[len(tokens) :]


def texts(rng, vocab, *sizes):
    return [tuple(int(token) for token in rng.integers(0, vocab, size)) for size in sizes]


def answers(world, weights, plan, prompts, ending=None, sampling=GREEDY, *, speculates=False):
    """Return the tokens, the reason to end, and what was known, of every answer by its prompt's id."""

    def lead(ranks):
        generation = Generation(
            weights.model, ranks, None, Wishes(ending or Ending(6), sampling), speculates=speculates
        )
        asked = [Prompt(number, tokens) for number, tokens in enumerate(prompts)]
        return {
            answer.prompt.id: (answer.text.tokens, answer.text.finish_reason, answer.known)
            for answer in generation.answer(asked)
        }

    return on_ranks(world, weights, plan, lead)


@pytest.mark.parametrize(("name", "speculates"), sized(sweeps.cycled(8, MODELS, [False, True]), 5))
def test_greedy_answers_are_those_of_the_whole_model(name, speculates, world):
    rng = np.random.default_rng(11)
    weights = Weights(MODELS[name])
    prompts = texts(rng, weights.model.vocab, 1, 30)

    found = answers(world, weights, random_plan(world, weights.model, rng), prompts, speculates=speculates)

    assert [found[number][0] for number in range(2)] == [greedy(weights, prompt, 6) for prompt in prompts]


@pytest.mark.parametrize("seed", sized(sweeps.seeds(2, 20), 2))
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

    def lead(ranks):
        compute = ranks.compute
        ranks.compute = lambda *args, **facts: passes.append(args[1].shape[1]) or compute(*args, **facts)
        generation = Generation(weights.model, ranks, None, Wishes(Ending(40), GREEDY), speculates=True)
        generation._lookup = Lookup({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0})
        (answer,) = generation.answer([Prompt(1, prompt)])
        return answer.text.tokens, passes

    found, rows = on_ranks(world, weights, random_plan(world, weights.model, rng, context=128), lead)

    assert found == greedy(weights, prompt, 40)
    behind = rows[rows.index(len(prompt)) + 1 :]
    assert sum(behind) > len(behind)  # something was guessed


def test_what_guesses_cost_is_measured_behind_the_first_token_and_only_where_there_is_one(world):
    """Ranks that are started again have an answer that waits for them: its next token comes before."""
    weights = Weights(MODELS["llama"])
    new = next((token,) for token in range(50) if greedy(weights, (token,), 1) != [token])
    old = (3, 9, 4)  # of which the model says one again
    prompts = [new, old, old]
    plan = random_plan(world, weights.model, np.random.default_rng(0), context=128)
    passes = []

    def lead(ranks):
        compute = ranks.compute
        ranks.compute = lambda *args, **facts: passes[-1].append(args[1].shape[1]) or compute(*args, **facts)
        generation = Generation(weights.model, ranks, None, Wishes(Ending(2), GREEDY), speculates=True)
        tokens = []
        for number, prompt in enumerate(prompts):
            passes.append([])
            tokens += [answer.text.tokens for answer in generation.answer([Prompt(number, prompt)])]
        return tokens, passes

    found, rows = on_ranks(world, weights, plan, lead)

    assert found == [greedy(weights, prompt, 2) for prompt in prompts]
    once = [rows for rows in GUESSED_ROWS for _ in range(TIMES)]
    assert rows[0] == [1, 1]
    assert rows[1][1 : 1 + len(once)] == once
    assert len(rows[1]) == 2 + len(once)
    assert len(rows[2]) == 2


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


@pytest.mark.parametrize(
    ("name", "backend", "keys"),
    sweeps.cycled(8, MODELS if sweeps.ALL else ["llama", "gemma2", "gpt2", "partial"], BACKENDS, (0, 7)),
)
def test_an_int8_cache_costs_little(name, backend, keys, world):
    """As much as rounding does: a sixteenth of its scale a number, and a text beyond its sample is not cut off."""
    rng = np.random.default_rng(9)
    weights = Weights(MODELS[name])
    (text,) = texts(rng, weights.model.vocab, 50)

    def lead(ranks):
        generation = Generation(weights.model, ranks, None, Wishes(Ending(1), GREEDY), speculates=False)
        found = []
        for start, rows in ((0, 20), (20, 1), (21, 29)):
            best = ranks.compute(
                0, np.array([text[start : start + rows]]), [start], chosen=rows, count=weights.model.vocab
            )
            own = np.empty(best.logits.shape)
            np.put_along_axis(own, best.ids, best.logits, 1)
            found.append(own)
        assert generation
        return np.concatenate(found)

    plan = random_plan(world, weights.model, rng, cache="int8", keys=keys)
    found = on_ranks(world, weights, plan, lead, backend=backend)

    expected = logits(weights, text)
    assert np.sqrt(np.square(found - expected).mean()) < 0.05 * np.sqrt(np.square(expected).mean())


@pytest.mark.parametrize(
    ("name", "seed", "cache", "backend", "keys"),
    sized(
        sweeps.cycled(
            8, ["llama", "one-kv-head", "qwen3", "gpt2"], sweeps.seeds(2, 3), ["float32", "int8"], BACKENDS,
            [(0, 0, 0), (0, 5, 64), (7, 7, 0)],
        ),
        8,
    ),
)  # fmt: skip
def test_a_change_of_plan_between_tokens_changes_no_token(name, seed, cache, backend, keys, world):
    """Keys and values go with their heads, or by tokens, of all sequences; what stays where it is stays as it is."""
    rng = np.random.default_rng(seed)
    weights = Weights(MODELS[name], seed)
    model = weights.model
    facts = {"context": 64, "sequences": 2, "cache": cache}
    plans = [
        random_plan(world, model, rng, stages=1 + (seed + number) % 2, keys=own, **facts)
        for number, own in enumerate(keys)
    ]
    plans.append(replace(plans[-1], words=plans[-1].words))
    prompts = texts(rng, model.vocab, 21, 9)

    def answered(plans, budget_s):
        def lead(ranks):
            generation = Generation(model, ranks, None, Wishes(Ending(24), GREEDY), speculates=False)
            passes, to_come, compute = [], plans[1:], ranks.compute

            def changing(*args, **options):
                best = compute(*args, **options)
                passes.append(ranks.coming)
                if len(passes) > 3 and to_come and not ranks.coming:
                    ranks.prepare(to_come.pop(0), budget_s)
                return best

            ranks.compute = changing
            asked = [Prompt(number, tokens) for number, tokens in enumerate(prompts)]
            found = {answer.prompt.id: answer.text.tokens for answer in generation.answer(asked)}
            return found, ranks.share.passes.plan, sum(passes)

        return on_ranks(world, weights, plans[0], lead, backend=backend)

    expected, plan, _ = answered(plans[:1], 0.0)
    assert plan == plans[0]
    # So long all ranks may get what they lack: each plan is there for the next pass.
    assert answered(plans, budget_s=60.0) == (expected, plans[-1], 0)
    # Or a piece after each pass, while others go on under the plan before.
    tokens, _, meanwhile = answered(plans[:2], budget_s=0.0)
    lacks = world.size > 1 or keys[0] != keys[1] or (plans[0].embedding is None and plans[1].embedding is not None)
    assert (tokens, meanwhile > 0) == (expected, lacks)


def answered(world, weights, plan, prompts, gone=lambda prompt: False, said=lambda answer, text: None):
    """Return the answers to prompts that say how they are to be answered, by their ids."""

    def lead(ranks):
        usual = Wishes(Ending(6), GREEDY)
        generation = Generation(weights.model, ranks, None, usual, speculates=False)
        return {answer.prompt.id: answer for answer in generation.answer(prompts, said, gone=gone)}

    return on_ranks(world, weights, plan, lead)


def test_every_prompt_is_answered_as_it_wishes(world):
    rng = np.random.default_rng(3)
    weights = Weights(MODELS["llama"])
    text, drawn = texts(rng, weights.model.vocab, 9, 12)
    plan = random_plan(world, weights.model, rng, sequences=2)
    wishes = {"short": Wishes(Ending(2), GREEDY), "drawn": Wishes(Ending(8), Sampling(1.5, seed=4))}

    asked = [Prompt("short", text, wishes=wishes["short"]), Prompt("drawn", drawn, wishes=wishes["drawn"])]
    both = answered(world, weights, plan, [*asked, Prompt("usual", text)])
    alone = answers(world, weights, plan, [drawn], Ending(8), Sampling(1.5, seed=4))

    assert both["short"].text.tokens == greedy(weights, text, 2)
    assert both["usual"].text.tokens == greedy(weights, text, 6)
    assert both["drawn"].text.tokens == alone[0][0]


@pytest.mark.parametrize(("before", "sampling"), sweeps.cycled(3, [1, 5, 8], [GREEDY, Sampling(1.5, seed=8)]))
def test_an_answer_that_was_begun_elsewhere_goes_on_as_if_it_had_not_been(sampling, before, world):
    rng = np.random.default_rng(before)
    weights = Weights(MODELS["qwen3"])
    (text,) = texts(rng, weights.model.vocab, 11)
    plan = random_plan(world, weights.model, rng)
    whole = answered(world, weights, plan, [Prompt(1, text, wishes=Wishes(Ending(8), sampling))])[1].text
    heard = []

    wishes = Wishes(Ending(8), sampling, said=tuple(whole.tokens[:before]))
    rest = answered(
        world, weights, plan, [Prompt(1, text, wishes=wishes)], said=lambda a, _: heard.append(a.text.tokens[-1])
    )

    assert rest[1].text.tokens == whole.tokens
    assert rest[1].text.finish_reason == "length"
    assert heard == (whole.tokens[before:] if world.rank == 0 else [])


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(2.0, seed=1)])
def test_logarithms_of_probabilities_are_those_of_the_whole_vocabulary(sampling, world):
    rng = np.random.default_rng(2)
    weights = Weights(MODELS["gemma2"])
    (text,) = texts(rng, weights.model.vocab, 7)
    plan = random_plan(world, weights.model, rng)
    told = []

    def hear(answer, _):
        told.append((answer.text.tokens[-1], answer.logprob, answer.likeliest))

    answered(world, weights, plan, [Prompt(1, text, wishes=Wishes(Ending(4), sampling, logprobs=3))], said=hear)

    known = list(text)
    for token, logprob, likeliest in told:
        whole = logits(weights, known)[-1].astype(np.float64)
        whole -= np.log(np.exp(whole).sum())
        assert logprob == pytest.approx(whole[token], abs=1e-3)
        assert [number for number, _ in likeliest] == np.argsort(-whole, kind="stable")[:3].tolist()
        assert [value for _, value in likeliest] == pytest.approx(sorted(whole)[:-4:-1], abs=1e-3)
        known.append(token)
    assert len(told) == (4 if world.rank == 0 else 0)


class Held:
    """A grammar over tokens that allows some of them at random, and has an end."""

    def __init__(self, vocab, seed, length):
        rng = np.random.default_rng(seed)
        self._sets = [rng.permutation(vocab)[: rng.integers(1, 5)] for _ in range(length)]
        self._vocab, self._place = vocab, 0
        self.complete = True

    @property
    def ended(self):
        return self._place == len(self._sets)

    @property
    def allowed(self):
        allowed = np.zeros(self._vocab, bool)
        allowed[self._sets[self._place]] = True
        return allowed

    def take(self, token):
        self._place += 1


def greedy_held(weights, tokens, grammar):
    """Return what a greedy model says after a text where not every token is allowed."""
    known = list(tokens)
    while not grammar.ended:
        known.append(int(np.where(grammar.allowed, logits(weights, known)[-1], -np.inf).argmax()))
        grammar.take(known[-1])
    return known[len(tokens) :]


@pytest.mark.parametrize("seed", sweeps.seeds(2, 10))
def test_answers_hold_to_a_grammar_beside_others_that_have_none(seed, world):
    rng = np.random.default_rng(seed)
    weights = Weights(MODELS["qwen3"], seed)
    vocab = weights.model.vocab
    free, *held = texts(rng, vocab, 9, 14, 3)
    plan = random_plan(world, weights.model, rng, stages=1 + seed % 2, sequences=1 + 2 * (seed % 2))
    wishes = [Wishes(Ending(20), GREEDY, grammar=Held(vocab, number, 5 + number)) for number in range(2)]

    asked = [Prompt(number, text, wishes=wishes[number]) for number, text in enumerate(held)]
    found = answered(world, weights, plan, [asked[0], Prompt("free", free), asked[1]])

    assert found["free"].text.tokens == greedy(weights, free, 6)
    for number, text in enumerate(held):
        assert found[number].text.tokens == greedy_held(weights, text, Held(vocab, number, 5 + number))
        assert found[number].text.finish_reason == "stop"


def test_probabilities_are_those_among_what_a_grammar_allows(world):
    rng = np.random.default_rng(2)
    weights = Weights(MODELS["llama"])
    (text,) = texts(rng, weights.model.vocab, 7)
    wishes = Wishes(Ending(9), Sampling(1.0, seed=3), logprobs=2, grammar=Held(weights.model.vocab, 1, 4))
    told = []

    answered(
        world, weights, random_plan(world, weights.model, rng), [Prompt(1, text, wishes=wishes)],
        said=lambda answer, _: told.append((answer.text.tokens[-1], answer.logprob)),
    )  # fmt: skip

    known, grammar = list(text), Held(weights.model.vocab, 1, 4)
    for token, logprob in told:
        whole = np.where(grammar.allowed, logits(weights, known)[-1], -np.inf).astype(np.float64)
        whole -= np.log(np.exp(whole).sum())
        assert logprob == pytest.approx(whole[token], abs=1e-3)
        known.append(token)
        grammar.take(token)
    assert len(told) == (4 if world.rank == 0 else 0)


def test_an_answer_that_nobody_waits_for_ends_and_the_others_go_on(world):
    rng = np.random.default_rng(6)
    weights = Weights(MODELS["llama"])
    one, other = texts(rng, weights.model.vocab, 9, 14)
    plan = random_plan(world, weights.model, rng, sequences=2)
    tokens = []
    hear = lambda answer, _: tokens.append(answer.prompt.id)
    gone = lambda prompt: prompt.id == "one" and len(tokens) >= 4

    found = answered(world, weights, plan, [Prompt("one", one), Prompt("other", other)], gone, hear)

    assert found["other"].text.tokens == greedy(weights, other, 6)
    assert found["one"].text.finish_reason == "cancelled"
    assert found["one"].text.tokens == greedy(weights, one, 6)[: len(found["one"].text.tokens)]
    assert tokens.count("one") == (2 if world.rank == 0 else 0)
