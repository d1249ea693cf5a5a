"""Tokens that a checkpoint never wants to be said are not said, whoever has them."""

from dataclasses import replace

import numpy as np

from tests.kit.decoders import MODELS, Weights, logits
from tests.mpi.test_decoder_passes import random_plan
from tests.mpi.test_generation import answers


def test_suppressed_tokens_are_never_said(world):
    weights = Weights(MODELS["llama"])
    never = sorted({int(row.argmax()) for row in logits(weights, range(50))})[:20]
    weights.model = replace(weights.model, suppressed=tuple(never))
    known = [7, 3]
    for _ in range(6):
        row = logits(weights, known)[-1]
        row[never] = -np.inf
        known.append(int(row.argmax()))

    plan = random_plan(world, weights.model, np.random.default_rng(2))
    assert answers(world, weights, plan, [(7, 3)])[0][0] == known[2:]
