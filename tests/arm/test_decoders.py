"""Emulated ARM boards compute small models of every family as x86 does, in every precision, alone and together.

In `make test-all` every family in every precision with every cache.
"""

import json
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from solver.base.spans import Partition, Span, largest_remainder
from solver.model.kinds.attention import CACHES
from solver.model.kinds.part import FFN, HEAD
from solver.model.kinds.weight import PRECISIONS
from solver.plan.decoder_plan import DecoderPlan, DecoderStage, cut_unit
from solver.plan.writing import plan_to_json
from tests import sweeps
from tests.arm.conftest import board
from tests.weights.decoders.test_families import GPT2, LONGROPE, SIZES, converted, made
from weights.decoders.file import DecoderFile
from weights.decoders.forward import logits

# As with real models whole blocks of 32 are summed over, and the operator takes heads as they are.
REAL = SIZES | {
    "vocab_size": 96, "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32,
}  # fmt: skip
REAL_GPT2 = GPT2 | {"vocab_size": 96, "n_embd": 128, "n_head": 4}
REAL_LONGROPE = LONGROPE | {"short_factor": [1 + number / 10 for number in range(12)], "long_factor": [4.0] * 12}
FAMILIES = {
    "llama3": REAL,
    "llama-tied-biased": REAL,
    "mistral": REAL,
    "qwen2": REAL,
    "qwen3": REAL,
    "gemma2": REAL,
    "gemma3_text-types": REAL,
    "phi3-longrope": REAL | {"rope_parameters": REAL_LONGROPE},
    "gpt2": REAL_GPT2,
}
# In `make test-arm` every family by two of the eight.
CASES = sweeps.cycled(2 * len(FAMILIES), FAMILIES, [*product(PRECISIONS, CACHES)])
TOKENS = np.random.default_rng(2).integers(3, 96, 20).tolist()
SHARES = (2, 1)  # of the first board and the second; they cut a group of query heads
EXACT = 1e-4  # of the largest logit
# Of the error that x86 has against the float model. Without KleidiAI's int4 product, which `make_session` leaves out,
# the A76 has 0.98 to 1.01 of it.
MORE, BESIDES = 1.1, 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A weights file, what keys and values are kept in, and its logits as the weights are stored, computed in float."""

    path: object
    precision: str
    cache: str
    expected: object


@pytest.fixture(scope="module")
def cases(folder):
    found, expected = {}, {}
    for family, sizes in FAMILIES.items():
        made(folder / family, family, **sizes)
    for family, (precision, cache) in CASES:
        path = folder / f"{family}-{precision}.h5"
        if path not in expected:
            converted(folder / family, path, precision=precision)
            with DecoderFile(path) as weights:
                expected[path] = logits(weights.model, weights.read, TOKENS)
        found[f"{family}-{precision}-{cache}"] = Case(path, precision, cache, expected[path])
    return found


def plan_for(model, boards, precision, cache):
    """Return a plan by which every board has a share of every layer."""

    def cut(total, unit=1):
        stops = np.cumsum(largest_remainder(SHARES[: len(boards)], -(-total // unit))) * unit
        return Partition.of_counts(np.diff(np.minimum(stops, total), prepend=0).tolist())

    attention, mlp = model.layers[0]
    units = (cut_unit(kind, model.stream, precision) for kind in (attention, mlp))
    shares = {HEAD: cut(attention.heads, next(units)), FFN: cut(mlp.ffn, next(units))}
    stage = DecoderStage(Span(0, len(model.layers)), shares)
    facts = {"precision": precision, "cache": cache, "context": 32}
    return DecoderPlan("test", boards, (stage,), cut(model.vocab), **facts)


@pytest.fixture(scope="module")
def compute(cases, folder, run):
    """Return what computes all cases' logits on boards, one rank each."""

    def compute(*boards):
        here = folder / "-".join(["decoders", *boards])
        here.mkdir()
        jobs = {}
        for name, case in cases.items():
            with DecoderFile(case.path) as weights:
                plan = plan_for(weights.model, boards, case.precision, case.cache)
                text = plan_to_json(plan, weights.model)
            path = here / f"{name}.json"
            path.write_text(text)
            jobs[name] = str(case.path), str(path)
        listed, out = here / "jobs", here / "logits.npz"
        listed.write_text(json.dumps({"tokens": TOKENS, "jobs": jobs}))
        job = ["-m", "tests.arm.decoder_jobs", listed, out]
        ranks = [word for name in boards for word in (":", "-np", 1, board(name), *job)]
        done = run(*(["mpirun", *ranks[1:]] if len(boards) > 1 else [board(*boards), *job]))
        assert done.returncode == 0, done.stderr
        return dict(np.load(out))

    return compute


@pytest.fixture(scope="module")
def on_x86(compute):
    return compute("x86")


def error(found, expected):
    """Return the root of the mean square of what is wrong, over that of what is right."""
    return np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))


def test_x86_is_near_the_float_model(cases, on_x86):
    """Or what it is compared with below would mean nothing."""
    for name, case in cases.items():
        limit = 1e-5 if case.precision == case.cache == "float32" else 0.1
        assert error(on_x86[name], case.expected) < limit, name


@pytest.mark.parametrize("boards", [("cortex-a72",), ("cortex-a76",), ("cortex-a76", "cortex-a72")], ids="-".join)
def test_boards_give_the_logits_of_x86(cases, on_x86, compute, boards):
    found = compute(*boards)

    assert found.keys() == on_x86.keys()
    for name, case in cases.items():
        own, theirs = found[name], on_x86[name]
        if case.precision == case.cache == "float32":
            assert np.abs(own - theirs).max() < EXACT * np.abs(theirs).max(), name
        limit = MORE * error(theirs, case.expected) + BESIDES
        assert error(own, case.expected) <= limit, name
