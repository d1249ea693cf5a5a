"""The weights file of a language model: the same format as a transformer's, with a `Decoder` as its description.

Root attribute `precision` says what matrices are in: float32, stored as `dtype` says, or blocks of int8 or int4 as
`solver.model.decoder.Weight.stored` lays them out; what stands there as NAME/weight/scale is the dataset NAME/scale.
The texts `tokenizer`, `chat_template`, `generation` and `special` (JSON) lie beside the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array
from solver.base.errors import HeptiError, explained
from solver.base.spans import Span
from solver.model.blocks import one_of
from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.weight import BLOCK, PRECISIONS, Weight
from weights.decoders.quantise import Levels, Scales, dequantise, quantise
from weights.file.layout import row_chunk
from weights.file.store import LANGUAGE_MODEL, TensorFile, TensorWriter

_SCALE = "/scale"


class DecoderFile(TensorFile):
    """A language model's weights file, open for reading: `with DecoderFile(path) as weights`.

    Attributes
    ----------
    model
        The description.
    precision
        What its matrices are in: float32, int8, int4 or int4m.
    tensors
        Every tensor of the model, as `decoder_tensors` says.
    tokenizer, chat_template
        Text of tokenizer.json; jinja; None where the checkpoint had none.
    generation
        The checkpoint's defaults of temperature, top_p and top_k, as far as it has them.
    special
        The texts of special tokens by the names that chat templates use: bos_token, eos_token, …
    fingerprint, source
        Of everything that the file says; where the numbers come from.

    Raises
    ------
    HeptiError
        As `TensorFile`, or if it holds something else.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self.tokenizer = self._text("tokenizer")
            self.chat_template = self._text("chat_template")
            self.generation: dict[str, float] = self._table("generation")
            self.special: dict[str, str] = self._table("special")
        except BaseException:
            self.close()
            raise

    def _describe(self, model: str) -> Mapping[str, tuple[int, ...]]:
        self._need(LANGUAGE_MODEL)
        self.precision = self._attribute("precision")
        with explained(str(self.path), HeptiError):
            one_of("precision", self.precision, tuple(PRECISIONS))
            self.model = Decoder.from_json(model)
        self.tensors = decoder_tensors(self.model)
        return _stored(self.tensors, self.precision)

    def _address(self, name: str) -> str:
        return _address(name)

    def _fits(self, dtype: np.dtype[Any]) -> bool:
        return super()._fits(dtype) or dtype in (np.uint8, np.float16)

    def _widens(self, name: str) -> bool:
        return not name.endswith(_SCALE)

    def _table(self, name: str) -> dict[str, Any]:
        with explained(f"{self.path}: the texts of {name} are damaged", ValueError):
            found: dict[str, Any] = json.loads(self._text(name) or "{}")
        return found

    def in_blocks(self, name: str) -> bool:
        """Return whether a tensor is stored in blocks."""
        return name + _SCALE in self._shapes

    def _held(self, weight: Weight) -> str:
        return weight.held_in(PRECISIONS[self.precision]).name

    def bytes_of(self, name: str) -> int:
        """Return how many bytes a tensor takes in the file, its scales included."""
        return sum(self.stored_bytes(part) for part in (name, name + _SCALE) if part in self._shapes)

    def read(self, name: str, rows: Span | None = None) -> Array:
        """Read a tensor, or some rows of it, as float32, whatever it is stored as.

        Parameters
        ----------
        rows
            Of the first axis as `decoder_tensors` has it; of an [in, out] matrix in blocks they begin and end with
            blocks, or with the matrix.

        Raises
        ------
        HeptiError
            If it is missing, damaged, of another shape, or not finite.
        """
        weight = self.tensors[name]
        rows = rows or Span(0, weight.shape[0])
        if self.in_blocks(name) and weight.summed is not None:
            if not weight.summed:
                blocks, scales = self.read_blocks(name, _whole_blocks(name, rows, weight.shape[0]))
                return dequantise(blocks, scales, 0, rows.size, self._held(weight))
            return dequantise(*self.read_blocks(name, rows), 1, weight.shape[1], self._held(weight))
        return self.read_rows(name, rows)

    def read_blocks(self, name: str, rows: Span | None = None) -> tuple[Levels, Scales]:
        """Read a tensor that is stored in blocks, or some of it, as it is stored.

        Parameters
        ----------
        rows
            Of the first axis as stored: outputs of an [out, in] matrix, blocks of an [in, out] matrix.

        Returns
        -------
        blocks : [out, b, bytes] or [b, out, bytes] uint8
        scales : [out, b] or [b, out] float16

        Raises
        ------
        HeptiError
            As `read`.
        """
        return self.read_rows(name, rows), self.read_rows(name + _SCALE, rows)


class DecoderWriter(TensorWriter):
    """Writes a language model's weights file slice by slice: `with DecoderWriter(path, model, source) as weights`.

    Parameters
    ----------
    path, source, dtype
        As of `TensorWriter`; `dtype` of what is not in blocks.
    model
        The description; its tensors must all be written.
    precision
        What its matrices get: float32, int8, int4 or int4m.
    tokenizer, chat_template, generation, special
        As of `DecoderFile`.
    """

    def __init__(
        self,
        path: Path,
        model: Decoder,
        source: str,
        precision: str = "float32",
        dtype: str = "float32",
        tokenizer: str | None = None,
        chat_template: str | None = None,
        generation: Mapping[str, float] | None = None,
        special: Mapping[str, str] | None = None,
    ) -> None:
        one_of("precision", precision, tuple(PRECISIONS))
        self._precision = precision
        self._tensors = decoder_tensors(model)
        shapes = _stored(self._tensors, precision)
        types: dict[str, np.dtype[Any]] = {}
        for name in shapes:
            if name + _SCALE in shapes:
                types |= {name: np.dtype(np.uint8), name + _SCALE: np.dtype(np.float16)}
        texts = {
            "tokenizer": tokenizer,
            "chat_template": chat_template or None,
            "generation": json.dumps(dict(generation)) if generation else None,
            "special": json.dumps(dict(special)) if special else None,
        }
        attributes = {"precision": precision}
        super().__init__(path, model.to_json(), shapes, source, dtype, types, texts, attributes)

    def write(self, name: str, start: int, block: NDArray[Any]) -> None:
        """Write the rows of a tensor from `start` on, and quantise them where it is a matrix in blocks.

        Parameters
        ----------
        start
            First index along axis 0; rows come in ascending order without gaps, those of an [in, out] matrix in whole
            blocks of 32, or up to its end.
        block : [rows, …]
            Any float type.
        """
        weight = self._tensors[name]
        if weight.summed is None or name + _SCALE not in self._shapes:
            super().write(name, start, block)
            return
        if not weight.summed:
            start = _whole_blocks(name, Span(start, start + len(block)), weight.shape[0]).start
        own = weight.held_in(PRECISIONS[self._precision]).name
        self.write_blocks(name, start, *quantise(block, weight.summed, own))

    def write_blocks(self, name: str, start: int, blocks: Levels, scales: Scales) -> None:
        """Write blocks as they are, from `start` on along the first axis as stored."""
        super().write(name + _SCALE, start, scales)
        super().write(name, start, blocks)

    def _address(self, name: str) -> str:
        return _address(name)

    def _chunk(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return row_chunk(shape)


def _stored(tensors: Mapping[str, Weight], precision: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all that is stored."""
    return {
        name + suffix: shape
        for name, weight in tensors.items()
        for suffix, shape in weight.stored(PRECISIONS[precision]).items()
    }


def _address(name: str) -> str:
    """Return the name of a tensor's dataset; the scales' lies beside the matrix', a dataset has nothing below it."""
    return name.replace("/weight" + _SCALE, _SCALE)


def _whole_blocks(name: str, rows: Span, length: int) -> Span:
    """Return the blocks that some rows of an [in, out] matrix are."""
    if rows.start % BLOCK or (rows.stop % BLOCK and rows.stop != length):
        raise ValueError(f"{name}: rows {rows.start} to {rows.stop} are cut within blocks of {BLOCK}")
    return Span(rows.start // BLOCK, -(-rows.stop // BLOCK))
