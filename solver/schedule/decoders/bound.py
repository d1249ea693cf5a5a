"""What no plan of a language model beats: a lower bound of the seconds of an answer.

Of a pass of many rows, a prompt's, all that is computed counts, by every device at its best (`solver.schedule.bound`).

Of a token's pass exchanges count, too. Before a rank computes a block it has the sum of the summands of all who
computed the block before. So a way through the pass that is at any device of those, S, in every block, and goes from
there to any device of the next, S', takes no longer than the pass; nor does the mean of many such ways:

    T  >=  sum over blocks of  sum_i π(i) c(i)  +  sum over exchanges of  E[what it takes from i to j]

for any shares π of ways over S and any pairing of them between blocks. Of a block that takes i a + b x for x units,
π is in proportion to 1 / b: then the first sum is the same however units are shared out, mean a + units / sum 1 / b.
Ways change devices where they can: all but π(i) + π'(i) - 1, if that is above zero for some i. One that stays at a
device handles its messages there, too. What S and S' are is not known: the least over all pairs of sets counts, for
every two blocks in a row, with half of what either block takes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from solver.base.spans import Span
from solver.cluster.curves import Floats, corners
from solver.cluster.decoder_curves import DecoderPart
from solver.model.blocks import BlockKind, parts_of, total_of
from solver.model.kinds.part import ROW
from solver.schedule.bound import shared_s
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import DecoderSetting, answer_passes

MOST = 8  # devices, of whose sets all pairs are looked at: 255² of eight
Sets = NDArray[np.bool_]  # [sets, p]


def answer_bound_s(s: DecoderSetting, asked: TokenRequest) -> float:
    """Return the seconds of an answer below which no plan is."""
    found = 0.0
    for often, rows, behind, chosen in answer_passes(asked):
        if rows == 1 and s.devices <= MOST:
            pass_s = _token_s(s, behind)
        else:
            pass_s = _together_s(s, rows, behind, words=chosen > 0)
        found += often * (s.speeds[0].pass_s + pass_s)  # rank 0 has chosen a word, and embeds it
    return found


def _together_s(s: DecoderSetting, rows: int, behind: int, *, words: bool) -> float:
    """Return the seconds of a pass, if nothing had to be sent; `words`: whether its last row has a next word.

    Of the last layer nobody reads the other rows. What is kept of them counts nothing here.
    """
    *layers, last = s.model.layers
    often = Counter((kind, rows) for kind in chain(*layers))
    often += Counter((kind, 1) for kind in (*last, s.model.head_block) if words)
    parts = [times * _Block.at_best(s, *of, behind).whole_s for of, times in often.items()]
    return shared_s(np.array(parts)) if parts else 0.0


def _token_s(s: DecoderSetting, behind: int) -> float:
    """Return the seconds of a pass of one row, from rank 0 and back to it."""
    sets = np.array([[number >> rank & 1 for rank in range(s.devices)] for number in range(1, 1 << s.devices)], bool)
    kinds = [*chain(*s.model.layers), s.model.head_block]
    blocks = {kind: _Block.of_token(s, kind, behind) for kind in dict.fromkeys(kinds)}
    shared = {kind: block.shared(sets) for kind, block in blocks.items()}
    row_bytes = float(s.wire.row_bytes(s.model.hidden))
    found = 0.0
    for (kind, other), often in Counter(pairwise(kinds)).items():
        found += often * _least_s(shared[kind], shared[other], _Sent(s, row_bytes))
    root = _Shared(sets[:1], np.zeros(1), sets[:1] / 1.0)
    for kind, size in ((kinds[0], row_bytes), (kinds[-1], 0.0)):  # there, and back with candidates
        found += _least_s(root, shared[kind], _Sent(s, size))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """A block as sets of devices may share it, [m, p].

    Parameters
    ----------
    seconds : [m]
        The least mean seconds of each set.
    ways : [m, p]
        π.
    """

    sets: Sets
    seconds: Floats
    ways: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A row on its way, of so many bytes, by devices' links."""

    s: DecoderSetting
    size: float

    def least_s(self, sets: Sets, others: Sets) -> tuple[Floats, Floats]:
        """Return the least seconds from a device of one set to another of the next, and of who stays, [m, m', p].

        The former [m, m']. Sums go in one step, each summand whole to all others, or in two, in as many parts as there
        are devices: then a part passes the wire twice.
        """
        s = self.s
        number, after = sets.sum(-1)[:, None], others.sum(-1)
        both = sets[:, None] & others
        leaving = np.where(sets[:, None], (after[:, None] - both) * s.message_s, np.inf).min(-1)
        coming = np.where(others, (number[..., None] - both) * s.message_s, np.inf).min(-1)
        wide = np.where(sets, s.machine.network.bandwidth, 0.0).max(-1)[:, None]
        latency_s = s.machine.network.latency_s
        once = latency_s + self.size * np.maximum(after - 1, 1) / wide
        twice = 2 * latency_s + 2 * self.size * (after - 1) / after / wide
        wire = np.where(after > 1, np.minimum(once, twice), once)
        return leaving + wire + coming, (number + after - 2)[..., None] * s.message_s


def _least_s(one: _Shared, other: _Shared, sent: _Sent) -> float:
    """Return the least seconds of the exchange between two blocks and of half of either, of all pairs of sets."""
    moving_s, staying_s = sent.least_s(one.sets, other.sets)
    stays = np.maximum(one.ways[:, None] + other.ways - 1, 0.0)  # of one device at most
    exchange_s = (stays * staying_s).sum(-1) + (1 - stays.sum(-1)) * moving_s
    return float((one.seconds[:, None] / 2 + exchange_s + other.seconds / 2).min())


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """What a block takes at the least on every device, [p]: with any share of it, and for all of it beside.

    Parameters
    ----------
    share_s
        Whatever the share.
    weights_s, recalled_s
        For all units, by their weights, and for attention to what is kept.
    """

    share_s: Floats
    weights_s: Floats
    recalled_s: Floats

    @property
    def whole_s(self) -> Floats:
        """For all units."""
        return self.weights_s + self.recalled_s

    def shared(self, sets: Sets) -> _Shared:
        """Return it as sets of devices share it."""
        ways = sets / self.whole_s
        ways = ways / ways.sum(-1, keepdims=True)
        # Where keys of a cache are shared out, weights and what is kept are in other shares.
        parts = [np.where(sets, ways * part, np.inf).min(-1) for part in (self.weights_s, self.recalled_s)]
        return _Shared(sets, (ways * self.share_s).sum(-1) + parts[0] + parts[1], ways)

    @classmethod
    def at_best(cls, s: DecoderSetting, kind: BlockKind, rows: int, behind: int) -> _Block:
        """Return what all of a block takes at the best rates of devices, however rows and units are shared out."""
        part, (least, most), rates = DecoderPart(kind.curve), _bytes(s, kind, rows), list[float]()
        for own in s.speeds:
            grid = corners(np.array(own.parts[part].first), 1.0, float(rows))
            rates.append(min(own.of_rows(part, some).least_rate(least, most) / some for some in grid))
        whole_s = rows * most * np.array(rates)
        return cls(np.zeros(s.devices), whole_s, _recalled_s(s, kind, rows, behind))

    @classmethod
    def of_token(cls, s: DecoderSetting, kind: BlockKind, behind: int) -> _Block:
        """Return what it takes for one row, of shares of a unit or more."""
        least, most = _bytes(s, kind, 1)
        lines = [own.of_rows(DecoderPart(kind.curve), 1).line_below(least, most) for own in s.speeds]
        fixed, slope = np.array(lines).T
        return cls(fixed, most * slope, _recalled_s(s, kind, 1, behind))


def _bytes(s: DecoderSetting, kind: BlockKind, rows: int) -> tuple[int, int]:
    """Return the bytes of the weights of a unit, and of all."""
    parts, total = parts_of(kind, s.model.stream), total_of(kind, s.model.stream)
    one, every = (s.weights_bytes(parts, {ROW: rows, **kind.units(Span(0, units))}) for units in (1, total))
    return one, every


def _recalled_s(s: DecoderSetting, kind: BlockKind, rows: int, behind: int) -> Floats:
    """Return what attention to all that is kept takes at the least, [p]."""
    parts = parts_of(kind, s.model.stream)
    if not any(part.recalls for part in parts):
        return np.zeros(s.devices)
    recalled = kind.recalled({ROW: rows, **kind.units(Span(0, total_of(kind, s.model.stream)))}, rows, behind)
    curves = [own.cached[s.cache] for own in s.speeds]
    grids = [corners(np.array(curve.rows), 1.0, float(rows)) for curve in curves]
    return recalled * np.array([min(map(curve.at, grid)) for curve, grid in zip(curves, grids, strict=True)])
