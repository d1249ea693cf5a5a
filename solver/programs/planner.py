"""The planner: candidate layers, the integer program's mix of them, the plan, and the convex program's bound.

What a layer costs is its part of a whole request, with what stands before the first layer and behind the last. For
plenty of memory the best layer is the plan, in every layer, with the tiles and routes that are best for it. Where it
does not fit, the integer program's prices of memory ask for layers that need less of what is scarce, until none is
worth its price (column generation: Gilmore and Gomory, "A Linear Programming Approach to the Cutting-Stock Problem",
Operations Research 9, 1961); then it chooses whole numbers of layers. So rows turn into mixtures and these into cuts
that share the weights out, as memory shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.blocks import Axis, Cut
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, Stage, StreamLayout, Wire
from solver.plan.routes import Route
from solver.programs import integer
from solver.programs.candidates import again, alone, candidates, finished, nearby, one_of_each_kind
from solver.programs.polish import Runs, polished
from solver.programs.search import (
    JOINING,
    MANY,
    Configuration,
    Terms,
    few_shares,
    lighter,
    neighbours,
    redraft,
    undominated,
)
from solver.programs.tiles_and_routes import TILE_ROWS, best_sent
from solver.schedule.encoders.cost import alike_seconds, price, request_seconds, setting
from solver.schedule.encoders.layer_table import (
    Units,
    kind_by_rows,
    layer_cuts,
    layer_kinds,
    layer_plan,
    layer_seconds,
    layer_table,
    over_all,
    taking,
    with_root,
)
from solver.schedule.encoders.memory import SLIP_BYTES, does_not_fit, packing, weights_room
from solver.schedule.encoders.placing import LayerCuts
from solver.schedule.encoders.setting import Setting

if TYPE_CHECKING:
    from solver.programs.convex import Relaxed

ROUNDS = 12  # of column generation
WORTH = 1e-4  # of a layer's seconds: what a further configuration has to save at the current prices
NEIGHBOURS = 60  # configurations near those used that the integer program may choose besides
GAP_SHORT = 1e-2  # of what is missing; to the last MiB takes seconds
SENT = 2  # of the best layers: they get the tiles and routes that are best for them
GROUPS = (2, 4)  # of heads, whose contexts are on their way beside the next ones
KEPT = 4  # configurations of other kinds than those of the plan, for a later solve
# How much slower than the fastest a kind may be by tables that clocks are asked for, and of how many others: of 333
# plans by all systems clocks say 0.987 of it in the mean.
NEAR, OTHERS = 1.05, 3
POLISHED = 2  # kinds


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A plan and how it was found.

    Parameters
    ----------
    plan
        With its prediction.
    runs
        Layers of equal shares, and how many, the most first.
    layers, kinds
        These layers and the fastest of some other kinds, with which a later solve begins; the fastest of every kind.
    prices : [p]
        Seconds that a byte more saves on every device, of float32 weights; zero where memory does not limit.
    best, setting, terms
        The layer that is best at these prices, and what its convex program is for.
    steps_s
        Seconds of the plan's layers as tables count them, in steps that all devices end together.
    mix_s, mix_bound_s
        Seconds of the integer program's mix, so counted, without what was made of it, and those of the relaxed mix
        where memory is scarce, else 0.
    """

    plan: Plan
    runs: tuple[tuple[Configuration, int], ...]
    layers: tuple[Configuration, ...]
    kinds: tuple[Configuration, ...]
    prices: Floats
    best: Configuration
    setting: Setting
    terms: Terms
    steps_s: float
    mix_s: float
    mix_bound_s: float

    @property
    def relaxed(self) -> Relaxed:
        """The convex program for the cuts and devices of the best layer, of all ranks; solved when first asked for."""
        return relaxed(self.setting, self.best, self.terms)

    @property
    def crew(self) -> tuple[int, ...]:
        """Ranks of the devices of the best layer."""
        return self.best.crew

    @property
    def gap(self) -> float:
        """By how much the plan may be from the bound, relative: both as tables count."""
        return max(0.0, 1 - self.bound_s / self.steps_s)

    @property
    def bound_s(self) -> float:
        """Seconds of the relaxed mix where memory is scarce, else of fractional shares for its cuts and devices."""
        return self.mix_bound_s or self.relaxed.seconds * self.setting.spec.layers


def solve(
    spec: ModelSpec, cluster: Cluster, rows: int, before: Solution | None = None, wire: Wire = Wire.FLOAT32
) -> Solution:
    """Plan requests of `rows` rows.

    Parameters
    ----------
    spec, cluster, rows
        What is planned.
    before
        The solution for the same model and devices before a measurement changed: a solve begins with its layers, and
        is several times as fast. Its gap is against what it began with.
    wire
        The number format of exchanges.

    Raises
    ------
    InfeasiblePlanError
        If no plan fits, saying how much memory is missing and where; if the wire is for stages only.
    """
    wire.check_one_stage()
    if spec.groups:
        raise InfeasiblePlanError(
            f"{spec.name} has decoupled layers: hepti has no plan for them, --system detransformer has"
        )
    tile_rows = 0 if before is None else before.plan.tile_rows
    s, room = setting(spec, cluster, rows, wire, tile_rows), weights_room(spec, cluster, rows)
    lacking = np.maximum(-room, 0.0)
    # A device that lacks even what comes before weights takes no part, not by rows without weights either; rank 0 has
    # to have it.
    room[1:] = np.maximum(room[1:], 0.0)
    out = np.arange(s.devices) * lacking > SLIP_BYTES
    prices, mix_bound_s = np.zeros(s.devices), 0.0
    if before is None:
        found = candidates(s, Terms(prices, np.full(s.devices, np.inf)))
        fastest = min(found, key=lambda layer: layer.seconds)
        if (fastest.held_bytes * spec.layers > room).any():
            searched = found + candidates(s, Terms(prices, np.maximum(room, 0.0) / spec.layers))
            found, prices, mix_bound_s = _scarce(s, room, searched)
        else:
            searched = found
            s, found = _sent_best(s, found, np.full(s.devices, np.inf))
            found += alone(s, _terms(prices, room))
    else:
        prices = before.prices
        searched = found = again(s, before.layers, _terms(prices, room))
    able = [layer for layer in found if not taking(layer.units)[out].any()]
    if before is not None and not able:  # none of them fits any more
        return solve(spec, cluster, rows, wire=wire)
    every = able or found  # where there is none, the others say what is missing
    found = _undominated(every)
    terms = _terms(prices, room)
    best = min(found, key=terms.cost)
    # Beyond every plan's seconds the relaxed mix lacks memory: nothing fits, and what is missing needs no last MiB.
    short = mix_bound_s > spec.layers * max(layer.seconds for layer in found)
    mix = _mix(s, found, room, GAP_SHORT if short else integer.GAP)
    if mix.short_bytes.max() > SLIP_BYTES:
        if before is not None:
            return solve(spec, cluster, rows, wire=wire)
        short_bytes = mix.short_bytes + np.where(mix.short_bytes > SLIP_BYTES, lacking, 0.0)
        raise does_not_fit(spec.name, cluster, short_bytes / packing(spec, cluster))
    if not able:
        raise does_not_fit(spec.name, cluster, lacking / packing(spec, cluster))
    runs = _runs(found, mix)
    fresh = before is None and s.devices <= JOINING
    ways = [*([_sent(s, runs)] if fresh else []), (s, runs)]
    if not mix_bound_s:
        ways += [(s, some) for some in _of_other_kinds(s, every, room, runs)]
        ways += _by_itself(s, every, room) if fresh else ()
    elif before is None:
        # What layers cost among unlike ones may be more than among their like.
        by_rows = _undominated(_mixable(every)) if len(runs) > 1 else []
        if by_rows and (mix_by_rows := _mix(s, by_rows, room, GAP_SHORT)).short_bytes.max() <= SLIP_BYTES:
            runs = _runs(by_rows, mix_by_rows)
            ways += [_sent(s, runs), (s, runs)]
        ways += _uniform(s, searched, room)
    s, runs = _polished(cluster, ways, room, POLISHED if before is None else 1)
    if fresh and not mix_bound_s:
        s, runs = _fastest_way(cluster, [(replace(s, tile_rows=tile_rows), runs) for tile_rows in TILE_ROWS])
    runs = [(replace(one, seconds=float(layer_seconds(s, one.kind, one.units))), often) for one, often in runs]
    best = best if mix_bound_s else runs[0][0]
    plan = _plan(s, cluster, runs)
    plan = replace(plan, predicted=price(s, plan).prediction)
    used = [layer for layer, _ in runs]
    others = sorted(every, key=lambda layer: layer.seconds)
    unlike = [layer for layer in one_of_each_kind(used + others) if layer not in used]
    kinds = one_of_each_kind(sorted((*every, *searched), key=lambda layer: layer.seconds))
    layers = (*used, *unlike[:KEPT])
    steps_s = math.fsum(often * layer.seconds for layer, often in runs)
    return Solution(plan, tuple(runs), layers, tuple(kinds), prices, best, s, terms, steps_s, mix.seconds, mix_bound_s)


def _undominated(layers: Sequence[Configuration]) -> list[Configuration]:
    """Return the layers of which no other is as fast and as light; of equal ones that most by rows: it may change."""

    def rank(layer: Configuration) -> int:
        return sum((norm is not StreamLayout.ROWS) + (cut is not Cut.ROWS) for cut, norm in layer.kind.cuts)

    ordered = sorted(layers, key=lambda layer: (float(f"{layer.seconds:.9g}"), rank(layer)))
    return [ordered[number] for number in lighter(range(len(ordered)), np.array([one.held_bytes for one in ordered]))]


def _runs(found: Sequence[Configuration], mix: integer.Mix) -> Runs:
    """Return the layers of a mix, and how many of each, the most first."""
    runs = [(layer, count) for layer, count in zip(found, mix.layers, strict=True) if count]
    return sorted(runs, key=lambda run: -run[1])


def best_plan_of(s: Setting, cluster: Cluster, runs: Runs) -> Plan:
    """Return the plan of some runs; also with other tiles and routes, if devices are few."""
    best, some = _fastest_way(cluster, [*([_sent(s, runs)] if s.devices <= JOINING else []), (s, runs)])
    plan = _plan(best, cluster, some)
    return replace(plan, predicted=price(best, plan).prediction)


def _polished(cluster: Cluster, ways: Sequence[tuple[Setting, Runs]], room: Floats, most: int) -> tuple[Setting, Runs]:
    """Return the best of so many ways of unlike kinds, the fastest first, after a polish."""
    unlike = dict[object, tuple[Setting, Runs]]()
    for _, s, runs in sorted(_timed(cluster, ways), key=lambda way: way[0]):
        unlike.setdefault(tuple(layer.kind.cuts for layer, _ in runs), (s, runs))
    some = list(unlike.values())[:most]
    better = [(s, polished(s, runs, partial(_alike_seconds, s, cluster), room)) for s, runs in some]
    # What is gathered is projected as shares say, and a polish does not ask that.
    return _fastest_way(cluster, [*better, *(way for way in some[:1] if way[1] is not better[0][1])])


def _fastest_way(cluster: Cluster, ways: Sequence[tuple[Setting, Runs]]) -> tuple[Setting, Runs]:
    """Return the layers that make the fastest plan by the clocks of ranks, with their setting."""
    if len(ways) == 1:
        return ways[0]
    _, s, runs = min(_timed(cluster, ways), key=lambda way: way[0])
    return s, runs


def _timed(cluster: Cluster, ways: Iterable[tuple[Setting, Runs]]) -> Iterator[tuple[float, Setting, Runs]]:
    """Yield ways with their seconds by the clocks of ranks."""
    return ((request_seconds(s, _plan(s, cluster, runs)), s, runs) for s, runs in ways)


def _alike_seconds(s: Setting, cluster: Cluster, runs: Runs, number: int, units: Units) -> Floats:
    """Return the seconds of a request where a run of layers has any of these shares, [n, p], and others have theirs."""
    plan, ordered = _plan(s, cluster, runs), _ordered(runs)
    count = len(next(iter(units.values())))

    def shares(layer: Configuration) -> Units:
        if layer is runs[number][0]:
            return units
        return {axis: np.repeat(counts[None], count, 0) for axis, counts in layer.units.items()}

    def cuts(crew: Sequence[int]) -> list[LayerCuts]:
        (stage,) = plan.stages
        every = zip(stage.layers, ordered, strict=True)
        return [layer_cuts(s, own, shares(layer), crew) for (_, own), (layer, _) in every]

    return alike_seconds(s, plan, cuts)


def _of_other_kinds(s: Setting, layers: Sequence[Configuration], room: Floats, runs: Runs) -> Iterator[Runs]:
    """Yield equal layers of the kinds that tables count nearly as fast: by clocks one of them may be faster."""
    ordered = sorted(layers, key=lambda layer: layer.seconds)
    used = {layer.kind for layer, _ in runs}
    near = [one for one in one_of_each_kind(ordered) if one.seconds <= NEAR * ordered[0].seconds]
    for layer in near[: OTHERS + 1]:
        if layer.kind not in used and (s.spec.layers * layer.held_bytes <= room).all():
            yield [(layer, s.spec.layers)]


def _by_itself(s: Setting, layers: Sequence[Configuration], room: Floats) -> Iterator[tuple[Setting, Runs]]:
    """Yield the ways of the fastest device alone that is nearly as fast: rows come to it, and leave it, in tiles."""
    limit_s = NEAR * min(layer.seconds for layer in layers)
    alone = [one for one in layers if len(one.crew) == 1 and one.kind == kind_by_rows(s.spec.blocks)]
    for layer in sorted(alone, key=lambda layer: layer.seconds)[:1]:
        if layer.seconds <= limit_s and (s.spec.layers * layer.held_bytes <= room).all():
            runs = [(layer, s.spec.layers)]
            yield from ((replace(s, tile_rows=tile_rows), runs) for tile_rows in TILE_ROWS)


def _sent_best(s: Setting, found: Sequence[Configuration], caps: Floats) -> tuple[Setting, list[Configuration]]:
    """Return the tiles that are best for the best layers, and these with all routes; improved for each of them."""
    terms = Terms(np.zeros(s.devices), caps)
    best = _fastest(found) + _fastest(alone(s, terms))[:1]

    def tiled(tile_rows: int) -> tuple[Setting, list[Configuration]]:
        other = replace(s, tile_rows=tile_rows)
        return other, finished(other, [redraft(other, layer.kind, layer.units, terms) for layer in best], terms)

    # Who has fewer rows than one tile and a half sends them in one.
    most = max(int(layer.units.get(Axis.ROWS, np.zeros(1)).max()) for layer in best)
    if s.devices > MANY:  # to improve shares for every size takes seconds
        sizes = list({best_sent(s, layer.kind, layer.units)[0] for layer in best})
    else:
        sizes = [tile_rows for tile_rows in TILE_ROWS if 1.5 * tile_rows <= most]
    s, layers = min(map(tiled, sizes), key=lambda one: _fastest(one[1])[0].seconds)
    fastest = _fastest(layers)[0]
    kinds = [replace(fastest.kind, groups=groups) for groups in GROUPS if fastest.kind.sends_inner]
    if np.count_nonzero(taking(fastest.units)) > 2:
        kinds += [replace(fastest.kind, route=route) for route in (Route.RING, Route.RELAY)]
    layers += finished(s, [redraft(s, kind, fastest.units, terms) for kind in kinds], terms)
    return s, layers


def _fastest(layers: Sequence[Configuration]) -> list[Configuration]:
    return sorted(layers, key=lambda layer: layer.seconds)[:SENT]


def _uniform(s: Setting, found: Sequence[Configuration], room: Floats) -> list[tuple[Setting, Runs]]:
    """Return the best equal layers where memory is scarce, with their own tiles, if some fit.

    Tiles change what a mix costs by up to a fifth, but a mix is chosen without.
    """
    caps = np.maximum(room, 0.0) / s.spec.layers
    fitting = [layer for layer in found if (layer.held_bytes <= caps).all()]
    if not fitting:
        return []
    s, layers = _sent_best(s, one_of_each_kind(sorted(fitting, key=lambda layer: layer.seconds)), caps)
    return [(s, [(min(layers, key=lambda layer: layer.seconds), s.spec.layers)])]


def _sent(s: Setting, runs: Runs) -> tuple[Setting, Runs]:
    """Return runs with the tiles and the route that are best for the longest of them."""
    longest, _ = runs[0]
    tile_rows, kind, _ = best_sent(s, longest.kind, longest.units)
    routed = [(replace(layer, kind=replace(layer.kind, route=kind.route)), often) for layer, often in runs]
    return replace(s, tile_rows=tile_rows), routed


def _terms(prices: Floats, room: Floats) -> Terms:
    """Return what memory costs: nothing, and without end, where it has no price."""
    return Terms(prices, np.maximum(room, 0.0) if prices.any() else np.full(room.size, np.inf))


def _mix(s: Setting, found: Sequence[Configuration], room: Floats, gap: float) -> integer.Mix:
    seconds, held = [layer.seconds for layer in found], [layer.held_bytes for layer in found]
    return integer.best_mix(seconds, held, room, s.spec.layers, gap)


def _prices(s: Setting, found: Sequence[Configuration], room: Floats) -> integer.Prices:
    seconds, held = [layer.seconds for layer in found], [layer.held_bytes for layer in found]
    return integer.prices(seconds, held, room, s.spec.layers)


@lru_cache(maxsize=8)
def relaxed(s: Setting, layer: Configuration, terms: Terms) -> Relaxed:
    """Solve the convex program for the cuts and devices of a layer; arrays are of all ranks.

    Raises
    ------
    InfeasiblePlanError
        If the caps of the terms leave no solution.
    """
    # Imports cvxpy, which takes a second: for those who plan, not for those who read.
    from solver.programs.convex import Relaxed, relax

    devices = with_root(taking(layer.units))
    takes = {axis: counts[devices] > 0 for axis, counts in layer.units.items()}
    rows = layer.units.get(Axis.ROWS, np.zeros(1, np.int64))
    table, least_rows = layer_table(s.only(devices), layer.kind), 2 if rows[rows > 0].min(initial=2) >= 2 else 1
    found = relax(table, takes, terms.only(devices), least_rows)

    def of_all(values: Floats) -> Floats:
        return over_all(values, devices, s.devices)

    worth = (of_all(values) for values in (found.per_byte, found.by_speed, found.by_link))
    return Relaxed(found.seconds, {axis: of_all(shares) for axis, shares in found.units.items()}, *worth)


def _scarce(s: Setting, room: Floats, found: list[Configuration]) -> tuple[list[Configuration], Floats, float]:
    """Return layers worth choosing from where memory is scarce, its prices, and the seconds of the relaxed mix."""
    whole = np.maximum(room, 0.0)
    if few_shares(s, kinds := layer_kinds(s.spec.blocks)):
        found = found + [layer for kind in kinds for layer in undominated(s, kind, whole)]
        duals = _prices(s, found, room)
        return found, duals.per_byte, duals.bound_s
    free = np.zeros(s.devices)
    found = found + alone(s, Terms(free, whole))
    for _ in range(ROUNDS):
        duals = _prices(s, found, room)
        terms = Terms(duals.per_byte, whole)
        limit = duals.layer_s * (1 - WORTH)
        # From what there is improved first: starts of all crews take longer, and seldom lead further.
        worth = _below(nearby(s, found, terms), terms, limit) or _below(candidates(s, terms), terms, limit)
        if not worth:
            break
        found = found + worth
    used = [layer for layer, count in zip(found, duals.layers, strict=False) if count > 0]
    more = [near for layer in used for near in neighbours(s, layer, terms, NEIGHBOURS)]
    more.sort(key=terms.cost)
    found = found + more[:NEIGHBOURS]
    return found, duals.per_byte, _prices(s, found, room).bound_s


def _mixable(layers: Sequence[Configuration]) -> list[Configuration]:
    """Return the layers that cost among any others what they cost among their like.

    A norm on full is computed by all who take part in any layer, and needs what comes to it.
    """
    return [layer for layer in layers if all(norm is StreamLayout.ROWS for _, norm in layer.kind.cuts)]


def _below(layers: Sequence[Configuration], terms: Terms, limit: float) -> list[Configuration]:
    """Return the layers whose seconds and charges are less than `limit`."""
    return [layer for layer in layers if terms.cost(layer) < limit]


def _ordered(runs: Runs) -> Runs:
    """Return the runs so that kinds that leave the stream in rows stand together."""
    return sorted(runs, key=lambda run: (run[0].kind.ends_by_rows, str(run[0].kind)))


def _plan(s: Setting, cluster: Cluster, runs: Runs) -> Plan:
    """Lay the runs one after the other."""
    spans, start = [], 0
    for layer, count in _ordered(runs):
        spans.append((Span(start, start + count), layer_plan(s, layer.kind, layer.units)))
        start += count
    return Plan(
        (Stage(cluster.names, tuple(spans)),),
        model_name=s.spec.name,
        model_fingerprint=s.spec.fingerprint,
        cluster_fingerprint=cluster.fingerprint,
        system="hepti",
        rows=s.rows,
        tile_rows=s.tile_rows,
        wire=s.wire,
    )
