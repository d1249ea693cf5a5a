"""What plans of several stages and replicas cost: seconds of one request, requests a second, bytes, memory.

A request passes the stages of one replica one after the other. With e the seconds in which rank 0 embeds, h_k those of
the exchange that brings the rows to stage k, t_k those of its layers and h those in which rank 0 gets the result,

    seconds = e + sum_k (h_k + t_k) + h.

Of many requests every stage has another one in hand, and their exchanges run meanwhile, so that a replica gives one
result per period

    period = max over k of (t_k and the messages' compute, h_k, h)

and all replicas together the sum of 1 / period: pipelines as PipeEdge prices them (arXiv 2110.14895), replicas side by
side. Rank 0 also embeds for the replicas that it is not in; what that takes, its own replica lacks. And all that they
get and give passes its link: together they answer no more requests than that carries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from solver.base.spans import Partition, Span
from solver.cluster.cluster import Cluster, Device
from solver.cluster.curves import Floats
from solver.model.spec import ModelSpec
from solver.model.sublayers import HALVES, widths
from solver.plan.holdings import all_weights_bytes
from solver.plan.plan import (
    STAGE_WIRES,
    BlockPlan,
    Plan,
    Prediction,
    Stage,
    Wire,
    block_by_rows,
    blockwise_plan,
    layer_by_rows,
)
from solver.schedule.encoders.cost import price, setting
from solver.schedule.encoders.placing import batch_rows, stage_parts
from solver.schedule.encoders.pricing import block_seconds
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.turn_costs import priced_turns
from solver.schedule.exchange import Exchange, move, of_matrix, tile_counts
from solver.schedule.price import Price, PricedStep
from solver.schedule.timing import TimedStep, Times, Transfer, step_times


@dataclass(frozen=True, slots=True, eq=False)
class PricedStage:
    """A stage: the exchange that brings the rows to it, and its layers."""

    stage: Stage
    ranks: tuple[int, ...]
    enter: PricedStep
    layers: Price

    @property
    def busy_s(self) -> float:
        """Seconds in which it cannot take another request, or its rows are on the way."""
        return max(_seconds(self.enter), self.layers.seconds + float(self.enter.times.compute[list(self.ranks)].max()))


@dataclass(frozen=True, slots=True, eq=False)
class PricedReplica:
    """The stages of a replica, one after the other, and the exchange that brings the result to rank 0."""

    stages: tuple[PricedStage, ...]
    leave: PricedStep

    @property
    def seconds(self) -> float:
        """Seconds of one request from its embedding to rank 0's having the result."""
        return math.fsum(_seconds(stage.enter) + stage.layers.seconds for stage in self.stages) + _seconds(self.leave)

    @property
    def steps(self) -> Iterator[tuple[tuple[int, ...], PricedStep]]:
        """All steps of one request after its embedding, and whose times they have; exchanges only that move bytes."""
        everyone = tuple(range(self.leave.sent.size))
        for stage in self.stages:
            if stage.enter.sent.any():
                yield everyone, stage.enter
            yield from ((stage.ranks, step) for step in stage.layers.steps)
        if self.leave.sent.any():
            yield everyone, self.leave

    @property
    def period_s(self) -> float:
        """Seconds from one result to the next, where requests never run out."""
        return max(*(stage.busy_s for stage in self.stages), _seconds(self.leave))

    @property
    def compute_s(self) -> float:
        """Seconds of the slowest device's compute in every step."""
        return math.fsum(stage.layers.prediction.compute_s for stage in self.stages)

    @property
    def handed_bytes(self) -> float:
        """Bytes that rank 0 sends of one request to a replica that it is not in, or gets back where that is more."""
        return max(float(self.stages[0].enter.sent[0]), float(self.leave.received[0]))

    @property
    def bytes_on_wire(self) -> int:
        """Bytes that one request moves."""
        steps = [*(stage.enter for stage in self.stages), self.leave]
        return sum(round(float(step.sent.sum())) for step in steps) + sum(
            stage.layers.prediction.bytes_on_wire for stage in self.stages
        )


@dataclass(frozen=True, slots=True, eq=False)
class PricedPlan:
    """A plan of any number of stages and replicas.

    Parameters
    ----------
    replicas
        In the plan's order.
    embed_s
        Seconds in which rank 0 embeds a request.
    leader
        Number of the replica that rank 0 computes in; None where it only embeds and hands out.
    link_bytes_per_s
        Of rank 0's link, each way.
    weights_bytes
        Of every device.
    """

    replicas: tuple[PricedReplica, ...]
    embed_s: float
    leader: int | None
    link_bytes_per_s: float
    weights_bytes: tuple[int, ...]

    @property
    def fastest(self) -> PricedReplica:
        """The replica that a request alone goes to."""
        return min(self.replicas, key=lambda replica: replica.seconds)

    @property
    def in_one(self) -> Price:
        """The price of a plan of one stage of all devices, `Plan.in_one`, step by step."""
        ((stage,),) = (replica.stages for replica in self.replicas)
        return stage.layers

    @property
    def moved_bytes(self) -> Floats:
        """Bytes that every device sends, or receives where that is more, of a request on the fastest replica, [p]."""
        steps = [*(stage.enter for stage in self.fastest.stages), self.fastest.leave]
        sent, received = sum(step.sent for step in steps), sum(step.received for step in steps)
        moved = np.asarray(np.maximum(sent, received))
        for stage in self.fastest.stages:
            moved[list(stage.ranks)] += stage.layers.moved_bytes
        return moved

    @property
    def requests_per_s(self) -> float:
        """Requests a second, where they never run out."""
        others = self._others_per_s
        left = 1 - self.embed_s * others  # of rank 0's time
        if left <= 0:
            return 1 / self.embed_s
        if self.leader is None:
            return others
        period_s = self.replicas[self.leader].period_s
        leads = max((stage.busy_s for stage in self.replicas[self.leader].stages if 0 in stage.ranks), default=0.0)
        return others + min(1 / period_s, left / (leads + self.embed_s))

    @property
    def _others_per_s(self) -> float:
        """Requests a second of the replicas that rank 0 is not in; those that need least of its link come first."""
        others = [replica for number, replica in enumerate(self.replicas) if number != self.leader]
        rates, left = [], self.link_bytes_per_s
        for replica in sorted(others, key=lambda replica: replica.handed_bytes):
            rates.append(min(1 / replica.period_s, left / replica.handed_bytes))
            left -= rates[-1] * replica.handed_bytes
        return math.fsum(rates)

    @property
    def prediction(self) -> Prediction:
        """What the plan file carries: one request on the fastest replica."""
        best = self.fastest
        seconds, compute_s = self.embed_s + best.seconds, self.embed_s + best.compute_s
        return Prediction(seconds, compute_s, seconds - compute_s, self.weights_bytes, best.bytes_on_wire)


def predict_plan(spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int) -> Prediction:
    """Return what a request of `rows` rows costs under a plan of any number of stages and replicas."""
    return price_plan(spec, cluster, plan, rows).prediction


def price_plan(spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int) -> PricedPlan:
    """Price a plan of any number of stages and replicas for requests of `rows` rows."""
    s = setting(spec, cluster, rows, plan.wire)
    if plan.in_one:
        return _in_one(s, plan)
    embed_s = _embed_s(spec.only(0, 1), cluster, rows)
    leader = next(
        (n for n, rep in enumerate(plan.replicas) if any(cluster.names[0] in stage.devices for stage in rep)), None
    )
    held = all_weights_bytes(spec, plan, cluster.precision)
    return PricedPlan(_replicas(s, cluster, plan), embed_s, leader, cluster.bandwidth(0), held)


def _in_one(s: Setting, plan: Plan) -> PricedPlan:
    """Price one stage of all devices, from rank 0 to rank 0: the cost model knows what overlaps there."""
    (stage,), everything = plan.stages, tuple(range(s.devices))
    nothing = _priced(s, of_matrix(np.zeros((s.devices, s.devices))))
    found = price(s, plan)
    replica = PricedReplica((PricedStage(stage, everything, nothing, found),), nothing)
    return PricedPlan((replica,), 0.0, 0, math.inf, found.weights_bytes)


def layer_seconds(spec: ModelSpec, cluster: Cluster, rows: int) -> Floats:
    """Return the seconds of one layer on every device alone, [p]."""
    return np.asarray(sublayer_seconds(spec, cluster, rows).sum(0))


def sublayer_seconds(spec: ModelSpec, cluster: Cluster, rows: int) -> Floats:
    """Return the seconds of a layer's sub-layers on every device alone, [sub-layers, p]."""
    s, halves = setting(spec, cluster, rows), [Span(half, half + 1) for half in range(HALVES)]
    return np.stack([block_seconds(s, block, half) for block in spec.blocks for half in halves])


def chain(spec: ModelSpec, cluster: Cluster, parts: Iterable[tuple[int, int]], system: str, rows: int) -> Plan:
    """Return the plan of stages of one device each: `parts` are (rank, number of layers), the first layers first.

    Where the layers are used up, the next part begins another replica.
    """
    sublayers = [(rank, HALVES * len(spec.blocks) * count) for rank, count in parts]
    return chain_of_sublayers(spec, cluster, sublayers, system, rows)


def chain_of_sublayers(
    spec: ModelSpec, cluster: Cluster, parts: Iterable[tuple[int, int]], system: str, rows: int
) -> Plan:
    """Return the same of parts (rank, number of sub-layers)."""
    stages, start, layer = [], 0, layer_by_rows(spec.blocks, [1.0])
    per_layer = HALVES * len(layer)
    for rank, count in parts:
        touched = Span(start // per_layer, -(-(start + count) // per_layer))
        stages.append(Stage((cluster.names[rank],), ((touched, layer),), Span(start, start + count)))
        start = (start + count) % (per_layer * spec.layers)
    return Plan(tuple(stages), spec.name, spec.fingerprint, cluster.fingerprint, system, rows, devices=cluster.names)


def _embed_s(spec: ModelSpec, cluster: Cluster, rows: int) -> float:
    """Return the seconds in which rank 0 embeds: the first step of the model on it alone."""
    first = cluster.only([0])
    found = price(setting(spec, first, rows), blockwise_plan(spec, first.names, partial(block_by_rows, shares=[1.0])))
    return float(found.steps[0].times.compute.max())


def _replicas(s: Setting, cluster: Cluster, plan: Plan) -> tuple[PricedReplica, ...]:
    """Price all replicas, of those that are alike one: of 1024 by `data` each would take 16 ms."""
    known: dict[object, PricedReplica] = {}
    found = []
    for replica in plan.replicas:
        # Rank 0 hands out, and links of their own tell devices apart.
        unique = cluster.links or any(cluster.names[0] in stage.devices for stage in replica)
        devices = [[cluster.devices[rank] for rank in plan.ranks(stage)] for stage in replica]
        key = tuple(
            (stage.layers, stage.sublayers, tuple(map(_facts, own)))
            for stage, own in zip(replica, devices, strict=True)
        )
        if unique:
            found.append(_replica(s, cluster, plan, replica))
        elif key in known:
            found.append(_moved(known[key], plan, replica))
        else:
            found.append(known.setdefault(key, _replica(s, cluster, plan, replica)))
    return tuple(found)


def _facts(device: Device) -> object:
    """Return what a device's seconds depend on."""
    own = (device.compute_flop_per_s, device.bandwidth_bytes_per_s, device.jitter_s, device.rest_s)
    return (*own, id(device.curves))


def _moved(priced: PricedReplica, plan: Plan, stages: tuple[Stage, ...]) -> PricedReplica:
    """Return what a replica costs on other devices that are alike, none of them rank 0."""
    ranks = [plan.ranks(stage) for stage in stages]
    before = [rank for stage in priced.stages for rank in stage.ranks]
    after = [rank for own in ranks for rank in own]

    def there(values: Floats) -> Floats:
        moved = values.copy()
        moved[before], moved[after] = values[after], values[before]
        return moved

    def step(found: PricedStep) -> PricedStep:
        own = found.times
        times = Times(there(own.compute), there(own.exchange), there(own.end), there(own.handled))
        return replace(found, times=times, sent=there(found.sent), received=there(found.received))

    moved = (
        PricedStage(stage, own, step(found.enter), found.layers)
        for stage, own, found in zip(stages, ranks, priced.stages, strict=True)
    )
    return PricedReplica(tuple(moved), step(priced.leave))


def _replica(s: Setting, cluster: Cluster, plan: Plan, stages: tuple[Stage, ...]) -> PricedReplica:
    root = np.arange(s.devices) == 0
    have, found = s.rows * root.astype(float), []
    layers = [_layers(s, cluster, plan, stage, plan.ranks(stage)) for stage in stages]
    slowest_s = max(stage.seconds for stage in layers)
    for stage, own in zip(stages, layers, strict=True):
        ranks = plan.ranks(stage)
        active = [ranks[within] for within in stage.active]
        width = widths(s.spec, stage.span.start, stage.begins)
        enter = _hand(s, have, _lies(s, stage.first, ranks), active, width, slowest_s)
        found.append(PricedStage(stage, ranks, enter, own))
        lies = _lies(s, stage.last, ranks)
        # Where all have all, the first of them sends it: rank 0 itself, if it is one of them.
        have = s.rows * (np.arange(s.devices) == active[0]).astype(float) if lies is None else lies
    return PricedReplica(tuple(found), _hand(s, have, s.rows * root.astype(float), [0], (s.spec.hidden,), slowest_s))


def _layers(s: Setting, cluster: Cluster, plan: Plan, stage: Stage, ranks: tuple[int, ...]) -> Price:
    """Price a stage's layers on a cluster of their own, from its rows' being there until they are computed."""
    own = setting(s.spec, cluster.only(ranks), s.rows, plan.wire.within)
    rows = batch_rows(stage, stage.active, [s.rows], plan.tile_rows)
    parts = stage_parts(s.spec, stage, stage.active, rows, folded=True, unfolds=False)
    return Price(priced_turns(own, stage.active, parts.steps(), stage.span.start), ())


def _lies(s: Setting, block: BlockPlan, ranks: tuple[int, ...]) -> Floats | None:
    """Return how many rows every rank of the cluster has after a block; None where the stage has all of them."""
    partition: Partition | None = block.row_partition(s.rows)
    if partition is None:
        return None
    counts = np.zeros(s.devices)
    counts[list(ranks)] = partition.counts
    return counts


def _hand(
    s: Setting, have: Floats, want: Floats | None, receivers: list[int], width: Sequence[int], slowest_s: float
) -> PricedStep:
    """Price bringing rows from where they lie to where they are wanted; None: all to every receiver.

    A row has tensors of these widths. What adapts takes the most bits with which it is no slower than the slowest
    stage.
    """
    if s.wire is Wire.ADAPTIVE:
        found = (_hand(replace(s, wire=wire), have, want, receivers, width, slowest_s) for wire in STAGE_WIRES)
        *_, fewest = tried = list(found)
        return next((step for step in tried if float(step.times.exchange.max()) <= slowest_s), fewest)
    row_bytes = sum(map(s.row_bytes, width))
    if want is None:
        everyone = np.isin(np.arange(s.devices), receivers)
        exchange = of_matrix(row_bytes * have[:, None] * (everyone & ~np.eye(s.devices, dtype=bool)))
    else:
        exchange = move(have, want, row_bytes, tile_counts(have, 0))
    return _priced(s, exchange)


def _priced(s: Setting, exchange: Exchange) -> PricedStep:
    step = TimedStep("hand on", transfer=Transfer(lambda values, active: exchange, wire=s.wire))
    times = step_times(step, {}, np.ones(s.devices, bool), s.machine)
    return PricedStep("between stages", step.name, (), (), 1, times, exchange.sent, exchange.received)


def _seconds(step: PricedStep) -> float:
    return step.repeats * float(step.times.end.max())
