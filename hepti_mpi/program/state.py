"""Keys and values of the heads that a rank has, from pass to pass, and how they move where the heads do.

They are moved, never computed again: of llama-3.2-1b a token is 64 KiB of float32, half a millisecond on a gigabit
link, where computing it anew takes 20 ms on four boards of a quarter of a core each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hepti_mpi.comm.exchange import InBox, Item, RankExchange
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.wires import EXACT
from hepti_mpi.kernels.kinds.heads import Heads, runs_of, wide
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.attention import Attention, Rope
from solver.plan.layout import Box, Layout

INT8_LARGEST = 127
# Of an int8 cache, over the largest key or value of a sample: larger ones are cut off, all are rounded more coarsely.
HEADROOM = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class KeptHeads:
    """Keys and values of a layer's heads on this rank.

    Parameters
    ----------
    kv
        Which key and value heads.
    runs
        Of their query heads.
    cache
        Keys and values of every run in turn, each [sequences, kv heads, context, d].
    scales
        Of an int8 cache, those of each, [kv heads · d].
    keeper
        Which of those this rank is who keep some tokens, where these are shared out.
    """

    kv: Span
    runs: tuple[Heads, ...]
    cache: tuple[Numbers, ...]
    scales: tuple[Array, ...] = ()
    keeper: int = 0

    @classmethod
    def empty(
        cls, attention: Attention, heads: Span, *, sequences: int, context: int, cache: str, keeper: int = 0
    ) -> KeptHeads:
        """Make room for some query heads, and for this keeper's tokens of a context."""
        context = int(attention.kept_by(keeper, context))
        runs = tuple(runs_of(attention, heads))
        shapes = [(sequences, run.kv, context, wide(attention)) for run in runs for _ in "kv"]
        scales = [np.ones(shape[1] * shape[3], np.float32) for shape in shapes] if cache == "int8" else []
        caches = tuple(np.zeros(shape, cache) for shape in shapes)
        return cls(attention.kv_span(heads), runs, caches, tuple(scales), keeper)

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

    def lies(self, kept: Sequence[int], layout: HeadsLayout) -> list[list[InBox]]:
        """Return keys, values, and of an int8 cache their scales: their boxes, and where they lie."""
        tokens = layout.boxes(self.runs, self.kv.start, kept, self.keeper)
        scales = layout.scales(self.runs, self.kv.start)
        per_run = max(len(tokens) // max(len(self.runs), 1), 1)
        found: list[list[InBox]] = []
        for which in range(2):
            arrays = [self.cache[2 * (number // per_run) + which] for number in range(len(tokens))]
            found.append(
                [(box, self._cut(layout.attention, array, box)) for box, array in zip(tokens, arrays, strict=True)]
            )
        for which in range(2 * bool(self.scales)):
            arrays = [self.scales[2 * number + which].reshape(run.kv, -1) for number, run in enumerate(self.runs)]
            found.append(list(zip(scales, arrays, strict=True)))
        return found

    def _cut(self, attention: Attention, array: Numbers, box: Box) -> Numbers:
        """Return what of a run's cache a box is; it has all heads of the run."""
        sequence, _, tokens, _ = box.spans
        start = attention.kept_by(self.keeper, tokens.start)
        return array[sequence.slice, :, start : start + tokens.size]


@dataclass(frozen=True, slots=True, eq=False)
class SharedTokens:
    """What of a pass's new keys and values this rank keeps, where tokens are shared out, and what its rows see of that.

    Parameters
    ----------
    new : [sequences, rows, kv heads · 2 d]
        Keys and values, side by side.
    last : [sequences] int32
        Places of the last new rows.
    scales
        Whether an int8 cache's scales are chosen by them.
    by_row, whole
        By their names, what a computation takes of it (`kernels.kinds.shared_tokens`): of every row from where to where
        it sees what is kept; and that, all of it.
    """

    attention: Attention
    kept: KeptHeads
    new: Array
    last: Numbers
    scales: bool
    by_row: Mapping[str, Numbers]
    whole: Mapping[str, Numbers]

    @classmethod
    def of(
        cls, attention: Attention, kept: KeptHeads, sequences: Span, new: Array, last: Numbers, *, scales: bool
    ) -> SharedTokens:
        """Prepare passes of some sequences."""
        names = ("k0", "v0")
        whole: dict[str, Numbers] = {name: own[sequences.slice] for name, own in zip(names, kept.cache, strict=True)}
        whole |= {f"{name}.scale": own for name, own in zip(names, kept.scales, strict=False)}
        whole["until"] = np.ones(1, np.int64)
        by_row = {name: np.zeros(new.shape[:2], np.int64) for name in ("from", "to")}
        return cls(attention, kept, new, last, scales, by_row, whole)

    def keep(self) -> None:
        """Keep this rank's of the new tokens, and find what rows see."""
        attention, (B, S, _) = self.attention, self.new.shape
        both = self.new.reshape(B, S, attention.kv_heads, 2, -1)
        if self.scales:
            self.kept.scale(both[..., 0, :].reshape(B, S, -1), both[..., 1, :].reshape(B, S, -1), attention.rope)
        places = self.last[:, None] + np.arange(1 - S, 2)
        counts = attention.kept_by(self.kept.keeper, places)
        self.by_row["to"][...] = counts[:, 1:]
        if attention.window:
            hidden = np.maximum(places[:, 1:] - attention.window, 0)
            self.by_row["from"][...] = attention.kept_by(self.kept.keeper, hidden)
        # A computation sees one at least, hidden from rows that see none.
        self.whole["until"][0] = max(int(counts.max()), 1)
        for sequence, own in enumerate(counts.tolist()):
            mine = both[sequence, np.diff(counts[sequence]) > 0]  # [tokens, kv heads, 2, d]
            for which, name in enumerate(("k0", "v0")):
                new = mine[:, :, which].swapaxes(0, 1)
                if self.kept.scales:
                    by_head = self.kept.scales[which].reshape(len(new), 1, -1)
                    new = np.clip(np.rint(new / by_head), -INT8_LARGEST - 1, INT8_LARGEST)
                self.whole[name][sequence, :, own[0] : own[-1]] = new


@dataclass(frozen=True, slots=True, eq=False)
class HeadsLayout:
    """Where keys and values of a layer lie under a plan: of every rank its query heads."""

    attention: Attention
    heads: Sequence[Span]

    def layouts(self, kept: Sequence[int], *, scales: bool) -> list[Layout]:
        """Return the layouts of keys, of values, and of their scales, where there are some."""
        own = [(tuple(runs_of(self.attention, heads)), self.attention.kv_span(heads).start) for heads in self.heads]
        keepers = [keeper_of(self.heads, rank) * bool(self.attention.dealt) for rank in range(len(own))]
        tokens = Layout(
            tuple(tuple(self.boxes(*some, kept, keeper)) for some, keeper in zip(own, keepers, strict=True))
        )
        return [tokens, tokens, *[Layout(tuple(tuple(self.scales(*some)) for some in own))] * (2 * scales)]

    def boxes(self, runs: Sequence[Heads], start: int, kept: Sequence[int], keeper: int) -> list[Box]:
        """Return the boxes [sequence, kv head, token, d] of some runs of heads, run by run; of a keeper's tokens."""
        d = Span(0, wide(self.attention))
        return [
            Box((Span(sequence, sequence + 1), kv, some, d))
            for kv in self._kv(runs, start)
            for sequence, tokens in enumerate(kept)
            for some in self._tokens(keeper, tokens)
        ]

    def _tokens(self, keeper: int, tokens: int) -> list[Span]:
        """Return which of so many tokens a keeper has."""
        dealt = self.attention.dealt or (max(tokens, 1),)
        first = sum(dealt[:keeper])
        found = [Span(n, n + dealt[keeper]).intersect(Span(0, tokens)) for n in range(first, tokens, sum(dealt))]
        return [some for some in found if some.size]

    def scales(self, runs: Sequence[Heads], start: int) -> list[Box]:
        """Return the boxes [kv head, d] of some runs of heads."""
        return [Box((kv, Span(0, wide(self.attention)))) for kv in self._kv(runs, start)]

    @staticmethod
    def _kv(runs: Sequence[Heads], start: int) -> list[Span]:
        edges = np.cumsum([start, *(run.kv for run in runs)]).tolist()
        return [Span(one, other) for one, other in pairwise(edges)]


def keeper_of(heads: Sequence[Span], rank: int) -> int:
    """Return which of those who keep something a rank is."""
    return sum(own.size > 0 for own in heads[:rank])


def move_heads(
    group: Group, lie: tuple[HeadsLayout, HeadsLayout], have: KeptHeads | None, want: KeptHeads | None,
    kept: Sequence[int], *, scales: bool,
) -> None:  # fmt: skip
    """Bring the keys and values of a layer to where a plan has their heads; a step of all ranks.

    Parameters
    ----------
    lie
        Where they lie under the plan that ends, and under the one that begins.
    have, want
        This rank's; None where it has none.
    kept
        How many tokens of every sequence there are.
    scales
        Whether the cache is int8.
    """
    before, after = lie
    layouts = zip(before.layouts(kept, scales=scales), after.layouts(kept, scales=scales), strict=True)
    pieces = have.lies(kept, before) if have else []
    places = want.lies(kept, after) if want else []
    items = [
        Item(*both, *(own[number] if own else [] for own in (pieces, places))) for number, both in enumerate(layouts)
    ]
    RankExchange.of(group, items, EXACT).run()
    group.finish_sending()
