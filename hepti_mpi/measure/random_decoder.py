"""Graphs of a language model on random weights, to be timed: shares of some sizes, on so many rows.

Their time does not depend on the numbers as long as none is too small to be normal: weights are scaled so that values
stay near 1 from node to node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from hepti_mpi.base.memory import Lent
from hepti_mpi.decoding.ranks import likeliest
from hepti_mpi.kernels.blocks import Blocks
from hepti_mpi.kernels.decoder_graphs import (
    AttentionWeights,
    Before,
    Matrix,
    MlpWeights,
    NormWeights,
    attention_graph,
    head_graph,
    mlp_graph,
    turning_tables,
    widened,
)
from hepti_mpi.kernels.ort import Session
from hepti_mpi.measure.profile_kernels import random_numbers
from hepti_mpi.measure.timing import TimedCall
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.cluster.cluster import MIB
from solver.cluster.decoder_curves import DecoderPart
from solver.model.decoder import BLOCK, PRECISIONS, Decoder, GroupedAttention
from solver.schedule.decoders.memory import attention_bytes, mlp_bytes, words_bytes
from weights.decoders.quantise import Levels, Scales, dequantise

PARTS = (1 / 8, 1 / 2, 1.0)  # of the largest share
# The largest share: all of the model's, or so many bytes of weights.
LARGEST_BYTES = {DecoderPart.ATTENTION: 32 * MIB, DecoderPart.MLP: 32 * MIB, DecoderPart.HEAD: 64 * MIB}
CONTEXT = 2112  # tokens that caches have room for
SPREAD = {"int8": 74.0, "int4": 4.6, "int4m": 4.6, "int8m": 74.0}  # the standard deviation of random levels


@dataclass(frozen=True, slots=True, eq=False)
class RandomDecoder:
    """A language model's graphs on random weights.

    Sizes of shares are key and value heads with their whole groups, columns, or words.

    Parameters
    ----------
    model
        Whose widths graphs have; heads see all that is before them.
    precision
        What weights are held in: float32, int8 or int4.
    """

    model: Decoder
    precision: str
    _sessions: dict[tuple[DecoderPart, int, str], Session] = field(default_factory=dict)
    _numbers: Array = field(default_factory=random_numbers)

    def sizes(self, part: DecoderPart) -> list[int]:
        """Return the shares of a part that are to be timed, two at least."""
        layer, unit = self.model.layers[0], BLOCK
        every = {
            DecoderPart.ATTENTION: layer.attention.kv_heads,
            DecoderPart.MLP: math.ceil(layer.mlp.ffn / unit),
            DecoderPart.HEAD: math.ceil(self.model.vocab / unit),
        }[part]
        unit = 1 if part is DecoderPart.ATTENTION else unit
        most = max(1, min(every, LARGEST_BYTES[part] // self.bytes_of(part, unit)))
        found = sorted({max(1, round(share * most)) for share in PARTS})
        return [unit * size for size in (found if len(found) > 1 else (most, 2 * most))]

    def bytes_of(self, part: DecoderPart, size: int) -> int:
        """Return the bytes of a share's weights."""
        layer, precision = self.model.layers[0], PRECISIONS[self.precision]
        if part is DecoderPart.ATTENTION:
            return attention_bytes(self.model, layer.attention, size * layer.attention.group, size, precision)
        if part is DecoderPart.MLP:
            return mlp_bytes(self.model, layer.mlp, size, precision)
        return words_bytes(self.model, size, precision)

    def call(self, part: DecoderPart, size: int, rows: int, behind: int = 0, cache: str = "float32") -> TimedCall:
        """Return the call of a share on so many rows, of attention behind so many tokens in a cache."""
        H = self.model.hidden
        session = self._session(part, size, cache)
        x, s = (self._random((1, rows, H)) for _ in "xs")
        inputs: dict[str, Numbers] = {"x": x, "s": s}
        if part is DecoderPart.HEAD:
            logits = np.empty((1, rows, size), np.float32)
            bound = session.bound({**inputs, "chosen": np.arange(rows)}, {"logits": logits})

            def choose() -> None:
                bound()
                likeliest(logits[0], 1, 0)

            return choose
        outputs: dict[str, Numbers] = {"h": np.empty_like(x), "part": np.empty_like(x)}
        if part is DecoderPart.ATTENTION:
            attention = self._heads(size)
            inputs |= {"last": np.array([behind + rows - 1], np.int32), "total": np.array([behind + rows], np.int32)}
            if attention.rope is not None:
                inputs |= turning_tables(attention.rope, CONTEXT)
            for name in ("k0", "v0"):
                kept = self._random((1, size, CONTEXT, attention.head_dim))
                inputs[name] = kept if cache == "float32" else (32 * kept).astype(np.int8)
                outputs[f"{name}'"] = inputs[name]
                if cache == "int8":
                    inputs[f"{name}.scale"] = np.full(size * attention.head_dim, 1 / 32, np.float32)
            if "places" in session.inputs:
                inputs["places"] = behind + np.arange(rows)[None]
        return session.bound(inputs, outputs)

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

    def _session(self, part: DecoderPart, size: int, cache: str) -> Session:
        key = part, size, cache
        if key not in self._sessions:
            self._sessions[key] = self._made(part, size, cache)
        return self._sessions[key]

    def _made(self, part: DecoderPart, size: int, cache: str) -> Session:
        model, layer = self.model, self.model.layers[0]
        bias = layer.attention.output_bias if part is DecoderPart.MLP else layer.mlp.bias
        before = Before(self._vector(model.hidden) if bias else None, self._norm() if model.post_norms else None)
        if part is DecoderPart.HEAD:
            return head_graph(model, self._norm(), self._matrix(size, model.hidden, words=True), before)
        if part is DecoderPart.MLP:
            mlp = layer.mlp
            up, gate, down = (self._matrix(*shape) for shape in 2 * [(size, model.hidden)] + [(model.hidden, size)])
            biases = (self._vector(size), self._vector(size)) if mlp.bias else (None, None)
            weights = MlpWeights(
                self._norm() if model.pre_norms else None, gate if mlp.gated else None, up, down, *biases
            )
            return mlp_graph(model, replace(mlp, ffn=size), weights, before)
        attention = self._heads(size)
        d, heads = attention.head_dim, attention.heads
        widths, of_heads = (heads * d, size * d, size * d), (d, d)
        if attention.whole_norms:  # of which everyone makes all queries and keys
            whole = max(size, layer.attention.kv_heads)
            attention = replace(attention, heads=whole * attention.group, kv_heads=whole)
            of_heads = attention.heads * d, attention.kv_heads * d
            widths = (*of_heads, size * d)
        query, key, value = (self._matrix(width, model.hidden) for width in widths)
        norms = [self._vector(width) if attention.qk_norm else None for width in of_heads]
        given = AttentionWeights(
            self._norm() if model.pre_norms else None, (query, key, value), self._matrix(model.hidden, heads * d),
            self._vector(sum(widths)) if attention.bias else None, *norms,
        )  # fmt: skip
        return attention_graph(model, attention, Span(0, heads), given, before, cache=cache)

    def _heads(self, size: int) -> GroupedAttention:
        attention = widened(self.model, self.model.layers[0].attention, self.precision)
        return replace(attention, heads=size * attention.group, kv_heads=size, window=0)

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

    def _norm(self) -> NormWeights:
        H = self.model.hidden
        return NormWeights(np.ones(H, np.float32), self._vector(H) if self.model.norm == "layer" else None)

    def _vector(self, width: int) -> Array:
        return self._random((width,))

    def _random(self, shape: tuple[int, ...]) -> Array:
        filled: Array = _filled(self._numbers, shape)
        return filled


def _filled(numbers: Numbers, shape: tuple[int, ...]) -> Numbers:
    """Return an array full of numbers, repeated as often as needed."""
    return np.resize(numbers[: math.prod(shape)], shape)
