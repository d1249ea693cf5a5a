"""Text to token ids and back, with the tokenizer that travels inside the weights file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tokenizers

from solver.base.errors import HeptiError, explained


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text, or a pair of them, as the model reads it."""

    ids: tuple[int, ...]  # special tokens included
    truncated: bool  # the text was longer than the model's limit
    types: tuple[int, ...] = ()  # of a pair, to which of the two each belongs, as the tokenizer says it


class Tokenizer:
    """The tokenizer of a model.

    Cuts as sentence-transformers does: after the last token that fits, the closing special token kept. Padding and
    length limits that a tokenizer.json brings along are those of its training; here the model's own limit counts.

    Parameters
    ----------
    text
        Of a tokenizer.json.
    max_rows
        The limit, special tokens included: `spec.input.max_rows`.
    prompt
        Stands before every text.

    Raises
    ------
    HeptiError
        If the text does not describe a tokenizer, or leaves no room for a single token.
    """

    def __init__(self, text: str, max_rows: int, prompt: str = "") -> None:
        self._tokenizer, self._max_rows, self._prompt = _read(text), max_rows, prompt
        direction = (self._tokenizer.truncation or {}).get("direction", "right")
        self._tokenizer.enable_truncation(max_rows, direction=direction)
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if special >= max_rows:
            raise HeptiError(f"a limit of {max_rows} rows leaves no room beside {special} special tokens")

    def __call__(self, text: str, second: str | None = None) -> Tokens:
        """Return the ids of one text, or of a pair, of which what is too long is cut off the longer one.

        Raises
        ------
        HeptiError
            If the limit leaves no room for a pair.
        """
        if second is None:
            encoding = self._encoded(self._prompt + text)
            return Tokens(tuple(encoding.ids), truncated=bool(encoding.overflowing))
        special = self._tokenizer.num_special_tokens_to_add(is_pair=True)
        if special >= self._max_rows:
            raise HeptiError(f"a limit of {self._max_rows} rows leaves no room beside {special} special tokens")
        encoding = self._encoded(text, second)
        return Tokens(tuple(encoding.ids), bool(encoding.overflowing), tuple(encoding.type_ids))

    def _encoded(self, text: str, second: str | None = None) -> tokenizers.Encoding:
        with explained("the tokenizer cannot read this text", Exception):  # the library has no other
            return self._tokenizer.encode(text, second)


class PromptTokenizer:
    """The tokenizer of a language model, which cuts nothing off.

    Parameters
    ----------
    text
        Of a tokenizer.json.

    Raises
    ------
    HeptiError
        If the text does not describe a tokenizer.
    """

    _TRIED = 300  # words, to see what stands around a text

    def __init__(self, text: str) -> None:
        self._tokenizer = _read(text)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._begins = self.around()[0]

    def around(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the ids that its last step puts before every text, and the names of those after it."""
        words = (self._tokenizer.id_to_token(number) or "" for number in range(self._TRIED))
        for text in ("0", "a", *words):
            encoding = self._tokenizer.encode(text)
            marks: list[int] = encoding.special_tokens_mask
            if 0 in marks:  # else it has no word for this text
                start, stop = marks.index(0), len(marks) - marks[::-1].index(0)
                return tuple(encoding.ids[:start]), tuple(encoding.tokens[stop:])
        return tuple(self._tokenizer.encode("").ids), ()

    def to_text(self) -> str:
        """Return it as the text of a tokenizer.json."""
        text: str = self._tokenizer.to_str()
        return text

    def encode(self, text: str, bos: int | None = None) -> tuple[int, ...]:
        """Return the ids of a text, which begin with `bos`, once; special tokens that it names count as such.

        Where the tokenizer itself begins with `bos` and further tokens, they follow it.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if bos is None or ids[:1] == [bos]:
            return tuple(ids)
        return (*(self._begins if self._begins[:1] == (bos,) else (bos,)), *ids)

    def name(self, token: int) -> str:
        """Return what an id is called in the tokenizer; one that it does not know has no name."""
        return self._tokenizer.id_to_token(token) or ""

    def stream(self, before: Iterable[int] = ()) -> TextStream:
        """Return what makes text of ids as they come after others."""
        return TextStream(self._tokenizer, before)


class TextStream:
    """Text of ids as they come: characters whole, special tokens left out.

    The library's DecodeStream does the same, but raises where bytes make no character ("Invalid prefix encountered":
    seen on 86 of 300 sequences of 60 random ids with a byte fallback, tokenizers 0.23.3).

    Parameters
    ----------
    before
        Ids that stand before: a first token keeps its space where it follows a text.
    """

    BEFORE = 6  # of the ids before decide how the next ones are written

    def __init__(self, tokenizer: tokenizers.Tokenizer, before: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(before)[-self.BEFORE :]  # those given out last, and those after them
        self._given = len(self._ids)

    def step(self, token: int) -> str:
        """Return the text that one more id completes; empty while a character lacks bytes."""
        self._ids.append(token)
        text = self.rest()
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        del self._ids[: self._given]
        self._given = len(self._ids)
        return text

    def rest(self) -> str:
        """Return the text of what `step` keeps back."""
        return self._decode(self._ids)[len(self._decode(self._ids[: self._given])) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text


def _read(text: str) -> tokenizers.Tokenizer:
    # The library raises nothing more specific.
    with explained("the tokenizer is damaged or of a newer version", Exception):
        tokenizer = tokenizers.Tokenizer.from_str(text)
    tokenizer.no_padding()
    return tokenizer
