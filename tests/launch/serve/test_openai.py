"""The service as OpenAI's own client sees it."""

import base64
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.kit.fake_service import WORDS
from tests.launch.serve.conftest import CONTEXT

CAT = {"label": "cat", "score": 0.75}
HI = [{"role": "user", "content": "why is the sky blue?"}]


def said(count):
    """Return what the fake model says in so many tokens."""
    return "".join(WORDS[number % len(WORDS)] for number in range(count))


def line_of(service, answer):
    """Return what the ranks were asked, of an answer."""
    return next(line for line in service.service.models[answer.model].lines if line.get("id") == answer.id)


def test_models_are_listed_with_their_contexts(client):
    models = {model.id: model for model in client.models.list()}

    assert {"tiny", "mini", "classifier", "vit"} <= models.keys()
    assert models["tiny"].max_model_len == CONTEXT
    assert client.models.retrieve("mini").owned_by == "hepti"


def test_a_chat_is_answered_with_its_usage(client, service, tiny):
    answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=7)

    assert answer.choices[0].message.content == said(7)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 7
    assert answer.usage.prompt_tokens == len(tiny.ids(HI))
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert line_of(service, answer)["tokens"] == tiny.ids(HI)


TOLD = {"model": "tiny", "max_tokens": 3, "seed": 1}
CHAT = TOLD | {"messages": HI, "logprobs": True, "top_logprobs": 2}
COMPLETION = TOLD | {"prompt": "the cat", "logprobs": 2}


@pytest.mark.parametrize(
    ("path", "body", "schema"),
    [
        ("chat/completions", CHAT, ChatCompletion),
        ("completions", COMPLETION, Completion),
        ("embeddings", {"model": "mini", "input": ["the", "cat"]}, CreateEmbeddingResponse),
        ("models/tiny", None, Model),
    ],
)
def test_answers_are_what_openai_s_schemas_say_strictly(service, path, body, schema):
    """Nothing is made of anything else, as a number of a text."""
    url = f"{service.url}/v1/{path}"
    answer = httpx.get(url) if body is None else httpx.post(url, json=body)

    assert answer.status_code == 200
    schema.model_validate_json(answer.content, strict=True)


def test_every_event_of_a_chat_is_what_openai_s_schema_says_strictly(service):
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    lines = httpx.post(f"{service.url}/v1/chat/completions", json=body).text.split("\n\n")
    told = [line.removeprefix("data: ") for line in lines if line]

    assert (len(told) > 4, told[-1]) == (True, "[DONE]")
    for event in told[:-1]:
        ChatCompletionChunk.model_validate_json(event, strict=True)


def test_both_names_of_max_tokens_must_say_the_same(client):
    answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=3, max_completion_tokens=3)
    with pytest.raises(openai.BadRequestError, match="max_tokens is 7, max_completion_tokens 3") as caught:
        client.chat.completions.create(model="tiny", messages=HI, max_tokens=7, max_completion_tokens=3)

    assert answer.usage.completion_tokens == 3
    assert (caught.value.param, caught.value.code) == ("max_completion_tokens", "invalid_value")


def test_a_chat_without_a_limit_has_all_the_room_of_the_context(client, tiny):
    answer = client.chat.completions.create(model="tiny", messages=HI)

    assert answer.usage.total_tokens == CONTEXT


def test_a_chat_streams_and_tells_its_usage_at_the_end(client):
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
    )

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == said(5)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert not chunks[-1].choices
    assert chunks[-1].usage.completion_tokens == 5
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_a_stream_ends_with_done_and_has_a_usage_only_where_it_was_asked_for(service):
    body = {"model": "tiny", "messages": HI, "max_tokens": 2, "stream": True}
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")
    assert "usage" not in answer.text


def test_a_completion_is_of_a_text_or_of_token_ids(client, service, tiny):
    text = client.completions.create(model="tiny", prompt="the cat", max_tokens=3)
    ids = client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=3)
    one = client.completions.create(model="tiny", prompt=["the cat"])

    assert text.choices[0].text == ids.choices[0].text == said(3)
    assert line_of(service, text)["tokens"] == tiny.ids("the cat")
    assert line_of(service, ids)["tokens"] == [5, 6, 7]
    assert one.usage.completion_tokens == 16


def test_a_completion_streams(loose):
    chunks = list(loose.completions.create(model="tiny", prompt="the cat", max_tokens=4, stream=True))

    assert "".join(chunk.choices[0].text for chunk in chunks) == said(4)
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("streams", [False, True])
def test_stop_texts_end_an_answer(client, loose, streams):
    asked = {"model": "tiny", "prompt": "the cat", "max_tokens": 9, "stop": [" warm", "!"]}
    if streams:
        chunks = list(loose.completions.create(**asked, stream=True))
        text, reason = "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].choices[0].finish_reason
    else:
        choice = client.completions.create(**asked).choices[0]
        text, reason = choice.text, choice.finish_reason

    assert (text, reason) == (said(5), "stop")


def test_how_tokens_are_drawn_goes_to_the_ranks_with_every_default(client, service):
    asked = {"temperature": 0.5, "top_p": 0.25, "seed": -1, "extra_body": {"top_k": 4, "ignore_eos": True}}
    line = line_of(service, client.completions.create(model="tiny", prompt="the", max_tokens=1, **asked))
    calm = line_of(service, client.completions.create(model="tiny", prompt="the", max_tokens=1))

    assert {key: line[key] for key in ("temperature", "top_p", "top_k", "ignore_eos", "seed", "stop", "stream")} == {
        "temperature": 0.5, "top_p": 0.25, "top_k": 4, "ignore_eos": True, "seed": 2**64 - 1, "stop": [],
        "stream": True,
    }  # fmt: skip
    assert calm["temperature"] == 0.0
    assert "seed" not in calm


def test_a_seed_that_nobody_named_is_drawn_here(client, service):
    """So that a replay after a loss draws the same."""
    seeds = {
        line_of(service, client.completions.create(model="tiny", prompt="the", max_tokens=1, temperature=1))["seed"]
        for _ in range(3)
    }

    assert len(seeds) == 3


def test_a_chat_tells_probabilities(client, service, tiny):
    answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=3, logprobs=True, top_logprobs=2)
    alone = client.chat.completions.create(model="tiny", messages=HI, max_tokens=3, logprobs=True)
    without = client.chat.completions.create(model="tiny", messages=HI, max_tokens=3)

    content = answer.choices[0].logprobs.content
    assert [entry.logprob for entry in content] == [-0.5] * 3
    names = tiny.tokenizer.convert_ids_to_tokens([1, 2])
    assert [[one.token for one in entry.top_logprobs] for entry in content][1] == names
    assert [entry.top_logprobs for entry in alone.choices[0].logprobs.content] == [[]] * 3
    assert without.choices[0].logprobs is None
    assert line_of(service, answer)["logprobs"] == 2


def test_a_stream_tells_probabilities_token_by_token(client, service, tiny):
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=12, logprobs=True, top_logprobs=1, stream=True
        )
    )
    entries = [entry for chunk in chunks if (told := chunk.choices[0].logprobs) for entry in told.content]

    names = tiny.tokenizer.convert_ids_to_tokens(range(12))
    assert [entry.token for entry in entries] == [tiny.text([number]) or names[number] for number in range(12)]
    assert all(entry.bytes == list(entry.token.encode()) for entry in entries)


def test_a_completion_tells_probabilities(client, tiny):
    told = client.completions.create(model="tiny", prompt="the", max_tokens=8, logprobs=2).choices[0].logprobs
    lengths = [len(text) for text in told.tokens]

    assert told.token_logprobs == [-0.5] * 8
    assert told.text_offset == [sum(lengths[:number]) for number in range(8)]
    assert told.top_logprobs[0] == {"<s>": -0.5, "</s>": -1.5}
    assert told.top_logprobs[5] == {tiny.text([5]): -0.5, tiny.text([6]): -1.5}


def test_parts_of_a_message_are_one_text_and_developers_are_systems(client, service, tiny):
    parts = [{"type": "text", "text": "why is "}, {"type": "text", "text": "the sky blue?"}]
    messages = [{"role": "developer", "content": "the"}, {"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="tiny", max_tokens=1, messages=messages)

    assert line_of(service, answer)["tokens"] == tiny.ids([{"role": "system", "content": "the"}, *HI])


@pytest.mark.parametrize(
    ("wished", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "it", "schema": {"enum": [3]}}}, {"enum": [3]}),
        ({"type": "text"}, None),
    ],
)
def test_the_ranks_are_told_of_which_schema_an_answer_is(wished, schema, client, service):
    chat = client.chat.completions.create(model="tiny", messages=HI, max_tokens=1, response_format=wished)

    assert line_of(service, chat).get("schema") == schema


def test_fields_that_change_nothing_are_taken(client):
    client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=1, n=1, tools=[], tool_choice="none", frequency_penalty=0, user="me",
        presence_penalty=0.0, response_format={"type": "text"}, logit_bias={}, store=False, metadata={"a": "b"},
        extra_body={"stop": None, "chat_template_kwargs": {"enable_thinking": False}},
    )  # fmt: skip


def test_embeddings_are_floats_or_their_bytes(client, loose, service):
    """The client itself asks for base64 where nothing is said."""
    floats = client.embeddings.create(model="mini", input="the small board", encoding_format="float")
    coded = loose.embeddings.create(model="mini", input="the small board")
    raw = httpx.post(
        f"{service.url}/v1/embeddings",
        json={"model": "mini", "input": "the small board", "encoding_format": "base64", "dimensions": 40},
    ).json()

    assert len(floats.data[0].embedding) == 40
    assert np.allclose(floats.data[0].embedding, coded.data[0].embedding, atol=1e-6)
    numbers = np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4")
    assert np.allclose(numbers, floats.data[0].embedding, atol=1e-6)
    assert floats.usage.prompt_tokens == floats.usage.total_tokens == 5


def test_many_embeddings_come_in_their_order(client):
    """As many as the queue would not hold at once, of texts and of token ids."""
    ids = [[number % 200, 2] for number in range(200)]
    found = client.embeddings.create(model="narrow", input=ids, encoding_format="float")
    texts = client.embeddings.create(model="mini", input=["the", "the small"], encoding_format="float")
    one = client.embeddings.create(model="mini", input=[7, 8], encoding_format="float")

    assert [entry.embedding[0] for entry in found.data] == [sum(pair) for pair in ids]
    assert [entry.index for entry in found.data] == list(range(200))
    assert found.usage.prompt_tokens == 400
    assert len(texts.data) == 2
    assert one.data[0].embedding[0] == 15


def test_texts_are_classified(service):
    body = {"model": "classifier", "input": ["the board", "it is warm"]}
    found = httpx.post(f"{service.url}/v1/classifications", json=body).json()

    assert [entry["label"] for entry in found["data"]] == ["breeze", "breeze"]
    assert found["labels"] == ["calm", "breeze", "storm"]
    assert found["data"][0]["scores"] == [0.25, 0.5, 0.25]
    assert found["usage"]["prompt_tokens"] > 4


@pytest.mark.parametrize("way", ["base64", "data", "list", "form"])
def test_images_are_classified(service, way):
    url, image = f"{service.url}/v1/classifications", b"\x89PNG some image"
    coded = base64.b64encode(image).decode()
    if way == "form":
        answer = httpx.post(url, data={"model": "vit"}, files={"image": ("c.png", image), "file": ("b.png", b"2")})
    else:
        given = {"base64": coded, "data": f"data:image/png;base64,{coded}", "list": [coded, coded]}[way]
        answer = httpx.post(url, json={"model": "vit", "image": given})

    found = answer.json()
    assert [entry["top5"][0] for entry in found["data"]] == [CAT] * (2 if way in ("list", "form") else 1)
    assert found["labels"] == ["calm", "breeze", "storm"]
    lines = service.service.models["vit"].lines
    assert any(line.get("image_data") == coded for line in lines)


@pytest.mark.parametrize("second", ["bm9uZQ==", "*", "https://a/b,c", 7, ""])
def test_of_several_images_the_one_that_is_wrong_is_named(service, second, kept):
    answer = httpx.post(f"{service.url}/v1/classifications", json={"model": "vit", "image": ["Zmlyc3Q=", second]})

    assert answer.status_code == 400
    kept(answer.json()["error"]["message"].partition(" Only")[0])  # what follows is Python's


def test_fifty_clients_at_once_get_their_own_answers(client, loose):
    def ask(number):
        if number % 2:
            return client.completions.create(model="tiny", prompt="the", max_tokens=number + 1).choices[0].text
        stream = loose.completions.create(model="tiny", prompt="the", max_tokens=number + 1, stream=True)
        return "".join(chunk.choices[0].text for chunk in stream)

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(50)))

    assert answers == [said(number + 1) for number in range(50)]


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-5", messages=HI)

    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.models.retrieve("a/b")


def test_what_exceeds_the_context_is_refused_with_both_numbers(client, service, tiny):
    before, prompt = len(service.service.models["tiny"].lines), len(tiny.ids(HI))
    needed = f"the context has {CONTEXT} tokens, {CONTEXT + prompt} are needed: {prompt} of the prompt"
    with pytest.raises(openai.BadRequestError, match=needed) as chat:
        client.chat.completions.create(model="tiny", messages=HI, max_tokens=CONTEXT)
    with pytest.raises(openai.BadRequestError, match=needed) as newer:
        client.chat.completions.create(model="tiny", messages=HI, max_completion_tokens=CONTEXT)
    with pytest.raises(openai.BadRequestError, match=f"{CONTEXT} tokens, {CONTEXT + 1} are needed") as completion:
        client.completions.create(model="tiny", prompt=[5] * CONTEXT, max_tokens=1)

    assert f"ask for at most {CONTEXT - prompt}" in str(chat.value)
    assert "shorten the prompt" in str(completion.value)
    assert (chat.value.param, completion.value.param) == ("max_tokens", "prompt")
    assert newer.value.param == "max_completion_tokens"
    assert chat.value.code == completion.value.code == "context_length_exceeded"
    assert len(service.service.models["tiny"].lines) == before


def test_a_text_longer_than_an_encoder_reads_is_refused_with_both_numbers(client, kept):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="mini", input=["the", "the " * 40])
    kept(caught.value)

    assert caught.value.code == "context_length_exceeded"


def test_a_text_that_cannot_fit_is_refused_before_it_is_taken_apart(client, kept):
    """A tokenizer would need gigabytes for it."""
    with pytest.raises(openai.BadRequestError, match=f"100000.. characters, {CONTEXT} tokens are at most") as chat:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a" * 10_000_000}])
    with pytest.raises(openai.BadRequestError) as embedding:
        client.embeddings.create(model="mini", input=["the", "the " * 1_000_000])
    kept(embedding.value)

    assert chat.value.code == embedding.value.code == "context_length_exceeded"


def test_what_the_ranks_refuse_is_a_bad_request_also_of_a_stream(client):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="token 0 ends nothing"):
            client.completions.create(model="tiny", prompt=[5, 0], max_tokens=3, stream=stream)
