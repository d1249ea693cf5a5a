"""Whether hosts are as fast after a measurement as before it: a busy machine's profile is not its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hepti_mpi.comm.group import Group, host_name
from solver.base import clock
from solver.cluster.cluster import Cluster

TRIAL_S = 0.2
# By how much the trials before and after may differ: steps in a lab vary by 13 to 25 %. On two cores that others used,
# at a load of 12, 8 of 24 pairs of trials differed by more.
APART = 1.4
SIZE = 128  # of a product, which takes a slow board a millisecond
BUSY = "busy"  # in the facts of a profile: by how much they differed


def measured(measure: Callable[[], Cluster], group: Group) -> Cluster:
    """Return what is measured, which says so itself where two quick trials around it disagree; a step of all ranks."""
    before = _speeds(group)
    cluster = measure()
    after = _speeds(group)
    apart = max(max(after[host] / speed, speed / after[host]) for host, speed in before.items())
    return cluster if apart < APART else replace(cluster, profile={**cluster.profile, BUSY: f"{apart:.1f}"})


def doubted(cluster: Cluster) -> str | None:
    """Return the note that hosts were busy while they were measured; None where they were not."""
    if (apart := cluster.profile.get(BUSY)) is None:
        return None
    return (
        f"the hosts were busy while they were measured: one of them was {apart} times as fast in one moment as in the "
        "next; --measure measures them again"
    )


def _speeds(group: Group) -> dict[str, float]:
    """Return how many trial products all ranks of a host compute a second together."""
    group.slowest(0.0)  # all begin together
    found: dict[str, float] = {}
    for host, speed in group.on_all(lambda: (host_name(), _speed())):
        found[host] = found.get(host, 0.0) + speed
    return found


def _speed() -> float:
    one = np.full((SIZE, SIZE), 0.5, np.float32)
    out = one @ one  # warms up
    count, began = 0, clock.now()
    while (passed := clock.now() - began) < TRIAL_S:
        np.matmul(one, one, out=out)
        count += 1
    return count / passed
