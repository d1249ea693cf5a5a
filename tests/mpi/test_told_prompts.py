"""How likely the tokens of a prompt are is told as the whole model says it, however it is split."""

import numpy as np
import pytest

from hepti_mpi.decoding.generation import Generation
from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.prompts import Prompt, Wishes
from hepti_mpi.requests.sampling import Sampling
from tests.kit.decoders import MODELS, Weights, logits
from tests.mpi.test_decoder_passes import on_ranks, random_plan
from tests.mpi.test_generation import greedy

TOP = 3


def log_softmax(rows):
    rows = rows.astype(np.float64)
    return rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)


@pytest.mark.sizes
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, seed=3)])
def test_a_prompt_is_told_token_by_token_also_where_its_beginning_is_known(sampling, world):
    rng = np.random.default_rng(7)
    weights = Weights(MODELS["llama"])
    tokens = tuple(int(token) for token in rng.integers(0, weights.model.vocab, 21))
    prompts = [Prompt(name, tokens[:size]) for name, size in enumerate((21, 21, 1))]
    plan = random_plan(world, weights.model, rng, stages=2)

    def lead(ranks):
        usual = Wishes(Ending(2), sampling, prompt_logprobs=TOP)
        generation = Generation(weights.model, ranks, None, usual, speculates=False)
        return [(answer.told_prompt, answer.known, answer.text.tokens) for answer in generation.answer(prompts)]

    (first, known, said), (again, known_again, said_again), (alone, *_) = on_ranks(world, weights, plan, lead)
    expected = log_softmax(logits(weights, list(tokens)))[:-1]

    assert np.allclose([logprob for logprob, _ in first], expected[range(20), tokens[1:]], atol=1e-4)
    assert [[word for word, _ in top] for _, top in first] == np.argsort(-expected, kind="stable")[:, :TOP].tolist()
    assert np.allclose([[chance for _, chance in top] for _, top in first], -np.sort(-expected)[:, :TOP], atol=1e-4)
    assert (again, known, known_again, alone) == (first, 0, 0, [])
    assert said == said_again
    if sampling.greedy:
        assert said == greedy(weights, tokens, 2)
