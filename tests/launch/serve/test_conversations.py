"""What a chat template is told is what transformers tells it: tools, settings, and where the text ends."""

import httpx
import pytest

from launch.serve.journal import Journal
from launch.serve.texts import read_texts
from tests.kit.chat_templates import TEMPLATES
from tests.kit.fake_service import FakeModel, running
from tests.kit.languages import with_files
from tests.launch.serve.test_openai import HI

TOOL = {"type": "function", "function": {"name": "cat", "parameters": {"type": "object"}}}
GOES_ON = [*HI, {"role": "assistant", "content": "the cat "}]
THOUGHT = [*HI, {"role": "assistant", "content": "on the", "reasoning": "a board"}, *HI]


@pytest.fixture(scope="module")
def qwen(tiny, tmp_path_factory):
    """Return a service of a model with Qwen3's template, which asks for tools and thoughts, and its tokenizer."""
    path = with_files(tiny, tmp_path_factory.mktemp("qwen"), chat_template=TEMPLATES["qwen 3"])
    with running(lambda: [FakeModel("it", "decoder", Journal(4, 4))], {"it": read_texts(path)}) as service:
        yield service


def ask(service, model, **body):
    body = {"model": model, "messages": HI, "max_tokens": 1} | body
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body)
    return (
        answer.status_code,
        answer.json(),
        service.service.models[model].lines[-1]["tokens"] if answer.is_success else [],
    )


def by_transformers(tiny, messages, template, **how):
    how = {"add_generation_prompt": True, "chat_template": template} | how
    text = tiny.tokenizer.apply_chat_template(messages, tokenize=False, **how)
    return tiny.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ({}, {}),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        (
            {"messages": GOES_ON, "continue_final_message": True},
            {"continue_final_message": True, "add_generation_prompt": False},
        ),
        ({"tools": [TOOL]}, {"tools": [TOOL]}),
        ({"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False}, {"tools": [TOOL]}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False, "reasoning_effort": "none"}),
        ({"messages": THOUGHT}, {}),
    ],
)  # fmt: skip
def test_ids_are_transformers_own(body, how, qwen, tiny):
    status, answer, ids = ask(qwen, "it", **body)

    assert status == 200, answer
    assert ids == by_transformers(tiny, body.get("messages", HI), TEMPLATES["qwen 3"], **how)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "cat"}}}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [{**TOOL, "function": TOOL["function"] | {"strict": True}}]}, "tools[0].function.strict"),
        ({"tools": [TOOL, {"type": "function", "function": {}}]}, "tools[1].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": "cat"}, "tools"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
    ],
)
def test_calls_that_must_be_made_are_refused_by_name(body, param, qwen):
    status, answer, _ = ask(qwen, "it", **body)

    assert (status, answer["error"]["param"]) == (400, param)


def test_what_a_template_would_pass_over_is_refused_but_where_nothing_is_to_come_of_it(service, tiny):
    plain = ask(service, "tiny")
    for body, param in (({"tools": [TOOL]}, "tools"), ({"reasoning_effort": "high"}, "reasoning_effort")):
        status, answer, _ = ask(service, "tiny", **body)
        assert (status, answer["error"]["param"]) == (400, param)
    for body in ({"tools": [TOOL], "tool_choice": "none"}, {"reasoning_effort": "none"}):
        assert ask(service, "tiny", **body)[2] == plain[2] == tiny.ids(HI)


def test_special_tokens_of_a_request_go_before_the_model_s(tiny, tmp_path):
    path = with_files(tiny, tmp_path, chat_template="{{ bos_token }}{{ messages[0].content }}")
    with running(lambda: [FakeModel("it", "decoder", Journal(4, 4))], {"it": read_texts(path)}) as service:
        _, _, ids = ask(service, "it", chat_template_kwargs={"bos_token": "</s>"})

    assert ids[0] == tiny.tokenizer.convert_tokens_to_ids("</s>")
