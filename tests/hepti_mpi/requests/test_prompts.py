"""Prompts become tokens; what is wrong with one is told, and the others are still answered."""

import json

import pytest

from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.prompts import Prompt, PromptReader, Wishes
from hepti_mpi.requests.sampling import Sampling
from solver.base.errors import HeptiError
from solver.model.decoder import Decoder
from solver.model.kinds.attention import Attention
from solver.model.kinds.mlp import Mlp
from tests.kit.chat_templates import CHATML, LLAMA_2, SPECIAL
from tests.kit.texts import TOKENIZERS
from weights.inputs.templates import ChatTemplate
from weights.inputs.tokenize import PromptTokenizer

USUAL = Wishes(Ending(9, eos=(1,)), Sampling())
LAYER = Attention(heads=2, kv_heads=1, head_dim=4), Mlp(ffn=8)


@pytest.fixture(params=TOKENIZERS)
def made(request):
    return TOKENIZERS[request.param]()


def reader(made, *, bos=0, context=50, vocab=None, template=CHATML, complain=pytest.fail):
    model = Decoder(
        name="odd", hidden=8, vocab=vocab or made.get_vocab_size(), positions=64, layers=(LAYER,), bos=bos, eos=(1,)
    )
    return PromptReader(
        model, context, PromptTokenizer(made.to_str()), ChatTemplate(template, SPECIAL), complain, USUAL
    )


def of_lines(tmp_path, made, *lines, **options):
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    complaints = []
    return list(
        reader(made, complain=lambda complaint: complaints.append(str(complaint)), **options).file(path)
    ), complaints


def test_texts_begin_with_bos_once(made):
    ids = tuple(made.encode("the end", add_special_tokens=False).ids)

    assert reader(made).texts(["the end"]) == [Prompt(1, (0, *ids), "the end")]
    assert reader(made, bos=None).texts(["the end"])[0].tokens == ids
    assert reader(made).texts(["<s>the end"])[0].tokens.count(0) == 1


def test_lines_are_texts_ids_and_conversations(tmp_path, made):
    messages = [{"role": "user", "content": "hi"}]
    found, complaints = of_lines(
        tmp_path,
        made,
        {"id": "a", "prompt": "the end"},
        {"tokens": [5, 4]},
        {"id": 7, "messages": messages},
        context=99,
    )

    text = ChatTemplate(CHATML, SPECIAL).render(messages)
    assert found[:2] == [
        *[Prompt("a", p.tokens, "the end") for p in reader(made).texts(["the end"])],
        Prompt(2, (5, 4)),
    ]
    assert found[2] == Prompt(7, tuple(made.encode(text, add_special_tokens=False).ids), text)
    assert not complaints


def test_nothing_is_added_to_a_templates_text(made):
    """Its own special tokens are tokens."""
    found = reader(made, template=LLAMA_2).conversation([{"role": "user", "content": "the"}])

    assert found.text == "<s>[INST] the [/INST]"
    assert found.tokens[0] == 0
    assert found.tokens.count(0) == 1


BAD_LINES = [
    "", "{", "[1]", {"id": True, "prompt": "x"}, {"id": 1}, {"prompt": "x", "tokens": [1]}, {"prompt": ""},
    {"prompt": 3}, '{"prompt": "\\ud800"}', {"tokens": []}, {"tokens": 3}, {"tokens": [1, "2"]},
    {"tokens": [1, ["x" * 9000]]}, {"tokens": [2, -1]}, {"tokens": [1, 100_000]}, {"tokens": [5] * 51},
    {"prompt": "q" * 80}, {"messages": []}, {"messages": [{"role": "user"}]},
    {"messages": [{"role": "wizard", "content": "x"}]},
    {"messages": [{"role": "user", "content": "x"}, 3]}, {"id": "first", "prompt": "x"},
]  # fmt: skip


def test_what_is_wrong_with_a_line_is_told_and_the_others_are_read(tmp_path, made, kept):
    lines = {"id": "first", "prompt": "the"}, *BAD_LINES, {"id": "last", "tokens": [4]}
    found, complaints = of_lines(tmp_path, made, *lines)

    assert [prompt.id for prompt in found] == ["first", "last"]
    assert [line.split(":")[0] for line in complaints] == [
        f"asked.jsonl, line {number}" for number in range(2, 2 + len(BAD_LINES))
    ]
    kept("\n".join(complaints))


def test_a_template_that_refuses_is_told_by_its_line(tmp_path, made, kept):
    line = {"messages": [{"role": "assistant", "content": "x"}]}
    _, complaints = of_lines(tmp_path, made, line, template=LLAMA_2)

    kept(complaints[0])


def test_a_prompt_as_long_as_the_context_is_taken(tmp_path, made):
    assert of_lines(tmp_path, made, {"tokens": [4, 5, 6]}, context=3) == ([Prompt(1, (4, 5, 6))], [])


def test_texts_need_a_tokenizer_and_conversations_a_template(made):
    model = Decoder(name="odd", hidden=8, vocab=9, positions=64, layers=(LAYER,))
    bare = PromptReader(model, 10, None, None, pytest.fail, USUAL)

    with pytest.raises(HeptiError, match="without a tokenizer"):
        bare.texts(["x"])
    with pytest.raises(HeptiError, match="without a chat template"):
        bare.conversation([{"role": "user", "content": "x"}])


def test_tokens_that_the_model_does_not_have_are_refused(made):
    with pytest.raises(HeptiError, match="odd has 4 tokens"):
        reader(made, vocab=4).texts(["zebra"])


def test_an_answer_in_json_has_a_grammar_that_goes_on_behind_what_was_said(tmp_path, made):
    said = made.encode('"th', add_special_tokens=False).ids[-2:]

    (prompt,), complaints = of_lines(tmp_path, made, {"tokens": [5], "schema": {"enum": ["the"]}, "said": said})

    assert complaints == []
    for token in said:
        prompt.wishes.grammar.take(token)
    assert {made.decode([token]) for token in prompt.wishes.grammar.allowed.nonzero()[0]} == {"e"}


def test_only_json_lines_are_read(tmp_path, made):
    with pytest.raises(HeptiError, match=r"prompts\.txt: not a \.jsonl"):
        list(reader(made).file(tmp_path / "prompts.txt"))
    with pytest.raises(HeptiError, match="No such file"):
        list(reader(made).file(tmp_path / "none.jsonl"))


def test_a_line_says_how_it_is_answered_and_else_it_is_as_usual(tmp_path, made):
    line = {
        "tokens": [5], "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 2, "stop": ["end"],
        "ignore_eos": True, "said": [4, 5], "logprobs": 0, "stream": True,
    }  # fmt: skip

    found, complaints = of_lines(tmp_path, made, line, {"tokens": [5], "max_tokens": 4, "seed": None}, {"tokens": [5]})

    ending, sampling = Ending(3, (), ["end"]), Sampling(0.5, 0.9, 7, 2)
    assert [prompt.wishes for prompt in found] == [
        Wishes(ending, sampling, (4, 5), 0, stream=True),
        Wishes(Ending(4, eos=(1,)), Sampling()),
        None,
    ]
    assert complaints == []


WISHES = [
    {"temprature": 1.0}, {"max_tokens": 0}, {"max_tokens": 50}, {"max_tokens": True}, {"temperature": "hot"},
    {"temperature": -1},
    {"top_p": 1.5}, {"stop": "end"}, {"stop": [1]}, {"said": [10**6]}, {"logprobs": 300}, {"stream": 1},
    {"schema": []}, {"schema": {"type": "board"}}, {"schema": {"not": {}}}, {"schema": {"enum": ["the"]}, "said": [0]},
]  # fmt: skip


def test_a_wish_that_cannot_be_met_is_named(tmp_path, made, kept):
    found, complaints = of_lines(tmp_path, made, *({"tokens": [5]} | wish for wish in WISHES))

    assert found == []
    assert len(complaints) == len(WISHES)
    kept("\n".join(complaints))
