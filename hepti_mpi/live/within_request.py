"""When ranks look up within a long request: what they measured goes to rank 0, whose word holds two layers later.

A look at layer n takes three layers, so that nobody waits for anybody. Before layer n every rank tells what it has
measured. Before layer n + `HEARD` rank 0 has what all others sent of layer n, and so their words, which left before: it
decides, and sends its own. Before layer n + `HOLDS` the others have what rank 0 sent of the layer between, and so its
word, which they take: where that is a plan, it holds from there on. Where a rank needs nothing of another in a layer,
the word comes later, or is waited for.
"""

from __future__ import annotations

import numpy as np

from solver.base.spans import Span
from solver.cluster.curves import Floats
from solver.model.blocks import Cut
from solver.model.spec import ModelSpec
from solver.plan.holdings import alike
from solver.plan.plan import Plan
from solver.schedule.encoders.steps import flop_of_rows

HEARD, HOLDS = 1, 2
# A look takes 0.06 ms of rank 0 and 0.04 of the others, four ranks on one host, and several times that on a board: less
# than half a percent of the time between two.
LOOK_EVERY_S = 0.06
# Of a smaller part than a quarter only a speed that falls to less than half can be told from noise
# (`solver.live.observe`).
PARTS = 4
EACH_HALF = (Span(0, 1), Span(1, 2))  # of a block


def looks(layers: int, seconds: float) -> tuple[int, ...]:
    """Return the layers before which ranks look up in a request that should take so long; none where it is short."""
    parts = PARTS if seconds >= PARTS * LOOK_EVERY_S else int(seconds / LOOK_EVERY_S)
    parts = min(parts, layers // HOLDS)  # one look's word is there before the next look
    return tuple(at for number in range(1, parts) if (at := round(number * layers / parts)) + HOLDS < layers)


def done_before(spec: ModelSpec, plan: Plan, rows: int, layer: int) -> Floats:
    """Return how much of its compute of a request every rank has done before a layer, [p]."""
    done, total = np.zeros((2, len(plan.devices)))
    for start, count, cuts in alike(spec, plan.stages[0]):
        span, flop = Span(start, start + count), np.zeros(len(plan.devices))
        for block, cut in zip(spec.run(start).blocks, cuts, strict=True):
            shared = cut.shared(rows)
            behind = cut.row_partition(rows) if cut.cut is Cut.TO_ROWS else None
            flop += sum(
                flop_of_rows(block, half, rows) * np.array(own.counts) / own.total
                for half, own in zip(EACH_HALF, (shared, behind or shared), strict=True)
            )
        done += span.intersect(Span(0, layer)).size * flop
        total += span.size * flop
    done[total == 0], total[total == 0] = layer, spec.layers
    return np.asarray(done / total)
