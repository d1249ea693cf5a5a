"""When ranks look up within a long request: what they measured goes to rank 0, whose word holds two layers later.

A look at layer n takes three layers, so that nobody waits for anybody. Before layer n every rank tells what it has
measured. Before layer n + `HEARD` rank 0 has what all others sent of layer n, and so their words, which left before: it
decides, and sends its own. Before layer n + `HOLDS` the others have what rank 0 sent of the layer between, and so its
word, which they take: where that is a plan, it holds from there on. Where a rank needs nothing of another in a layer,
the word comes later, or is waited for.
"""

from __future__ import annotations

import numpy as np

from solver.cluster.curves import Floats
from solver.model.spec import ModelSpec
from solver.plan.plan import Cut, Plan
from solver.plan.spans import Span
from solver.schedule.steps import flop_of_rows

HEARD, HOLDS = 1, 2
# A look takes 0.06 ms of rank 0 and 0.04 of the others, four ranks on one host, and several times that on a board: less
# than half a percent of the time between two.
LOOK_EVERY_S = 0.06
# Of a smaller part than a quarter only a speed that falls to less than half can be told from noise
# (`solver.live.tracker`).
PARTS = 4
HALVES = (Span(0, 1), Span(1, 2))  # of a block


def looks(layers: int, seconds: float) -> tuple[int, ...]:
    """Return the layers before which ranks look up in a request that should take so long; none where it is short."""
    parts = PARTS if seconds >= PARTS * LOOK_EVERY_S else int(seconds / LOOK_EVERY_S)
    parts = min(parts, layers // HOLDS)  # one look's word is there before the next look
    return tuple(at for number in range(1, parts) if (at := round(number * layers / parts)) + HOLDS < layers)


def done_before(spec: ModelSpec, plan: Plan, rows: int, layer: int) -> Floats:
    """Return how much of its compute of a request every rank has done when it asks for a layer, [p].

    What is cut by rows is computed when the next block asks for it: the attention output and the MLP of the layer
    before, or, where that is cut otherwise, its second product.
    """
    context, output = (flop_of_rows(spec, "attention", half, rows) for half in HALVES)
    up, down = (flop_of_rows(spec, "mlp", half, rows) for half in HALVES)
    done, total = np.zeros((2, len(plan.devices)))
    for span, cuts in plan.stages[0].layers:
        heads, columns = (
            np.array(shared.counts) / shared.total for shared in (cuts.attention.shared(rows), cuts.mlp.shared(rows))
        )
        by_rows = output * heads + (up + down) * columns
        pending = by_rows if cuts.mlp.cut is Cut.ROWS else (cuts.mlp.cut is not Cut.COLUMNS) * down * columns
        flop = context * heads + by_rows
        done += span.intersect(Span(0, layer)).size * flop
        if span.start < layer <= span.stop:
            done -= pending
        total += span.size * flop
    done[total == 0], total[total == 0] = layer, spec.layers
    return np.asarray(done / total)
