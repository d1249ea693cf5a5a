"""Planners of stages and replicas: their dynamic and integer programs against exhaustive search and sums by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest

from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Span
from solver.model.named import named_model
from solver.model.spec import with_layers
from solver.plan.plan import Wire
from solver.schedule.encoders.memory import weights_room, whole_layer_bytes
from solver.schedule.encoders.stages import chain, chain_of_sublayers, layer_seconds, price_plan, sublayer_seconds
from solver.systems import make_plan
from solver.systems.edgeshard import least_sum
from solver.systems.pipeedge import Boards, StageUnits, best_stages, device_types, fewer_types, units_of
from solver.systems.prima import halda
from tests.kit import refused
from tests.kit.clusters import pis
from tests.sweeps import seeds

SPEC = named_model("bert-base", layers=6)


def cuts_of(layers, stages):
    """Return all ways to cut layers into so many stages that are not empty."""
    inner = combinations(range(1, layers), stages - 1)
    return [[stop - start for start, stop in pairwise((0, *stops, layers))] for stops in inner]


def with_memory(cluster, layers):
    """Return the cluster with room for so many layers of SPEC on every device."""
    room = weights_room(SPEC, cluster, 32)
    devices = [
        replace(device, memory_bytes=int(device.memory_bytes - room[rank] + (count + 0.5) * whole_layer_bytes(SPEC)))
        for rank, (device, count) in enumerate(zip(cluster.devices, layers, strict=True))
    ]
    return replace(cluster, devices=tuple(devices))


def alike_units(count, sent_bytes):
    """Return units of no weight; after each the same bytes are sent."""
    return StageUnits(np.zeros(count), np.zeros(count + 1), np.full(count + 1, sent_bytes))


def test_pipeedge_by_hand():
    """Two slow boards and one three times as fast: 5 units of 1 s in 3, 1, 1 have a bottleneck of 1 s."""
    boards = [Boards((0, 1), np.ones(5), 10.0, 0.0), Boards((2,), np.full(5, 1 / 3), 20.0, 0.0)]

    bottleneck, stages = best_stages(boards, alike_units(5, 5.0))

    assert bottleneck == pytest.approx(1.0)
    assert sorted(stages) == [(0, 1), (0, 1), (1, 3)]
    # 30 bytes over 10 bytes/s take 3 s, more than all units on the fast board.
    assert best_stages(boards, alike_units(5, 30.0)) == (pytest.approx(5 / 3), [(1, 5)])


def test_pipeedge_counts_weights_and_buffers_by_hand():
    """Units of 10 bytes with 1, 5, 1 and 1 bytes between them, and two boards of 30 bytes.

    Two units and their ends, 1 and three times 1, have 24 bytes; the second board has three times what comes in, too.
    After the first unit lie 5 bytes: with it, in three buffers, they take 26, and with the two others 38.
    """
    units = StageUnits(np.full(3, 10.0), np.array([1, 5, 1, 1.0]), np.ones(4))
    boards = [Boards((0, 1), np.ones(3), 10.0, 26.0)]

    assert best_stages(boards, units) == (2.0, [(0, 2), (0, 1)])
    assert best_stages([replace(boards[0], room=23.0)], units) is None


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_pipeedge_is_as_good_as_exhaustive_search(seed):
    """Units of any seconds and bytes, boards of any room; of as good plans none has fewer stages, or sends less."""
    rng = np.random.default_rng(seed)
    count, devices, boards, rank = int(rng.integers(1, 8)), [], [], 0
    units = StageUnits(rng.uniform(1, 5, count), rng.uniform(0, 1, count + 1), rng.choice([2.0, 5, 20], count + 1))
    for _ in range(rng.integers(1, 4)):
        ranks = tuple(range(rank, rank := rank + int(rng.integers(1, 3))))
        boards.append(Boards(ranks, rng.uniform(0.1, 3, count), rng.uniform(1, 10), rng.uniform(5, 40)))
        devices += [boards[-1]] * len(ranks)

    def fits(board, start, stop):
        buffers = (3 if start else 1) * units.lies[start] + 3 * units.lies[stop]
        return units.weights[start:stop].sum() + buffers <= board.room

    every = []
    for stages in range(1, len(devices) + 1):
        for order in permutations(devices, stages):
            for counts in cuts_of(count, stages):
                stops = [0, *np.cumsum(counts).tolist()]
                own = list(zip(order, pairwise(stops), strict=True))
                if all(fits(board, *ends) for board, ends in own):
                    comp = [board.seconds[slice(*ends)].sum() for board, ends in own]
                    hops = zip(pairwise(order), stops[1:-1], strict=True)
                    comm = [units.sent[stop] / min(one.bandwidth, other.bandwidth) for (one, other), stop in hops]
                    every.append(
                        (max(*comp, *comm, 0.0), list(map(boards.index, order)), units.sent[stops[1:-1]].sum())
                    )

    found = best_stages(boards, units)

    assert (found is None) == (not every)
    if found:
        good = [entry for entry in every if entry[0] <= min(every, key=lambda entry: entry[0])[0] * (1 + 1e-9)]
        kinds, stops = [number for number, _ in found[1]], np.cumsum([size for _, size in found[1]])
        assert found[0] == pytest.approx(good[0][0])
        assert stops[-1] == count
        assert len(kinds) == min(len(order) for _, order, _ in good)
        assert units.sent[stops[:-1]].sum() == min(sent for _, order, sent in good if order == kinds)


def test_sublayers_take_and_weigh_what_a_layer_does():
    """On unlike devices, alone; what a stage of one sub-layer is priced at is what the dynamic program reckons with."""
    cluster = pis(10, 20, 5)
    seconds = sublayer_seconds(SPEC, cluster, 32)

    assert seconds.sum(0) == pytest.approx(layer_seconds(SPEC, cluster, 32))
    assert units_of(SPEC, 32, Wire.FLOAT32, 1).weights[:4].sum() == whole_layer_bytes(SPEC)
    plan = chain_of_sublayers(SPEC, cluster, [(1, 9), (0, 1), (2, 14)], "by hand", 32)
    plan.check(SPEC, 3)
    _, second, third = price_plan(SPEC, cluster, plan, 32).replicas[0].stages
    assert second.layers.seconds == pytest.approx(seconds[1, 0])
    assert third.layers.seconds == pytest.approx(seconds[2:, 2].sum() + 3 * seconds[:, 2].sum(), rel=1e-3)
    # Context and residual come to the second, the stream to the third.
    assert second.enter.sent.sum() == 2 * third.enter.sent.sum() == 2 * 32 * 4 * SPEC.hidden


def test_pipeedge_cuts_within_layers_where_that_balances():
    """Two equal boards and three layers: one and a half each, cut where only the stream travels."""
    spec = with_layers(SPEC, 3)
    cluster = pis(10, 10)

    plan = make_plan("pipeedge", spec, cluster, 32)

    assert [stage.sublayers for stage in plan.stages] == [Span(0, 6), Span(6, 12)]
    whole = chain(spec, cluster, [(0, 1), (1, 2)], "by hand", 32)
    rates = [price_plan(spec, cluster, each, 32).requests_per_s for each in (plan, whole)]
    assert rates[0] > 1.1 * rates[1]


def test_many_types_of_boards_cut_between_layers():
    cluster = pis(*np.linspace(5, 50, 11).tolist())

    plan = make_plan("pipeedge", SPEC, cluster, 32)

    plan.check(SPEC, 11)
    assert all(stage.is_whole for stage in plan.stages)


def test_many_boards_that_were_all_measured_are_put_into_types():
    """Forty unlike ones: those that differ least count as one; no stage is longer than its slowest could be."""
    cluster = pis(*np.geomspace(5, 50, 40).tolist())
    found = fewer_types(device_types(SPEC, cluster, 32, 4), SPEC.layers)

    assert sorted(rank for board in found for rank in board.ranks) == list(range(40))
    seconds = layer_seconds(SPEC, cluster, 32)
    assert all(board.seconds == pytest.approx(seconds[list(board.ranks)].max()) for board in found)
    make_plan("pipeedge", SPEC, cluster, 32).check(SPEC, 40)


def test_few_bits_let_a_slow_link_carry_stages():
    """By hand: at 2 Mbps 32 rows of float32 take longer than all layers on the faster board; of 4 bits they do not."""
    cluster = pis(10, 20, mbps=2)
    hop_s = {wire: 32 * wire.row_bytes(SPEC.hidden) * 8 / 2e6 for wire in (Wire.FLOAT32, Wire.INT8, Wire.INT4)}
    layer_s = layer_seconds(SPEC, cluster, 32)
    assert hop_s[Wire.INT8] < 4 * layer_s[1] < 6 * layer_s[1] < hop_s[Wire.FLOAT32]

    plans = {wire: make_plan("pipeedge", SPEC, cluster, 32, wire) for wire in (*hop_s, Wire.ADAPTIVE)}

    assert [len(plans[wire].stages) for wire in plans] == [1, 2, 2, 2]
    priced = {wire: price_plan(SPEC, cluster, plan, 32) for wire, plan in plans.items()}
    assert priced[Wire.FLOAT32].requests_per_s < 0.7 * priced[Wire.INT8].requests_per_s
    # The most bits that keep up are 8 here, of 16 the hop takes 0.2 s.
    assert priced[Wire.ADAPTIVE].requests_per_s == priced[Wire.INT8].requests_per_s
    assert priced[Wire.ADAPTIVE].prediction.bytes_on_wire == priced[Wire.INT8].prediction.bytes_on_wire


def test_few_bits_are_for_what_goes_from_stage_to_stage(kept):
    cases = [(system, SPEC, pis(10), 32, Wire.INT4) for system in ("hepti", "megatron", "edgeshard")]

    kept(refused.said(make_plan, cases, InfeasiblePlanError))


def test_edgeshard_by_hand():
    """A device twice as fast is worth two hops of 1 s for 4 layers of 2 s, and not for 1."""
    seconds, hops, back = np.array([2.0, 1.0]), np.array([[0, 1.0], [0, 1.0], [1.0, 0]]), np.array([0, 1.0])

    assert least_sum(seconds, np.array([4, 4]), hops, back, 4) == (6.0, [(1, 4)])
    assert least_sum(seconds, np.array([4, 4]), hops, back, 1) == (2.0, [(0, 1)])
    # The fast one holds three: the first stays on the source.
    assert least_sum(seconds, np.array([4, 3]), hops, back, 4)[0] == 7.0
    assert least_sum(seconds, np.array([1, 2]), hops, back, 4) is None


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_edgeshard_is_as_good_as_exhaustive_search(seed):
    rng = np.random.default_rng(seed)
    p, layers = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    seconds, holds = rng.uniform(0.1, 3, p), rng.integers(0, layers + 1, p)
    hops, back = rng.uniform(0, 3, (p + 1, p)), rng.uniform(0, 3, p)
    every = [
        hops[0, order[0]]
        + sum(hops[1 + u, v] for u, v in pairwise(order))
        + sum(seconds[v] * count for v, count in zip(order, counts, strict=True))
        + back[order[-1]]
        for shards in range(1, p + 1)
        for order in permutations(range(p), shards)
        for counts in cuts_of(layers, shards)
        if all(count <= holds[v] for v, count in zip(order, counts, strict=True))
    ]

    found = least_sum(seconds, holds, hops, back, layers)

    assert (found is None) == (not every)
    if found:
        assert found[0] == pytest.approx(min(every))
        assert sum(count for _, count in found[1]) == layers


def test_prima_drops_devices_that_it_leaves_one_layer():
    """By hand: of 10 layers the fastest would have 8 beside one for each of the others; these go, the slowest first."""
    assert halda([0, 1, 2], [3.0, 1.0, 2.0], [10, 10, 10], 10) == ([1], [10])
    # It holds 7: the second fastest has the rest, and the slowest is not needed.
    assert halda([0, 1, 2], [3.0, 1.0, 2.0], [10, 7, 10], 10) == ([1, 2], [7, 3])
    # It holds 9: a device of one layer stays where nobody else has room for it.
    assert halda([0, 1], [3.0, 1.0], [10, 9], 10) == ([0, 1], [1, 9])


@pytest.mark.parametrize("seed", seeds(5, 10))
def test_prima_chooses_the_windows_of_exhaustive_search(seed):
    from solver.programs.integer import least_windows

    rng = np.random.default_rng(seed)
    p, layers = int(rng.integers(1, 4)), int(rng.integers(4, 8))
    seconds, holds = rng.uniform(0.1, 3, p), rng.integers(1, layers + 1, p)
    holds[0] = layers
    every = [w for w in cuts_of(layers, p) if (np.array(w) <= holds).all()]

    found = least_windows(seconds.tolist(), holds.tolist(), layers)

    assert np.dot(seconds, found) == pytest.approx(min(np.dot(seconds, w) for w in every))
    assert found in every


def test_pipeedge_fits_sublayers_where_whole_layers_do_not_fit(kept):
    """Room for two and a half layers, as much, and one and a half: of six, five whole ones fit."""
    cluster = with_memory(pis(10, 20, 5), [2, 2, 1])

    plan = make_plan("pipeedge", SPEC, cluster, 32)

    plan.check(SPEC, 3)
    assert not all(stage.is_whole for stage in plan.stages)
    held = price_plan(SPEC, cluster, plan, 32).weights_bytes
    assert all(size <= device.memory_bytes for size, device in zip(held, cluster.devices, strict=True))
    cases = [("pipeedge", SPEC, with_memory(pis(10, 20, 5), [2, 1, 0]), 32)]
    kept(refused.said(make_plan, cases, InfeasiblePlanError))


@pytest.mark.parametrize("system", ["pipeedge", "edgeshard", "prima"])
def test_stages_cover_the_model_and_fit_in_memory(system):
    cluster = with_memory(pis(10, 20, 5, 10), [2, 3, 1, 2])

    plan = make_plan(system, SPEC, cluster, 32)

    plan.check(SPEC, 4)
    holds = dict(zip(cluster.names, [2, 3, 1, 2], strict=True))
    assert len(plan.replicas) == 1
    assert all(stage.sublayers.size <= 4 * holds[stage.devices[0]] + 2 for stage in plan.stages)


def test_a_model_that_no_stages_hold_is_refused(kept):
    cases = [(system, SPEC, with_memory(pis(10, 20, 5), [2, 2, 1]), 32) for system in ("edgeshard", "prima")]

    kept(refused.said(make_plan, cases, InfeasiblePlanError))


def test_edgeshard_fills_many_small_devices():
    """More devices than the dynamic program sees are needed: 6 layers on boards of half a layer's room and one each."""
    spec = with_layers(SPEC, 12)
    cluster = with_memory(pis(*[10.0] * 14), [1] * 14)

    plan = make_plan("edgeshard", spec, cluster, 32)

    plan.check(spec, 14)
    assert [stage.span.size for stage in plan.stages] == [1] * 12


def test_replicas_are_the_devices_that_hold_the_model_the_fastest_first(kept):
    cluster = with_memory(pis(10, 20, 5, 15), [6, 6, 5, 7])

    plan = make_plan("data", SPEC, cluster, 32)

    plan.check(SPEC, 4)
    assert [[stage.devices for stage in replica] for replica in plan.replicas] == [
        [("pi-1",)],
        [("pi-3",)],
        [("pi-0",)],
    ]
    cases = [("data", SPEC, with_memory(pis(10, 20), [4, 5]), 32)]
    kept(refused.said(make_plan, cases, InfeasiblePlanError))
