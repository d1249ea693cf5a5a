"""When ranks look up within a long request: what they measured goes to rank 0, whose word holds two layers later.

A look at layer n takes three layers, so that nobody waits for anybody. Before layer n every rank tells what it has
measured. Before layer n + `HEARD` rank 0 has keys and values of layer n from all others, and so their words, which left
before: it decides, and sends its own. Before layer n + `HOLDS` the others have rank 0's keys and values of the layer
between, and so its word, which they take: where that is a plan, it holds from there on.
"""

from __future__ import annotations

from solver.model import ModelSpec

HEARD, HOLDS = 1, 2
# A look takes 0.06 ms of rank 0 and 0.04 of the others, four ranks on one host, and several times that on a board: less
# than half a percent of the time between two.
LOOK_EVERY_S = 0.08
# Of a smaller part than a quarter only a speed that falls to less than half can be told from noise (`solver.tracker`).
PARTS = 4


def looks(layers: int, seconds: float) -> tuple[int, ...]:
    """Return the layers before which ranks look up in a request that should take so long; none where it is short."""
    parts = PARTS if seconds >= PARTS * LOOK_EVERY_S else int(seconds / LOOK_EVERY_S)
    parts = min(parts, layers // HOLDS)  # one look's word is there before the next look
    return tuple(at for number in range(1, parts) if (at := round(number * layers / parts)) + HOLDS < layers)


def done_before(spec: ModelSpec, rows: int, layer: int) -> float:
    """Return how much of a request's compute a rank has done when it asks for a layer, where all is cut by rows.

    The attention output and the MLP of the layer before are computed when the next keys and values are.
    """
    H, F = spec.hidden, spec.ffn
    later = 2 * H * H + 4 * H * F
    return (layer - later / (later + 6 * H * H + 4 * rows * H)) / spec.layers
