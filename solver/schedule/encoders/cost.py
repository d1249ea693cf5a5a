"""What a plan costs: seconds, bytes on the wire, bytes of memory. Every planner, table and test asks here.

The parts: `solver.cluster.curves` (seconds of a kernel), `placing` (what ranks do), `turn_costs` (what that takes, by
the clocks of ranks), `memory` (what devices need and have). For the planner's tables, which ask for thousands of layers
of equal shares, `timing` and `pricing` add up steps that all ranks end together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.spec import ModelSpec
from solver.model.work import Work
from solver.plan.holdings import weights_bytes
from solver.plan.plan import Plan, Prediction, Wire
from solver.schedule.encoders.placing import (
    LayerCuts,
    batch_rows,
    cut_schedule,
    request_schedule,
)
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.turn_costs import priced_turns, seconds_of_turns, turns_of_some
from solver.schedule.price import Price
from solver.schedule.schedule import AnyStep
from solver.schedule.stretches import shared_alike
from solver.schedule.timing import Machine
from solver.schedule.turns import ClockTurn


def setting(spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire = Wire.FLOAT32, tile_rows: int = 0) -> Setting:
    """Prepare to price requests of `rows` rows."""
    return Setting(spec, Machine.of(cluster), Work(rows), wire, tile_rows, cluster.precision)


def predict(spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int) -> Prediction:
    """Return what a request of `rows` rows costs under `plan`."""
    return price(setting(spec, cluster, rows), plan).prediction


def price(s: Setting, plan: Plan) -> Price:
    """Price a plan turn by turn by the clocks of ranks, with its own tiles and wire.

    Raises
    ------
    HeptiError
        If the plan has several stages, or its stage not all devices: `solver.schedule.encoders.stages` prices these.
    """
    check_in_one(plan)
    crew, steps = request_schedule(s.spec, plan, s.rows)
    priced, active = priced_turns(replace(s, wire=plan.wire), crew, steps, plan.stages[0].span.start), crew[1:]
    # Of 1024 devices 974 may have no share, and hold the same: counting it for each took an eighth of the planning.
    idle = next((rank for rank in range(1, s.devices) if rank not in active), 0)
    held = {rank: weights_bytes(s.spec, plan, rank, s.precision) for rank in (0, idle, *active)}
    return Price(priced, tuple(held.get(rank, held[idle]) for rank in range(s.devices)))


def request_seconds(s: Setting, plan: Plan) -> float:
    """Return the seconds of a request; errors as in `price`, which takes longer over steps and weights."""
    check_in_one(plan)
    return float(seconds_of_turns(replace(s, wire=plan.wire), *request_schedule(s.spec, plan, s.rows)))


Cuts = Callable[[Sequence[int]], Sequence[LayerCuts]]  # how some ranks cut each run of layers, of n plans


@dataclass(frozen=True, slots=True, eq=False)
class AlikePlans:
    """Plans like one but for shares.

    Any devices may have some of an axis, but several: of what one has alone there would be no exchange. Where norms
    are on full, two take part under all of the plans, or more under all.

    Parameters
    ----------
    plan
        One of them.
    crew
        The ranks that have some under any.
    cuts
        How these cut each run of layers.
    """

    plan: Plan
    crew: Sequence[int]
    cuts: Cuts

    def steps(self, s: Setting) -> list[AnyStep]:
        """Return what ranks do with a request."""
        rows = batch_rows(self.plan.stages[0], self.crew, [s.rows], self.plan.tile_rows)
        if rows.sums:
            sums = {ranks: shared_alike(Span(0, s.rows), ranks) for ranks in range(3, len(self.crew) + 1)}
            rows = replace(rows, sums=sums)
        return cut_schedule(s.spec, self.plan, self.crew, rows, self.cuts(self.crew))


def alike_seconds(s: Setting, alike: AlikePlans) -> Floats:
    """Return the seconds of a request by each of some plans, [n]: all are priced at once."""
    return np.atleast_1d(seconds_of_turns(replace(s, wire=alike.plan.wire), alike.crew, alike.steps(s)))


def alike_turns(s: Setting, alike: AlikePlans) -> tuple[Machine, list[ClockTurn]]:
    """Return the turns of a request by these plans, and the machine whose clocks they pass."""
    return turns_of_some(replace(s, wire=alike.plan.wire), alike.crew, alike.steps(s))


def check_in_one(plan: Plan) -> None:
    """Refuse a plan of several stages, or of one that has not all devices."""
    if not plan.in_one:
        raise HeptiError(f"the plan has {len(plan.stages)} stages, or not all devices in one: price it as a pipeline")
