"""The planner for many requests: which devices share a replica, and whether they are its stages or share its layers.

A group of devices is worth the requests a second of the best replica that it makes: one of shared layers, as
`solver.programs.planner` finds it for one request, or one of stages of one device each, by PipeEdge's dynamic program.
Devices of which each holds the model make no group: side by side they answer as many. Few devices: every way to put
them into groups, where some may be left out, by a dynamic program over sets,

    T(S) = max(T(S - d), max over groups G in S with d of rate(G) + T(S - G))     for any one d in S.

More: every device that holds the model is a group of its own, and the others, the fastest first, are put into groups of
one size, the best of several sizes. Of equal rates, the plan with fewer seconds for one request wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec, TextInput
from solver.plan.plan import Plan, Stage
from solver.programs.candidates import FEW
from solver.programs.planner import solve
from solver.schedule.encoders.memory import holds_all
from solver.schedule.encoders.stages import layer_seconds, price_plan
from solver.systems.pipeedge import plan_pipeedge

ALL = 16  # devices of the largest group that is tried besides
SIZES = (2, 3, 4, 6, 8, 12, 16, 24)  # of groups of many devices

DeviceGroup = tuple[int, ...]


def solve_throughput(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Plan for the most requests of `rows` rows a second.

    Raises
    ------
    InfeasiblePlanError
        If no group holds the model.
    """
    groups = _Groups(spec, cluster, rows)
    p = len(cluster.devices)
    ways = [best_partition(groups.rate, p)] if p <= FEW else list(_by_size(groups, spec, cluster, rows))
    ways.append([tuple(range(min(p, ALL)))])
    plans = [groups.plan(way) for way in ways if all(groups.rate(group) for group in way) and way]
    if not plans:
        solve(spec, cluster, rows)  # says what is missing
        raise InfeasiblePlanError(f"{spec.name} fits on no group of devices")

    def worth(plan: Plan) -> tuple[float, float]:
        priced = price_plan(spec, cluster, plan, rows)
        return priced.requests_per_s, -priced.prediction.seconds

    return max(plans, key=worth)


class _Groups:
    """The best replica of every group that is asked for; groups of like devices have the same rate."""

    def __init__(self, spec: ModelSpec, cluster: Cluster, rows: int) -> None:
        self._spec, self._cluster, self._rows = spec, cluster, rows
        self._known: dict[object, tuple[float, tuple[Stage, ...], int]] = {}

    def rate(self, group: DeviceGroup) -> float:
        """Return the requests a second of a group; 0 where it does not hold the model."""
        return self._best(group)[0]

    def plan(self, groups: Sequence[DeviceGroup]) -> Plan:
        """Return the plan whose replicas are these groups, the one with the highest rate first."""
        found = [self._best(group) for group in sorted(groups, key=lambda group: -self.rate(group))]
        # A plan has tiles of one size: those of the first replica that exchanges anything.
        tile_rows = next((tile_rows for _, _, tile_rows in found if tile_rows), 0)
        return self._plan(tuple(stage for _, stages, _ in found for stage in stages), tile_rows)

    def _best(self, group: DeviceGroup) -> tuple[float, tuple[Stage, ...], int]:
        """Return a group's rate, its stages and their tiles; like groups are planned once."""
        key, names = self._key(group), [self._cluster.names[rank] for rank in group]
        if key not in self._known:
            self._known[key] = self._search(group)
        rate, stages, tile_rows = self._known[key]
        own = tuple(replace(stage, devices=tuple(names[int(place)] for place in stage.devices)) for stage in stages)
        return rate, own, tile_rows

    def _search(self, group: DeviceGroup) -> tuple[float, tuple[Stage, ...], int]:
        """Plan for a group; the stages' devices are places within the group."""
        best: tuple[float, tuple[Stage, ...], int] = (0.0, (), 0)
        if len(group) > 1 and all(self.rate((rank,)) for rank in group):
            return best
        own = self._cluster.only(group)
        # Embeddings and heads are rank 0's: where memory is scarce, they are as much as a layer.
        spec = self._spec if 0 in group else _without_ends(self._spec)
        for planner in (_shared, plan_pipeedge):
            try:
                found = planner(spec, own, self._rows)
            except InfeasiblePlanError:
                continue
            plan = self._plan(found.stages, found.tile_rows)
            rate = price_plan(self._spec, self._cluster, plan, self._rows).requests_per_s
            if rate > best[0]:
                places = (
                    replace(stage, devices=tuple(str(own.names.index(name)) for name in stage.devices))
                    for stage in found.stages
                )
                best = rate, tuple(places), found.tile_rows
        return best

    def _plan(self, stages: tuple[Stage, ...], tile_rows: int) -> Plan:
        return Plan(
            stages, self._spec.name, self._spec.fingerprint, self._cluster.fingerprint,
            "hepti-throughput", self._rows, tile_rows, devices=self._cluster.names,
        )  # fmt: skip

    def _key(self, group: DeviceGroup) -> object:
        """Return what a group's rate depends on: its devices, whether rank 0 is one of them, and odd links."""
        if self._cluster.links:
            return group
        devices = [self._cluster.devices[rank] for rank in group]
        facts = [
            (device.compute_flop_per_s, device.memory_bytes, device.bandwidth_bytes_per_s, id(device.curves))
            for device in devices
        ]
        return (0 in group, *facts)


def _without_ends(spec: ModelSpec) -> ModelSpec:
    """Return the same layers with next to no embeddings, and without heads."""
    return replace(spec, input=TextInput(vocab=1, positions=1, max_rows=1), dense="", labels=())


def _shared(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    return solve(spec, cluster, rows).plan


def best_partition(rate_of: Callable[[DeviceGroup], float], p: int) -> list[DeviceGroup]:
    """Run the dynamic program over sets of devices, given the rate of a group."""
    best: list[tuple[float, list[DeviceGroup]]] = [(0.0, [])]
    for members in range(1, 1 << p):
        low = members & -members
        found = best[members ^ low]
        rest = members ^ low
        part = rest
        while True:  # all subsets of the rest, and the lowest device with them
            group = tuple(rank for rank in range(p) if (part | low) >> rank & 1)
            rate = rate_of(group)
            left = best[rest ^ part]
            if rate and rate + left[0] > found[0]:
                found = rate + left[0], [group, *left[1]]
            if not part:
                break
            part = (part - 1) & rest
        best.append(found)
    return best[-1][1]


def _by_size(groups: _Groups, spec: ModelSpec, cluster: Cluster, rows: int) -> Iterator[list[DeviceGroup]]:
    """Yield ways to put many devices into groups: those that hold the model alone, the others by size."""
    holds = holds_all(spec, cluster, rows)
    order = np.argsort(layer_seconds(spec, cluster, rows), kind="stable").tolist()
    alone: list[DeviceGroup] = [(rank,) for rank in order if holds[rank]]
    if alone:
        yield alone
    others = [rank for rank in order if not holds[rank]]
    for size in (size for size in SIZES if size <= len(others)):
        chunks = [tuple(sorted(others[start : start + size])) for start in range(0, len(others), size)]
        yield alone + [chunk for chunk in chunks if groups.rate(chunk)]
