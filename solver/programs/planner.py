"""The planner: candidate layers, the program of shares, the integer program's mix of layers, and the plan.

What a layer costs is its part of a whole request, with what stands before the first layer and after the last. For
plenty of memory one layer is the plan, in every layer: of the kinds that tables count nearly as fast as the fastest,
programs decide the shares by the clocks of ranks, and the best are polished; with the tiles and routes that are best.
Where the fastest layer does not fit, the integer program's prices of memory ask for layers that need less of what is
scarce, until none is worth its price (column generation: Gilmore and Gomory, "A Linear Programming Approach to the
Cutting-Stock Problem", Operations Research 9, 1961); then it chooses whole numbers of layers. So rows turn into
mixtures and these into cuts that share the weights out, as memory shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

import numpy as np

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.blocks import Axis, Cut
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, StreamLayout, Wire
from solver.plan.routes import Route
from solver.programs import integer
from solver.programs.candidates import again, alone, candidates, finished, nearby, one_of_each_kind
from solver.programs.layers import PartedRun, Room, polished_runs, program_of
from solver.programs.polish import by_program, with_other_crew
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
from solver.programs.shares import FoundShares
from solver.programs.tiles_and_routes import TILE_ROWS, Runs, best_sent, plan_of
from solver.schedule.encoders.cost import price, request_seconds, setting
from solver.schedule.encoders.layer_table import (
    kind_by_rows,
    layer_kinds,
    layer_seconds,
    taking,
)
from solver.schedule.encoders.memory import packing, weights_room
from solver.schedule.encoders.setting import Setting
from solver.schedule.shortage import SLIP_BYTES, does_not_fit

ROUNDS = 12  # of column generation
WORTH = 1e-4  # of a layer's seconds: what a further configuration has to save at the current prices
NEIGHBOURS = 60  # configurations near those used that the integer program may choose besides
GAP_SHORT = 1e-2  # of what is missing; to the last MiB takes seconds
SENT = 2  # of the best layers: they get the tiles and routes that are best for them
GROUPS = (2, 4)  # of heads, whose contexts are on their way beside the next ones
KEPT = 4  # configurations of other kinds than those of the plan, for a later solve


@dataclass(frozen=True, slots=True)
class Tries:
    """How much of what may lead to a better plan is tried.

    Parameters
    ----------
    near, programs
        How much slower than the fastest a kind may be by tables that a program is solved for, and how many kinds.
    close, polished
        How much slower than the fastest shares of programs may be that are polished, and how many.
    """

    near: float
    programs: int
    close: float
    polished: int


# What clocks say of a plan is 0.845 to 1.005 of what tables say. Of 48 random clusters 3 have a better plan by twelve
# kinds than by five, by 4 % at the most, for a sixth more CPU time. Of 60 none has one by polishing a kind that is more
# than 6 % slower.
USUALLY = Tries(1.15, 12, 1.06, 2)
THOROUGHLY = Tries(2.0, 99, 1.3, 99)

TimedWay = tuple[float, Setting, Runs]  # seconds of a request, how it is sent, layers


@dataclass(frozen=True, eq=False)
class Solution:
    """A plan and how it was found.

    Parameters
    ----------
    plan
        With its prediction.
    runs
        Layers of equal shares, and how many, the most first.
    layers, kinds
        These layers and the fastest of some other kinds, with which a later solve begins; of every kind the fastest:
        first those that programs have made, by clocks, then as tables count.
    prices : [p]
        Seconds that a byte more saves on every device, of float32 weights; zero where memory does not limit.
    best, setting, terms
        The layer that is best at these prices, and what its program of shares is for.
    mix_bound_s
        Seconds of the relaxed mix where memory is scarce, by tables, else 0.
    """

    plan: Plan
    runs: tuple[tuple[Configuration, int], ...]
    layers: tuple[Configuration, ...]
    kinds: tuple[Configuration, ...]
    prices: Floats
    best: Configuration
    setting: Setting
    terms: Terms
    mix_bound_s: float

    @cached_property
    def relaxed(self) -> FoundShares:
        """What the program of shares finds around the best layer, of a request of its like, in fractions of units."""
        found = relaxed(self.setting, self.best, self.terms)
        assert found is not None, "the layer itself fulfils it"
        return found

    @property
    def gap(self) -> float:
        """What it costs that units are whole, relative; where memory is scarce, that layers are, as tables count."""
        if self.mix_bound_s:
            return max(0.0, 1 - self.mix_bound_s / math.fsum(often * layer.seconds for layer, often in self.runs))
        return max(0.0, 1 - self.relaxed.seconds / self.plan.predicted_s)

    @property
    def crew(self) -> tuple[int, ...]:
        """Ranks of the devices of the best layer."""
        return self.best.crew


def solve(
    spec: ModelSpec, cluster: Cluster, rows: int, before: Solution | None = None, wire: Wire = Wire.FLOAT32,
    *, tries: Tries = USUALLY,
) -> Solution:  # fmt: skip
    """Plan requests of `rows` rows.

    Parameters
    ----------
    spec, cluster, rows
        What is planned.
    before
        The solution for the same model and devices before a measurement changed: a solve begins with its layers, and
        is several times as fast.
    wire
        The number format of exchanges.
    tries
        How much is tried.

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
    prices, mix_bound_s, first = np.zeros(s.devices), 0.0, s
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
        return solve(spec, cluster, rows, wire=wire, tries=tries)
    every = able or found  # where there is none, the others say what is missing
    found = _undominated(every)
    terms = _terms(prices, room)
    best = min(found, key=terms.cost)
    # Beyond every plan's seconds the relaxed mix lacks memory: nothing fits, and what is missing needs no last MiB.
    short = mix_bound_s > spec.layers * max(layer.seconds for layer in found)
    mix = _mix(s, found, room, GAP_SHORT if short else integer.GAP)
    if mix.short_bytes.max() > SLIP_BYTES:
        if before is not None:
            return solve(spec, cluster, rows, wire=wire, tries=tries)
        short_bytes = mix.short_bytes + np.where(mix.short_bytes > SLIP_BYTES, lacking, 0.0)
        raise does_not_fit(spec.name, cluster, short_bytes / packing(spec, cluster))
    if not able:
        raise does_not_fit(spec.name, cluster, lacking / packing(spec, cluster))
    runs = _runs(found, mix)
    fresh = before is None and s.devices <= JOINING
    ways = [*([_sent(s, runs)] if fresh else []), (s, runs)]
    if not mix_bound_s:
        near = [(first, some) for some in _of_other_kinds(first, searched, room, runs, tries)]
        ways += near if before is None else near[:1]
    elif before is None:
        # What layers cost among unlike ones may be more than among their like.
        by_rows = _undominated(_mixable(every)) if len(runs) > 1 else []
        if by_rows and (mix_by_rows := _mix(s, by_rows, room, GAP_SHORT)).short_bytes.max() <= SLIP_BYTES:
            runs = _runs(by_rows, mix_by_rows)
            ways += [_sent(s, runs), (s, runs)]
        ways += _uniform(s, searched, room)
    ways += _by_itself(s, every, room, tries) if fresh else ()
    if before is not None and _have_room(before.runs, Room(room, ~out)):
        ways.append((s, [*before.runs]))  # what tables have improved may be slower by clocks
    s, runs, better = _bettered(ways, Room(room, ~out), tries, anew=before is None)
    if fresh:
        ways = [(replace(s, tile_rows=tile_rows), runs) for tile_rows in TILE_ROWS]
        s, runs = _fastest_way([*ways, *((s, some) for some in _in_groups(runs))])
    runs = [(replace(one, seconds=float(layer_seconds(s, one.kind, one.units))), often) for one, often in runs]
    best = best if mix_bound_s else runs[0][0]
    plan = plan_of(s, runs, cluster)
    plan = replace(plan, predicted=price(s, plan).prediction)
    used = [layer for layer, _ in runs]
    others = sorted(every, key=lambda layer: layer.seconds)
    unlike = [layer for layer in one_of_each_kind(used + others) if layer not in used]
    kinds = one_of_each_kind([*better, *sorted((*every, *searched), key=lambda layer: layer.seconds)])
    layers = (*used, *unlike[:KEPT])
    return Solution(plan, tuple(runs), layers, tuple(kinds), prices, best, s, terms, mix_bound_s)


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
    best, some = _fastest_way([*([_sent(s, runs)] if s.devices <= JOINING else []), (s, runs)])
    plan = plan_of(best, some, cluster)
    return replace(plan, predicted=price(best, plan).prediction)


def _bettered(
    ways: Sequence[tuple[Setting, Runs]], room: Room, tries: Tries, *, anew: bool
) -> tuple[Setting, Runs, list[Configuration]]:
    """Return the best of ways of unlike kinds: programs better equal layers, then the best are polished.

    Also return the layers that programs have made, the best first.
    """
    unlike = dict[object, TimedWay]()
    for way in sorted(_timed(ways), key=itemgetter(0)):
        unlike.setdefault(tuple(layer.kind.cuts for layer, _ in way[2]), way)
    found, limit_s = list[TimedWay](), min(unlike.values(), key=itemgetter(0))[0]
    for way in [*unlike.values()][: tries.programs if anew else 1]:
        found.append(_by_program(way, room, limit_s, anew=anew))
        limit_s = min(limit_s, found[-1][0])
    found.sort(key=itemgetter(0))
    several = anew and found[0][1].devices <= MANY
    best = [own for own in found[: tries.polished if several else 1] if own[0] <= tries.close * found[0][0]]
    # One device alone is priced a little otherwise among others: what is polished may be no better.
    done = [(own, polished_runs(own, some, room)) for _, own, some in best]
    s, runs = _fastest_way([*done, best[0][1:]])
    return s, runs, [layer for _, _, some in found for layer, _ in some]


def _by_program(way: TimedWay, room: Room, limit_s: float, *, anew: bool) -> TimedWay:
    """Return equal layers with the shares that the program finds for their devices; of many devices those given.

    Where even fractions of units take longer than the limit, whole ones are not looked for. Anew, who takes part may
    change, and few units stay whole in the program; else they are rounded.
    """
    _, s, runs = way
    (layer, often), *others = runs
    if others or s.devices > MANY or (len(layer.crew) == 1 and not anew):
        return way
    parted = PartedRun(s, runs, 0, room)
    if anew:
        ((layer, _),) = parted.with_units(with_other_crew(parted, parted.units))
        if len(layer.crew) == 1 < len(runs[0][0].crew):  # whatever its kind was, by rows it may be tiled
            (rank,) = layer.crew
            alone = {Axis.ROWS: s.rows * np.eye(s.devices, dtype=np.int64)[rank]}
            layer = replace(layer, kind=kind_by_rows(s.spec.blocks), units=alone)
        parted = PartedRun(s, [(layer, often)], 0, room)
    seconds, units = by_program(parted, parted.units, limit_s, whole=anew)
    return seconds, s, parted.with_units(units)


def _fastest_way(ways: Sequence[tuple[Setting, Runs]]) -> tuple[Setting, Runs]:
    """Return the layers that make the fastest plan by the clocks of ranks, with their setting."""
    if len(ways) == 1:
        return ways[0]
    _, s, runs = min(_timed(ways), key=itemgetter(0))
    return s, runs


def _timed(ways: Iterable[tuple[Setting, Runs]]) -> Iterator[TimedWay]:
    """Yield ways with their seconds by the clocks of ranks."""
    return ((request_seconds(s, plan_of(s, runs)), s, runs) for s, runs in ways)


def _of_other_kinds(
    s: Setting, layers: Sequence[Configuration], room: Floats, runs: Runs, tries: Tries
) -> Iterator[Runs]:
    """Yield equal layers of the kinds that tables count nearly as fast: one may be faster, one device may be joined."""
    ordered = sorted(layers, key=lambda layer: layer.seconds)
    used = {layer.kind for layer, _ in runs}
    near = [one for one in one_of_each_kind(ordered) if one.seconds <= tries.near * ordered[0].seconds]
    for layer in _fitting(s, near[: tries.programs], room):
        if layer.kind not in used:
            yield [(layer, s.spec.layers)]


def _by_itself(
    s: Setting, layers: Sequence[Configuration], room: Floats, tries: Tries
) -> Iterator[tuple[Setting, Runs]]:
    """Yield the ways of the fastest device alone that is nearly as fast: rows come to it, and leave it, in tiles."""
    fitting = sorted(_fitting(s, layers, room), key=lambda layer: layer.seconds)
    alone = [one for one in fitting if len(one.crew) == 1 and one.kind == kind_by_rows(s.spec.blocks)]
    for layer in alone[:1]:
        if layer.seconds <= tries.near * fitting[0].seconds:
            runs = [(layer, s.spec.layers)]
            yield from ((replace(s, tile_rows=tile_rows), runs) for tile_rows in TILE_ROWS)


def _have_room(runs: Iterable[tuple[Configuration, int]], room: Room) -> bool:
    """Return whether devices can have these layers."""
    held = sum(often * layer.held_bytes for layer, often in runs)
    return all(bool(room.fits(layer.units, np.asarray(held))) for layer, _ in runs)


def _fitting(s: Setting, layers: Iterable[Configuration], room: Floats) -> list[Configuration]:
    """Return the layers that devices have room for in all layers."""
    return [layer for layer in layers if (s.spec.layers * layer.held_bytes <= room).all()]


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
    if not (fitting := _fitting(s, found, room)):
        return []
    s, layers = _sent_best(s, one_of_each_kind(sorted(fitting, key=lambda layer: layer.seconds)), caps)
    return [(s, [(min(layers, key=lambda layer: layer.seconds), s.spec.layers)])]


def _in_groups(runs: Runs) -> Iterator[Runs]:
    """Yield runs whose contexts go in other groups of heads."""
    if any(layer.kind.sends_inner for layer, _ in runs):
        for groups in (1, *GROUPS):
            yield [(replace(layer, kind=replace(layer.kind, groups=groups)), often) for layer, often in runs]


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


def relaxed(s: Setting, layer: Configuration, terms: Terms) -> FoundShares | None:
    """Return what the program of shares finds around a layer, in fractions of units; None where memory allows none.

    Of a request all of whose layers are like it; arrays are of all ranks.
    """
    found = program_of(s, layer, terms).solve()
    return found if found is not None and found.fits else None


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
