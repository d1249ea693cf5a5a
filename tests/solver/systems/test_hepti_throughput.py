"""The planner for many requests against every way to put the devices into groups, and the table of all systems."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest

from solver.base.errors import InfeasiblePlanError
from solver.model.named import named_model
from solver.programs.planner import solve
from solver.schedule.encoders.memory import ends_bytes, holds_all, lacks, weights_room, whole_layer_bytes, work_bytes
from solver.schedule.encoders.stages import price_plan
from solver.show.comparison import ComparedSystem, Won, compare, ranked, winner, winners
from solver.systems import PLANNERS, hepti_throughput, make_plan
from solver.systems.hepti_throughput import best_partition, solve_throughput
from tests.kit.clusters import pis
from tests.sweeps import ALL, count, seeds

SPEC = named_model("bert-base", layers=6)
ROWS = 64


def requests_per_s(cluster, system):
    return price_plan(SPEC, cluster, make_plan(system, SPEC, cluster, ROWS), ROWS).requests_per_s


# Where no device holds the model each group is planned for: three devices have seven, four have fifteen.
@pytest.mark.parametrize(
    "cluster",
    [pis(10, 20, 5, mbps=20), pis(*[10, 20, 5, 10][: count(2, 4)], memory_gib=0.3), *[pis(10, 20, 5)] * ALL],
)
def test_no_system_answers_more_requests(cluster):
    ours = requests_per_s(cluster, "hepti-throughput")

    for system in PLANNERS:
        try:
            plan = make_plan(system, SPEC, cluster, ROWS)
        except InfeasiblePlanError:
            continue
        if not lacks(SPEC, cluster, plan, plan.predicted.weights_bytes):
            assert ours >= price_plan(SPEC, cluster, plan, ROWS).requests_per_s * (1 - 1e-9), system


def test_who_holds_all_layers_and_not_the_embeddings_is_a_replica_too():
    spec = named_model("bert-base", layers=2)
    cluster = pis(24.6, 70, 10, memory_gib=0.25, mbps=30)
    assert holds_all(spec, cluster, ROWS).tolist() == [False, True, True]

    ours, replicas = (
        price_plan(spec, cluster, make_plan(system, spec, cluster, ROWS), ROWS).requests_per_s
        for system in ("hepti-throughput", "data")
    )

    assert ours >= replicas


def test_groups_without_rank_0_need_no_room_for_the_embeddings():
    """Two boards that hold one of two layers each are a pipeline beside rank 0, which holds all."""
    spec = named_model("bert-base", layers=2)
    layers = spec.layers * whole_layer_bytes(spec)
    alike = pis(5, 70, 20)
    need = [work_bytes(spec, ROWS) + ends_bytes(spec) + 1.1 * layers] + 2 * [work_bytes(spec, ROWS) + 0.6 * layers]
    devices = tuple(replace(device, memory_bytes=round(size)) for device, size in zip(alike.devices, need, strict=True))
    cluster = replace(alike, devices=devices)

    plan = make_plan("hepti-throughput", spec, cluster, ROWS)

    assert lacks(spec, cluster, plan, price_plan(spec, cluster, plan, ROWS).weights_bytes) == ""
    groups = [{device for stage in replica for device in stage.devices} for replica in plan.replicas]
    assert sorted(map(sorted, groups)) == [["pi-0"], ["pi-1", "pi-2"]]


def test_devices_that_hold_the_model_each_are_not_planned_for_together(monkeypatch):
    """They answer as many requests side by side; to plan for each group of four takes seconds."""
    planned = []
    monkeypatch.setattr(
        hepti_throughput, "solve", lambda spec, own, rows: planned.append(own.names) or solve(spec, own, rows)
    )

    solve_throughput(SPEC, pis(10, 20, 5, 15), ROWS)

    assert all(len(names) == 1 for names in planned)


def rate_of(rates):
    """Return what gives the rate of a group."""
    return lambda group: rates.get(group, 0.0)


def test_groups_by_hand():
    """Two pairs at 3 each beat four alone at 1, and one device of its own beside the other three at 7 beats both."""
    alone = {(rank,): 1.0 for rank in range(4)}
    pairs = alone | {(0, 2): 3.0, (1, 3): 3.0}

    assert sorted(best_partition(rate_of(alone), 4)) == [(0,), (1,), (2,), (3,)]
    assert sorted(best_partition(rate_of(pairs), 4)) == [(0, 2), (1, 3)]
    assert sorted(best_partition(rate_of(pairs | {(0, 1, 3): 7.0}), 4)) == [(0, 1, 3), (2,)]
    assert best_partition(rate_of({(2,): 1.0}), 3) == [(2,)]


def partitions(ranks):
    """Yield every way to put ranks into groups, of which some may be left out."""
    if not ranks:
        yield []
        return
    first, *rest = ranks
    yield from partitions(rest)
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            for groups in partitions([rank for rank in rest if rank not in others]):
                yield [(first, *others), *groups]


@pytest.mark.parametrize("seed", seeds(6, 20))
def test_groups_are_those_of_exhaustive_search(seed):
    """Every group has a rate of its own, and some hold no model."""
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 6))
    groups = [group for size in range(1, p + 1) for group in combinations(range(p), size)]
    rates = {group: float(rng.uniform(0, len(group))) for group in groups if rng.random() < 0.7}

    found = best_partition(rate_of(rates), p)

    best = max(sum(rates.get(group, 0.0) for group in way) for way in partitions(list(range(p))))
    assert sum(rates[group] for group in found) == pytest.approx(best)
    assert len({rank for group in found for rank in group}) == sum(map(len, found))


def test_where_the_model_fits_on_no_device_the_groups_share_it():
    """Five boards of half the model each are two groups."""
    cluster = pis(*[10.0] * 5)
    room = weights_room(SPEC, cluster, ROWS)
    devices = [
        replace(device, memory_bytes=int(device.memory_bytes - room[rank] + 3.6 * whole_layer_bytes(SPEC)))
        for rank, device in enumerate(cluster.devices)
    ]
    cluster = replace(cluster, devices=tuple(devices))

    plan = solve_throughput(SPEC, cluster, ROWS)

    plan.check(SPEC, 5)
    assert plan.devices == cluster.names
    assert len(plan.replicas) == 2
    assert not lacks(SPEC, cluster, plan, price_plan(SPEC, cluster, plan, ROWS).weights_bytes)
    assert price_plan(SPEC, cluster, plan, ROWS).requests_per_s >= requests_per_s(cluster, "pipeedge") * (1 - 1e-9)


def test_a_model_that_fits_nowhere_is_refused_with_what_is_missing():
    with pytest.raises(InfeasiblePlanError, match="MiB short"):
        solve_throughput(SPEC, pis(10, 20, memory_gib=0.2), ROWS)


def test_every_system_is_compared_and_who_does_not_fit_says_why():
    cluster = pis(10, 20, memory_gib=0.3)

    entries = {entry.system: entry for entry in compare(SPEC, cluster, ROWS)}

    assert {name.split(":")[0] for name in entries} == set(PLANNERS)
    assert entries["data"].lacks == entries["voltage"].lacks
    assert entries["data"].lacks.startswith("whole on one device, ")
    assert entries["sequence"].lacks.startswith("does not fit: ")
    assert not entries["hepti"].lacks
    assert winner(list(entries.values()), "latency").system == "hepti"
    assert winner(list(entries.values()), "throughput").requests_per_s >= 1 / entries["hepti"].seconds


def test_one_device_wins_on_a_slow_network_and_nothing_where_nothing_fits():
    both = partial(compare, SPEC, rows=ROWS, systems=["single", "megatron-weighted"])
    found = winners(both, pis(10, 20), [1e5, 1e9], [0.01, 1], "latency")

    nothing, (alone, shared) = found
    assert nothing == [Won("", 0.0, 0.0)] * 2
    assert (alone.system, shared.system) == ("single:pi-0", "megatron-weighted")
    assert alone.times_alone == 1
    entries = compare(SPEC, pis(10, 20, mbps=8000), ROWS, systems=["single", "megatron-weighted"])
    assert shared.lead == pytest.approx(entries[0].seconds / entries[1].seconds - 1)
    assert shared.times_alone == pytest.approx(1 + shared.lead)


def test_who_alone_can_be_run_wins_by_no_number():
    alone = partial(compare, SPEC, rows=ROWS, systems=["single"])
    assert winners(alone, pis(10), [1e9], [1], "throughput") == [[Won("single:pi-0", np.inf, 1)]]


@pytest.mark.parametrize(("objective", "ours"), [("latency", "hepti"), ("throughput", "hepti-throughput")])
def test_ours_wins_among_those_that_differ_by_rounding_alone(objective, ours):
    """And what cannot be run comes after all that can, however fast it would be."""
    names = ["edgeshard", "single:pi-1", "hepti-throughput", "hepti", "data"]
    seconds = [1.0, 1.0005, 1.0009, 1.0009, 1.002]
    entries = [ComparedSystem(name, time_s, 1 / time_s, 0, (1,)) for name, time_s in zip(names, seconds, strict=True)]
    entries += [
        ComparedSystem("galaxy", 0.1, 10, 0, (1,), "does not fit"),
        ComparedSystem("detransformer", 0.5, 2, 0, (1,), "", "another"),
    ]

    order = [entry.system for entry in ranked(entries, objective)]

    assert winner(entries, objective).system == ours
    assert order[:2] == ["detransformer", ours]
    assert order[-3:] == ["edgeshard", "data", "galaxy"]
