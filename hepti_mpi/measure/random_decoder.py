"""Parts of a language model on random weights, to be timed: shares of some sizes, on so many rows.

Their time does not depend on the numbers as long as none is too small to be normal: weights are scaled so that values
stay near 1 from node to node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from hepti_mpi.base.memory import Lent
from hepti_mpi.decoding.ranks import likeliest
from hepti_mpi.kernels.backends import ONNXRUNTIME, run_maker
from hepti_mpi.kernels.blocks import Blocks
from hepti_mpi.kernels.kinds.heads import check_width, turning_tables, wide
from hepti_mpi.kernels.kinds.held import Matrix, PartRun
from hepti_mpi.measure.profile_kernels import random_numbers
from hepti_mpi.measure.timing import TimedCall
from solver.base.arrays import Array, Numbers
from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.cluster.cluster import MIB
from solver.cluster.decoder_curves import DecoderPart
from solver.model.blocks import BlockKind, total_of
from solver.model.decoder import Decoder, layer_parts
from solver.model.kinds.attention import Attention
from solver.model.kinds.part import Part, PartTensor, RankRegion
from solver.model.kinds.weight import BLOCK, PRECISIONS
from solver.schedule.decoders.memory import block_bytes
from weights.decoders.quantise import Levels, Scales, dequantise

PARTS = (1 / 8, 1 / 2, 1.0)  # of the largest share
# The largest share: all of the model's, or so many bytes of weights.
LARGEST_BYTES = {DecoderPart.ATTENTION: 32 * MIB, DecoderPart.MLP: 32 * MIB, DecoderPart.HEAD: 64 * MIB}
CONTEXT = 2112  # tokens that caches have room for
SPREAD = {"int8": 74.0, "int4": 4.6, "int4m": 4.6, "int8m": 74.0}  # the standard deviation of random levels


@dataclass(frozen=True, slots=True, eq=False)
class RandomDecoder:
    """A language model's runs of parts on random weights.

    Sizes of shares are units of an axis: query heads in whole groups, columns, or words.

    Parameters
    ----------
    model
        Whose widths they have; heads see all that is before them.
    precision
        What weights are held in: float32, int8, int4 or int4m.
    backend
        What computes them.
    """

    model: Decoder
    precision: str
    backend: str = ONNXRUNTIME
    _made: dict[tuple[DecoderPart, int, str], PartRun] = field(default_factory=dict)
    _numbers: Array = field(default_factory=random_numbers)

    def kind(self, part: DecoderPart) -> BlockKind:
        """Return the block of which a part is measured: the first one of the model that is priced by its curve.

        Raises
        ------
        HeptiError
            If the model has none.
        """
        for kind in (*self.model.layers[0], *chain(*self.model.layers), self.model.head_block):
            if kind.curve == part:
                return replace(kind, window=0) if isinstance(kind, Attention) else kind
        raise HeptiError(f"model {self.model.name} has no block whose time is that of {part}: it cannot be measured")

    def sizes(self, part: DecoderPart) -> list[int]:
        """Return the shares of a part that are to be timed, two at least."""
        kind = self.kind(part)
        unit = kind.group or BLOCK
        every = math.ceil(total_of(kind, self.model.stream) / unit)
        most = max(1, min(every, LARGEST_BYTES[part] // self.bytes_of(part, unit)))
        found = sorted({max(1, round(share * most)) for share in PARTS})
        return [unit * size for size in (found if len(found) > 1 else (most, 2 * most))]

    def bytes_of(self, part: DecoderPart, size: int) -> int:
        """Return the bytes of a share's weights."""
        kind = self.kind(part)
        return block_bytes(self.model, kind, kind.units(Span(0, size)), PRECISIONS[self.precision])

    def call(self, part: DecoderPart, size: int, rows: int, behind: int = 0, cache: str = "float32") -> TimedCall:
        """Return the call of a share on so many rows, of attention after so many tokens in a cache."""
        (join, _), *own = self._run(part, size)
        made = self._computes(part, size, cache)
        inputs: dict[str, Numbers] = {value.name: self._random((1, rows, self.model.hidden)) for value in join.reads}
        last, _ = own[-1]
        if part is DecoderPart.HEAD:
            logits = np.empty((1, rows, size), np.float32)
            bound = made.bound(inputs, {last.writes.name: logits}, {})

            def choose() -> None:
                bound()
                likeliest(logits[0], 1, 0)

            return choose
        outputs = {
            value.name: np.empty((1, rows, self.model.hidden), np.float32) for value in (join.writes, last.writes)
        }
        if isinstance(kind := last.kind, Attention):
            inputs |= {"last": np.array([behind + rows - 1], np.int32), "total": np.array([behind + rows], np.int32)}
            inputs["places"] = behind + np.arange(rows)[None]
            if kind.rope is not None:
                inputs |= turning_tables(kind.rope, CONTEXT)
            for name in ("k0", "v0"):
                kept = self._random((1, size // kind.group, CONTEXT, wide(kind)))
                inputs[name] = kept if cache == "float32" else (32 * kept).astype(np.int8)
                outputs[f"{name}'"] = inputs[name]
                inputs[f"{name}.scale"] = np.full(kept.shape[1] * wide(kind), 1 / 32, np.float32)
        return made.bound({name: inputs[name] for name in made.inputs}, outputs, {})

    def matrix(self, tensor: PartTensor, rows: Span) -> Matrix:
        """Return a random matrix in place of some rows of a model's."""
        width = tensor.weight.shape[1]
        out, inner = (rows.size, width) if tensor.weight.summed else (width, rows.size)
        return self._matrix(out, inner, words=tensor.weight.words)

    def vector(self, tensor: PartTensor, rows: Span) -> Array:
        """Return random numbers in place of a model's, and ones for the weight of a norm of the stream."""
        ones = "norm/weight" in tensor.leaf and rows.size == self.model.hidden
        return np.ones(rows.size, np.float32) if ones else self._random((rows.size,))

    def read(self, name: str, rows: Span | None = None) -> Array:
        """Return some rows of a tensor as wide as the model; of the embedding made of blocks, as in a weights file."""
        assert rows is not None
        if self.precision == "float32" or name != "embedding/weight":
            return self._random((rows.size, self.model.hidden))
        return dequantise(*self.read_blocks(name, rows), 1, self.model.hidden, PRECISIONS[self.precision].of_words.name)

    def read_blocks(self, name: str, rows: Span | None = None) -> tuple[Levels, Scales]:
        """Return some rows of a matrix as wide as the model, in blocks."""
        assert rows is not None
        matrix = self._matrix(rows.size, self.model.hidden, words=True)
        assert isinstance(matrix, Blocks)
        scales = matrix.scales.array.astype(np.float16)
        return matrix.levels.array, scales if matrix.minima is None else np.stack([scales, 0 * scales], -1)

    def _computes(self, part: DecoderPart, size: int, cache: str) -> PartRun:
        key = part, size, cache
        if key not in self._made:
            run, make = self._run(part, size), run_maker(self.backend)
            self._made[key] = make(run, {run[0][0].writes.name, run[-1][0].writes.name}, self, cache=cache)
        return self._made[key]

    def _run(self, part: DecoderPart, size: int) -> list[tuple[Part, RankRegion]]:
        """Return the parts of a share and its region of each; the first adds to the stream what was computed before."""
        kind, stream = self.kind(part), self.model.stream
        if self.backend == ONNXRUNTIME and isinstance(kind, Attention):
            check_width(self.model.name, kind, self.precision)
        kind = kind.resized(max(size, total_of(kind, stream)))
        layer, units = self.model.layers[0], kind.units(Span(0, size))
        place = next((number for number, other in enumerate(layer) if other.curve == part), 0)
        joined, x = layer_parts(replace(self.model, layers=((layer[place - 1],),)), 0, stream.value("x", 1))
        own = joined[-1], *kind.parts(f"layers/1/{kind.name}", stream, x)
        return [(each, {axis: Span(0, units.get(axis, n)) for axis, n in each.axes.items()}) for each in own]

    def _matrix(self, out: int, inner: int, *, words: bool = False) -> Matrix:
        scale = inner**-0.5
        if self.precision == "float32":
            matrix: Array = scale * self._random((inner, out))
            return matrix
        own, blocks = PRECISIONS[self.precision], math.ceil(inner / BLOCK)
        own = own.of_words if words else own
        levels = _filled(self._numbers.view(np.uint8), (out, blocks, BLOCK * own.bits // 8))
        scales = np.full((out, blocks), scale / SPREAD[own.name], np.float32)
        minima = self._random((blocks, out)) * np.float32(scale) if own.minima else None
        return Blocks(Lent(levels), Lent(scales), own.bits, inner, minima)

    def _random(self, shape: tuple[int, ...]) -> Array:
        filled: Array = _filled(self._numbers, shape)
        return filled


def _filled(numbers: Numbers, shape: tuple[int, ...]) -> Numbers:
    """Return an array full of numbers, repeated as often as needed."""
    return np.resize(numbers[: math.prod(shape)], shape)
