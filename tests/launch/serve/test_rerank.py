"""Documents are ranked and pairs scored by a cross-encoder: what ranks get, and what clients get of what they say."""

import math

import httpx
import pytest
from transformers import AutoTokenizer

from launch.serve.journal import Journal
from launch.serve.texts import read_texts
from tests.kit.checkpoints import make_checkpoint
from tests.kit.fake_service import FakeModel, running
from weights import cli as weights

QUERY = "the small board"
DOCUMENTS = ["it is warm tonight", "a model", "its slow network and it is warm"]


class Ranker(FakeModel):
    """A model whose one logit is a tenth of how many tokens it got."""

    async def _encode(self, line):
        self.journal.take({"id": line["id"], "logits": [len(line["tokens"]) / 10], "score": 0.5, "seconds": 0.1})


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    """Return a service of a cross-encoder, and its checkpoint."""
    folder = tmp_path_factory.mktemp("ranker")
    make_checkpoint("bert-classifier", folder, layers=1, labels=1)
    assert weights.main(["convert", str(folder), str(folder / "ranker.h5")]) == 0
    models = lambda: [Ranker("ranker", "encoder", Journal(64, 64))]
    with running(models, {"ranker": read_texts(folder / "ranker.h5")}) as service:
        yield service, AutoTokenizer.from_pretrained(folder)


def sigmoid(logit):
    return 1 / (1 + math.exp(-logit))


def ask(service, path, **body):
    answer = httpx.post(f"{service.url}{path}", json={"model": "ranker"} | body)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking"])
def test_documents_come_the_best_first_and_ranks_get_pairs_as_transformers_makes_them(path, ranker):
    service, tokenizer = ranker
    lines = service.service.models["ranker"].lines
    lines.clear()

    status, found = ask(service, path, query=QUERY, documents=[*DOCUMENTS[:2], {"text": DOCUMENTS[2]}], top_n=2)
    pairs = [tokenizer(QUERY, document) for document in DOCUMENTS]

    assert status == 200
    assert [(line["tokens"], line["types"]) for line in lines] == [
        (pair["input_ids"], pair["token_type_ids"]) for pair in pairs
    ]
    assert [result["index"] for result in found["results"]] == [2, 0]
    assert found["results"][0] == {
        "index": 2, "document": {"text": DOCUMENTS[2]},
        "relevance_score": pytest.approx(sigmoid(len(pairs[2]["input_ids"]) / 10), abs=1e-9),
    }  # fmt: skip
    assert found["usage"]["total_tokens"] == sum(len(pair["input_ids"]) for pair in pairs)


def test_what_is_too_long_is_cut_as_by_transformers_and_said_to_be(ranker):
    service, tokenizer = ranker
    long = "its slow network " * 40
    _, found = ask(service, "/v1/rerank", query=QUERY, documents=["home", long], return_documents=False)

    ids = tokenizer(QUERY, long, truncation=True, max_length=64)["input_ids"]
    assert any(line["tokens"] == ids for line in service.service.models["ranker"].lines)
    assert {result["index"]: result.get("truncated", False) for result in found["results"]} == {0: False, 1: True}
    assert all("document" not in result for result in found["results"])


@pytest.mark.parametrize(
    ("sides", "pairs"),
    [
        ({"text_1": QUERY, "text_2": DOCUMENTS}, 3),
        ({"text_1": DOCUMENTS, "text_2": DOCUMENTS}, 3),
        ({"queries": QUERY, "documents": "a model"}, 1),
        ({"data_1": [QUERY], "data_2": DOCUMENTS[:2]}, 2),
    ],
)
def test_scores_are_of_one_with_several_or_two_by_two(sides, pairs, ranker):
    service, _ = ranker
    for path in ("/v1/score", "/score"):
        status, found = ask(service, path, use_activation=False, **sides)

        assert status == 200
        assert [entry["index"] for entry in found["data"]] == list(range(pairs))
        assert found["usage"]["total_tokens"] == pytest.approx(10 * sum(entry["score"] for entry in found["data"]))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"documents": ["x"]}, "query"),
        ("/v1/rerank", {"query": " ", "documents": ["x"]}, "query"),
        ("/v1/rerank", {"query": "x"}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": [{"title": "y"}]}, "documents[0]"),
        ("/v1/rerank", {"query": "x", "documents": ["y", 7]}, "documents[1]"),
        ("/v1/rerank", {"query": "x", "documents": ["y"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "x", "documents": ["y"], "max_chunks_per_doc": 3}, "max_chunks_per_doc"),
        ("/v1/rerank", {"query": "x", "texts": ["y"]}, "texts"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "documents": "c"}, "documents"),
        ("/v1/classifications", {"input": [{"pair": ["a"]}]}, "input[0]"),
        ("/v1/classifications", {"input": {"pair": ["a", "its slow network " * 40]}}, "input"),
    ],
)
def test_a_wrong_body_names_the_field(path, body, param, ranker):
    status, found = ask(ranker[0], path, **body)

    assert (status, found["error"]["param"]) == (400, param)


def test_other_models_give_no_scores(service):
    for model in ("mini", "classifier", "tiny"):
        answer = httpx.post(f"{service.url}/v1/rerank", json={"model": model, "query": "x", "documents": ["y"]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_not_supported")


def test_pairs_are_classified_too(ranker):
    service, tokenizer = ranker
    status, found = ask(service, "/v1/classifications", input={"pair": [QUERY, "home"]})

    assert (status, found["data"][0]["score"]) == (200, 0.5)
    assert service.service.models["ranker"].lines[-1]["tokens"] == tokenizer(QUERY, "home")["input_ids"]
