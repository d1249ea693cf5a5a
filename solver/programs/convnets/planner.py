"""The planner of convolutional networks: the shortest path, all plans of small ones, memory, and the polish.

Where the fastest plan lacks memory, whole plans are the columns of a program: with t_c the seconds of plan c, m_ci the
bytes that it needs on device i and M_i what that has,

    minimise    sum_c t_c x_c    subject to  sum_c x_c = 1,  sum_c m_ci x_c <= M_i,  x_c >= 0

whose duals are the seconds that a byte is worth on every device. The shortest path at these prices is a further column,
until none is worth its price (column generation: Gilmore and Gomory, Operations Research 9, 1961). At the last prices a
path that fits is looked for. Where there is none, the plan that lacks least says what is missing and where.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.convnet import ConvNet
from solver.model.operators import channel_points, cut_points
from solver.plan.plan import Wire
from solver.plan.segments import SegmentPlan
from solver.programs import integer
from solver.programs.convnets.every_plan import EveryPlan, parts_of_rows
from solver.programs.convnets.segment_polish import FEW_MOVES, Priced, balance, let_edges_first
from solver.programs.convnets.segments import Search, WeightsRoom
from solver.programs.moves import descend
from solver.schedule.networks.memory import lacking, memory_of, room_bytes
from solver.schedule.networks.segment_steps import NetSetting, net_setting, plan_seconds, predicted, weights_of
from solver.schedule.shortage import does_not_fit

ROUNDS = 12  # of column generation
WORTH = 1e-4  # of a plan's seconds: what a further plan has to save at the current prices
# At which parts of the last prices a path that fits is looked for: these share plans out in fractions, and paths are
# kept by what they cost at every point. Of 24 clusters the best is found at 0.1 to 1; the others where there is none.
PARTS, MORE = (0.1, 0.3, 1.0), (3.0, 10.0)
LOOKS = 3  # at each: what a plan needs beside weights is known where it was found
# A plan is changed step by step on the true price, in which ranks do not wait for all others, as long as prices
# take so much work: a tenth of a second of ResNet-50 on four devices. Of 76 plans of six networks for three to five
# devices 25 are faster than by half as much and without boundaries that move in several segments, by 0.4 % in the mean
# of all and 4 % at most; by half as much again they are another 0.1 % faster.
PRICED = 4000
THOROUGHLY_PRICED = 25 * PRICED  # where all that may lead to a better plan is tried


def solve_network(net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32, *, thorough: bool = False) -> SegmentPlan:
    """Return the plan of a network that should be fastest for one image.

    `thorough`: whether all that may lead to a better plan is tried.

    Raises
    ------
    InfeasiblePlanError
        If none was found for which devices have memory, saying how much is missing and where.
    """
    s = net_setting(net, cluster)
    points = sorted({*cut_points(net), *channel_points(net)})
    several = [Priced(s, plan, points) for plan in Search(s, wire).plans(cluster.names)]
    for priced in several:
        balance(priced)
    best, plans = min(several, key=lambda priced: priced.seconds), list[SegmentPlan]()
    if lacking(net, cluster, best.plan):
        fits = _that_fits(s, cluster, wire, [priced.plan for priced in several])
        plans.append(fits.plan)
        best = Priced(s, fits.plan, points, room_bytes(cluster) - fits.beside_bytes)
        balance(best)
    plans.append(best.plan)
    if parts := parts_of_rows(s):
        found = EveryPlan(s, wire, parts).fastest(best.seconds)
        plan = replace(best.plan, segments=tuple(found))
        if found and not lacking(net, cluster, plan):
            plans.append(plan)
            best = Priced(s, plan, points, best.most_bytes)
    let_edges_first(best)
    plans.append(best.plan)
    best.until = best.work + (THOROUGHLY_PRICED if thorough else PRICED)
    descend(best, FEW_MOVES)
    plans.append(best.plan)
    return predicted(s, next(plan for plan in reversed(plans) if not lacking(net, cluster, plan)))


@dataclass(frozen=True, slots=True, eq=False)
class NetColumn:
    """A whole plan: its seconds, the bytes that it needs on every device beside the program, and those of weights."""

    plan: SegmentPlan
    seconds: float
    needed_bytes: Floats
    weights_bytes: Floats

    @property
    def beside_bytes(self) -> Floats:
        """What it needs beside weights, [p]."""
        return self.needed_bytes - self.weights_bytes


def _that_fits(s: NetSetting, cluster: Cluster, wire: Wire, plans: Iterable[SegmentPlan]) -> NetColumn:
    """Return the fastest plan found that devices have memory for; these are found without regard to memory.

    Raises
    ------
    InfeasiblePlanError
        If none is found, saying what the plan lacks that lacks least.
    """
    net, room = s.net, room_bytes(cluster)

    def column(plan: SegmentPlan) -> NetColumn:
        needed, weights = np.array(memory_of(net, plan), float), np.array(weights_of(net, plan), float)
        return NetColumn(plan, plan_seconds(s, plan), needed, weights)

    def columns(scarce: WeightsRoom) -> list[NetColumn]:
        return [column(plan) for plan in Search(s, wire, scarce).paths(cluster.names)]

    def prices() -> integer.Prices:
        return integer.prices([own.seconds for own in found], [own.needed_bytes for own in found], room, 1)

    def fitting() -> list[NetColumn]:
        return [own for own in found if (own.needed_bytes <= room).all()]

    found = [column(plan) for plan in plans]
    duals = prices()
    for _ in range(ROUNDS):
        least_s = (1 - WORTH) * duals.layer_s
        new = columns(WeightsRoom(np.full(s.devices, np.inf), duals.per_byte))
        worth = [own for own in new if own.seconds + own.needed_bytes @ duals.per_byte < least_s]
        if not worth:
            break
        found += worth
        duals = prices()
    _, likely = max(zip(duals.layers, found, strict=True), key=itemgetter(0))
    for part in (*PARTS, *MORE):
        if part not in PARTS and fitting():
            break
        beside = likely.beside_bytes
        for _ in range(LOOKS):
            new = columns(WeightsRoom(room - beside, part * duals.per_byte))
            found += new
            if not new or (new[0].needed_bytes <= room).all():
                break
            beside = new[0].beside_bytes
    if plans_that_fit := fitting():
        return min(plans_that_fit, key=lambda own: own.seconds)
    mix = integer.best_mix([own.seconds for own in found], [own.needed_bytes for own in found], room, 1)
    raise does_not_fit(net.name, cluster, mix.short_bytes)
