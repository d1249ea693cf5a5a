"""prima.cpp: Li et al., "PRIMA.CPP: Speeding Up 70B-Scale LLM Inference on Low-Resource Everyday Home Clusters".

arXiv 2504.08791: devices in a ring, a window of w_m layers each, and Halda, which chooses the windows by an integer
program whose time is a sum over the devices, as each waits for the one before it:

    minimise    sum_m t_m w_m + c_m          t_m seconds of a layer, c_m of the hop to the next device of the ring
    subject to  sum_m w_m = L,   1 <= w_m <= what device m holds

and drops the devices that are left with one layer, which their hop is not worth, and solves again (here as long as
the others hold the model). What Halda adds for models larger than all memory is not here: several rounds of the ring
(an encoder makes one pass), GPU layers, and windows read from disk while others compute, which the engine cannot do.
Of devices that hold nothing at all, none is in the ring.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan
from solver.schedule.encoders.memory import layers_do_not_fit, weights_room, whole_layer_bytes
from solver.schedule.encoders.stages import chain, layer_seconds


def plan_prima(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Choose windows by the integer program, without the devices that it leaves one layer."""
    seconds = layer_seconds(spec, cluster, rows)
    room = weights_room(spec, cluster, rows)
    holds = np.clip(room // whole_layer_bytes(spec), 0, spec.layers).astype(int)
    # A ring has at most L devices of one layer or more: of more, the fastest.
    ring = sorted(sorted(np.flatnonzero(holds).tolist(), key=lambda rank: float(seconds[rank]))[: spec.layers])
    if holds[ring].sum() < spec.layers:
        raise layers_do_not_fit("prima", spec, cluster, room, holds)
    ranks, windows = halda(ring, seconds[ring].tolist(), holds[ring].tolist(), spec.layers)
    return chain(spec, cluster, list(zip(ranks, windows, strict=True)), "prima", rows)


def halda(
    ring: Sequence[int], seconds: Sequence[float], holds: Sequence[int], layers: int
) -> tuple[list[int], list[int]]:
    """Return the devices that stay in the ring, and their windows."""
    from solver.programs.integer import least_windows  # imports pulp: for those who plan

    kept = list(range(len(ring)))
    while True:
        windows = least_windows([seconds[m] for m in kept], [holds[m] for m in kept], layers)
        # The slowest with one layer goes first: what it had, the others must hold.
        weak = [m for m, window in zip(kept, windows, strict=True) if window == 1]
        weak = [m for m in weak if len(kept) > 1 and sum(holds[k] for k in kept if k != m) >= layers]
        if not weak:
            return [ring[m] for m in kept], windows
        kept.remove(max(weak, key=lambda m: seconds[m]))
