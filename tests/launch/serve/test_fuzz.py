"""Bodies of all sorts: whatever comes, the service answers soon, in OpenAI's shape, and never that it failed."""

import json

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import sweeps
from tests.launch.serve.test_openai import HI

CASES = sweeps.count(12, 100)  # of each test
NUMBERS = st.one_of(
    st.integers(-3, 300), st.sampled_from([0, 1, -1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e300, 2.5]),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=12), st.sampled_from(["", "the", "\ud800", "\0"])
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
MODELS = st.sampled_from(["tiny", "mini", "classifier", "vit", "nobody", ""])
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": SCALARS}))
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "assistant", "developer", "tool", "x"]),
            "content": st.one_of(
                st.text(max_size=40),
                ANYTHING,
                st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": SCALARS})),
            ),
        }
    ),
    max_size=4,
)
# What a field may be, besides anything.
LIKELY = {
    "messages": MESSAGES, "prompt": st.one_of(st.text(max_size=40), st.lists(st.integers(0, 60), max_size=20)),
    "input": st.one_of(st.text(max_size=40), st.lists(st.text(max_size=9), max_size=5), st.lists(st.integers(0, 250))),
    "image": st.one_of(st.binary(max_size=20).map(lambda data: data.hex()), st.text(max_size=20)),
    "max_tokens": st.integers(1, 30), "temperature": st.floats(0, 2), "top_p": st.floats(0, 1),
    "stop": st.lists(st.text(max_size=3), max_size=5), "logprobs": st.one_of(st.booleans(), st.integers(0, 20)),
    "top_logprobs": st.integers(0, 20), "stream": st.booleans(),
    "encoding_format": st.sampled_from(["float", "base64"]),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}), "seed": st.integers(-9, 9),
    "max_completion_tokens": st.integers(1, 30), "n": st.just(1), "dimensions": st.just(40),
    "ignore_eos": st.booleans(),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "json_object", "json_schema"])},
        optional={"json_schema": st.fixed_dictionaries({"schema": ANYTHING})},
    ), "top_k": NUMBERS,
    "chat_template_kwargs": st.dictionaries(st.sampled_from(["messages", "x", "self", "bos_token"]), SCALARS),
    "tools": st.just([]), "tool_choice": st.just("auto"), "logit_bias": st.just({}),
}  # fmt: skip
FIELDS = {
    "chat/completions": ("tiny", ("messages",)), "completions": ("tiny", ("prompt",)),
    "embeddings": ("mini", ("input",)),
    "classifications": ("classifier", ("input", "image")),
}  # fmt: skip
WHOLE = {
    "chat/completions": {"model": "tiny", "messages": HI, "max_tokens": 5, "stop": ["!"], "logprobs": True},
    "completions": {"model": "tiny", "prompt": "the cat", "max_tokens": 5, "stream": True},
    "embeddings": {"model": "mini", "input": ["the small", "board"], "encoding_format": "base64"},
    "classifications": {"model": "vit", "image": "data:image/png;base64,AAAA"},
}


@pytest.fixture(scope="module")
def ask(service):
    """Return what posts a body to an endpoint and checks the answer."""
    with httpx.Client(base_url=f"{service.url}/v1", timeout=10) as client:

        def post(path, content, **headers):
            answer = client.post(path, content=content, headers=headers)
            if answer.status_code == 200:
                stream = answer.headers["content-type"].startswith("text/event-stream")
                assert answer.text.endswith("data: [DONE]\n\n") if stream else answer.json()["object"]
            else:
                assert 400 <= answer.status_code < 500, answer.text
                error = answer.json()["error"]
                assert error.keys() == {"message", "type", "param", "code"}
                assert error["message"]
                assert len(error["message"]) < 1000
            return answer

        yield post


def bodies(path):
    """Return bodies whose fields are likely ones or anything."""
    model, needed = FIELDS[path]
    fields = {name: st.one_of(likely, likely, likely, ANYTHING) for name, likely in LIKELY.items()}
    always = {"model": st.one_of(st.just(model), st.just(model), MODELS, ANYTHING)}
    always |= {name: fields.pop(name) for name in needed}
    return st.fixed_dictionaries(always, optional=fields)


@pytest.mark.parametrize("path", FIELDS)
def test_bodies_of_any_fields_are_answered_or_refused(ask, path):
    @settings(max_examples=CASES)
    @given(bodies(path))
    def check(body):
        ask(path, json.dumps(body))

    check()


@pytest.mark.parametrize("path", WHOLE)
def test_damaged_bodies_are_answered_or_refused(ask, path):
    whole = json.dumps(WHOLE[path]).encode()
    assert ask(path, whole).status_code == 200

    @settings(max_examples=CASES)
    @given(st.integers(0, len(whole)), st.integers(0, 6), st.binary(max_size=4))
    def check(start, removed, instead):
        ask(path, whole[:start] + instead + whole[start + removed :])

    check()


def test_damaged_forms_are_answered_or_refused(ask):
    whole = (
        b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nvit\r\n'
        b'--x\r\ncontent-disposition: form-data; name="image"; filename="a.png"\r\n'
        b"content-type: image/png\r\n\r\nPNG\r\n--x--\r\n"
    )
    kind = {"content-type": "multipart/form-data; boundary=x"}
    assert ask("classifications", whole, **kind).status_code == 200

    @settings(max_examples=CASES)
    @given(st.integers(0, len(whole)), st.integers(0, 6), st.binary(max_size=4))
    def check(start, removed, instead):
        ask("classifications", whole[:start] + instead + whole[start + removed :], **kind)

    check()
