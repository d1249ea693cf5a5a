"""Which tokens may come next where an answer is to be JSON of a schema.

llguidance does it: it follows a grammar over bytes, and says of every token whether its bytes fit. Of 128 k tokens that
takes some 50 us a token of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from solver.base.environment import install
from solver.base.errors import HeptiError, explained
from solver.base.phrases import counted
from solver.model.decoder import Decoder
from weights.inputs.tokenize import PromptTokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from llguidance._lib import JsonCompileOptions

MISSING = f"answers in JSON need llguidance: {install('serve')}"
UNFOLLOWED = "the schema cannot be followed"
# Written as Python's json does: where a model may put white space as it likes, a small one does for ever.
STYLE: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class JsonGrammars:
    """Grammars over the tokens of a model.

    Parameters
    ----------
    tokenizer
        The text of its tokenizer.json.
    vocab
        How many tokens the model has; its tokenizer may know fewer, or special ones besides.
    eos
        The tokens that end its answers, at least one.

    Raises
    ------
    HeptiError
        If llguidance is not installed, or cannot read the tokenizer.
    """

    def __init__(self, tokenizer: str, vocab: int, eos: Collection[int]) -> None:
        with explained(MISSING, ImportError):
            from llguidance import LLTokenizer
        self._vocab = vocab
        with explained("the tokenizer makes no JSON", ValueError):
            make = partial(LLTokenizer, tokenizer, eos_token=list(eos), slices=LLTokenizer.json_slices())
            try:
                self._tokenizer = make(n_vocab=vocab)
            except ValueError:  # it knows more
                self._tokenizer = make()

    def of(self, schema: Mapping[str, Any], said: Sequence[int] = ()) -> JsonGrammar:
        """Return the grammar of an answer's JSON.

        Parameters
        ----------
        schema
            Of JSON.
        said
            Tokens with which the answer begins.

        Raises
        ------
        HeptiError
            If llguidance cannot follow the schema, or no value of it can begin with these tokens, or in tokens at all.
        """
        from llguidance import LLMatcher

        with explained(UNFOLLOWED, ValueError):
            matcher = LLMatcher(self._tokenizer, _grammar(schema), log_level=0)
        if matcher.is_error():
            raise _unfollowed(matcher.get_error())
        if (fitting := matcher.validate_tokens(list(said))) < len(said):
            raise HeptiError(
                f"said has {counted(len(said), 'token')}, {fitting} of them can begin a value of the schema"
            )
        grammar = JsonGrammar(matcher, self._vocab)
        if grammar.ended:
            raise HeptiError("no token of the model can begin a value of the schema")
        return grammar


class JsonGrammar:
    """The grammar of one answer, after the tokens that it has so far.

    Attributes
    ----------
    allowed : [vocab]
        Which tokens may come next.
    ended
        Whether nothing more can come.
    """

    def __init__(self, matcher: LLMatcher, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab
        self._look()

    @property
    def complete(self) -> bool:
        """Whether the answer is a value of the schema as it is; not where the grammar has grown beyond all limits."""
        return self._matcher.is_accepting()

    def take(self, token: int) -> None:
        """Go on after a token."""
        self._matcher.consume_token(token)
        self._look()

    def _look(self) -> None:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self.allowed: NDArray[np.bool] = np.unpackbits(bits, count=self._vocab, bitorder="little").astype(bool)
        self.ended = self._matcher.is_stopped() or not self.allowed.any()


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that answers can be held to a JSON schema.

    Raises
    ------
    HeptiError
        If llguidance is not installed, or cannot follow the schema: it says why.
    """
    with explained(MISSING, ImportError):
        from llguidance import LLMatcher
    with explained(UNFOLLOWED, ValueError):
        wrong, words = LLMatcher.validate_grammar_with_warnings(_grammar(schema))
    if wrong:
        raise _unfollowed(words[0])


def check_model(model: Decoder, tokenizer: PromptTokenizer | None) -> None:
    """Check that a model's answers can be held to any JSON schema.

    Raises
    ------
    HeptiError
        If it has no tokenizer, or no token that ends an answer.
    """
    if tokenizer is None or not model.eos:
        without = "a tokenizer" if tokenizer is None else "a token that ends an answer"
        raise HeptiError(f"answers in JSON need {without}, {model.name} came without")


def _unfollowed(why: str) -> HeptiError:
    return HeptiError(f"{UNFOLLOWED}: {' '.join(why.split())}")


def _grammar(schema: Mapping[str, Any]) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=STYLE)
