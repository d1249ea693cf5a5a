"""The planner: candidate layers, the convex program's shares and bound, the integer program's mix, the plan.

For plenty of memory the best layer is the plan, in every layer. Where it does not fit, the integer program's prices of
memory ask for layers that need less of what is scarce, until none is worth its price (column generation: Gilmore and
Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", Operations Research 9, 1961); then it chooses
whole numbers of layers. So rows turn into mixtures and these into cuts that share the weights out, as memory shrinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.blocks import Axis
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, Stage, Wire
from solver.plan.spans import Span, largest_remainder
from solver.programs import integer
from solver.programs.candidates import FEW, again, alone, candidates, finished, nearby, one_of_each_kind
from solver.programs.search import (
    JOINING,
    Configuration,
    Terms,
    few_shares,
    finish,
    improved,
    neighbours,
    redraft,
    undominated,
)
from solver.programs.tiles_and_routes import best_sending, best_sent, sent
from solver.schedule.cost import plan_seconds, price, setting
from solver.schedule.layer_table import kind_by_rows, layer_kinds, layer_plan, layer_seconds, layer_table, taking
from solver.schedule.memory import SLIP_BYTES, does_not_fit, packing, weights_room
from solver.schedule.setting import Setting

if TYPE_CHECKING:
    from solver.programs.convex import Relaxed

ROUNDS = 12  # of column generation
WORTH = 1e-4  # of a layer's seconds: what a further configuration has to save at the current prices
NEIGHBOURS = 60  # configurations near those used that the integer program may choose besides
GAP_SHORT = 1e-2  # of what is missing; to the last MiB takes seconds
CLOSE = 1.2  # layers that take at most so many times the seconds of the best one: their plans are priced whole, too
WITH_ENDS = 8  # the fastest of those layers: where memory is scarce there are 20, at 5 ms each
ENDS = 0.1  # of a plan's seconds, before and behind its layers: where they are more, other devices are looked at
TILE_ROWS = 0  # while layers are sought
SENT = 3  # of the best layers: they get the tiles and routes that are best for them
TO_ROOT = (16, 4, 1)  # rows that are moved to rank 0 at a time
KEPT = 4  # configurations beside those of the plan, for a later solve


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A plan and how it was found.

    Parameters
    ----------
    plan
        With its prediction.
    runs
        Layers of equal shares, and how many, the most first.
    layers
        These layers and the fastest of the others; a later solve begins with them.
    prices : [p]
        Seconds that a byte more saves on every device, of float32 weights; zero where memory does not limit.
    best, setting, terms
        The layer that is best at these prices, and what its convex program is for.
    mix_gap, mix_s, mix_bound_s
        How far the program of the mix says to be from its best, its seconds, and those of the relaxed mix where memory
        is scarce, else 0.
    """

    plan: Plan
    runs: tuple[tuple[Configuration, int], ...]
    layers: tuple[Configuration, ...]
    prices: Floats
    best: Configuration
    setting: Setting
    terms: Terms
    mix_gap: float
    mix_s: float
    mix_bound_s: float

    @property
    def relaxed(self) -> Relaxed:
        """The convex program for the cuts and the devices of the best layer, solved when first asked for."""
        return _relaxed(self.setting, self.best, self.terms)

    @property
    def crew(self) -> tuple[int, ...]:
        """Ranks of the devices of the best layer."""
        return _crew(self.best)

    @property
    def gap(self) -> float:
        """By how much the layers may be from the best, relative.

        Against the convex bound for their cuts and devices, or, where memory is scarce, against the relaxed mix.
        """
        bound_s = self.mix_bound_s if self.prices.any() else self.relaxed.seconds * self.setting.spec.layers
        return max(self.mix_gap, 1 - bound_s / self.mix_s) if bound_s else self.mix_gap


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
    tile_rows = TILE_ROWS if before is None else before.plan.tile_rows
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
            found, prices, mix_bound_s = _scarce(s, room, found)
        else:
            s, found = _sent_best(s, found, np.full(s.devices, np.inf))
            found += alone(s, _terms(prices, room))
    else:
        prices = before.prices
        found = again(s, before.layers, _terms(prices, room))
    able = [layer for layer in found if not taking(layer.units)[out].any()]
    if before is not None and not able:  # none of them fits any more
        return solve(spec, cluster, rows, wire=wire)
    found = able or found  # where there is none, the others say what is missing
    terms = _terms(prices, room)
    best = min(found, key=terms.cost)
    if before is None:
        found += _rounded(s, best, terms)
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
    runs = sorted(
        ((layer, count) for layer, count in zip(found, mix.layers, strict=True) if count), key=lambda run: -run[1]
    )
    if before is None and len(runs) == 1:
        layer = _without_narrow_links(s, cluster, found, runs[0][0], room)
        runs = [(_rows_to_root(s, cluster, layer, room), spec.layers)]
    used = [layer for layer, _ in runs]
    others = sorted((layer for layer in found if layer not in used), key=lambda layer: layer.seconds)
    plan = _plan(s, cluster, runs)
    plans = [plan, _sent(s, plan, runs)] if before is None and s.devices <= JOINING else [plan]
    priced = [replace(plan, predicted=price(s, plan).prediction) for plan in plans]
    plan = min(priced, key=lambda plan: plan.predicted_s)
    if before is None and mix_bound_s:
        uniform = _uniform(s, cluster, found, room)
        if uniform is not None and uniform[1].predicted_s < plan.predicted_s:
            s, plan, only = uniform
            runs, used = [(only, spec.layers)], [only]
    layers = (*used, *others[:KEPT])
    return Solution(plan, tuple(runs), layers, prices, best, s, terms, mix.gap, mix.seconds, mix_bound_s)


def _sent_best(s: Setting, found: Sequence[Configuration], caps: Floats) -> tuple[Setting, list[Configuration]]:
    """Return the tiles that are best for the best layers, and these with their best routes, improved."""
    order = sorted(found, key=lambda layer: layer.seconds)
    best = order[:SENT] + [layer for layer in order[SENT:] if layer.kind == kind_by_rows(s.spec.blocks)][:1]
    ways = [best_sent(s, layer.kind, layer.units) for layer in best]
    s = replace(s, tile_rows=min(ways, key=lambda way: way[2])[0])
    terms = Terms(np.zeros(s.devices), caps)
    drafts = [redraft(s, kind, layer.units, terms) for layer, (_, kind, _) in zip(best, ways, strict=True)]
    return s, finished(s, drafts, terms)


def _uniform(
    s: Setting, cluster: Cluster, found: Sequence[Configuration], room: Floats
) -> tuple[Setting, Plan, Configuration] | None:
    """Return the best plan of equal layers where memory is scarce, with its own tiles; None if none fits.

    Tiles change what a mix costs by up to a fifth, but a mix is chosen without.
    """
    caps = np.maximum(room, 0.0) / s.spec.layers
    fitting = [layer for layer in found if (layer.held_bytes <= caps).all()]
    if not fitting:
        return None
    s, layers = _sent_best(s, one_of_each_kind(sorted(fitting, key=lambda layer: layer.seconds)), caps)
    layer = _best_with_ends(s, cluster, layers, min(layers, key=lambda layer: layer.seconds), room)
    layer = _rows_to_root(s, cluster, layer, room)
    plan = _plan(s, cluster, [(layer, s.spec.layers)])
    return s, replace(plan, predicted=price(s, plan).prediction), layer


def _sent(s: Setting, plan: Plan, runs: Sequence[tuple[Configuration, int]]) -> Plan:
    """Return the plan with the best tiles and routes; of several runs, with those that are best for the longest."""
    if len(runs) == 1:
        return best_sending(s, plan)
    longest, _ = runs[0]
    tile_rows, kind, _ = best_sent(s, longest.kind, longest.units)
    return sent(plan, tile_rows, kind.route)


def _best_with_ends(
    s: Setting, cluster: Cluster, found: Sequence[Configuration], best: Configuration, room: Floats
) -> Configuration:
    """Return the layer whose plan is fastest with all that stands before and behind the layers; it may be another."""
    fitting = [layer for layer in found if (layer.held_bytes * s.spec.layers <= room).all()]
    close = [layer for layer in fitting if layer.seconds <= CLOSE * best.seconds]
    # Where rank 0 computes all there are no ends.
    by_root = [layer for layer in fitting if _crew(layer) == (0,)][:1]
    tried = sorted(close, key=lambda layer: layer.seconds)[:WITH_ENDS] + by_root
    return min(tried, key=lambda layer: _with_ends_s(s, cluster, layer))


def _with_ends_s(s: Setting, cluster: Cluster, layer: Configuration) -> float:
    """Return the seconds of the plan all of whose layers are this one."""
    return plan_seconds(s, _plan(s, cluster, [(layer, s.spec.layers)]))


def _without_narrow_links(
    s: Setting, cluster: Cluster, found: Sequence[Configuration], fastest: Configuration, room: Floats
) -> Configuration:
    """Return the layer whose plan is fastest, also of those without the narrowest links, where ways to it take long.

    Layers by themselves do not show that: a device that computes all of them exchanges nothing but what comes and goes.
    """
    best, caps = _best_with_ends(s, cluster, found, fastest, room), room / s.spec.layers
    best_s = _with_ends_s(s, cluster, best)
    while others := [rank for rank in _crew(fastest) if rank]:
        if s.spec.layers * fastest.seconds > (1 - ENDS) * _with_ends_s(s, cluster, fastest):
            break
        caps[min(others, key=cluster.bandwidth)] = 0.0
        if not (found := candidates(s, Terms(np.zeros(s.devices), caps))):
            break
        fastest = min(found, key=lambda layer: layer.seconds)
        other = _best_with_ends(s, cluster, found, fastest, room)
        seconds = _with_ends_s(s, cluster, other)
        if seconds >= best_s:
            break
        best, best_s = other, seconds
    return best


def _rows_to_root(s: Setting, cluster: Cluster, layer: Configuration, room: Floats) -> Configuration:
    """Return the layer with rows moved to rank 0, whose own are not sent in and out, as long as the plan gains."""
    rows = layer.units.get(Axis.ROWS)
    if rows is None or s.devices > FEW:
        return layer
    best_s = _with_ends_s(s, cluster, layer)
    for size in TO_ROOT:
        for giver in range(1, s.devices):
            while layer.units[Axis.ROWS][giver] > size:
                moved = layer.units[Axis.ROWS].copy()
                moved[[0, giver]] += size, -size
                units = {**layer.units, Axis.ROWS: moved}
                held = layer_table(s, layer.kind).held_bytes(units)
                other = Configuration(layer.kind, units, float(layer_seconds(s, layer.kind, units)), held)
                seconds = _with_ends_s(s, cluster, other)
                if seconds >= best_s or (held * s.spec.layers > room).any():
                    break
                layer, best_s = other, seconds
    return layer


def _terms(prices: Floats, room: Floats) -> Terms:
    """Return what memory costs: nothing, and without end, where it has no price."""
    return Terms(prices, np.maximum(room, 0.0) if prices.any() else np.full(room.size, np.inf))


def _mix(s: Setting, found: Sequence[Configuration], room: Floats, gap: float) -> integer.Mix:
    seconds, held = [layer.seconds for layer in found], [layer.held_bytes for layer in found]
    return integer.best_mix(seconds, held, room, s.spec.layers, gap)


def _prices(s: Setting, found: Sequence[Configuration], room: Floats) -> integer.Prices:
    seconds, held = [layer.seconds for layer in found], [layer.held_bytes for layer in found]
    return integer.prices(seconds, held, room, s.spec.layers)


def _crew(layer: Configuration) -> tuple[int, ...]:
    return tuple(np.flatnonzero(taking(layer.units)).tolist())


@lru_cache(maxsize=8)
def _relaxed(s: Setting, best: Configuration, terms: Terms) -> Relaxed:
    """Solve the convex program for a layer's cuts and devices."""
    from solver.programs.convex import (
        relax,  # imports cvxpy, which takes a second: for those who plan, not for those who read
    )

    crew = np.array(_crew(best))
    takes = {axis: counts[crew] > 0 for axis, counts in best.units.items()}
    rows = best.units.get(Axis.ROWS, np.zeros(1, np.int64))
    table = layer_table(s.only(crew), best.kind)
    return relax(table, takes, terms.only(crew), least_rows=2 if rows[rows > 0].min(initial=2) >= 2 else 1)


def _rounded(s: Setting, best: Configuration, terms: Terms) -> list[Configuration]:
    """Return the convex program's shares in whole units, improved; nothing if that breaks a cap."""
    units = {axis: np.zeros(s.devices, np.int64) for axis in best.units}
    crew = list(_crew(best))
    try:
        relaxed = _relaxed(s, best, terms)
    except InfeasiblePlanError:  # no shares of these cuts fit: what is missing of all the mix says
        return []
    for axis, shares in relaxed.units.items():
        units[axis][crew] = largest_remainder(np.maximum(shares, 0.0).tolist(), int(best.units[axis].sum()))
    draft = improved(redraft(s, best.kind, units, terms), terms, by_two=False)
    layer = finish(draft, terms, s.devices)
    return [] if layer is None else [layer]


def _scarce(s: Setting, room: Floats, found: list[Configuration]) -> tuple[list[Configuration], Floats, float]:
    """Return layers worth choosing from where memory is scarce, its prices, and the seconds of the relaxed mix."""
    whole = np.maximum(room, 0.0)
    if few_shares(s, kinds := layer_kinds(s.spec.blocks)):
        found = found + [layer for kind in kinds for layer in undominated(s, kind, whole)]
        duals = _prices(s, found, room)
        return found, duals.per_byte, duals.bound_s
    free = np.zeros(s.devices)
    found = found + candidates(s, Terms(free, whole / s.spec.layers)) + alone(s, Terms(free, whole))
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


def _below(layers: Sequence[Configuration], terms: Terms, limit: float) -> list[Configuration]:
    """Return the layers whose seconds and charges are less than `limit`."""
    return [layer for layer in layers if terms.cost(layer) < limit]


def _plan(s: Setting, cluster: Cluster, runs: Sequence[tuple[Configuration, int]]) -> Plan:
    """Lay the runs one behind the other; kinds that leave the stream in rows stand together."""
    ordered = sorted(runs, key=lambda run: (run[0].kind.ends_by_rows, str(run[0].kind)))
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
        tile_rows=s.tile_rows,
        wire=s.wire,
    )
