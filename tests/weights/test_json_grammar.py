"""Tokens that a grammar allows make a value of its schema, and all values can be made."""

import json

import numpy as np
import pytest

from solver.base.errors import HeptiError
from tests.kit.texts import TOKENIZERS
from weights.inputs.json_grammar import JsonGrammars, check_schema

EOS = 1
MOST = 400  # tokens of a random value, which may nest for ever
BOARD = {
    "type": "object",
    "properties": {"cores": {"type": "integer", "minimum": 1, "maximum": 8}, "the": {"enum": ["a", 3]}},
    "required": ["cores", "the"], "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(params=TOKENIZERS)
def made(request):
    return TOKENIZERS[request.param]()


def grammars(made, more=0):
    return JsonGrammars(made.to_str(), made.get_vocab_size() + more, [EOS])


def is_board(value):
    return value.keys() == {"cores", "the"} and 1 <= value["cores"] <= 8 and value["the"] in ("a", 3)


@pytest.mark.parametrize(
    ("schema", "holds"),
    [
        (BOARD, is_board),
        ({"type": "number"}, lambda value: isinstance(value, int | float)),
        ({"enum": ["the", "then", None, True]}, lambda value: value in ("the", "then", None, True)),
        ({"type": "object"}, lambda value: isinstance(value, dict)),
    ],
)
@pytest.mark.parametrize("more", [0, 7])
def test_what_is_drawn_among_allowed_tokens_is_a_value(schema, holds, more, made):
    rng = np.random.default_rng(5)
    ended = 0
    for _ in range(20):
        grammar, said = grammars(made, more).of(schema), []
        while not grammar.ended and len(said) < MOST:
            said.append(int(rng.choice(np.flatnonzero(grammar.allowed))))
            assert grammar.allowed.size == made.get_vocab_size() + more
            grammar.take(said[-1])
        if grammar.ended:
            ended += 1
            assert grammar.complete
            text = made.decode([token for token in said if token != EOS])
            assert holds(json.loads(text))
    assert ended > 0


def test_a_value_is_written_as_python_does(made):
    text = json.dumps({"cores": 4, "the": "a"})
    ids = made.encode(text, add_special_tokens=False).ids
    grammar = grammars(made).of(BOARD)

    for token in ids[ids[0] == made.token_to_id("▁") :]:
        assert grammar.allowed[token]
        grammar.take(token)

    assert grammar.ended


def test_what_was_said_must_begin_a_value(made, kept):
    with pytest.raises(HeptiError) as raised:
        grammars(made).of(BOARD, [0, 2])
    kept(raised.value)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "board"}, "Invalid type: board"),
        ({"not": {"type": "string"}}, "Unimplemented keys"),
        ({"$ref": "http://127.0.0.1:9/x"}, "Default retriever does not fetch resources"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"type": "object", "properties": 3}, "properties"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(schema, why):
    with pytest.raises(HeptiError, match=r"^the schema cannot be followed: ") as error:
        check_schema(schema)

    assert why in str(error.value)
    assert "\n" not in str(error.value)
