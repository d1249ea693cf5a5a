"""Shares of rows change within requests, at a layer that rank 0 names: every result is the oracle's."""

import itertools
import statistics
import time
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest

from hepti_mpi.engine.engine import Engine
from hepti_mpi.kernels.products import NUMPY, Linear
from hepti_mpi.live import conductor as conducting
from hepti_mpi.live.conductor import Conductor
from hepti_mpi.live.member import Member, follow
from hepti_mpi.live.monitor import Monitor
from hepti_mpi.live.within_request import HOLDS
from solver.live.decision import Decision
from solver.live.observe import FIRST
from solver.live.replan import Replanner
from solver.plan.routes import Route
from solver.programs.planner import solve
from solver.schedule.encoders.cost import predict
from tests import sweeps
from tests.kit.at_once import AtOnce
from tests.kit.clusters import pis
from tests.kit.encoder_ranks import Run
from tests.kit.encoders import LONG, expected, lengths_of, random_plan, rows_plan, tensors_of
from tests.kit.rank_requests import requests_of
from tests.kit.sized import sized

REQUESTS = sweeps.count(12, 160)
CHANGES = sweeps.count(6, 20)


def random_rows(rng, ranks, among=None):
    """Return a plan by rows: uneven, some ranks without any; sent in any way, in any tiles."""
    weights = rng.uniform(0.1, 1, ranks) * (rng.random(ranks) < np.where(np.arange(ranks), 0.8, 0.95))
    if among is not None:
        weights *= np.isin(range(ranks), among)
    if not weights.any():
        weights[0 if among is None else rng.choice(among)] = 1
    route = Route(rng.choice(list(Route)))
    return rows_plan(weights, LONG, tile_rows=int(rng.integers(0, 9)), route=route)


def turning(run, at, plan):
    """Return what turns to a plan before a layer, as `StageShare.run` asks."""
    return lambda layer: (plan, run.mover.kernels(plan)) if layer == at else None


@pytest.mark.parametrize("seed", sweeps.seeds(1, 3))
def test_from_any_layer_on_other_rows_give_the_same_result(seed, world, files):
    """Ranks are emptied and refilled; which plan comes from which layer on, all draw alike."""
    rng = np.random.default_rng([seed, 11])
    run = Run(LONG, rows_plan([1.0] * world.size, LONG), world, files)
    for _ in range(CHANGES):
        active = run.stack.plan.stages[0].active
        at, plan = int(rng.integers(LONG.layers)), random_rows(rng, world.size, active)
        at = at if active[0] == 0 else LONG.layers  # rank 0 has to be there
        run.check(lengths_of(LONG, rng), look=turning(run, at, plan))
        run.prepare(random_rows(rng, world.size) if rng.random() < 0.5 else plan)
        run.mover.adopt(LONG.layers)


@pytest.mark.parametrize("seed", range(sweeps.count(1, 3)))
def test_from_any_layer_on_rows_follow_any_cuts_and_these_follow_rows(seed, world, files):
    """Where all ranks hold both; rows of the blocks may differ, too."""
    rng = np.random.default_rng([seed, 12])
    spare = rows_plan([1.0] * world.size, LONG)
    run = Run(LONG, random_plan(LONG, rng, world.size), world, files, spare=spare)
    cut = run.stack.plan
    turned = 0
    for _ in range(CHANGES):
        now = run.stack.plan.stages[0].active
        among = now if rng.random() < 0.7 else range(world.size)
        plan = cut if run.stack.plan != cut and rng.random() < 0.7 else random_rows(rng, world.size, among)
        at = int(rng.integers(LONG.layers))
        turns = now[0] == 0 and {*plan.stages[0].active} <= {*now}
        turned += turns
        run.check(lengths_of(LONG, rng), look=turning(run, at, plan) if turns else None)
        assert not any(run.mover.holdings.lacking(LONG, plan, rank) for rank in range(world.size))
        run.mover.prepare(plan)
        run.mover.adopt(LONG.layers)
        run.check(lengths_of(LONG, rng))
    assert turned >= 3


class Chance(Replanner):
    """Changes to plans by chance, whatever was measured."""

    def __init__(self, cluster, solution, spare, rng):
        super().__init__(LONG, cluster, solution.plan, spare, [1e9] * len(cluster.devices), AtOnce(), solution)
        self._cluster, self._rng, self._cut = cluster, rng, solution.plan

    def observe_part(self, *arguments):
        super().observe_part(*arguments)
        return self._rng.random() < 0.7

    def decide(self, aim=None, *, now_only=False):
        if self._rng.random() < (0.1 if now_only else 0.6):
            return None
        among = self.plan.stages[0].active if now_only and self._rng.random() < 0.8 else None
        plan = priced(random_rows(self._rng, len(self._cluster.devices), among), self._cluster, 32)
        if self._cut != self.plan and self._rng.random() < 0.3:
            plan = self._cut
        return Decision(plan, True, "chance", "others", 1.0, 0.9, 0.0)


def priced(plan, cluster, rows):
    return replace(plan, rows=rows, predicted=predict(LONG, cluster, plan, rows))


@cache
def planned(ranks):
    cluster = pis(*[20.0] * ranks)
    plan = priced(rows_plan([1.0] * ranks, LONG), cluster, 32)
    return cluster, replace(solve(LONG, cluster, 32), plan=plan)


def member_of(run):
    return Member(run.world, run.stack, run.mover, Monitor(LONG, NUMPY))


def lead(run, replanner, requests, acts=True):
    """Answer requests of these row counts as the leader does; return rank 0's side, and the seconds of each."""
    conductor = Conductor(LONG, member_of(run), replanner, acts, lambda line: None)
    engine, seconds = Engine(LONG, tensors_of(LONG), run.stack, run.world), []
    engine.live = conductor
    try:
        for lengths in requests:
            answers = list(engine.serve([[requests_of(LONG, lengths)]]))
            seconds.append(answers[0].entry["seconds"])
            hidden = np.concatenate([answer.hidden for answer in answers])
            np.testing.assert_allclose(hidden, np.concatenate(expected(LONG, lengths)[1]), rtol=0, atol=1e-4)
    finally:
        run.world.orders.send(None, run.world.others())  # the others wait for it, whatever happens here
    return conductor, seconds


def random_requests(rng, count):
    return [tuple(lengths_of(LONG, rng)) for _ in range(count)]


def random_looks(rng):
    """Return what draws layers to look up before, any that leave a look's word time to come and to hold."""

    def draw(layers, seconds):
        at, found = 0, []
        while (at := at + int(rng.integers(HOLDS, 5))) + HOLDS < layers:
            found.append(at)
        return tuple(found)

    return draw


@pytest.mark.slow("requests all along, of many layers, whose plan changes at any of them")
@pytest.mark.parametrize("acts", sized([True, False], 2))
def test_changes_at_any_moment_within_and_between_requests_lose_none(acts, world, files, monkeypatch):
    """All that rank 0 decides holds on all ranks from the same layer on; a dry run changes nothing."""
    rng = np.random.default_rng(12)
    monkeypatch.setattr(conducting, "LISTEN_EVERY_S", 0.0)
    monkeypatch.setattr(conducting, "looks", random_looks(rng))
    cluster, solution = planned(world.size)
    plan, spare = random_plan(LONG, np.random.default_rng(14), world.size), solution.plan
    solution = replace(solution, plan=priced(plan, cluster, 32))
    run = Run(LONG, solution.plan, world, files, spare=spare)
    decisions = []
    if world.rank:
        follow(run.world, run.stack, member_of(run))
    else:
        conductor, _ = lead(run, Chance(cluster, solution, spare, rng), random_requests(rng, REQUESTS), acts)
        decisions = conductor.decisions
    plans = world.on_all(lambda: run.stack.plan)

    assert len(set(plans)) == 1
    assert acts or plans[0] == solution.plan
    within = [entry for entry in decisions if entry["at_layer"] is not None]
    between = [entry for entry in decisions if entry["acted"] and entry["at_layer"] is None]
    if world.rank == 0:
        assert len(between) >= REQUESTS // 16 if acts else not within + between
    if world.rank == 0 and acts and world.size > 1:
        assert len(within) >= REQUESTS // 7
        assert all(HOLDS < entry["at_layer"] < LONG.layers for entry in within)
        assert all(f"from layer {entry['at_layer']} of" in entry["line"] for entry in within)


def test_in_short_requests_nobody_looks_up(world, files, monkeypatch):
    """No decision travels within them."""
    monkeypatch.setattr(conducting, "LISTEN_EVERY_S", 0.0)
    cluster, solution = planned(world.size) if world.rank == 0 else (None, None)
    plan = world.from_root((lambda: solution.plan) if world.rank == 0 else None)
    run = Run(LONG, plan, world, files)
    run.world.decisions = None
    if world.rank:
        follow(run.world, run.stack, member_of(run))
        return
    replanner = Replanner(LONG, cluster, solution.plan, None, [1e9] * world.size, AtOnce(), solution)
    conductor, _ = lead(run, replanner, random_requests(np.random.default_rng(13), 10))

    assert conductor.looks == ()


class Board:
    """What computes as long as a board of a speed would: it sleeps."""

    def __init__(self, flop_per_s):
        self.flop_per_s = flop_per_s
        self.backend = replace(NUMPY, graph=self.graph, attend_part=self.attend_part)

    def graph(self, operations):
        compute = NUMPY.graph(operations)
        size = sum(operation.weight.size for operation in operations if isinstance(operation, Linear))

        def graph(x, out, residual, known):
            time.sleep(2 * len(x) * size / self.flop_per_s)
            return compute(x, out, residual)

        return SimpleNamespace(bound=partial(partial, graph))

    def attend_part(self, q, k, v, head_dim, out=None):
        time.sleep(4 * len(q) * k.size / self.flop_per_s)
        return NUMPY.attend_part(q, k, v, head_dim, out)


class InProportion(Replanner):
    """Shares the rows in proportion to the boards' speeds, whenever one has changed."""

    followed = 0

    def decide(self, aim=None, *, now_only=False):
        changes = sum(tracker.changes for tracker in self.drift.compute)
        if changes == self.followed:
            return None
        self.followed = changes
        plan = priced(rows_plan([tracker.factor for tracker in self.drift.compute], LONG), self.drift.profile, 64)
        return Decision(plan, True, "a board changed", "others", 1.0, 0.5, 0.0)


TRIES = 4  # other programs on this machine may make a calm board as noisy as a slow one


@pytest.mark.slow("requests of 0.4 s, each long enough that ranks look up within it")
def test_a_board_that_becomes_slow_has_other_rows_in_the_same_request(world, files, monkeypatch):
    """Of requests of 0.4 s; the last board computes at a quarter of its speed from one request on."""
    if world.size == 1:
        return  # nobody to share rows with
    monkeypatch.setattr(conducting, "LISTEN_EVERY_S", 0.0)
    heard = []
    while len(heard) < TRIES and not (heard and heard[-1] == AS_PLANNED):
        heard.append(slow_down(world, files))

    assert heard[-1] == AS_PLANNED, heard


AS_PLANNED = {"after_requests": FIRST + 4, "at_layer": 6, "sooner": True, "then_faster": True}


def slow_down(world, files):
    """Return on all ranks when the rows changed, and whether it was worth it; two looks and two layers take six."""
    calm, slow, speed = FIRST + 3, 2, 6e7 / world.size
    cluster = pis(*[27 * speed / 1e9] * world.size)  # so that what is predicted is near what it takes
    plan = priced(rows_plan([1.0] * world.size, LONG), cluster, 64)
    plan = replace(plan, predicted=replace(plan.predicted, seconds=0.4))
    board = Board(speed)
    run = Run(LONG, plan, world, files, board.backend)
    if world.rank:
        batches, through = itertools.count(), run.stack.run

        def slowed(*arguments, **options):
            if next(batches) == calm and world.rank == world.size - 1:
                board.flop_per_s = speed / 4
            return through(*arguments, **options)

        run.stack.run = slowed
        follow(run.world, run.stack, member_of(run))
        return world.from_root(None)
    replanner = InProportion(LONG, cluster, plan, None, [1e9] * world.size, AtOnce())
    conductor, seconds = lead(run, replanner, [(64,)] * (calm + slow))

    calm_s = statistics.median(seconds[:calm])
    first = next(iter(conductor.decisions), {})
    return world.from_root(
        lambda: {
            "after_requests": first.get("after_requests"),
            "at_layer": first.get("at_layer"),
            "sooner": seconds[calm] < 0.9 * 4 * calm_s,
            "then_faster": seconds[calm + 1] < 0.6 * 4 * calm_s,
        }
    )
