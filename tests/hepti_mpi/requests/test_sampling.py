"""The next token is chosen as transformers chooses it, whichever rank its candidates are from."""

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hepti_mpi.requests.sampling import CANDIDATES, Sampling, choose
from solver.base.errors import HeptiError

LOGITS = np.random.default_rng(1).standard_normal(300).astype(np.float32) * 3


def shares(sampling, draws=4000):
    """Return how often each of 300 tokens is chosen."""
    random = np.random.default_rng(5)
    counts = np.zeros(len(LOGITS))
    for _ in range(draws):
        counts[choose(np.arange(len(LOGITS)), LOGITS, sampling, random)] += 1
    return counts / draws


def expected(sampling):
    scores = TemperatureLogitsWarper(sampling.temperature)(None, torch.from_numpy(LOGITS)[None])
    scores = TopKLogitsWarper(sampling.top_k or CANDIDATES)(None, scores)
    return TopPLogitsWarper(sampling.top_p)(None, scores).softmax(-1)[0].numpy()


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0), Sampling(0.3), Sampling(1.5, top_k=7), Sampling(1.0, top_p=0.4), Sampling(2.0, 0.6, 20)],
)
def test_shares_are_those_of_transformers(sampling):
    found, wanted = shares(sampling), expected(sampling)

    assert not found[wanted == 0].any()
    np.testing.assert_allclose(found, wanted, atol=0.03)


def test_greedy_takes_the_best_and_of_equals_the_first():
    random = np.random.default_rng(0)

    assert choose(np.array([9, 4, 6]), np.array([1, 3, 3], np.float32), Sampling(), random) == 4
    assert choose(np.array([9, 6, 4]), np.array([1, 3, 3], np.float32), Sampling(), random) == 4


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, top_p=0.8), Sampling(1.2, top_k=40)])
def test_the_order_of_candidates_and_worse_ones_do_not_matter(sampling):
    """Ranks give their parts in their order, and more than is needed."""
    order = np.random.default_rng(2).permutation(len(LOGITS))
    best = np.argsort(-LOGITS)[:CANDIDATES]
    every = np.arange(len(LOGITS))

    for seed in range(50):
        chosen = {
            choose(every[among], LOGITS[among], sampling, np.random.default_rng(seed)) for among in (every, order, best)
        }
        assert len(chosen) == 1


def test_the_same_seed_gives_the_same_answer():
    sampling = Sampling(1.0, seed=3)
    runs = []
    for _ in range(2):
        random = sampling.generator()
        runs.append([choose(np.arange(300), LOGITS, sampling, random) for _ in range(30)])

    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 3


def test_a_tiny_temperature_or_share_takes_the_best():
    random = np.random.default_rng(0)
    best = int(LOGITS.argmax())

    for sampling in (Sampling(1e-308), Sampling(1.0, top_p=1e-9), Sampling(1.0, top_p=0.0), Sampling(1.0, top_k=1)):
        assert choose(np.arange(300), LOGITS, sampling, random) == best
    assert choose(np.array([7]), np.array([-2.0], np.float32), Sampling(1.0), random) == 7


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -0.5), ("temperature", float("nan")), ("temperature", float("inf")), ("top_p", -0.1),
        ("top_p", 1.1), ("top_k", -1), ("top_k", 257), ("seed", -1),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(option, value, kept):
    with pytest.raises(HeptiError, match=f"{option} is {value}") as refused:
        Sampling(**{option: value})
    kept(refused.value)
