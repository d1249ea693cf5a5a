"""The planner: candidate layers by search, their mix by the integer program, the plan that follows.

For plenty of memory the best layer is the plan, in every layer. Where it does not fit, the integer program's prices of
memory ask for layers that need less of what is scarce, until none is worth its price (column generation: Gilmore and
Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", Operations Research 9, 1961); then it chooses
whole numbers of layers. So rows turn into mixtures and these into cuts that share the weights out, as memory shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from solver import integer
from solver.cluster import Cluster
from solver.cost import price, setting, weights_room
from solver.curves import Floats, Kernel
from solver.errors import InfeasiblePlanError
from solver.exchange import Mask
from solver.kinds import KINDS, LayerKind, layer_plan
from solver.layers import Setting
from solver.model import ModelSpec
from solver.plan import Cut, Layout, Plan, Stage
from solver.search import Draft, Layer, Terms, drafts, finish, improved, neighbours, redraft
from solver.spans import Span
from solver.steps import FLOAT_BYTES

MIB = 2**20

# Kinds that are priced for every crew; the others, seldom best, only for the crew of the best of these.
_ROWS, _BLOCK, _FULL = (Cut.ROWS, Layout.ROWS), (Cut.BLOCK, Layout.ROWS), (Cut.BLOCK, Layout.FULL)
MAIN_KINDS = (
    LayerKind(*_ROWS, *_ROWS),
    LayerKind(*_BLOCK, *_ROWS),
    LayerKind(*_ROWS, *_BLOCK),
    LayerKind(*_BLOCK, *_BLOCK),
    LayerKind(*_FULL, *_FULL),
)
OTHER_KINDS = tuple(kind for kind in KINDS if kind not in MAIN_KINDS)
FINISHED = 4  # drafts that are improved
THOROUGH = 2  # of them by two moves at a time
FEW = 4  # devices, up to which all crews and moves by two are tried
ROUNDS = 12  # of column generation
KEPT = 4  # configurations beside those of the plan, for a later solve
NEIGHBOURS = 200  # that the integer program may choose besides
WORTH = 1e-4  # of a layer's seconds, saved at the current prices: what a further configuration has to bring


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A plan and how it was found.

    Parameters
    ----------
    plan
        With its prediction.
    runs
        Layers of equal shares, and how many.
    layers
        These layers and the fastest of the others; a later solve begins with them.
    prices : [p]
        Seconds that a byte more saves on every device; zero where memory does not limit.
    gap
        By how much the mix may be from the best, relative: against the linear relaxation, where memory is scarce.
    """

    plan: Plan
    runs: tuple[tuple[Layer, int], ...]
    layers: tuple[Layer, ...]
    prices: Floats
    gap: float


def solve(spec: ModelSpec, cluster: Cluster, rows: int, before: Solution | None = None) -> Solution:
    """Plan requests of `rows` rows.

    Parameters
    ----------
    spec, cluster, rows
        What is planned.
    before
        The solution for the same model and devices before a measurement changed: a solve begins with its layers, and
        is several times as fast.

    Raises
    ------
    InfeasiblePlanError
        If no plan fits, saying how much memory is missing and where.
    """
    s, room = setting(spec, cluster, rows), weights_room(spec, cluster, rows)
    # A device that lacks even what comes before weights takes no part; rank 0 has to have it.
    room[1:] = np.maximum(room[1:], 0.0)
    prices, bound_s = np.zeros(s.devices), 0.0
    if before is not None:
        found, prices = _again(s, before, room), before.prices
    else:
        found = _candidates(s, _free(s))
        if (_fastest(found).held_bytes * spec.layers > room).any():
            found, prices, bound_s = _scarce(s, room, found)
    mix = _mix(s, found, room)
    if mix.short_bytes.max() > 1:
        if before is not None:
            return solve(spec, cluster, rows)
        raise _does_not_fit(spec, cluster, mix.short_bytes + np.maximum(-weights_room(spec, cluster, rows), 0.0))
    runs = tuple((layer, count) for layer, count in zip(found, mix.layers, strict=True) if count)
    used = [layer for layer, _ in runs]
    kept = [*used, *sorted((layer for layer in found if layer not in used), key=lambda layer: layer.seconds)[:KEPT]]
    plan = _plan(s, cluster, runs)
    gap = max(mix.gap, 1 - bound_s / mix.seconds) if bound_s else mix.gap
    return Solution(replace(plan, predicted=price(s, plan).prediction), runs, tuple(kept), prices, gap)


def _mix(s: Setting, found: Sequence[Layer], room: Floats) -> integer.Mix:
    return integer.best_mix(
        [layer.seconds for layer in found], [layer.held_bytes for layer in found], room, s.spec.layers
    )


def _free(s: Setting) -> Terms:
    """Return terms under which memory costs nothing and never ends."""
    return Terms(np.zeros(s.devices), np.full(s.devices, np.inf))


def _candidates(s: Setting, terms: Terms) -> list[Layer]:
    """Return the best layers of the most promising kinds and crews."""
    if np.isfinite(terms.caps).all():
        # First shares say little about what moves within tight caps can mend: improve those of every kind.
        return _finished(s, _one_of_each_kind(_drafts(s, KINDS, _crews(s), terms)), terms)
    found = _drafts(s, MAIN_KINDS, _crews(s), terms)
    crew = np.isin(np.arange(s.devices), found[0].devices)
    found = sorted(found[:FINISHED] + _drafts(s, OTHER_KINDS, [crew], terms), key=lambda draft: draft.score)
    return _finished(s, found[:FINISHED], terms)


def _one_of_each_kind(found: Sequence[Draft]) -> list[Draft]:
    best: dict[LayerKind, Draft] = {}
    for draft in found:
        best.setdefault(draft.table.kind, draft)
    return list(best.values())


def _drafts(s: Setting, kinds: Sequence[LayerKind], crews: Sequence[Mask], terms: Terms) -> list[Draft]:
    """Return first shares of every kind among every crew, the best first."""
    found = [draft for kind in kinds for draft in drafts(s, kind, crews, terms)]
    return sorted(found, key=lambda draft: draft.score)


def _finished(s: Setting, found: Sequence[Draft], terms: Terms) -> list[Layer]:
    """Improve drafts, the best of them thoroughly."""
    better = sorted((improved(draft, terms, by_two=False) for draft in found), key=lambda draft: draft.score)
    if s.devices <= FEW:
        better[:THOROUGH] = [improved(draft, terms, by_two=True) for draft in better[:THOROUGH]]
    return [layer for draft in better if (layer := finish(draft, terms, s.devices)) is not None]


def _again(s: Setting, before: Solution, room: Floats) -> list[Layer]:
    """Price the layers of a former solution anew, and improve the likeliest."""
    terms = Terms(before.prices, np.maximum(room, 0.0)) if before.prices.any() else _free(s)
    found = sorted((redraft(s, layer, terms) for layer in before.layers), key=lambda draft: draft.score)
    found[:FINISHED] = [improved(draft, terms, by_two=False) for draft in found[:FINISHED]]
    return [layer for draft in found if (layer := finish(draft, terms, s.devices)) is not None]


def _crews(s: Setting) -> list[Mask]:
    """Return sets of devices that may share a layer: all sets of few devices, else the fastest n for some n."""
    if s.devices <= FEW:
        sets: Iterator[Sequence[int]] = (
            members for size in range(1, s.devices + 1) for members in combinations(range(s.devices), size)
        )
    else:
        order = np.argsort(_share_seconds(s), kind="stable")
        sets = (order[:size].tolist() for size in _sizes(s.devices))
    return [np.isin(np.arange(s.devices), members) for members in sets]


def _sizes(most: int) -> list[int]:
    """Return crew sizes: every one up to 8, then ever wider apart."""
    sizes = list(range(1, min(most, 8) + 1))
    while sizes[-1] < most:
        sizes.append(min(most, sizes[-1] * 5 // 4))
    return sizes


def _share_seconds(s: Setting) -> Floats:
    """Return what an eighth of a layer costs every device: its products and its K and V on the wire."""
    H, F, rows = s.spec.hidden, s.spec.ffn, max(1, s.rows // 8)
    wire = 2 * H * FLOAT_BYTES * rows / s.machine.network.bandwidth
    return np.asarray(s.machine.bank.seconds(Kernel.PROJECT, rows, 4 * H * H + 2 * H * F) + wire)


def _fastest(layers: Sequence[Layer]) -> Layer:
    return min(layers, key=lambda layer: layer.seconds)


def _scarce(s: Setting, room: Floats, found: list[Layer]) -> tuple[list[Layer], Floats, float]:
    """Return layers worth choosing from where memory is scarce, its prices, and the seconds of the relaxed mix."""
    whole = np.maximum(room, 0.0)
    found = found + _candidates(s, Terms(np.zeros(s.devices), whole / s.spec.layers))
    for _ in range(ROUNDS):
        duals = integer.prices(
            [layer.seconds for layer in found], [layer.held_bytes for layer in found], room, s.spec.layers
        )
        terms = Terms(duals.per_byte, whole)
        worth = [
            layer
            for layer in _candidates(s, terms)
            if layer.seconds + float(terms.charge(layer.held_bytes)) < duals.layer_s * (1 - WORTH)
        ]
        if not worth:
            break
        found = found + worth
    # A configuration that a better plan uses costs at most so much above its price.
    mix = _mix(s, found, room)
    limit = duals.layer_s + max(mix.seconds - duals.bound_s, 0.0)
    used = [layer for layer, count in zip(found, mix.layers, strict=True) if count]
    more = [near for layer in used for near in neighbours(s, layer, terms, limit)]
    more.sort(key=lambda layer: layer.seconds + float(terms.charge(layer.held_bytes)))
    return found + more[:NEIGHBOURS], duals.per_byte, duals.bound_s


def _plan(s: Setting, cluster: Cluster, runs: Sequence[tuple[Layer, int]]) -> Plan:
    """Lay the runs one behind the other; kinds that leave the stream in rows stand together."""
    ordered = sorted(runs, key=lambda run: (run[0].kind.mlp_norm, str(run[0].kind)))
    spans, start = [], 0
    for layer, count in ordered:
        spans.append((Span(start, start + count), layer_plan(s, layer.kind, layer.units)))
        start += count
    return Plan(
        (Stage(cluster.names, tuple(spans)),),
        model_name=s.spec.name,
        model_fingerprint=s.spec.fingerprint,
        cluster_fingerprint=cluster.fingerprint,
        system="hepti",
        rows=s.rows,
    )


def _does_not_fit(spec: ModelSpec, cluster: Cluster, short_bytes: Floats) -> InfeasiblePlanError:
    missing = [
        f"{math.ceil(lacks / MIB)} MiB more on {device.name} (has {device.memory_bytes // MIB})"
        for device, lacks in zip(cluster.devices, short_bytes, strict=True)
        if lacks > 1
    ]
    total = math.ceil(short_bytes.sum() / MIB)
    return InfeasiblePlanError(f"{spec.name} does not fit: {total} MiB short; it would with {' and '.join(missing)}")
