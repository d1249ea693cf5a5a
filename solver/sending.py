"""How a plan sends: in how large tiles of rows, and by which routes. Shares stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solver.cost import price
from solver.layers import Setting
from solver.plan import BlockPlan, Cut, LayerPlan, Layout, Plan, Stage
from solver.routes import Route

# Tiles hide an exchange behind compute, but few rows a product are slow: at 32 rows the packed kernels reach four
# fifths of their speed, and smaller tiles never paid.
TILE_ROWS = (0, 128, 96, 64, 48, 32)


def best_sending(s: Setting, plan: Plan) -> Plan:
    """Return the plan with the tiles and the routes that make it fastest."""
    if len(plan.stages[0].active) == 1:
        return replace(plan, tile_rows=0)
    best = _fastest(s, [_routed(replace(plan, tile_rows=rows), Route.DIRECT) for rows in TILE_ROWS])
    if len(plan.stages[0].active) > 2 and any(_gathers(layer) for _, layer in plan.stages[0].layers):
        others = [
            _routed(best, Route.RING),
            *(_routed(replace(plan, tile_rows=rows), Route.RELAY) for rows in TILE_ROWS),
        ]
        best = _fastest(s, [best, *others])
    return best


def _fastest(s: Setting, plans: Sequence[Plan]) -> Plan:
    seconds = [price(s, plan).seconds for plan in plans]
    return plans[seconds.index(min(seconds))]


def _gathers(layer: LayerPlan) -> bool:
    """Return whether rows are gathered by a route of the plan's choice."""
    return layer.attention.cut is Cut.ROWS or Layout.ROWS in (layer.attention.norm, layer.mlp.norm)


def _routed(plan: Plan, route: Route) -> Plan:
    """Return the plan with this route in every block that may have one."""

    def by(block: BlockPlan) -> BlockPlan:
        return replace(block, route=route) if block.norm is Layout.ROWS else block

    (stage,) = plan.stages
    layers = tuple((span, LayerPlan(by(layer.attention), by(layer.mlp))) for span, layer in stage.layers)
    return replace(plan, stages=(Stage(stage.devices, layers),))
