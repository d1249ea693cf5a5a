"""From a checkpoint directory to answers, over any number of ranks: what transformers gives, for every family."""

from itertools import cycle

import numpy as np
import pytest
from PIL import Image
from transformers import AutoImageProcessor

from solver.cluster.cluster import write_cluster
from tests.kit.asked import check_answers, check_hidden, to_lines
from tests.kit.checkpoints import FAMILIES, VISION, random_request
from tests.kit.clusters import pis
from tests.kit.commands import succeeded
from tests.kit.planned import write_mixed_plan
from tests.kit.shared_ranks import jobs

RANKS = (1, 2, 3, 5, 8)
ROWS = (1, 2, 511, 37)
# Families are converted in tests/weights, and each kind of layer is computed in tests/mpi: here from end to end.
FEW = ("roberta-classifier", "deit-teacher")
MANY = pytest.mark.thorough("families and systems are proven in tests/weights and tests/mpi")
SHAPES = ({}, {"heads": 7, "hidden": 56, "ffn": 101, "activation": "gelu_new"})
REAL = {"layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 30522}


def ask(checkpoint, folder):
    """Return requests as JSON lines, and what transformers answers to each."""
    if checkpoint.family in VISION:
        return ask_images(checkpoint, folder)
    ids = {f"{rows} rows": random_request(checkpoint.model, checkpoint.family, rows, seed=rows) for rows in ROWS}
    lines = [{"id": name, "tokens": tokens.tolist()} for name, tokens in ids.items()]
    return to_lines(lines), {name: checkpoint.expected(tokens) for name, tokens in ids.items()}


def ask_images(checkpoint, folder):
    """Ask for pictures of odd sizes, which transformers' own processor turns into pixels."""
    processor = AutoImageProcessor.from_pretrained(checkpoint.folder, backend="pil")
    rng = np.random.default_rng(0)
    lines, answers = [], {}
    for number, size in enumerate([(45, 61), (200, 31), (32, 48)]):
        path = folder / f"{number}.png"
        # Large patches of colour with noise on them: neither a flat picture nor one that shrinking makes flat.
        colours = np.kron(rng.integers(0, 200, (*size, 3)) // 8 * 8, np.ones((3, 2, 1)))
        Image.fromarray((colours + rng.integers(0, 56, colours.shape)).astype(np.uint8)).save(path)
        lines.append({"id": number, "image": str(path)})
        pixels = processor(Image.open(path), return_tensors="np")["pixel_values"][0]
        answers[number] = checkpoint.expected(pixels)
    return to_lines(lines), answers


def check_one_by_one(checkpoint, ranks, folder, seed):
    """Send the requests line by line through a plan of mixed cuts; check both what is printed and what is written."""
    lines, expected = ask(checkpoint, folder)
    plan = write_mixed_plan(folder / "plan.json", checkpoint, ranks, seed)

    done = jobs(
        ranks, "--model", checkpoint.path, "--plan", plan, "--input", "-", "--output", folder / "hidden.npz",
        "--images", folder, stdin=lines,
    )  # fmt: skip

    succeeded(done)
    check_answers(done.stdout, expected)
    check_hidden(folder / "hidden.npz", expected)


@pytest.mark.parametrize(
    ("number", "family", "ranks"),
    [
        pytest.param(number, family, ranks, marks=() if family in FEW else MANY)
        for number, (family, ranks) in enumerate(zip(FAMILIES, cycle(RANKS), strict=False))
    ],
)
def test_every_family_over_mixed_cuts(number, family, ranks, converted, tmp_path):
    """Three layers of 5 or 7 heads, each cut in another way; 1, 2 and 511 rows; shares uneven and empty."""
    check_one_by_one(converted(family, **SHAPES[number % 2]), ranks, tmp_path, seed=number)


@pytest.mark.thorough("the same at another size")
def test_a_real_size_over_mixed_cuts(converted, tmp_path):
    check_one_by_one(converted("bert", **REAL), 5, tmp_path, seed=0)


@pytest.mark.parametrize(
    ("system", "family", "settings", "ranks"),
    [
        pytest.param("single", "roberta-classifier", {}, 3, marks=MANY),
        pytest.param("megatron", "bert", {"activation": "relu"}, 8, marks=MANY),
        ("megatron-weighted", "sentence", {"pooling": "max", "dense": 24, "modern": True}, 3),
        pytest.param("sequence-weighted", "distilbert-classifier", {"labels": 5, "shard": "20KB"}, 8, marks=MANY),
        pytest.param("sequence", "deit-teacher", {}, 2, marks=MANY),
        pytest.param("pipeedge", "bert", {}, 3, marks=MANY),
        ("voltage", "mpnet", {}, 3),  # which avoids keys: what distances add goes to other scores
        ("data", "sentence", {}, 3),
        pytest.param("hepti-throughput", "roberta-classifier", {}, 2, marks=MANY),
    ],
)
def test_ragged_batches_through_every_system(system, family, settings, ranks, converted, tmp_path):
    """Requests of a file run together, up to 512 rows; more ranks than heads, or a rank alone."""
    checkpoint = converted(family, **settings)
    lines, expected = ask(checkpoint, tmp_path)
    (tmp_path / "requests.jsonl").write_text(lines)
    write_cluster(pis(*[5, 20, 10, 2, 5, 20, 10, 2][:ranks], mbps=500), tmp_path / "boards.toml")
    job = ("--model", checkpoint.path, "--cluster", tmp_path / "boards.toml", "--system", system)
    job += ("--input", tmp_path / "requests.jsonl", "--images", tmp_path)

    succeeded(jobs(ranks, *job, "--output", tmp_path / "answers.jsonl"))

    check_answers((tmp_path / "answers.jsonl").read_text(), expected)
