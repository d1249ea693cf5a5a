"""What is read of weights files before anything is asked."""

from dataclasses import replace

import openai
import pytest

from launch.serve.journal import Journal
from launch.serve.texts import EncoderTexts, ImageTexts, LanguageTexts, read_texts
from solver.base.errors import HeptiError
from tests.kit.checkpoints import make_checkpoint
from tests.kit.fake_service import FakeModel, running
from tests.kit.languages import REFUSED, REFUSES, with_files
from tests.kit.networks import LABELS, classifier, write_classifier
from tests.launch.serve.conftest import CONTEXT, connect
from weights import cli as weights
from weights.file.networks import write_network


def test_every_kind_of_file_is_told_apart(texts, tmp_path):
    write_classifier(tmp_path / "net.h5")
    network = read_texts(tmp_path / "net.h5")

    assert isinstance(network, ImageTexts)
    assert network.labels == LABELS
    assert isinstance(texts["tiny"], LanguageTexts)
    assert isinstance(texts["mini"], EncoderTexts)
    assert isinstance(texts["vit"], ImageTexts)
    assert (texts["mini"].context, texts["mini"].width, texts["mini"].labels) == (32, 40, ())


def test_the_context_is_never_longer_than_the_model_s(tiny):
    assert read_texts(tiny.path, 10_000).context == read_texts(tiny.path).context == 256


def test_what_no_endpoint_can_give_is_refused(tmp_path):
    net, tensors = classifier()
    write_network(tmp_path / "net.h5", replace(net, head="none"), tensors, "a test")
    make_checkpoint("vit", tmp_path / "vit", layers=1)
    assert weights.main(["convert", str(tmp_path / "vit"), str(tmp_path / "vit.h5")]) == 0
    for name in ("net.h5", "vit.h5"):
        with pytest.raises(HeptiError, match="no endpoint gives what it computes"):
            read_texts(tmp_path / name)
    with pytest.raises(HeptiError, match="no weights file"):
        read_texts(tmp_path / "none.h5")


def one_model(path):
    """Return a service of one language model."""
    it = path.rename(path.with_name("it.h5"))
    texts = {"it": read_texts(it, CONTEXT)}
    return running(lambda: [FakeModel("it", "decoder", Journal(4, 4))], texts)


def test_a_model_without_a_tokenizer_takes_and_gives_token_ids_alone(tiny, tmp_path):
    path = with_files(tiny, tmp_path, tokenizer=None, tokenizer_config=None, chat_template=None)
    with one_model(path) as service, connect(service) as client:
        answer = client.completions.create(model="it", prompt=[5, 6], max_tokens=2, logprobs=0)
        for how in ({"prompt": "the cat"}, {"prompt": [5], "stop": "x"}):
            with pytest.raises(openai.BadRequestError, match="came without"):
                client.completions.create(model="it", **how)
        hint = r"it came without a tokenizer: ask /v1/completions, with a prompt of token ids like \[1, 15043\]"
        with pytest.raises(openai.BadRequestError, match=hint):
            client.chat.completions.create(model="it", messages=[{"role": "user", "content": "x"}])
        loose = connect(service, _strict_response_validation=False)
        stream = loose.completions.create(model="it", prompt=[5, 6], max_tokens=2, stream=True)
        told = [getattr(chunk.choices[0], "token_ids", None) for chunk in stream]
        described = client.models.retrieve("it")

    assert answer.choices[0].logprobs.tokens == ["token_id:0", "token_id:1"]
    assert answer.choices[0].token_ids == [0, 1]
    assert told == [[0], [1], None]  # one by one, and the end
    assert described.reads == "token ids"


def test_a_model_without_a_chat_template_says_where_to_ask(tiny, tmp_path, kept):
    with one_model(with_files(tiny, tmp_path, chat_template=None)) as service, connect(service) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="it", messages=[{"role": "user", "content": "x"}])
        kept(caught.value)
        assert client.models.retrieve("it").reads == "text"


def test_a_template_may_refuse_a_conversation_and_read_settings(tiny, tmp_path):
    template = "{% if thinks %}<|im_start|>{% endif %}" + REFUSES
    with one_model(with_files(tiny, tmp_path, chat_template=template)) as service, connect(service) as client:
        with pytest.raises(openai.BadRequestError, match=REFUSED):
            client.chat.completions.create(model="it", messages=[{"role": "user", "content": "no"}])
        messages = [{"role": "user", "content": "yes"}]
        client.chat.completions.create(model="it", messages=messages, max_tokens=1)
        settings = {"chat_template_kwargs": {"thinks": True}}
        client.chat.completions.create(model="it", messages=messages, max_tokens=1, extra_body=settings)
        plain, thinking = (line["tokens"] for line in service.service.models["it"].lines)

    assert thinking == [2, *plain]


def test_the_checkpoint_s_own_way_to_draw_is_the_default(tiny, tmp_path):
    drawing = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "eos_token_id": [1, 3]}
    with one_model(with_files(tiny, tmp_path, generation_config=drawing)) as service, connect(service) as client:
        client.completions.create(model="it", prompt="the", max_tokens=1)
        client.completions.create(model="it", prompt="the", max_tokens=1, temperature=0, extra_body={"top_k": -1})
        drawn, greedy = service.service.models["it"].lines

    assert (drawn["temperature"], drawn["top_p"], drawn["top_k"]) == (0.7, 0.8, 20)
    assert "seed" in drawn
    assert (greedy["temperature"], greedy["top_k"]) == (0, 0)
