"""Text comes as soon as it is sure, characters whole, and ends where it was asked to."""

import random

import pytest

from hepti_mpi.requests.answer_text import AnswerText, Ending
from solver.base.errors import HeptiError
from tests.kit.texts import TOKENIZERS
from weights.inputs.tokenize import PromptTokenizer

EOS = 1
TEXT = "the café é 你好 👩‍👩‍👧 naïve\n the end"


@pytest.fixture(params=TOKENIZERS)
def made(request):
    return TOKENIZERS[request.param]()


def answer(made, text, ending, before=()):
    """Return an answer's pieces, one a token."""
    taken = AnswerText(PromptTokenizer(made.to_str()).stream(before), ending)
    pieces = []
    for token in made.encode(text, add_special_tokens=False).ids:
        pieces.append(taken.take(token))
        if taken.finish_reason:
            break
    return taken, pieces


def test_pieces_are_whole_characters_and_together_the_text(made):
    taken, pieces = answer(made, TEXT, Ending(tokens=1000))

    assert taken.text == "".join(pieces) == TEXT
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert sum(map(bool, pieces)) > 10
    assert taken.finish_reason is None


def test_a_character_that_ends_too_early_is_given_out_at_the_end(made):
    count = len(made.encode("the 你").ids) - 1
    taken, _ = answer(made, "the 你", Ending(tokens=count))

    assert taken.finish_reason == "length"
    assert taken.text.rstrip("\N{REPLACEMENT CHARACTER}") == "the "
    assert taken.text != "the "


def test_bytes_that_are_no_characters_spoil_nothing_behind_them(made):
    """The library's DecodeStream raises of them, where there is a byte fallback."""
    draw = random.Random(0)
    behind = made.encode(" the 你 x", add_special_tokens=False).ids
    for _ in range(100):
        taken = AnswerText(PromptTokenizer(made.to_str()).stream(), Ending(tokens=1000))
        for token in [*(draw.randrange(3, made.get_vocab_size()) for _ in range(40)), *behind]:
            taken.take(token)

        assert taken.text.endswith(" the 你 x")


def test_behind_a_text_a_first_token_keeps_its_space(made):
    before = made.encode("once", add_special_tokens=False).ids
    whole = made.encode("once the end", add_special_tokens=False).ids
    taken = AnswerText(PromptTokenizer(made.to_str()).stream(before), Ending(tokens=100))
    for token in whole[len(before) :]:
        taken.take(token)

    assert taken.text == " the end"


def test_special_tokens_have_no_text(made):
    taken, _ = answer(made, "the<|user|> end", Ending(tokens=100))

    assert taken.text.split() == ["the", "end"]


def test_an_end_token_ends_and_has_no_text(made):
    taken, _ = answer(made, "the end</s> and more", Ending(tokens=100, eos=(EOS,)))

    assert (taken.text, taken.finish_reason) == ("the end", "stop")
    assert taken.tokens[-1] == EOS


def test_an_end_token_that_is_ignored_is_passed_over(made):
    taken, _ = answer(made, "the end</s>", Ending(tokens=100))

    assert (taken.text, taken.finish_reason) == ("the end", None)


@pytest.mark.parametrize(
    ("stops", "wanted"),
    [
        (["STOP"], "a then "),
        (["\n\n", "then"], "a "),
        (["en S", "hen"], "a t"),
        (["你好"], "a then STOP "),
        (["P 你"], "a then STO"),
        (["nothing"], "a then STOP 你好\n"),
        (["\n"], "a then STOP 你好"),
        (["a"], ""),
    ],
)
def test_the_text_ends_before_a_stop_string(made, stops, wanted):
    """Across tokens, characters and each other; the earliest of several counts."""
    taken, pieces = answer(made, "a then STOP 你好\n", Ending(tokens=100, stops=stops))

    assert "".join(pieces) == wanted
    assert taken.finish_reason == (None if wanted.endswith("\n") else "stop")


def test_nothing_that_may_become_a_stop_string_is_given_out(made):
    _, pieces = answer(made, "xabababc", Ending(tokens=100, stops=["ababc"]))

    assert "".join(pieces) == "xab"
    given = ""
    _, pieces = answer(made, "xababd", Ending(tokens=100, stops=["ababc"]))
    assert "".join(pieces) == "xababd"
    for piece in pieces:
        given += piece
        assert given in ("", "x", "xababd")


def test_what_is_held_back_comes_when_the_answer_ends(made):
    count = len(made.encode("xab", add_special_tokens=False).ids)
    taken, _ = answer(made, "xab", Ending(tokens=count, stops=["abc"]))

    assert (taken.text, taken.finish_reason) == ("xab", "length")


def test_a_stop_string_on_the_last_token_is_a_stop(made):
    count = len(made.encode("xabc", add_special_tokens=False).ids)
    taken, _ = answer(made, "xabc", Ending(tokens=count, stops=["abc"]))

    assert (taken.text, taken.finish_reason) == ("x", "stop")


def test_without_a_tokenizer_there_are_only_tokens():
    taken = AnswerText(None, Ending(tokens=2, eos=(EOS,)))

    assert [taken.take(token) for token in (7, 9)] == ["", ""]
    assert (taken.tokens, taken.text, taken.finish_reason) == ([7, 9], "", "length")
    with pytest.raises(HeptiError, match="stop strings need a tokenizer"):
        AnswerText(None, Ending(tokens=2, stops=["x"]))


def test_endings_that_cannot_be_are_refused():
    with pytest.raises(HeptiError, match="a stop string is empty"):
        Ending(tokens=4, stops=["a", ""])
    with pytest.raises(HeptiError, match="an answer of 0 tokens"):
        Ending(tokens=0)
