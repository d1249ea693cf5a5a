"""What a model loses where its numbers are rounded: the stream after every layer, logits, perplexity of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from solver.base.arrays import Array
from solver.base.errors import HeptiError, explained
from solver.base.phrases import counted
from solver.base.progress import progress
from solver.model.decoder import Decoder
from weights.decoders.forward import RowReader, embed, layer, logit_parts
from weights.inputs.tokenize import PromptTokenizer

MOST_TOKENS = 512  # of a text: a pass of 8 billion numbers over it takes some minutes of one core
RANDOM_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Loss:
    """Rounded weights held against exact ones.

    Parameters
    ----------
    embedding, layers, logits
        Root mean square of the difference over that of the exact numbers: of the stream before the first layer, after
        every layer, with all that was lost before, and of the logits.
    perplexities
        Of the tokens, by exact and by rounded weights.
    """

    embedding: float
    layers: tuple[float, ...]
    logits: float
    perplexities: tuple[float, float]


def random_tokens(model: Decoder) -> list[int]:
    """Return tokens for where there is no text: as many as fit, up to `RANDOM_TOKENS`."""
    count = min(RANDOM_TOKENS, model.positions)
    tokens: list[int] = np.random.default_rng(0).integers(0, model.vocab, count).tolist()
    return tokens


def text_tokens(model: Decoder, tokenizer: str | None, path: Path) -> list[int]:
    """Return the first tokens of a text, as many as fit, up to `MOST_TOKENS`.

    Raises
    ------
    HeptiError
        If there is no tokenizer, the file is no text, or too short.
    """
    if tokenizer is None:
        raise HeptiError("--text needs the checkpoint's tokenizer.json, it has none")
    with explained(f"cannot read {path}", (OSError, UnicodeDecodeError)):
        text = path.read_text("utf-8")
    tokens = list(PromptTokenizer(tokenizer).encode(text, model.bos)[: min(MOST_TOKENS, model.positions)])
    if len(tokens) < 2:
        raise HeptiError(f"{path} is {counted(len(tokens), 'token')}, a perplexity needs at least 2")
    if max(tokens) >= model.vocab:
        raise HeptiError(f"tokenizer.json makes a token {max(tokens)} of {path}, {model.name} has {model.vocab} words")
    return tokens


def loss(model: Decoder, exact: RowReader, rounded: RowReader, tokens: Sequence[int]) -> Loss:
    """Compute a model on some tokens twice, layer by layer side by side.

    Parameters
    ----------
    exact, rounded
        Where tensors come from.
    tokens
        Two or more.
    """
    streams = [embed(model, read, tokens) for read in (exact, rounded)]
    errors = [_error(*streams)]
    with progress("comparing", len(model.layers) + 1, unit="layers") as advance:
        for number in range(len(model.layers)):
            streams = [layer(model, number, read, x) for read, x in zip((exact, rounded), streams, strict=True)]
            errors.append(_error(*streams))
            advance(1)
        sums = np.zeros(2)  # squares of differences, and of exact numbers
        likely = [_Likelihood(tokens), _Likelihood(tokens)]
        parts = [logit_parts(model, read, x) for read, x in zip((exact, rounded), streams, strict=True)]
        for (words, one), (_, other) in zip(*parts, strict=True):
            sums += np.square(one - other, dtype=float).sum(), np.square(one, dtype=float).sum()
            likely[0].add(words.start, one)
            likely[1].add(words.start, other)
    before, *layers = errors
    perplexities = likely[0].perplexity, likely[1].perplexity
    return Loss(before, tuple(layers), math.sqrt(sums[0] / sums[1]), perplexities)


class _Likelihood:
    """How likely tokens are by logits that come in parts: a sum of exponentials that follows its largest."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._next = np.array(tokens[1:])
        self._largest = np.full(len(self._next), -np.inf)
        self._sum = np.zeros(len(self._next))
        self._own = np.zeros(len(self._next))

    def add(self, start: int, logits: Array) -> None:
        """Take in the logits of the words from `start` on, [S, words]."""
        rows = logits[:-1].astype(float)
        largest = np.maximum(self._largest, rows.max(axis=1))
        self._sum = self._sum * np.exp(self._largest - largest) + np.exp(rows - largest[:, None]).sum(axis=1)
        self._largest = largest
        here = (self._next >= start) & (self._next < start + rows.shape[1])
        self._own[here] = rows[here, self._next[here] - start]

    @property
    def perplexity(self) -> float:
        """The exponential of the mean surprise."""
        return float(np.exp(np.mean(self._largest + np.log(self._sum) - self._own)))


def _error(exact: Array, rounded: Array) -> float:
    return float(np.linalg.norm(exact - rounded) / np.linalg.norm(exact))
