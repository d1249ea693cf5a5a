"""Several prompts in one request, prompts that are repeated, and embeddings cut short."""

import httpx
import numpy as np
import openai
import pytest

from launch.serve.journal import Journal
from tests.kit.fake_service import FakeModel, running
from tests.launch.serve.conftest import CONTEXT, connect
from tests.launch.serve.test_openai import line_of, said

PROMPTS = ["the cat", [5, 6, 7], "a small board"]


class Telling(FakeModel):
    """A model that also tells of its prompts: of the token at place n the probability -n, and token n in its place."""

    async def _say(self, line):
        take = self.journal.take
        self.journal.take = lambda told: take(self._with_prompt(line, told) if "text" in told else told)
        await super()._say(line)
        self.journal.take = take

    def _with_prompt(self, line, told):
        if "new_tokens" not in told or "prompt_logprobs" not in line:
            return told
        places = range(1, len(line["tokens"]))
        return told | {"prompt_logprobs": [{"logprob": -place, "top": [[place, -0.25]]} for place in places]}


@pytest.fixture(scope="module")
def telling(texts):
    with running(lambda: [Telling("tiny", "decoder", Journal(4, 64))], {"tiny": texts["tiny"]}) as service:
        yield service


def test_every_prompt_has_a_choice_in_their_order(client, service, tiny):
    answer = client.completions.create(model="tiny", prompt=PROMPTS, max_tokens=3)
    many = client.completions.create(model="tiny", prompt=[[5, n % 100 + 1] for n in range(150)], max_tokens=2)
    lines = {line["id"]: line["tokens"] for line in service.service.models["tiny"].lines}

    assert [(choice.index, choice.text) for choice in answer.choices] == [(n, said(3)) for n in range(3)]
    assert [lines[f"{answer.id}-{n}"] for n in range(3)] == [tiny.ids(prompt) for prompt in PROMPTS]
    assert answer.usage.prompt_tokens == sum(len(tiny.ids(prompt)) for prompt in PROMPTS)
    assert answer.usage.completion_tokens == 9
    assert [choice.index for choice in many.choices] == list(range(150))


def test_several_prompts_stream_one_after_the_other(loose):
    asked = {"model": "tiny", "prompt": PROMPTS[:2], "max_tokens": 3, "stream": True, "echo": True}
    chunks = list(loose.completions.create(**asked, stream_options={"include_usage": True}))
    texts = ["".join(c.text for chunk in chunks for c in chunk.choices if c.index == number) for number in range(2)]

    assert [text.endswith(said(3)) for text in texts] == [True, True]
    assert texts[0] == "the cat" + said(3)
    assert [c.index for chunk in chunks for c in chunk.choices if c.finish_reason] == [0, 1]
    assert chunks[-1].usage.completion_tokens == 6


def test_a_prompt_that_is_repeated_has_its_probabilities_before_the_answer_s(telling, tiny):
    """As lm-evaluation-harness asks: the first token follows nothing."""
    ids = tiny.ids("the cat")
    with connect(telling, _strict_response_validation=False) as client:
        asked = {"model": "tiny", "prompt": ids, "echo": True, "logprobs": 1, "temperature": 0}
        whole = client.completions.create(**asked, max_tokens=2).choices[0]
        alone = client.completions.create(**asked, max_tokens=0)
    told = whole.logprobs

    assert whole.text == tiny.text(ids) + said(2)
    assert told.token_logprobs == [None, *(-float(place) for place in range(1, len(ids))), -0.5, -0.5]
    assert told.top_logprobs[0] is None
    assert [len(top) for top in told.top_logprobs[1:]] == [1] * (len(ids) + 1)
    assert told.text_offset == np.cumsum([0, *map(len, told.tokens[:-1])]).tolist()
    assert (alone.choices[0].text, alone.choices[0].finish_reason) == (tiny.text(ids), "length")
    assert alone.choices[0].logprobs.token_logprobs == told.token_logprobs[: len(ids)]
    assert alone.usage.completion_tokens == 0
    assert telling.service.models["tiny"].lines[-1]["prompt_logprobs"] == 1


def test_no_answer_at_all_is_an_answer(client, loose):
    for prompt in ("the cat", [5] * CONTEXT):
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=0)
        assert (answer.choices[0].text, answer.usage.completion_tokens) == ("", 0)
    chunks = list(loose.completions.create(model="tiny", prompt="the cat", max_tokens=0, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "the cat"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "the", "echo": True, "logprobs": 1, "stream": True}, "stream"),
        ({"prompt": "the", "echo": True, "logprobs": 1, "json_schema": {}}, "response_format"),
        ({"prompt": ["the", []]}, "prompt[1]"),
        ({"prompt": ["the", [5, "x"]]}, "prompt[1][1]"),
        ({"prompt": ["the", 5]}, "prompt[0]"),
        ({"prompt": ["the"] * 2049}, "prompt"),
        ({"prompt": "the", "max_tokens": 3, "n_predict": 4}, "n_predict"),
        ({"prompt": "the", "max_tokens": -1}, "max_tokens"),
    ],
)
def test_what_goes_not_together_is_refused_by_name(body, param, service):
    answer = httpx.post(f"{service.url}/v1/completions", json={"model": "tiny"} | body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_as_many_tokens_as_there_is_room_for(loose, service):
    answer = loose.completions.create(model="tiny", prompt=[5] * 100, extra_body={"n_predict": -1})

    assert answer.usage.total_tokens == CONTEXT
    assert line_of(service, answer)["max_tokens"] == CONTEXT - 100


def test_an_embedding_cut_short_has_length_one_again(client, texts):
    whole = client.embeddings.create(model="mini", input="the", encoding_format="float").data[0].embedding
    short = client.embeddings.create(model="mini", input="the", encoding_format="float", dimensions=3).data[0].embedding
    with pytest.raises(openai.BadRequestError, match="dimensions is 41, embeddings of mini have 40"):
        client.embeddings.create(model="mini", input="the", dimensions=41)

    assert texts["mini"].normalize
    assert np.allclose(short, np.array(whole[:3]) / np.linalg.norm(whole[:3]), atol=1e-6)
