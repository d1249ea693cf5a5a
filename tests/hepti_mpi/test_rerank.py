"""`hepti rerank` on one rank: a table and a file of documents, the best first, as the scores of their pairs say."""

import json

import pytest

from hepti_mpi.comm.group import world
from hepti_mpi.session import cli, job
from tests.kit.checkpoints import make_checkpoint
from weights import cli as weights

QUERY = "the small board"
TEXTS = {"a": "it is warm tonight", "b": "a model over its slow network", "c": "home"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rerank")
    make_checkpoint("bert-classifier", folder, layers=1, labels=1)
    assert weights.main(["convert", str(folder), str(folder / "m.h5")]) == 0
    return folder / "m.h5"


def test_documents_come_the_best_first(model, tmp_path, capsys):
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(text)
    pairs = "\n".join(json.dumps({"id": name, "pair": [QUERY, text]}) for name, text in TEXTS.items())
    (tmp_path / "pairs.jsonl").write_text(pairs)
    how = ["--model", str(model), "--cluster", "mixed4", "--output", str(tmp_path / "out.jsonl")]

    def answers(parse, *words):
        assert job.run_job(parse([*how, *words]), world()) == 0
        return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]

    scores = {one["id"]: one["score"] for one in answers(cli.parse, "--input", str(tmp_path / "pairs.jsonl"))}
    capsys.readouterr()
    ranked = answers(cli.parse_rerank, "--query", QUERY, "--top", "2", *(str(tmp_path / f"{n}.txt") for n in TEXTS))
    shown = capsys.readouterr().out.splitlines()

    best = sorted(TEXTS, key=lambda name: -scores[name])
    assert [one["id"] for one in ranked] == [str(tmp_path / f"{name}.txt") for name in best[:2]]
    assert [one["score"] for one in ranked] == pytest.approx([scores[name] for name in best[:2]], abs=1e-6)
    assert [f"{scores[name]:.4f}" in "\n".join(shown) for name in best] == [True, True, False]
