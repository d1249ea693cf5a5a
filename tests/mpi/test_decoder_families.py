"""Checkpoints of every family, converted and split over all ranks, say what transformers lets them say."""

import numpy as np
import pytest

from hepti_mpi.decoding.generation import Generation
from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.prompts import Prompt, Wishes
from hepti_mpi.requests.sampling import Sampling
from solver.plan.decoder_plan import whole_on
from tests import sweeps
from tests.kit.decoder_ranks import on_ranks, random_plan
from weights.decoders import forward
from weights.decoders.file import DecoderFile

# One of each: what else a family has is compared with transformers in tests/weights, and split in test_decoder_passes.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt2")
LENGTHS = (1, 20, 40)
NEW = 10
# Rounding activations to int8 flips where a sum's order differs by a bit: candidates within this part of their spread
# may change places.
MARGIN = 0.05


def cases():
    """Return the checkpoints that are split: one of each family, in `make test-all` every variant, too."""
    if not sweeps.ALL:
        return FAMILIES
    from tests.weights.decoders.test_families import CASES

    return [*CASES]


def greedy(model, prompts):
    """Return what transformers says after each prompt."""
    import torch  # on rank 0 alone: it takes seconds

    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, eos_token_id=None,
                pad_token_id=0,
            )  # fmt: skip
        found.append(out[0, len(prompt) :].tolist())
    return found


@pytest.fixture
def checkpoint(tmp_path_factory, world):
    """Return what makes a tiny checkpoint of a family on rank 0, and gives all its file and what it says."""

    def make(case, **options):
        def on_root():
            from tests.weights.decoders.test_families import converted, made  # with torch, as below

            folder = tmp_path_factory.mktemp(case)
            model = made(folder / "checkpoint", case)
            converted(folder / "checkpoint", folder / "model.h5", **options)
            with DecoderFile(folder / "model.h5") as weights:
                fitting = [size for size in LENGTHS if size + NEW <= weights.model.positions]
            prompts = [np.random.default_rng(size).integers(3, 90, size).tolist() for size in fitting]
            return folder / "model.h5", prompts, greedy(model, prompts)

        return world.from_root(on_root if world.rank == 0 else None)

    return make


def all_logits(model, prompts):
    """Return what computes the logits of every row of prompts, [rows, V]."""

    def lead(ranks):
        found = []
        for prompt in prompts:
            best = ranks.compute(0, np.array([prompt]), [0], chosen=len(prompt), count=model.vocab)
            own = np.empty(best.logits.shape)
            np.put_along_axis(own, best.ids, best.logits, 1)
            found.append(own)
        return np.concatenate(found)

    return lead


@pytest.mark.slow("torch and transformers are imported by the first of them, by the rank that compares")
@pytest.mark.parametrize("case", cases())
def test_answers_are_those_of_transformers(case, checkpoint, world):
    path, prompts, expected = checkpoint(case)
    rng = np.random.default_rng(len(case))

    with DecoderFile(path) as weights:
        context = min(64, weights.model.positions)
        plan = random_plan(world, weights.model, rng, stages=1 + len(case) % 2, context=context, sequences=2)

        def lead(ranks):
            generation = Generation(
                weights.model, ranks, None, Wishes(Ending(NEW), Sampling()), speculates=len(case) % 3 == 0
            )
            asked = [Prompt(number, tuple(prompt)) for number, prompt in enumerate(prompts)]
            found = {answer.prompt.id: answer.text.tokens for answer in generation.answer(asked)}
            return [found[number] for number in range(len(prompts))]

        found = on_ranks(world, weights, plan, lead)

    assert found == expected


@pytest.mark.parametrize(
    ("case", "precision"),
    sweeps.cycled(
        3,
        ["qwen3", "gemma2", "mistral-all"] + sweeps.count(0, 1) * ["llama", "qwen2", "gemma3_text", "olmo2"],
        ["int8", "int4", "int4m"],
    ),
)
def test_in_blocks_ranks_say_what_one_says(case, precision, checkpoint, world):
    path, prompts, _ = checkpoint(case, precision=precision)
    rng = np.random.default_rng(len(case))

    with DecoderFile(path) as weights:
        model, lead = weights.model, all_logits(weights.model, prompts)
        facts = {"context": 64, "precision": precision}
        alone = on_ranks(world, weights, whole_on(model, random_plan(world, model, rng).devices, 0, **facts), lead)
        split = on_ranks(world, weights, random_plan(world, model, rng, embeds=True, **facts), lead)

    spread = alone.max(1) - alone.min(1)
    assert (np.abs(split - alone).max(1) < MARGIN * spread).all()
    best, of_split = alone.argmax(1), split.argmax(1)
    rows = np.arange(len(alone))
    near = alone[rows, best] - alone[rows, of_split] < MARGIN * spread
    assert ((best == of_split) | near).all()
    assert np.mean(best == of_split) > 0.9


@pytest.mark.parametrize(
    ("case", "precision"), sweeps.cycled(3, ["qwen3", "gemma2", "mistral-all"], ["int8", "int4", "int4m"])
)
def test_in_blocks_numpy_computes_the_numbers_that_they_are(case, precision, checkpoint, world):
    """Where onnxruntime rounds activations, it rounds nothing."""
    path, prompts, _ = checkpoint(case, precision=precision)

    with DecoderFile(path) as weights:
        model = weights.model
        plan = random_plan(world, model, np.random.default_rng(len(case)), context=64, precision=precision)
        found = on_ranks(world, weights, plan, all_logits(model, prompts), backend="numpy")
        expected = np.concatenate([forward.logits(model, weights.read, prompt) for prompt in prompts])

    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
