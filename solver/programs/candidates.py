"""Candidate layers: which kinds and which crews are worth a search.

A crew is a set of devices that may share a layer. Few devices: all crews. Some more: all pairs, and the fastest n of
them for all n. Many: the fastest n, for some n.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import FLOAT_BYTES
from solver.cluster.curves import Kernel
from solver.model.blocks import Axis, Block
from solver.plan.plan import StreamLayout
from solver.plan.routes import Route
from solver.programs.search import JOINING, MANY, Configuration, Draft, Terms, drafts, finish, improved, redraft
from solver.schedule.encoders.layer_table import (
    BLOCK_FULL,
    LayerKind,
    kind_by_rows,
    layer_kinds,
    taking,
)
from solver.schedule.encoders.setting import Setting

Found = TypeVar("Found", Draft, Configuration)

LIKELIEST = 3  # kinds whose drafts are improved, where devices are many
NEARBY = 4  # kinds of former layers
AGAIN = 3  # in a solve that begins with the layers of another
FEW = 4  # devices, up to which all crews and groups are tried
LARGEST = 128  # crew, of many devices; what more would compute, their messages cost
HOPELESS = 1.5  # times the best score of smaller crews: larger ones are not tried


@lru_cache(maxsize=16)
def main_kinds(blocks: tuple[Block, ...]) -> tuple[LayerKind, ...]:
    """Return the kinds that are tried where devices are many: those with norms on rows, and blocks with all on full.

    The others were never best of 9 to 16 boards, for which all were tried.
    """
    full = (BLOCK_FULL,) * len(blocks)
    return tuple(
        kind
        for kind in layer_kinds(blocks)
        if kind.cuts == full or all(norm is StreamLayout.ROWS for _, norm in kind.cuts)
    )


def candidates(s: Setting, terms: Terms) -> list[Configuration]:
    """Return the best layers that are found: of every kind one, and one of several devices if that has one alone."""
    first = first_drafts(s, kinds_to_try(s), terms)
    return finished(s, first if s.devices <= MANY else first[:LIKELIEST], terms)


def kinds_to_try(s: Setting) -> tuple[LayerKind, ...]:
    """Return the kinds that are worth a search on so many devices."""
    return layer_kinds(s.spec.blocks) if s.devices <= MANY else main_kinds(s.spec.blocks)


def first_drafts(s: Setting, kinds: Sequence[LayerKind], terms: Terms) -> list[Draft]:
    """Return the best first shares of every kind; after them those of several devices, where one alone is best."""
    found = _drafts(s, kinds, terms)
    together = [draft for draft in found if np.count_nonzero(taking(draft.units)) > 1]
    return list(dict.fromkeys(one_of_each_kind(found) + one_of_each_kind(together)))


def again(s: Setting, layers: Sequence[Configuration], terms: Terms) -> list[Configuration]:
    """Price the layers of a former solution anew, and improve the likeliest of them."""
    found = [redraft(s, layer.kind, layer.units, terms) for layer in layers]
    found.sort(key=lambda draft: draft.score)
    better = [improved(draft, terms) for draft in found[:AGAIN]]
    # Where memory has a price, what the mix is made of has to stay, good or not.
    better += found[AGAIN:] if terms.prices.any() else []
    return _fitting(s, better, terms)


def alone(s: Setting, terms: Terms) -> list[Configuration]:
    """Return a layer on every device by itself: slow links make pipelines of these the best of little memory."""
    kind, mine = kind_by_rows(s.spec.blocks), s.rows * np.eye(min(s.devices, JOINING), s.devices, dtype=np.int64)
    return _fitting(s, (redraft(s, kind, {Axis.ROWS: rows}, terms) for rows in mine), terms)


def nearby(s: Setting, layers: Sequence[Configuration], terms: Terms) -> list[Configuration]:
    """Return the best layer of each of the best kinds, at these terms, with units moved as long as that pays."""
    ordered = sorted(layers, key=terms.cost)
    drafted = [redraft(s, layer.kind, layer.units, terms) for layer in one_of_each_kind(ordered)[:NEARBY]]
    return finished(s, drafted, terms)


def one_of_each_kind(found: Iterable[Found]) -> list[Found]:
    """Return the first of every kind, by whatever route."""
    first: dict[LayerKind, Found] = {}
    for one in found:
        first.setdefault(replace(one.kind, route=Route.DIRECT, groups=1), one)
    return list(first.values())


def _drafts(s: Setting, kinds: Sequence[LayerKind], terms: Terms) -> list[Draft]:
    """Return first shares of every kind among every crew, the best first."""
    if s.devices <= MANY:
        # Of more devices than a few all pairs, and the fastest of them.
        sizes = range(1, s.devices + 1 if s.devices <= FEW else 3)
        sets = [members for size in sizes for members in combinations(range(s.devices), size)]
        if s.devices > FEW:
            sets += [tuple(order[:size]) for order in _orders(s, terms) for size in range(3, s.devices + 1)]
        crews = [np.isin(np.arange(s.devices), members) for members in sets]
        found = [draft for kind in kinds for draft in drafts(s, kind, crews, terms)]
    else:
        orders = _orders(s, terms)
        found = [draft for kind in kinds for order in orders for draft in _drafts_of_first(s, kind, order, terms)]
    return sorted(found, key=lambda draft: draft.score)


def _drafts_of_first(s: Setting, kind: LayerKind, order: NDArray[np.intp], terms: Terms) -> Iterator[Draft]:
    """Yield first shares of the first n devices, for growing n as long as that leads somewhere.

    n grows by a quarter, of very many devices by a half: of 1024 that takes a third less and loses 0.5 %.
    """
    best = np.inf
    # Among more devices the tables of the gathered input alone take two seconds.
    size, most = 1, min(s.devices, JOINING if kind.input_gathered else LARGEST)
    while True:
        found = drafts(s, kind, [np.isin(np.arange(s.devices), order[:size])], terms)
        yield from found
        score = min((draft.score for draft in found), default=np.inf)
        if score > HOPELESS * best or size == most:
            return
        best = min(best, score)
        size = min(max(size + 1, size + size // (4 if s.devices <= JOINING else 2)), most)


def _orders(s: Setting, terms: Terms) -> list[NDArray[np.intp]]:
    """Return the devices by what a share of a layer costs them, and with those first that can hold a layer."""
    rows = max(1, s.rows // 8)
    matrices = [tensor for block in s.spec.blocks for tensor in block.tensors if tensor.weight.summed is not None]
    weights = sum(math.prod(tensor.shape) for tensor in matrices)
    held_bytes = sum(tensor.held_bytes() for tensor in matrices)
    wire = 2 * s.spec.hidden * FLOAT_BYTES * rows / s.machine.network.bandwidth
    seconds = s.machine.bank.seconds(Kernel.PROJECT, rows, weights) + wire
    seconds = seconds + terms.prices * held_bytes / 8
    order, small = np.argsort(seconds, kind="stable"), terms.caps < held_bytes
    return [order, np.lexsort((seconds, small))] if small.any() else [order]


def finished(s: Setting, found: Sequence[Draft], terms: Terms) -> list[Configuration]:
    """Improve drafts."""
    return _fitting(s, sorted((improved(draft, terms) for draft in found), key=lambda draft: draft.score), terms)


def _fitting(s: Setting, found: Iterable[Draft], terms: Terms) -> list[Configuration]:
    """Return drafts as layers; without those that break a cap."""
    return [layer for draft in found if (layer := finish(draft, terms, s.devices)) is not None]
