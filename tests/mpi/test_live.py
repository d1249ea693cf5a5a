"""Rank 0 leads the ranks through requests and changes of plan: every request is answered, once, as the oracle does."""

import gc
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from hepti_mpi.comm import group as comm
from hepti_mpi.engine.engine import Engine
from hepti_mpi.engine.layers import BlockKernels
from hepti_mpi.engine.stack import PlanOrder
from hepti_mpi.kernels.products import NUMPY
from hepti_mpi.live import conductor as conducting
from hepti_mpi.live import monitor
from hepti_mpi.live.conductor import Conductor
from hepti_mpi.live.member import MOST_PROBES, Member, follow
from hepti_mpi.live.monitor import Monitor
from hepti_mpi.session import cli, encoder, encoder_rank, job, leader
from solver.cluster.cluster import write_cluster
from solver.live import trials
from solver.live.decision import Decision
from solver.live.replan import Replanner
from solver.programs.planner import solve
from solver.schedule.encoders.cost import predict
from solver.systems import make_plan
from tests import sweeps
from tests.kit.at_once import AtOnce
from tests.kit.clusters import pis
from tests.kit.encoder_ranks import Run
from tests.kit.encoders import POST, expected, lengths_of, random_plan, rows_plan, tensors_of
from tests.kit.rank_requests import hidden_states
from tests.kit.sized import sized

REQUESTS = sweeps.count(16, 40)


@cache
def planned(ranks):
    """Return boards and the plan for them."""
    cluster = pis(*[20.0] * ranks)
    return cluster, solve(POST, cluster, 32)


class Forced(Replanner):
    """Changes to plans at random, whatever was measured."""

    def __init__(self, cluster, solution, plans, rng):
        super().__init__(POST, cluster, solution.plan, None, [1e9] * len(cluster.devices), AtOnce())
        self._cluster, self._plans, self._rng = cluster, plans, rng

    def decide(self, aim=None, *, now_only=False):
        if self._rng.random() < 0.3:
            return None
        plan = self._plans()
        plan = plan if plan.predicted else _predicted(self._cluster, plan)
        return Decision(plan, True, "chance", "others", 1.0, 0.9, 0.0)


def _predicted(cluster, plan):
    plan = replace(plan, rows=32)
    return replace(plan, predicted=predict(POST, cluster, plan, 32))


def lead(run, replanner, rng):
    """Answer requests as the leader does; return how many were asked and what was decided."""
    member = member_of(run)
    conductor = Conductor(POST, member, replanner, True, lambda line: None)
    try:
        answer(run, conductor, rng)
    finally:
        run.world.orders.send(None, run.world.others())  # the others wait for it, whatever happens here
    return conductor


def answer(run, conductor, rng):
    engine = Engine(POST, tensors_of(POST), run.stack, run.world)
    engine.live = conductor
    for _ in range(REQUESTS):
        lengths = tuple(lengths_of(POST, rng))
        (hidden,) = hidden_states(engine, POST, [lengths])
        np.testing.assert_allclose(hidden, np.concatenate(expected(POST, lengths)[1]), rtol=0, atol=1e-4)


def member_of(run):
    return Member(run.world, run.stack, run.mover, Monitor(POST, NUMPY))


@pytest.mark.parametrize(("kind", "with_file"), sized(sweeps.cycled(2, ["any", "rows"], ["rank 0", "all"]), 2))
def test_forced_changes_lose_no_request(kind, with_file, world, files, monkeypatch):
    """Plans by rows change between two requests; the others are prepared while requests run, and may be given up."""
    monkeypatch.setattr(conducting, "LISTEN_EVERY_S", 0.0)
    rng = np.random.default_rng(7)
    cluster, solution = planned(world.size) if world.rank == 0 else (None, None)
    plan = world.from_root(lambda: solution.plan) if world.rank == 0 else world.from_root(None)
    run = Run(POST, plan, world, files, with_file=None if with_file == "all" else [0])

    def plans():
        return rows_plan(rng.uniform(0.1, 1, world.size)) if kind == "rows" else random_plan(POST, rng, world.size)

    if world.rank:
        follow(run.world, run.stack, member_of(run))
    else:
        conductor = lead(run, Forced(cluster, solution, plans, rng), rng)
        assert sum(entry["acted"] for entry in conductor.decisions) >= REQUESTS // 8
        assert conductor.replanned == sum(entry["acted"] for entry in conductor.decisions)
    assert len(set(world.on_all(lambda: run.stack.plan))) == 1


def test_what_ranks_measure_arrives_and_changes_nothing_without_a_change(world, files, monkeypatch):
    """Every batch is heard of by all ranks; the factors follow."""
    monkeypatch.setattr(conducting, "LISTEN_EVERY_S", 0.0)
    cluster, solution = planned(world.size) if world.rank == 0 else (None, None)
    plan = world.from_root(lambda: solution.plan) if world.rank == 0 else world.from_root(None)
    run = Run(POST, plan, world, files)
    if world.rank:
        follow(run.world, run.stack, member_of(run))
        return
    conductor = lead(
        run,
        Replanner(POST, cluster, solution.plan, None, [1e9] * world.size, AtOnce(), solution),
        np.random.default_rng(8),
    )

    assert len(conductor.latest) == world.size
    assert all(measured.room_bytes > 0 for measured in conductor.latest)
    assert conductor.drift.compute[0].factor != 1.0 or not conductor.latest[0].compute_s


def test_rank_0_without_a_share_measures_itself_while_it_waits(world, files, monkeypatch):
    """What it waited in the request before says whether a probe is hidden in the next."""
    monkeypatch.setattr(conducting, "LISTEN_EVERY_S", 0.0)
    monkeypatch.setattr(conducting, "HIDDEN", 0.0)
    monkeypatch.setattr(conducting, "OWN_PROBE_EVERY_S", np.inf)
    monkeypatch.setattr(monitor, "PROBE_EVERY_S", 0.0)
    monkeypatch.setattr(monitor, "PROBE_S", 1e-3)
    cluster, solution = planned(world.size) if world.rank == 0 else (None, None)
    run = Run(POST, rows_plan([float(rank > 0 or world.size == 1) for rank in range(world.size)]), world, files)
    if world.rank:
        follow(run.world, run.stack, member_of(run))
        return
    conductor = lead(
        run, Watching(POST, cluster, solution.plan, None, [1e9] * world.size, AtOnce()), np.random.default_rng(9)
    )

    probed = conductor.drift.compute[0].factor != 1.0
    assert probed  # alone it has a share, and is measured as it computes


def test_a_rank_without_a_share_says_how_fast_it_is_and_falls_silent_where_nothing_is_asked(world, files, monkeypatch):
    monkeypatch.setattr(conducting, "LISTEN_EVERY_S", 0.0)
    monkeypatch.setattr(monitor, "PROBE_EVERY_S", 0.0)
    monkeypatch.setattr(monitor, "PROBE_S", 1e-4)
    cluster, solution = planned(world.size) if world.rank == 0 else (None, None)
    run = Run(POST, rows_plan([1.0] + [0.0] * (world.size - 1)), world, files)
    if world.rank:
        member = member_of(run)
        follow(run.world, run.stack, member)
        asked = member.probes
        while member.idle():
            pass
        assert asked <= member.probes == MOST_PROBES
        return
    conductor = lead(
        run, Watching(POST, cluster, solution.plan, None, [1e9] * world.size, AtOnce()), np.random.default_rng(9)
    )

    assert all(tracker.factor != 1.0 for tracker in conductor.drift.compute[1:])


class Watching(Replanner):
    """Hears everything, and decides nothing."""

    def decide(self, aim=None, *, now_only=False):
        return None


def test_where_the_plan_stays_nothing_of_what_lives_is_made(world, files, monkeypatch, tmp_path):
    """No mover, no monitor, no conductor: `--replan off` costs what it did before plans could change."""
    for name in ("Member", "Monitor", "Mover", "reading_speeds"):
        monkeypatch.setattr(encoder_rank, name, None)
    monkeypatch.setattr(encoder, "Conductor", None)
    cluster = tmp_path / "boards.toml"
    write_cluster(pis(*[20.0] * world.size), cluster)
    words = ["--model", str(files[POST.name].path), "--random", "8", "--cluster", str(cluster), "--backend", "numpy"]

    assert job.run_job(cli.parse([*words, "--replan", "off"]), comm.world()) == 0


def test_layers_that_a_change_of_plan_replaces_are_freed(world, files, monkeypatch, tmp_path):
    """Nothing but the stack and the mover holds them while the job runs."""
    found = []

    def count():
        gc.unfreeze()
        gc.collect()
        return sum(isinstance(thing, BlockKernels) for thing in gc.get_objects())

    def lead(self, rank):
        stack, kept = rank.stack, count()
        stack.loaded = {}
        stack.adopt(stack.plan, ())
        found.append(kept - count())
        self.group.orders.send(None, self.group.others())

    monkeypatch.setattr(leader.Leader, "lead", lead)
    monkeypatch.setattr(leader.Leader, "close", lambda self, ranks: 0)
    cluster = tmp_path / "boards.toml"
    write_cluster(pis(*[20.0] * world.size), cluster)
    words = ["--model", str(files[POST.name].path), "--random", "8", "--cluster", str(cluster), "--backend", "numpy"]

    assert job.run_job(cli.parse([*words, "--replan", "off"]), comm.world()) == 0

    assert found == [2 * POST.layers] * (world.rank == 0)


def test_the_plan_that_stays_frees_the_layers_of_the_others(world, files, monkeypatch, tmp_path):
    found = []

    def count(stack):
        return sum(len(layers) for layers in stack.loaded.values())

    def lead(self, rank):
        stack = rank.stack
        found.append(count(stack))
        order = PlanOrder(self.kind._trials.plans[1], number=1, stays=True)
        self.group.orders.send(order, self.group.others())
        stack.follow(order)
        found.append(count(stack))
        self.group.orders.send(None, self.group.others())

    monkeypatch.setattr(leader.Leader, "lead", lead)
    monkeypatch.setattr(leader.Leader, "close", lambda self, ranks: 0)
    blocks = partial(make_plan, "megatron")
    monkeypatch.setattr(
        trials,
        "plans_to_try",
        lambda spec, cluster, solution: [solution.plan, blocks(spec, cluster, solution.plan.rows)],
    )
    cluster = tmp_path / "boards.toml"
    write_cluster(pis(*[0.003] * world.size, mbps=300), cluster)
    words = ["--model", str(files[POST.name].path), "--random", "48", "--cluster", str(cluster), "--backend", "numpy"]

    assert job.run_job(cli.parse([*words, "--plan-by", "measure"]), comm.world()) == 0

    assert found == [2 * POST.layers, POST.layers] * (world.rank == 0)
