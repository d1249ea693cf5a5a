"""Pairs of texts are read as sentence-transformers' CrossEncoder reads them, and get its scores, however split."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from hepti_mpi.comm import group as comm
from hepti_mpi.session import cli, job
from solver.cluster.cluster import write_cluster
from tests.kit.checkpoints import make_checkpoint
from tests.kit.clusters import pis
from weights import cli as weights

POSITIONS = 48
QUERY = "the small board"
# Unequal ones, so that several stand in one batch; too long ones, of which either side is the longer.
PAIRS = [
    *([QUERY, " ".join(["it is warm tonight"] * count)] for count in (1, 2, 3, 30)),
    [" ".join(["a model"] * 40), "home"], ["its slow network " * 20, "it is warm " * 20], [QUERY, ""], ["a", "a"],
]  # fmt: skip
FAMILIES = ("bert-classifier", "xlm-roberta-classifier", "distilbert-classifier")


@pytest.fixture(scope="module", params=FAMILIES)
def reranker(request, all_ranks, shared_folder):
    """Return a folder with a cross-encoder's checkpoint and its weights file; the activation is not the usual one."""
    folder = shared_folder / f"pairs-{request.param}"
    if all_ranks.rank == 0:
        make_checkpoint(request.param, folder, layers=2, labels=1, positions=POSITIONS)
        if request.param.startswith("distil"):
            path = folder / "config.json"
            own = {"activation_fn": "torch.nn.modules.linear.Identity"}
            path.write_text(json.dumps(json.loads(path.read_text()) | {"sentence_transformers": own}))
        if "roberta" in request.param:  # the library's own class would make a Unigram of it
            own = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS}
            (folder / "tokenizer_config.json").write_text(json.dumps(own))
        assert weights.main(["convert", str(folder), str(folder / "model.h5")]) == 0
    all_ranks.barrier()
    return folder


def by_the_library(folder):
    """Return CrossEncoder's scores, by its own steps; it was seen to give these to the seventh decimal."""
    from transformers import AutoModelForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        asked = [tokenizer([pair], truncation=True, max_length=POSITIONS, return_tensors="pt") for pair in PAIRS]
        logits = torch.cat([model(**one).logits.reshape(-1) for one in asked])
    scores = logits if "distilbert" in folder.name else logits.sigmoid()
    return scores.numpy(), [one["input_ids"].shape[1] for one in asked]


@pytest.mark.sizes
def test_scores_are_cross_encoder_s(reranker, world, tmp_path):
    write_cluster(pis(*[0.1, 0.08, 0.09, 0.07, 0.05][: world.size], mbps=100), tmp_path / "boards.toml")
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({"id": n, "pair": pair}) for n, pair in enumerate(PAIRS)))
    words = {
        "--model": reranker / "model.h5", "--cluster": tmp_path / "boards.toml", "--input": tmp_path / "in.jsonl",
        "--output": tmp_path / "out.jsonl", "--system": "sequence-weighted",
    }  # fmt: skip

    assert job.run_job(cli.parse([str(word) for pair in words.items() for word in pair]), comm.world()) == 0

    if world.rank == 0:
        answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        scores, lengths = by_the_library(reranker)
        assert np.allclose([answer["score"] for answer in answers], scores, atol=1e-5)
        assert [answer["tokens"] for answer in answers] == lengths
        assert sum(answer.get("truncated", False) for answer in answers) == 3
