"""How a plan was found: every kind of layer with its best shares, and what a share would cost who has none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from solver.programs.candidates import finished, first_drafts, kinds_to_try
from solver.programs.layers import runs_seconds
from solver.programs.planner import Solution, relaxed
from solver.programs.polish import moved
from solver.programs.search import Configuration, finish
from solver.programs.tiles_and_routes import plan_of
from solver.schedule.encoders.cost import request_seconds
from solver.schedule.encoders.layer_table import layer_weights, taking


@dataclass(frozen=True, slots=True)
class KindTried:
    """A kind of layer, in seconds of a request all of whose layers are of it, with what its bytes are charged with.

    By the clocks of ranks.

    Parameters
    ----------
    kind, ranks
        Its cuts, and who takes part.
    start_s, best_s
        With the shares of least makespan, infinite where they do not fit, and with the best that were found.
    fractions_s
        With what the program of shares finds around these, in fractions of units; of one device as they are.
    cpu_s
        CPU time of the search and of the program.
    """

    kind: str
    ranks: tuple[int, ...]
    start_s: float
    best_s: float
    fractions_s: float
    cpu_s: float


def kinds_tried(solution: Solution, advance: Callable[[int], None] = lambda _: None) -> Iterator[KindTried]:
    """Search all kinds once more, at the plan's prices of memory and with its tiles; what does not fit is left out.

    `advance` is called with 1 after each.
    """
    s, terms = solution.setting, solution.terms

    def cost(layer: Configuration) -> float:
        seconds = request_seconds(s, plan_of(s, [(layer, s.spec.layers)]))
        return seconds + s.spec.layers * float(terms.charge(layer.held_bytes))

    for kind in kinds_to_try(s):
        started = time.process_time()
        drafts = first_drafts(s, [kind], terms)
        layers = finished(s, drafts, terms)
        advance(1)
        if not layers:
            continue
        starts = [layer for draft in drafts if (layer := finish(draft, terms, s.devices)) is not None]
        priced = [(cost(layer), layer) for layer in (*starts, *layers)]
        start_s = min((seconds for seconds, _ in priced[: len(starts)]), default=np.inf)
        best_s, best = min(priced, key=itemgetter(0))
        fractions_s = best_s
        if len(best.crew) > 1 and (found := relaxed(s, best, terms)) is not None:
            fractions_s = min(best_s, found.cost)
        yield KindTried(str(kind), best.crew, start_s, best_s, fractions_s, time.process_time() - started)


def least_shares(solution: Solution) -> dict[int, float]:
    """Return for ranks without a share how many seconds longer a request takes with the best that they could have.

    Of all layers that one move makes of the best one; ranks that none of these gives a share are left out.
    """
    s, terms, best = solution.setting, solution.terms, solution.best
    after = moved(np.stack(list(best.units.values())))
    units = {axis: after[:, number] for number, axis in enumerate(best.units)}
    held = layer_weights(s, best.kind).held_bytes(units)
    costs = runs_seconds(s, [(best, s.spec.layers)], 0, units) + s.spec.layers * terms.charge(held)
    some = taking(units)
    return {
        rank: float(costs[some[:, rank]].min() - costs[0])
        for rank in np.flatnonzero(~taking(best.units)).tolist()
        if some[:, rank].any()
    }
