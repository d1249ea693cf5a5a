"""A rank's share of a language model under a plan: its graphs, and the keys and values that they keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hepti_mpi.base.memory import Lent, give_back
from hepti_mpi.kernels.blocks import Blocks
from hepti_mpi.kernels.decoder_graphs import (
    AttentionWeights,
    Before,
    Heads,
    Matrix,
    MlpWeights,
    NormWeights,
    add_graph,
    attention_graph,
    head_graph,
    mlp_graph,
    runs_of,
    turning_tables,
    widened,
)
from hepti_mpi.kernels.ort import Session
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span, tiles
from solver.model.decoder import BLOCK, PRECISIONS, Decoder, GatedMlp, GroupedAttention, Rope, decoder_tensors
from solver.model.precision import FLOAT32
from solver.plan.decoder_plan import DecoderPlan, DecoderStage

INT8_LARGEST = 127
# Of an int8 cache, over the largest key or value of a sample: larger ones are cut off, all are rounded more coarsely.
HEADROOM = 1.5
HEAD_BYTES = 32 << 20  # of words in a graph


class Reads(Protocol):
    """Where weights come from; as `weights.decoders.file.DecoderFile`."""

    def read(self, name: str, rows: Span | None = None) -> Array:
        """Return a tensor, or some rows of it, as float32."""

    def read_blocks(self, name: str, rows: Span | None = None) -> tuple[Numbers, Numbers]:
        """Return a matrix in blocks, or some of it, as stored."""


@dataclass(slots=True, eq=False)
class HalfLayer:
    """A half layer on this rank.

    Parameters
    ----------
    session
        Its graph; None where there is nothing to do: the first half of a stage without a share.
    shares
        Whether it gives a summand.
    turns
        The tables by which its heads turn.
    runs
        Of its heads.
    cache
        Keys and values of every run in turn, each [sequences, kv heads, context, d].
    scales
        Of an int8 cache, those of each, [kv heads · d].
    """

    session: Session | None
    shares: bool
    turns: Mapping[str, Array]
    runs: tuple[Heads, ...] = ()
    cache: tuple[Numbers, ...] = ()
    scales: tuple[Array, ...] = ()

    def scale(self, keys: Array, values: Array, rope: Rope | None) -> None:
        """Choose an int8 cache's scales by keys and values [batch, rows, kv heads · d] of a sample.

        Columns that turn together have a common largest length, wherever a row stands.
        """
        turned, d = 0 if rope is None else rope.width // 2, self.cache[0].shape[-1]
        largest = []
        for array, half in ((keys, turned), (values, 0)):
            by_head = np.square(array).reshape(-1, array.shape[-1] // d, d)
            pairs = by_head[..., :half] + by_head[..., half : 2 * half]
            squares = np.concatenate([pairs, pairs, by_head[..., 2 * half :]], -1).max(0)
            largest.append(np.sqrt(squares) * (HEADROOM / INT8_LARGEST))
        ends = np.cumsum([run.kv for run in self.runs])
        for number, (run, end) in enumerate(zip(self.runs, ends, strict=True)):
            for kind, array in enumerate(largest):
                own = array[end - run.kv : end].reshape(-1)
                self.scales[2 * number + kind][...] = np.maximum(own, np.finfo(np.float32).tiny)


class DecoderShare:
    """A rank's share of a language model.

    Parameters
    ----------
    model, plan, rank
        The model, who has what, and whose share this is.
    source
        Reads the weights; not kept.
    before
        This rank's share under the plan before: halves that are the same under both are taken over, caches included.

    Attributes
    ----------
    stage
        The stage that this rank is in, by its number; None where it is in none.
    halves
        Attention and MLP of every layer of the stage, in turn.
    last
        Adds what the last half computed to the stream, for the next stage; None where there is none.
    heads
        Make logits of this rank's words, some words each.
    """

    def __init__(
        self, model: Decoder, plan: DecoderPlan, rank: int, source: Reads, before: DecoderShare | None = None
    ) -> None:
        self.model, self.plan, self.rank = model, plan, rank
        self._source = _Source(model, plan.precision, source)
        self._turns: dict[object, Mapping[str, Array]] = {}
        stages = [number for number, stage in enumerate(plan.stages) if rank in stage.ranks]
        self.stage = stages[0] if stages else None
        self.halves: list[HalfLayer] = []
        self.last: Session | None = None
        self.heads: Sequence[tuple[Span, Session]] = ()
        self.words = plan.words[rank]
        if self.stage is None:
            return
        stage = plan.stages[self.stage]
        added: Before | None = None  # of what was computed before
        for number in range(stage.layers.start, stage.layers.stop):
            self.halves.append(self._same(before, number, 0) or self._attention(number, stage, added))
            added = self._source.before(number, "attention", "output")
            self.halves.append(self._same(before, number, 1) or self._mlp(number, stage, added))
            added = self._source.before(number, "mlp", "down")
            give_back()
        assert added is not None
        if self.stage + 1 < len(plan.stages):
            self.last = add_graph(model, added)
        elif before is not None and before.heads and before.words == self.words:
            self.heads = before.heads
        else:
            norm = self._source.norm("final_norm")
            pieces = tiles(self.words, self._source.rows_at_once)
            self.heads = [(words, self._head(words, norm, added)) for words in pieces]
        del self._source

    def _head(self, words: Span, norm: NormWeights, before: Before) -> Session:
        """Make logits of some words. Of all at once three copies were in memory while the graph was made."""
        session = head_graph(self.model, norm, self._source.matrix(self.model.head, words), before)
        give_back()
        return session

    def half(self, layer: int, number: int = 0) -> HalfLayer | None:
        """Return the attention of a layer, or, half 1, its MLP; None where this rank is not in its stage."""
        if self.stage is None:
            return None
        layers = self.plan.stages[self.stage].layers
        return self.halves[2 * (layer - layers.start) + number] if layers.start <= layer < layers.stop else None

    def kv_heads(self, layer: int) -> Span:
        """Return the key and value heads of a layer of this rank's stage that it has."""
        assert self.stage is not None
        return self.model.layers[layer].attention.kv_span(self.plan.stages[self.stage].heads[self.rank])

    def _same(self, before: DecoderShare | None, layer: int, number: int) -> HalfLayer | None:
        """Return a half of the share before, where this one has the same."""
        old = None if before is None else before.half(layer, number)
        if before is None or old is None or before.stage is None or self.stage is None:
            return None
        one, other = before.plan.stages[before.stage], self.plan.stages[self.stage]
        if not number and (layer == one.layers.start) != (layer == other.layers.start):
            return None  # the first half of a stage has nothing to add
        shares = (one.columns, other.columns) if number else (one.heads, other.heads)
        return old if shares[0][self.rank] == shares[1][self.rank] else None

    def _attention(self, number: int, stage: DecoderStage, before: Before | None) -> HalfLayer:
        model, heads = self.model, stage.heads[self.rank]
        if not heads.size:
            return HalfLayer(None if before is None else add_graph(model, before), False, {})
        attention = widened(model, model.layers[number].attention, self.plan.precision)
        weights = self._source.attention(number, attention, heads)
        session = attention_graph(model, attention, heads, weights, before, cache=self.plan.cache)
        runs = tuple(runs_of(attention, heads))
        shapes = [(self.plan.sequences, run.kv, self.plan.context, attention.head_dim) for run in runs for _ in "kv"]
        if attention.rope is not None and attention.rope not in self._turns:
            self._turns[attention.rope] = turning_tables(attention.rope, self.plan.context)
        turns = {} if attention.rope is None else self._turns[attention.rope]
        cache = tuple(np.zeros(shape, self.plan.cache) for shape in shapes)
        scales = tuple(np.ones(shape[1] * shape[3], np.float32) for shape in shapes)
        return HalfLayer(session, True, turns, runs, cache, scales if self.plan.cache == "int8" else ())

    def _mlp(self, number: int, stage: DecoderStage, before: Before) -> HalfLayer:
        mlp, columns = self.model.layers[number].mlp, stage.columns[self.rank]
        if not columns.size:
            return HalfLayer(add_graph(self.model, before), False, {})
        return HalfLayer(mlp_graph(self.model, mlp, self._source.mlp(number, mlp, columns), before), True, {})


class _Source:
    """Weights as the graphs need them."""

    def __init__(self, model: Decoder, precision: str, reads: Reads) -> None:
        self._model, self._tensors, self._reads = model, decoder_tensors(model), reads
        self._precision = PRECISIONS[precision]

    @property
    def rows_at_once(self) -> int:
        """Rows of the head in a graph."""
        return max(1, HEAD_BYTES * 8 // (self._model.hidden * self._precision.of_words.bits))

    def matrix(self, name: str, span: Span) -> Matrix:
        """Return a span of the shared axis of a matrix."""
        weight = self._tensors[name]
        summed, own = weight.summed, weight.held_in(self._precision)
        if own is FLOAT32:
            matrix = self._reads.read(name, span)
            return matrix.T if summed else matrix
        if summed:
            levels, scales = self._reads.read_blocks(name, span)
        else:
            blocks = Span(span.start // BLOCK, -(-span.stop // BLOCK))
            levels, scales = self._reads.read_blocks(name, blocks)
            levels, scales = levels.swapaxes(0, 1), scales.swapaxes(0, 1)
        length, minima, scales = weight.shape[1] if summed else span.size, None, scales.astype(np.float32)
        if own.minima:
            scales, minima = scales[..., 0], scales[..., 1].T
            if own.bits == 4:  # whose products count from the level in the middle
                minima = minima + np.float32(8) * scales.T
            minima = np.ascontiguousarray(minima)
        return Blocks(Lent(levels), Lent(scales), own.bits, length, minima)

    def vector(self, name: str, span: Span | None = None) -> Array | None:
        """Return a vector, or some of it; None where the model has none."""
        return self._reads.read(name, span) if name in self._tensors else None

    def norm(self, name: str) -> NormWeights:
        found = self.norm_or_none(name)
        assert found is not None
        return found

    def norm_or_none(self, name: str) -> NormWeights | None:
        """Return a norm; None where the model has none."""
        weight = self.vector(f"{name}/weight")
        return None if weight is None else NormWeights(weight, self.vector(f"{name}/bias"))

    def before(self, number: int, half: str, last: str) -> Before:
        """Return what is to be done with the sum of a half's summands."""
        prefix = f"layers/{number}/{half}"
        return Before(self.vector(f"{prefix}/{last}/bias"), self.norm_or_none(f"{prefix}/post_norm"))

    def attention(self, number: int, attention: GroupedAttention, heads: Span) -> AttentionWeights:
        prefix, d = f"layers/{number}/attention", self._model.layers[number].attention.head_dim
        rows = heads.scaled(d)
        kv = attention.kv_span(heads).scaled(d)
        spans = {"query": rows, "key": kv, "value": kv}
        if attention.whole_norms:  # of which everyone needs all
            spans |= {"query": Span(0, attention.heads * d), "key": Span(0, attention.kv_heads * d)}
        query, key, value = (self.matrix(f"{prefix}/{name}/weight", span) for name, span in spans.items())
        biases = [self.vector(f"{prefix}/{name}/bias", span) for name, span in spans.items()]
        output = self.matrix(f"{prefix}/output/weight", rows)
        wide = attention.head_dim
        if wide != d:
            query, key, value = (_with_zeros(matrix, 1, d, wide) for matrix in (query, key, value))
            output = _with_zeros(output, 0, d, wide)
            biases = [bias if bias is None else _with_zeros(bias, 0, d, wide) for bias in biases]
        found = [bias for bias in biases if bias is not None]
        return AttentionWeights(
            self.norm_or_none(f"{prefix}/norm"),
            (query, key, value),
            output,
            np.concatenate(found) if found else None,
            self.vector(f"{prefix}/query_norm/weight"),
            self.vector(f"{prefix}/key_norm/weight"),
        )

    def mlp(self, number: int, mlp: GatedMlp, columns: Span) -> MlpWeights:
        prefix = f"layers/{number}/mlp"
        return MlpWeights(
            self.norm_or_none(f"{prefix}/norm"),
            self.matrix(f"{prefix}/gate/weight", columns) if mlp.gated else None,
            self.matrix(f"{prefix}/up/weight", columns),
            self.matrix(f"{prefix}/down/weight", columns),
            self.vector(f"{prefix}/gate/bias", columns),
            self.vector(f"{prefix}/up/bias", columns),
        )


def _with_zeros(array: Matrix, axis: int, d: int, wide: int) -> Array:
    """Return a float32 matrix or vector with zeros behind the d columns of every head, along an axis."""
    assert isinstance(array, np.ndarray)
    before, behind = array.shape[:axis], array.shape[axis + 1 :]
    found = np.zeros((*before, array.shape[axis] // d, wide, *behind), np.float32)
    found[(*[slice(None)] * (axis + 1), slice(d))] = array.reshape(*before, -1, d, *behind)
    return found.reshape(*before, -1, *behind)
