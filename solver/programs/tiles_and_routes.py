"""How runs of layers make a plan: one after the other, in tiles of so many rows, and by which routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.plan import BlockPlan, Plan, Stage, StreamLayout
from solver.plan.routes import Route
from solver.programs.search import Configuration
from solver.schedule.encoders.cost import request_seconds, setting
from solver.schedule.encoders.layer_table import LayerKind, Units, layer_plan, layer_seconds, taking
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.stages import predict_plan

Sent = TypeVar("Sent")

# Tiles hide an exchange behind compute, but few rows a product are slow: at 32 rows the packed kernels reach four
# fifths of their speed, and smaller tiles never paid.
TILE_ROWS = (0, 128, 64, 48, 32)
ROUTED = 48  # tiles that routes are tried with besides: what is passed on has to come in parts


Runs = Sequence[tuple[Configuration, int]]  # layers of equal shares, and how many


def in_order(runs: Runs) -> Runs:
    """Return the runs so that kinds that leave the stream in rows stand together."""
    return sorted(runs, key=lambda run: (run[0].kind.ends_by_rows, str(run[0].kind)))


def plan_of(s: Setting, runs: Runs, cluster: Cluster | None = None) -> Plan:
    """Lay the runs one after the other; without a cluster, only to be priced."""
    spans, start = [], 0
    for layer, count in in_order(runs):
        spans.append((Span(start, start + count), layer_plan(s, layer.kind, layer.units)))
        start += count
    names = tuple(map(str, range(s.devices))) if cluster is None else cluster.names
    return Plan(
        (Stage(names, tuple(spans)),),
        model_name=s.spec.name,
        model_fingerprint=s.spec.fingerprint,
        cluster_fingerprint="" if cluster is None else cluster.fingerprint,
        system="hepti",
        rows=s.rows,
        tile_rows=s.tile_rows,
        wire=s.wire,
    )


def best_sending(s: Setting, plan: Plan) -> Plan:
    """Return the plan with the tiles and routes that make it fastest; as it is, where not all devices share a stage."""
    if not plan.in_one:
        return plan
    devices = len(plan.stages[0].active)
    best: Plan = _best(devices, partial(sent, plan), partial(request_seconds, s))
    return best


def sent_and_predicted(spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int) -> Plan:
    """Return a plan of any stages with the tiles and routes that are best for it, and what it is predicted to cost."""
    plan = best_sending(setting(spec, cluster, rows), plan)
    return replace(plan, predicted=predict_plan(spec, cluster, plan, rows))


def best_sent(s: Setting, kind: LayerKind, units: Units) -> tuple[int, LayerKind, float]:
    """Return the best tiles and the kind with the best route for a layer's shares, and the layer's seconds."""
    devices = int(taking(units).sum())

    def seconds(way: tuple[int, LayerKind]) -> float:
        return float(layer_seconds(replace(s, tile_rows=way[0]), way[1], units))

    best = _best(devices, lambda tile_rows, route: (tile_rows, replace(kind, route=route)), seconds)
    return *best, seconds(best)


def _best(devices: int, by: Callable[[int, Route], Sent], seconds: Callable[[Sent], float]) -> Sent:
    """Return what is fastest, tiles first: routes are tried with those that are best without."""
    times = {tile_rows: seconds(by(tile_rows, Route.DIRECT)) for tile_rows in TILE_ROWS}
    order = sorted(TILE_ROWS, key=lambda tile_rows: times[tile_rows])
    found = [(times[order[0]], by(order[0], Route.DIRECT))]
    if devices > 2:
        routes = (Route.RING, Route.RELAY)
        others = [by(tile_rows, route) for tile_rows in {order[0], ROUTED} for route in routes]
        found += [(seconds(other), other) for other in others]
    return min(found, key=lambda pair: pair[0])[1]


def sent(plan: Plan, tile_rows: int, route: Route) -> Plan:
    """Return the plan with these tiles, and this route in every block that may have one."""

    def by(block: BlockPlan) -> BlockPlan:
        return replace(block, route=route) if block.norm is StreamLayout.ROWS else block

    (stage,) = plan.stages
    layers = tuple((span, tuple(map(by, layer))) for span, layer in stage.layers)
    return replace(plan, tile_rows=tile_rows, stages=(Stage(stage.devices, layers),))
