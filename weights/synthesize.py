"""Random weights of real architectures at real sizes: the same numbers however they are cut or written.

A tensor's numbers come in blocks of `BLOCK_ROWS` rows, each from a generator of its own, seeded by the seed, the
tensor's name and the block's number; so any rank can make any span without the rest.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

# numpy imports it when it is first used, and swallows a Ctrl-C that comes meanwhile.
from numpy.random import SFC64, Generator

from solver.base.arrays import Array
from solver.base.errors import HeptiError
from solver.base.progress import progress
from solver.base.spans import Span
from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.weight import Weight
from solver.model.spec import ModelSpec, TextInput, inputs_first, tensor_shapes
from weights.decoders.file import DecoderFile, DecoderWriter
from weights.file.layout import row_spans
from weights.file.store import ENCODER, LANGUAGE_MODEL, WeightsFile, WeightsWriter, stored_kind

BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True)
class WordsOf:
    """The words of a weights file, for another model.

    Parameters
    ----------
    tokenizer
        Text of a tokenizer.json.
    vocab
        How many ids the file's model has.
    chat_template, special, bos, eos
        As of `DecoderFile` and `Decoder`.
    """

    tokenizer: str
    vocab: int
    chat_template: str | None = None
    special: Mapping[str, str] = field(default_factory=dict)
    bos: int | None = None
    eos: tuple[int, ...] = ()


def words_of(path: Path) -> WordsOf:
    """Read the words of a weights file.

    Raises
    ------
    HeptiError
        If it has none, or is no weights file of texts.
    """
    kind = stored_kind(path)
    if kind == LANGUAGE_MODEL:
        with DecoderFile(path) as decoder:
            model = decoder.model
            if decoder.tokenizer is not None:
                return WordsOf(
                    decoder.tokenizer, model.vocab, decoder.chat_template, decoder.special, model.bos, model.eos
                )
    elif kind == ENCODER:
        with WeightsFile(path) as encoder:
            if encoder.tokenizer is not None and isinstance(encoder.spec.input, TextInput):
                return WordsOf(encoder.tokenizer, encoder.spec.input.vocab)
    raise HeptiError(f"--tokenizer {path} is {kind} without words: name the weights file of a model that reads texts")


def synthesize(
    path: Path, spec: ModelSpec, seed: int = 0, dtype: str = "float32", words: WordsOf | None = None
) -> None:
    """Write a weights file of random numbers, slice by slice.

    Parameters
    ----------
    words
        Its words, and how many it has; None: it reads token ids.

    Raises
    ------
    HeptiError
        If the file cannot be written; nothing is left behind.
    """
    if words is not None:
        if not isinstance(spec.input, TextInput):
            raise HeptiError(f"--tokenizer is for models that read texts, {spec.name} reads images")
        spec = replace(spec, input=replace(spec.input, vocab=words.vocab))
    shapes = tensor_shapes(spec)
    total = sum(4 * math.prod(shape) for shape in shapes.values())
    source = f"synthesized {spec.name}, seed {seed}"
    with (
        WeightsWriter(path, spec, source, dtype, None if words is None else words.tokenizer) as weights,
        progress("synthesizing", total) as advance,
    ):
        for name, shape in shapes.items():
            spread = encoder_spread(spec, name, shape)
            for rows in row_spans(shape):
                block = synthetic_rows(name, shape, rows, spread, seed)
                weights.write(name, rows.start, block)
                advance(block.nbytes)


def synthesize_decoder(
    path: Path, model: Decoder, seed: int = 0, precision: str = "float32", dtype: str = "float32",
    words: WordsOf | None = None,
) -> Decoder:  # fmt: skip
    """Write a language model's weights file of random numbers, slice by slice.

    Parameters
    ----------
    precision, dtype
        As of `DecoderWriter`.
    words
        As of `synthesize`.

    Returns
    -------
    The model as it was written.

    Raises
    ------
    HeptiError
        If the file cannot be written; nothing is left behind.
    """
    texts: dict[str, Any] = {}
    if words is not None:
        model = replace(model, vocab=words.vocab, bos=words.bos, eos=words.eos)
        texts = {"tokenizer": words.tokenizer, "chat_template": words.chat_template, "special": words.special}
    tensors = decoder_tensors(model)
    total = sum(4 * math.prod(weight.shape) for weight in tensors.values())
    source = f"synthesized {model.name}, seed {seed}"
    with (
        DecoderWriter(path, model, source, precision, dtype, **texts) as weights,
        progress("synthesizing", total) as advance,
    ):
        for name, weight in tensors.items():
            spread = _decoder_spread(model, name, weight)
            for rows in row_spans(weight.shape):
                block = synthetic_rows(name, weight.shape, rows, spread, seed)
                weights.write(name, rows.start, block)
                advance(block.nbytes)
    return model


def synthetic_rows(name: str, shape: tuple[int, ...], rows: Span, spread: float, seed: int = 0) -> Array:
    """Make some rows of one synthetic tensor.

    Parameters
    ----------
    name, shape
        As in `solver.model.spec.tensor_shapes`, or `solver.model.decoder.decoder_tensors`.
    rows
        Which rows.
    spread
        Of the numbers.
    seed
        Of the whole model.

    Returns
    -------
    [rows, …] float32
    """
    first = rows.start // BLOCK_ROWS
    blocks = [_block(name, shape, block, seed, spread) for block in range(first, -(-rows.stop // BLOCK_ROWS))]
    start = first * BLOCK_ROWS
    return np.concatenate([np.empty((0, *shape[1:]), np.float32), *blocks])[rows.start - start : rows.stop - start]


def _block(name: str, shape: tuple[int, ...], block: int, seed: int, spread: float) -> Array:
    size = (min(BLOCK_ROWS, shape[0] - block * BLOCK_ROWS), *shape[1:])
    generator = Generator(SFC64([seed, zlib.crc32(name.encode()), block]))
    numbers = generator.standard_normal(size, dtype=np.float32)
    numbers *= spread
    if name.endswith("norm/weight"):
        numbers += 1
    return numbers


def encoder_spread(spec: ModelSpec, name: str, shape: tuple[int, ...]) -> float:
    """Return a spread that keeps every part of the result visible at any size, 0.02 for matrices with 1024 inputs."""
    if len(shape) == 1:
        return 0.1
    if name.startswith("embeddings/") and not name.startswith("embeddings/patch"):
        return 0.5
    inputs = shape[0] if name in inputs_first(spec) else shape[1]
    return 0.64 / math.sqrt(inputs)


def _decoder_spread(model: Decoder, name: str, weight: Weight) -> float:
    """Return a spread with which the likeliest tokens vary, and depend on all before.

    The spread of logits is 2, that of the stream about 4 in the end. Words are far smaller than the stream, else a tied
    head would say the last token again. Scores are sharp, and the MLP adds more than attention does: means over a
    context make its rows alike, and the same token comes for ever (seen with equal spreads: 22 times of 30).
    """
    if name in ("embedding/weight", "positions/weight", model.head):
        return 2 / math.sqrt(model.hidden)
    if weight.summed is None:
        return 0.1
    gains = {
        "query": 2.0,
        "key": 2.0,
        "output": 1 / math.sqrt(len(model.layers)),
        "down": 6 / math.sqrt(len(model.layers)),
    }
    return gains.get(name.split("/")[-2], 1.0) / math.sqrt(weight.shape[weight.summed])
