"""Every layer that there is, on small instances: what the planner's answers are held against.

Priced without the planner's tables and search: by steps that all devices end together, as tables count, or by clocks.
How near the planner comes to the best of all by clocks, and with its descent alone:
python -m tests.solver.programs.exhaustive [INSTANCES].
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from solver.cluster.cluster import Cluster
from solver.model.blocks import Axis
from solver.model.spec import ModelSpec
from solver.plan.routes import Route
from solver.programs import search
from solver.programs.layers import runs_seconds
from solver.programs.planner import Solution, solve
from solver.programs.search import Configuration
from solver.schedule.encoders.cost import predict, setting
from solver.schedule.encoders.layer_table import LayerKind, layer_kinds, layer_seconds, layer_weights, unit_count
from solver.schedule.encoders.setting import Setting
from tests.kit.instances import sharing_cluster, small_model


def compositions(total: int, parts: int) -> np.ndarray:
    """Return all ways to write `total` as a sum of `parts` counts, [ways, parts]."""
    if parts == 1:
        return np.array([[total]])
    return np.concatenate(
        [np.insert(compositions(total - first, parts - 1), 0, first, axis=1) for first in range(total + 1)]
    )


def all_layers(
    s: Setting, route: Route = Route.DIRECT
) -> Iterator[tuple[LayerKind, dict[Axis, np.ndarray], np.ndarray, np.ndarray]]:
    """Yield for every kind all shares [ways, p], their seconds [ways] and bytes [ways, p]."""
    for kind in (replace(kind, route=Route(route)) for kind in layer_kinds(s.spec.blocks)):
        axes = kind.axes(s.spec.blocks)
        single = [compositions(unit_count(s, axis), s.devices) for axis in axes]
        places = np.array(list(product(*[range(len(ways)) for ways in single])))
        units = {axis: ways[places[:, number]] for number, (axis, ways) in enumerate(zip(axes, single, strict=True))}
        yield kind, units, layer_seconds(s, kind, units), layer_bytes(s, kind, units)


def layer_bytes(s: Setting, kind: LayerKind, units: dict[Axis, np.ndarray]) -> np.ndarray:
    """Return the bytes of weights of a layer on every device."""
    weights = layer_weights(s, kind)
    held = sum(size * units[axis] for axis, size in weights.per_unit.items())
    return held + weights.whole * (units[Axis.ROWS] > 0) if weights.whole else held


def sharing_instance(seed: int) -> tuple[ModelSpec, Cluster, int]:
    """Return a small model, two to four devices that may gain by sharing it, and rows."""
    rng = np.random.default_rng(seed)
    devices = int(rng.choice([2, 3, 4], p=[0.45, 0.5, 0.05]))
    spec, rows = small_model(rng, 2, {2: 8, 3: 4, 4: 3}[devices]), int(rng.integers(2, {2: 12, 3: 6, 4: 4}[devices]))
    return spec, sharing_cluster(rng, devices), rows


def over_the_best(spec: ModelSpec, cluster: Cluster, rows: int, *, clocks: bool = False) -> tuple[float, Solution]:
    """Return the exact price of the plan as a multiple of that of the best of equal layers; and the solution.

    The best as tables count, or by clocks.
    """
    s, best_s = setting(spec, cluster, rows), np.inf
    for kind, units, seconds, held in all_layers(s):
        if clocks:
            layer = Configuration(kind, {axis: counts[0] for axis, counts in units.items()}, 0.0, held[0])
            seconds = runs_seconds(s, [(layer, spec.layers)], 0, units) / spec.layers
        best_s = min(best_s, spec.layers * seconds.min())
    solution = solve(spec, cluster, rows)
    return float(predict(spec, cluster, solution.plan, rows).seconds / best_s), solution


def main(instances: int) -> None:
    """Print how many plans are as fast as the best of equal layers, and the worst."""
    for what in ("the planner", "its descent alone"):
        found = [over_the_best(*sharing_instance(seed), clocks=True) for seed in range(instances)]
        ratios = np.array([ratio for ratio, _ in found])
        shared = np.mean([len(solution.crew) > 1 for _, solution in found])
        exact, near, worst = np.mean(ratios < 1 + 1e-9), np.mean(ratios < 1.005), ratios.max() - 1
        print(
            f"{what}: {exact:.2%} of {instances} as fast or faster, {near:.2%} within 0.5 %, the worst {worst:.2%} "
            f"above; {shared:.0%} on several devices"
        )
        search.ALL_WAYS = 0


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
