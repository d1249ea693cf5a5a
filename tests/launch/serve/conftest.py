"""Weights files as the service reads them, and a service of fake models of them."""

import openai
import pytest

from launch.serve.journal import Journal
from launch.serve.texts import read_texts
from launch.serve.transport import Limits
from tests.kit.checkpoints import make_checkpoint
from tests.kit.fake_service import FakeModel, running
from tests.kit.languages import make_tiny
from weights import cli as weights

CONTEXT = 128
AT_ONCE, MOST_WAITING = 64, 64
KINDS = {
    "tiny": "decoder", "mini": "encoder", "classifier": "encoder", "vit": "convnet", "slow": "decoder",
    "narrow": "encoder",
}  # fmt: skip
ENCODERS = {"mini": "sentence", "classifier": "bert-classifier", "vit": "vit-classifier"}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return a language model with tokenizer and chat template, which transformers has, too."""
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def encoders(tmp_path_factory):
    """Return weights files of encoders by name, each beside its checkpoint."""
    found = {}
    for name, family in ENCODERS.items():
        folder = tmp_path_factory.mktemp(name)
        make_checkpoint(family, folder, layers=1)
        found[name] = folder / "model.h5"
        assert weights.main(["convert", str(folder), str(found[name])]) == 0
    return found


@pytest.fixture(scope="session")
def texts(tiny, encoders):
    """Return what is known of requests to each model; `slow` and `narrow` are others that the tests hold back."""
    found = {"tiny": read_texts(tiny.path, CONTEXT), **{name: read_texts(path) for name, path in encoders.items()}}
    return found | {"slow": found["tiny"], "narrow": found["mini"]}


def make_models(**queues):
    """Return fake models with a journal each; `queues` are (at once, most waiting) of some."""
    return [FakeModel(name, kind, Journal(*queues.get(name, (AT_ONCE, MOST_WAITING)))) for name, kind in KINDS.items()]


def patient():
    """Return models of which `slow` says nothing until it is let."""
    models = make_models(slow=(2, 3), narrow=(1, 2))
    for model in models:
        if model.name == "slow":
            model.pace = model.steps.acquire
    return models


@pytest.fixture(scope="session")
def service(texts):
    """Return a service for tests that leave it as it was."""
    with running(patient, texts) as found:
        yield found


@pytest.fixture
def own(texts):
    """Return a service of this test alone, with short limits."""
    with running(patient, texts, limits=Limits(body_bytes=100_000, body_s=0.5, image_bytes=1000, ping_s=0.2)) as found:
        yield found


def connect(service, **how):
    """Return OpenAI's client of a service, which checks what it reads."""
    how = {"api_key": "none", "max_retries": 0, "timeout": 20, "_strict_response_validation": True} | how
    return openai.OpenAI(base_url=f"{service.url}/v1", **how)


@pytest.fixture
def client(service):
    with connect(service) as found:
        yield found


@pytest.fixture
def loose(service):
    """Return a client for what its own schema does not know, though OpenAI sends it, too.

    Pieces of a stream of /v1/completions have no reason to end, and embeddings may be base64.
    """
    with connect(service, _strict_response_validation=False) as found:
        yield found
