"""Text to token ids, with the tokenizer that travels inside the weights file."""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers

from solver.base.errors import HeptiError, explained


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text as the model reads it."""

    ids: tuple[int, ...]  # special tokens included
    truncated: bool  # the text was longer than the model's limit


class Tokenizer:
    """The tokenizer of a model.

    Cuts as sentence-transformers does: behind the last token that fits, the closing special token kept. Padding and
    length limits that a tokenizer.json brings along are those of its training; here the model's own limit counts.

    Parameters
    ----------
    text
        Of a tokenizer.json.
    max_rows
        The limit, special tokens included: `spec.input.max_rows`.

    Raises
    ------
    HeptiError
        If the text does not describe a tokenizer, or leaves no room for a single token.
    """

    def __init__(self, text: str, max_rows: int) -> None:
        # The library raises nothing more specific.
        with explained("the tokenizer is damaged or of a newer version", Exception):
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
            direction = (self._tokenizer.truncation or {}).get("direction", "right")
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(max_rows, direction=direction)
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if special >= max_rows:
            raise HeptiError(f"a limit of {max_rows} rows leaves no room beside {special} special tokens")

    def __call__(self, text: str) -> Tokens:
        """Return the ids of one text."""
        encoding = self._tokenizer.encode(text)
        return Tokens(tuple(encoding.ids), truncated=bool(encoding.overflowing))
