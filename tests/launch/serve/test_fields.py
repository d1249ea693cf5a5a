"""Every field of a request is honoured, cannot change an answer, or is refused by its name: as the tables say it."""

import inspect
import os
from pathlib import Path

import httpx
import pytest
from openai.resources.chat.completions import Completions as Chats
from openai.resources.completions import Completions
from openai.resources.embeddings import Embeddings

from launch.api.rules import Fate, first_refused
from launch.api.tables import CHAT, CLASSIFICATION, COMPLETION, EMBEDDING, MESSAGE
from tests.kit.fields import markdown
from tests.launch.serve.test_openai import HI

PAGE = Path(__file__).parents[3] / "docs" / "http.md"
FIRST = "Of chats and completions:"
# A body of each endpoint, and its table.
BODIES = {
    "chat/completions": (CHAT, {"model": "tiny", "messages": HI, "max_tokens": 2, "temperature": 1, "seed": 5}),
    "completions": (COMPLETION, {"model": "tiny", "prompt": "the cat", "max_tokens": 2, "temperature": 1, "seed": 5}),
    "embeddings": (EMBEDDING, {"model": "mini", "input": "the small board"}),
    "classifications": (CLASSIFICATION, {"model": "classifier", "input": "the small board"}),
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
# What makes a difference, by field; some need other fields, too.
DRAWN = {
    "max_tokens": 3, "temperature": 0.5, "top_p": 0, "top_k": 3, "seed": 6, "stop": " sleeps", "ignore_eos": True,
    "stream": True, "json_schema": SCHEMA, "response_format": {"type": "json_object", "schema": SCHEMA},
}  # fmt: skip
CHANGES = {
    "chat/completions": {
        **DRAWN, "model": "slower", "messages": [{**HI[0], "content": "no"}], "logprobs": True,
        "n_predict": {"max_tokens": None, "n_predict": 4},
        "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 4},
        "top_logprobs": {"logprobs": True, "top_logprobs": 3}, "add_generation_prompt": False,
        "continue_final_message": True, "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    },
    "completions": {
        **DRAWN, "model": "slower", "prompt": "the board", "logprobs": 2, "echo": True,
        "n_predict": {"max_tokens": None, "n_predict": 4},
        "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    },
    "embeddings": {"model": "narrow", "input": "the", "encoding_format": "base64", "dimensions": 3},
    "classifications": {"model": "mini", "input": "the", "image": "AAAA"},
}  # fmt: skip
# These need a template that asks for them, or a model that sees: `test_conversations.py`, `test_openai.py`.
ELSEWHERE = {"tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs", "image"}
ODD = {"odd": [1]}


@pytest.fixture
def ask(service):
    """Yield what posts a body; it gives the status, what ranks got, and what was answered, but for ids and dates."""
    client = httpx.Client(base_url=f"{service.url}/v1", timeout=20)

    def post(path, body):
        models = service.service.models
        before = {name: len(model.lines) for name, model in models.items()}
        answer = client.post(path, json=body)
        lines = [line for name, model in models.items() for line in model.lines[before[name] :] if "id" in line]
        told = [{key: value for key, value in line.items() if key != "id"} for line in lines]
        if answer.headers["content-type"].startswith("text/event-stream"):
            return answer.status_code, told, answer.text.count("data:")
        found = {key: value for key, value in answer.json().items() if key not in ("id", "created")}
        return answer.status_code, told, found

    with client:
        yield post


def test_the_page_shows_the_tables_of_the_code():
    text = PAGE.read_text()
    before, found, _ = text.partition(FIRST)
    if os.environ.get("HEPTI_WRITE_TABLES"):
        PAGE.write_text(f"{before}{markdown()}\n")

    assert found
    assert PAGE.read_text() == f"{before}{markdown()}\n"


def test_every_field_of_openai_s_client_stands_in_a_table():
    own = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    for resource, table in ((Chats, CHAT), (Completions, COMPLETION), (Embeddings, EMBEDDING)):
        assert inspect.signature(resource.create).parameters.keys() - own - table.keys() == set()


@pytest.mark.parametrize("path", BODIES)
def test_a_field_that_is_not_honoured_changes_nothing_or_is_refused_by_its_name(path, ask):
    table, body = BODIES[path]
    usual = ask(path, body)
    wrong = []

    for name, rule in table.items():
        if rule.fate is Fate.HARMLESS and ask(path, {**body, name: ODD}) != usual:
            wrong.append((name, "changes something"))
        if rule.fate is Fate.REFUSED:
            status, lines, answer = ask(path, {**body, name: ODD})
            if (status, lines, answer["error"]["param"]) != (400, [], name) or rule.why not in answer["error"][
                "message"
            ]:
                wrong.append((name, "is not refused"))
            wrong += [(name, one) for one in rule.taken if ask(path, {**body, name: one}) != usual]

    assert usual[0] == 200
    assert not wrong


@pytest.mark.parametrize("path", BODIES)
def test_a_field_that_is_honoured_changes_something(path, ask):
    table, body = BODIES[path]
    usual, changes = ask(path, body), CHANGES[path]
    honoured = {name for name, rule in table.items() if rule.fate is Fate.HONOURED}

    same = [
        name
        for name, value in changes.items()
        if ask(path, {**body, **(value if isinstance(value, dict) and name in value else {name: value})}) == usual
    ]

    assert changes.keys() | ELSEWHERE >= honoured
    assert not same


@pytest.mark.parametrize(
    ("field", "param", "words"),
    [
        ({"something": {"new": 1}}, "something", "leave it out"),
        ({"max_token": 3}, "max_token", "did you mean max_tokens"),
        ({"temprature": None}, None, ""),
        ({"stream_options": {"include_usages": True}}, "stream_options.include_usages", "include_usage"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats", "at the end"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "text"),
        ({"response_format": {"json_schema": {"schema": {}, "x": 1}}}, "response_format.json_schema.x", ""),
        ({"response_format": {"type": "json_object"}, "json_schema": {}}, "json_schema", "give one"),
        ({"messages": [{"role": "user", "content": "x", "weight": 2}]}, "messages[0].weight", ""),
        ({"messages": [*HI, {"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[1].tool_calls", ""),
        ({"messages": [{"role": "user", "content": [{"type": "text", "y": 1}]}]}, "messages[0].content[0].y", ""),
        ({"messages": [{"role": "user", "content": "x", "name": 7}]}, "messages[0].name", "string"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template", "no setting"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "both true"),
        ({"repeat_penalty": True}, "repeat_penalty", "penalties"),
    ],
)  # fmt: skip
def test_what_is_unknown_or_contradicts_is_named_also_within_objects(field, param, words, ask):
    status, lines, answer = ask("chat/completions", BODIES["chat/completions"][1] | field)

    if param is None:
        assert status == 200
    else:
        assert (status, lines, answer["error"]["param"]) == (400, [], param)
        assert words in answer["error"]["message"]


def test_what_an_answer_of_openai_s_client_has_may_be_sent_back():
    said = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "tool_calls": None}

    assert first_refused(MESSAGE, said) is None
    assert first_refused(MESSAGE, said | {"refusal": "no"}).name == "refusal"


def test_fields_of_a_form_are_held_to_the_same_table(service):
    answer = httpx.post(f"{service.url}/v1/classifications", data={"model": "vit", "top_k": "3"}, files={"image": b"x"})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_k")
