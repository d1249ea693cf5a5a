"""Every layer that there is, on small instances: what the planner's answers are held against.

Priced straight by the steps of a layer, without the planner's tables and search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from solver.model.blocks import Axis
from solver.plan.routes import Route
from solver.schedule.layer_table import LayerKind, layer_kinds, layer_seconds, layer_weights, unit_count
from solver.schedule.setting import Setting


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
