"""What a plan costs: seconds, bytes on the wire, bytes of memory. Every planner, table and test asks here.

The parts: `solver.cluster.curves` (seconds of a kernel), `placing` (what ranks do), `turn_costs` (what that takes, by
the clocks of ranks), `memory` (what devices need and have). For the planner's tables, which ask for thousands, `timing`
and `pricing` add up steps that all ranks end together.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.blocks import Axis, Block, Cut
from solver.model.spec import ModelSpec
from solver.model.sublayers import HALVES
from solver.model.work import Work
from solver.plan.holdings import alike, weights_bytes
from solver.plan.plan import BlockPlan, Keys, LayerPlan, Plan, Prediction, Wire
from solver.schedule.encoders.placing import request_schedule, structure
from solver.schedule.encoders.pricing import Pricer
from solver.schedule.encoders.request import CutBlock, LayerRun, request_steps
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.steps import block_steps
from solver.schedule.encoders.turn_costs import priced_turns, seconds_of_turns
from solver.schedule.exchange import Mask
from solver.schedule.price import Price
from solver.schedule.timing import Machine, TimedStep, Values, step_times


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
    crew, steps = request_schedule(s.spec, [plan], s.rows)
    priced, active = priced_turns(replace(s, wire=plan.wire), crew, steps, plan.stages[0].span.start), crew[1:]
    # Of 1024 devices 974 may have no share, and hold the same: counting it for each took an eighth of the planning.
    idle = next((rank for rank in range(1, s.devices) if rank not in active), 0)
    held = {rank: weights_bytes(s.spec, plan, rank, s.precision) for rank in (0, idle, *active)}
    return Price(priced, tuple(held.get(rank, held[idle]) for rank in range(s.devices)))


def request_seconds(s: Setting, plan: Plan) -> float:
    """Return the seconds of a request; errors as in `price`, which takes longer over steps and weights."""
    return float(requests_seconds(s, [plan])[0])


def requests_seconds(s: Setting, plans: Sequence[Plan]) -> Floats:
    """Return the seconds of a request by each of some plans, [n]; those of one structure are priced at once."""
    alike, found = dict[Hashable, list[int]](), np.zeros(len(plans))
    for number, plan in enumerate(plans):
        check_in_one(plan)
        alike.setdefault(structure(plan, s.rows), []).append(number)
    for numbers in alike.values():
        some = [plans[number] for number in numbers]
        found[numbers] = seconds_of_turns(replace(s, wire=some[0].wire), *request_schedule(s.spec, some, s.rows))
    return found


def check_in_one(plan: Plan) -> None:
    """Refuse a plan of several stages, or of one that has not all devices."""
    if not plan.in_one:
        raise HeptiError(f"the plan has {len(plan.stages)} stages, or not all devices in one: price it as a pipeline")


def plan_seconds(s: Setting, plan: Plan) -> float:
    """Return the seconds of a request as the planner's tables count: in steps that all devices end together.

    That takes a fourth of the time of `request_seconds`, and is 1 % more in the mean. Errors as in `price`.
    """
    check_in_one(plan)
    s = replace(s, wire=plan.wire, tile_rows=plan.tile_rows)
    active = np.isin(np.arange(s.devices), plan.stages[0].active)
    return math.fsum(
        repeats * float(step_times(step, {}, active, s.machine).end.max())
        for _, repeats, step in _plan_steps(s, plan, active)
    )


def _plan_steps(s: Setting, plan: Plan, active: Mask) -> Iterator[tuple[str, int, TimedStep]]:
    """Yield all steps of a request: where, how often in a row, which."""
    stage = plan.stages[0]
    known: dict[Partition, Floats] = {}
    first = _values(s.spec.run(stage.span.start).blocks[stage.begins // HALVES], stage.first, s.rows, known)
    # Columns are dealt out by the first device that takes part.
    dealer = s.rows * (np.arange(s.devices) == np.argmax(active)).astype(float)
    pricer = Pricer(s, first, dealer if Axis.SUB_BLOCKS in first else first.get(Axis.ROWS), active)

    def blocks(number: int, layer: LayerPlan) -> Iterator[CutBlock]:
        part = stage.part(number)
        for place, (block, own) in enumerate(zip(s.spec.run(number).blocks, layer, strict=True)):
            both = Span(place, place + 1).scaled(HALVES)
            if (halves := part.intersect(both)).size:
                values = _values(block, own, s.rows, known)
                yield CutBlock(
                    block, block_steps(block, own, halves.within(both)), values, own.route, own.groups, _avoids(own)
                )

    runs = (LayerRun(number, count, tuple(blocks(number, layer))) for number, count, layer in alike(s.spec, stage))
    yield from request_steps(s, pricer, runs)


def _avoids(block: BlockPlan) -> Mask | None:
    """Return who avoids K and V, [p]; None where these are gathered."""
    return None if block.keys is None else np.array([way is Keys.AVOIDED for way in block.keys])


def _values(block: Block, plan: BlockPlan, S: int, known: dict[Partition, Floats]) -> Values:
    """Return a block's shares; the same array for the same partition, since rows that lie so already need not move."""
    partitions = {Axis.ROWS: plan.row_partition(S)}
    if plan.cut is Cut.SUB_BLOCKS:
        partitions |= {Axis.SUB_BLOCKS: plan.inner}
    elif block.inner is not None:
        partitions |= {block.inner.axis: plan.inner, block.inner.output: plan.columns}
    return {
        axis: known.setdefault(partition, np.array(partition.counts, float))
        for axis, partition in partitions.items()
        if partition is not None
    }
