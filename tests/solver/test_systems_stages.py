"""Planners of stages and replicas: their dynamic and integer programs against exhaustive search and sums by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest

from solver.cost import weights_room
from solver.errors import InfeasiblePlanError
from solver.model import named_model
from solver.pipeline import layer_seconds, price_plan, whole_layer_bytes
from solver.plan import Wire
from solver.systems import make_plan
from solver.systems.edgeshard import least_sum
from solver.systems.pipeedge import Boards, best_stages
from solver.systems.prima import halda
from tests.solver.clusters import pis

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


def test_pipeedge_by_hand():
    """Two slow boards and one three times as fast: 5 layers of 1 s in 3, 1, 1 have a bottleneck of 1 s."""
    boards = [Boards((0, 1), layer_s=1.0, bandwidth=10.0, most=5), Boards((2,), 1 / 3, 20.0, 5)]

    bottleneck, stages = best_stages(boards, 5, sent_bytes=5.0)

    assert bottleneck == pytest.approx(1.0)
    assert sorted(stages) == [(0, 1), (0, 1), (1, 3)]
    # 30 bytes over 10 bytes/s take 3 s, more than all layers on the fast board.
    assert best_stages(boards, 5, sent_bytes=30.0) == (pytest.approx(5 / 3), [(1, 5)])


@pytest.mark.parametrize("seed", range(60))
def test_pipeedge_is_as_good_as_exhaustive_search(seed):
    rng = np.random.default_rng(seed)
    layers, devices = int(rng.integers(1, 7)), []
    boards, rank = [], 0
    for _ in range(rng.integers(1, 4)):
        ranks = tuple(range(rank, rank := rank + int(rng.integers(1, 3))))
        boards.append(Boards(ranks, rng.uniform(0.1, 3), rng.uniform(1, 10), int(rng.integers(1, layers + 1))))
        devices += [boards[-1]] * len(ranks)
    sent = rng.uniform(0, 20)
    every = [
        max(
            *(count * board.layer_s for board, count in zip(order, counts, strict=True)),
            *(sent / min(one.bandwidth, other.bandwidth) for one, other in pairwise(order)),
            0.0,
        )
        for stages in range(1, len(devices) + 1)
        for order in permutations(devices, stages)
        for counts in cuts_of(layers, stages)
        if all(count <= board.most for board, count in zip(order, counts, strict=True))
    ]

    found = best_stages(boards, layers, sent)

    assert (found is None) == (not every)
    if found:
        assert found[0] == pytest.approx(min(every))
        assert sum(count for _, count in found[1]) == layers


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


@pytest.mark.parametrize("system", ["hepti", "megatron", "edgeshard"])
def test_few_bits_are_for_what_goes_from_stage_to_stage(system):
    with pytest.raises(
        InfeasiblePlanError, match="int4 on the wire is for what goes from stage to stage, this plan has 1"
    ):
        make_plan(system, SPEC, pis(10), 32, Wire.INT4)


def test_edgeshard_by_hand():
    """A device twice as fast is worth two hops of 1 s for 4 layers of 2 s, and not for 1."""
    seconds, hops, back = np.array([2.0, 1.0]), np.array([[0, 1.0], [0, 1.0], [1.0, 0]]), np.array([0, 1.0])

    assert least_sum(seconds, np.array([4, 4]), hops, back, 4) == (6.0, [(1, 4)])
    assert least_sum(seconds, np.array([4, 4]), hops, back, 1) == (2.0, [(0, 1)])
    # The fast one holds three: the first stays on the source.
    assert least_sum(seconds, np.array([4, 3]), hops, back, 4)[0] == 7.0
    assert least_sum(seconds, np.array([1, 2]), hops, back, 4) is None


@pytest.mark.parametrize("seed", range(60))
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


@pytest.mark.parametrize("seed", range(10))
def test_prima_chooses_the_windows_of_exhaustive_search(seed):
    from solver.integer import least_windows

    rng = np.random.default_rng(seed)
    p, layers = int(rng.integers(1, 4)), int(rng.integers(4, 8))
    seconds, holds = rng.uniform(0.1, 3, p), rng.integers(1, layers + 1, p)
    holds[0] = layers
    every = [w for w in cuts_of(layers, p) if (np.array(w) <= holds).all()]

    found = least_windows(seconds.tolist(), holds.tolist(), layers)

    assert np.dot(seconds, found) == pytest.approx(min(np.dot(seconds, w) for w in every))
    assert found in every


@pytest.mark.parametrize("system", ["pipeedge", "edgeshard", "prima"])
def test_stages_cover_the_model_and_fit_in_memory(system):
    cluster = with_memory(pis(10, 20, 5, 10), [2, 3, 1, 2])

    plan = make_plan(system, SPEC, cluster, 32)

    plan.check(SPEC, 4)
    holds = dict(zip(cluster.names, [2, 3, 1, 2], strict=True))
    assert len(plan.replicas) == 1
    assert all(stage.span.size <= holds[stage.devices[0]] for stage in plan.stages)


@pytest.mark.parametrize("system", ["pipeedge", "edgeshard", "prima"])
def test_a_model_that_no_stages_hold_is_refused(system):
    with pytest.raises(InfeasiblePlanError, match="bert-base has 6 layers, the devices hold 5"):
        make_plan(system, SPEC, with_memory(pis(10, 20, 5), [2, 2, 1]), 32)


def test_edgeshard_fills_many_small_devices():
    """More devices than the dynamic program sees are needed: 6 layers on boards of half a layer's room and one each."""
    spec = replace(SPEC, layers=12)
    cluster = with_memory(pis(*[10.0] * 14), [1] * 14)

    plan = make_plan("edgeshard", spec, cluster, 32)

    plan.check(spec, 14)
    assert [stage.span.size for stage in plan.stages] == [1] * 12


def test_replicas_are_the_devices_that_hold_the_model_the_fastest_first():
    cluster = with_memory(pis(10, 20, 5, 15), [6, 6, 5, 7])

    plan = make_plan("data", SPEC, cluster, 32)

    plan.check(SPEC, 4)
    assert [[stage.devices for stage in replica] for replica in plan.replicas] == [
        [("pi-1",)],
        [("pi-3",)],
        [("pi-0",)],
    ]
    with pytest.raises(
        InfeasiblePlanError, match=r"fits on no device alone: pi-1, which has the most room, lacks 14 MiB"
    ):
        make_plan("data", SPEC, with_memory(pis(10, 20), [4, 5]), 32)
