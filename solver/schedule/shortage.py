"""What memory a plan lacks, in words."""

from __future__ import annotations

import math

from solver.base.errors import InfeasiblePlanError
from solver.base.phrases import counted
from solver.cluster.cluster import MIB, Cluster, Device
from solver.cluster.curves import Floats

SLIP_BYTES = 1  # that an integer program may be off
MOST_NAMED = 4  # devices in an error, of 1024 that lack memory


def does_not_fit(what: str, cluster: Cluster, short_bytes: Floats) -> InfeasiblePlanError:
    """Return the error that says how much memory `what` lacks, `short_bytes` [p], and where more would help."""
    return InfeasiblePlanError(f"{what} {shortage(cluster, short_bytes)}")


def shortage(cluster: Cluster, short_bytes: Floats) -> str:
    """Return how much memory is lacking in all, `short_bytes` [p], and where; of many devices some are named."""
    more = [
        (device, _more(device, short))
        for device, short in zip(cluster.devices, short_bytes, strict=True)
        if short > SLIP_BYTES
    ]
    named = [f"{size} MiB more on {device.name} (has {device.memory_bytes // MIB})" for device, size in more]
    if len(named) > MOST_NAMED:
        named[MOST_NAMED:] = [f"more on {counted(len(named) - MOST_NAMED, 'other')}"]
    return f"does not fit: {sum(size for _, size in more)} MiB short; it would with {' and '.join(named)}"


def _more(device: Device, short: float) -> int:
    """Return the MiB to add to the whole ones that a device has, so that what was short is there."""
    return math.ceil((device.memory_bytes + short) / MIB) - device.memory_bytes // MIB
