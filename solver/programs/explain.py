"""How a plan was found: every kind of layer with its best and its bound, and what a share would cost who has none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from solver.programs.candidates import finished, first_drafts, kinds_to_try
from solver.programs.planner import Solution, relaxed
from solver.programs.search import finish, neighbours
from solver.schedule.encoders.layer_table import layer_table, taking

NOTHING = 1e-6  # of a unit: what a fractional share is off by


@dataclass(frozen=True, slots=True)
class KindTried:
    """A kind of layer, in seconds of a request all of whose layers are of it, with what its bytes are charged with.

    Parameters
    ----------
    kind, ranks
        Its cuts, and who takes part.
    start_s, best_s
        With the shares of least makespan, infinite where they do not fit, and after moves.
    bound_s
        Of any shares, fractional ones too, for these cuts and devices: the convex program.
    cpu_s
        CPU time of the search and of the program.
    """

    kind: str
    ranks: tuple[int, ...]
    start_s: float
    best_s: float
    bound_s: float
    cpu_s: float


def kinds_tried(solution: Solution, advance: Callable[[int], None] = lambda _: None) -> Iterator[KindTried]:
    """Search all kinds once more, at the plan's prices of memory and with its tiles; what does not fit is left out.

    `advance` is called with 1 after each.
    """
    s, terms = solution.setting, solution.terms
    for kind in kinds_to_try(s):
        started = time.process_time()
        drafts = first_drafts(s, [kind], terms)
        layers = finished(s, drafts, terms)
        advance(1)
        if not layers:
            continue
        layer, starts = min(layers, key=terms.cost), [finish(draft, terms, s.devices) for draft in drafts]
        bound = relaxed(s, layer, terms)
        some = {axis: np.where(shares > NOTHING, shares, 0.0) for axis, shares in bound.units.items()}
        bound_s = bound.seconds + terms.charge(layer_table(s, kind).held_bytes(some))
        start_s = min((terms.cost(start) for start in starts if start is not None), default=np.inf)
        yield KindTried(
            str(kind),
            layer.crew,
            s.spec.layers * start_s,
            s.spec.layers * terms.cost(layer),
            s.spec.layers * float(bound_s),
            time.process_time() - started,
        )


def least_shares(solution: Solution) -> dict[int, float]:
    """Return for ranks without a share how many seconds longer a request takes with the best that they could have.

    Of all layers that one move makes of the best one; ranks that none of these gives a share are left out.
    """
    s, terms, best = solution.setting, solution.terms, solution.best
    near = neighbours(s, best, terms)
    added: dict[int, float] = {}
    for rank in np.flatnonzero(~taking(best.units)).tolist():
        costs = [terms.cost(layer) for layer in near if taking(layer.units)[rank]]
        if costs:
            added[rank] = s.spec.layers * (min(costs) - terms.cost(best))
    return added
