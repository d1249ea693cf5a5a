"""What plans of several stages and replicas cost, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.model.blocks import Cut
from solver.model.named import named_model
from solver.plan.holdings import weights_bytes
from solver.plan.plan import BlockPlan, Plan, Stage, layer_by_rows, uniform_plan
from solver.schedule.encoders.cost import predict, price, setting
from solver.schedule.encoders.stages import chain, layer_seconds, predict_plan, price_plan
from solver.systems import make_plan, plans_for
from tests.kit.clusters import pis

SPEC = named_model("bert-base", layers=6)
ROWS = 64
ROW_BYTES = 4 * SPEC.hidden


@pytest.mark.parametrize("system", plans_for(SPEC))
def test_one_stage_costs_what_the_cost_model_says(system):
    cluster = pis(24.6, 70, 10)
    plan = make_plan(system, SPEC, cluster, ROWS)
    if not plan.in_one:
        return

    found, known = price_plan(SPEC, cluster, plan, ROWS).prediction, predict(SPEC, cluster, plan, ROWS)

    assert found.seconds == pytest.approx(known.seconds)
    assert (found.bytes_on_wire, found.weights_bytes) == (known.bytes_on_wire, known.weights_bytes)


@pytest.mark.parametrize("parts", [[(0, 2), (1, 4)], [(1, 6)]])
def test_the_cost_of_one_stage_of_all_devices_is_no_pipelines(parts):
    cluster = pis(10, 20)
    plan = chain(SPEC, cluster, parts, "by hand", ROWS)

    with pytest.raises(HeptiError, match="price it as a pipeline"):
        price(setting(SPEC, cluster, ROWS), plan)


def test_a_request_takes_the_sum_of_its_stages_and_the_rows_travel_between_them():
    """Layers 0-1 on rank 1, 2-5 on rank 2: three hops of all rows, and each layer at its device's speed."""
    cluster = pis(10, 20, 5)
    plan = chain(SPEC, cluster, [(1, 2), (2, 4)], "by hand", ROWS)
    layer_s = layer_seconds(SPEC, cluster, ROWS)

    found = price_plan(SPEC, cluster, plan, ROWS)

    first, second = found.replicas[0].stages
    # Of a layer by itself queries are a product of their own.
    assert first.layers.seconds == pytest.approx(2 * layer_s[1], rel=1e-3)
    assert second.layers.seconds == pytest.approx(4 * layer_s[2], rel=1e-3)
    hop_s = ROWS * ROW_BYTES / (940e6 / 8) + 200e-6
    hops = [first.enter, second.enter, found.replicas[0].leave]
    for hop in hops:
        assert hop.times.exchange.max() == pytest.approx(hop_s)
        assert hop.sent.sum() == ROWS * ROW_BYTES
    assert found.prediction.bytes_on_wire == 3 * ROWS * ROW_BYTES
    waits = sum(float(hop.times.end.max()) for hop in hops)
    assert found.prediction.seconds == pytest.approx(found.embed_s + 2 * layer_s[1] + 4 * layer_s[2] + waits, rel=1e-3)


def test_the_steps_of_a_pipeline_are_called_by_the_models_layers_and_take_all_its_time():
    cluster = pis(10, 20, 5)
    found = price_plan(SPEC, cluster, chain(SPEC, cluster, [(1, 2), (2, 4)], "by hand", ROWS), ROWS)

    steps = list(found.fastest.steps)

    assert list(dict.fromkeys((ranks, step.layers) for ranks, step in steps if len(ranks) == 1)) == [
        ((1,), "layers 0-1"),
        ((2,), "layers 3-4"),
        ((2,), "layers 2-5"),
    ]
    seconds = sum(step.repeats * float(step.times.end.max()) for _, step in steps)
    assert seconds + found.embed_s == pytest.approx(found.prediction.seconds)


def test_a_pipeline_gives_one_result_per_period_of_its_slowest_stage():
    cluster = pis(10, 20, 5)
    plan = chain(SPEC, cluster, [(1, 2), (2, 4)], "by hand", ROWS)

    found = price_plan(SPEC, cluster, plan, ROWS)

    slow = found.replicas[0].stages[1]
    assert found.requests_per_s == pytest.approx(1 / slow.busy_s)
    assert slow.layers.seconds < slow.busy_s < 1.05 * slow.layers.seconds


def test_a_link_slower_than_every_stage_is_the_period():
    cluster = pis(10, 20, 5, mbps=1)
    found = price_plan(SPEC, cluster, chain(SPEC, cluster, [(1, 2), (2, 4)], "by hand", ROWS), ROWS)

    assert 1 / found.requests_per_s == pytest.approx(ROWS * ROW_BYTES / (1e6 / 8) + 200e-6, rel=1e-2)


def test_replicas_add_up_and_a_single_request_takes_the_fastest():
    """Rank 0 embeds for all: what that takes, its own replica lacks."""
    cluster = pis(10, 20, 5)
    found = price_plan(SPEC, cluster, make_plan("data", SPEC, cluster, ROWS), ROWS)

    busy = {replica.stages[0].ranks[0]: replica.stages[0].busy_s for replica in found.replicas}
    others = 1 / busy[1] + 1 / busy[2]
    own = (1 - found.embed_s * others) / (busy[0] + found.embed_s)
    assert found.requests_per_s == pytest.approx(others + own)
    assert found.fastest.stages[0].ranks == (1,)
    alone = price_plan(SPEC, cluster, chain(SPEC, cluster, [(1, 6)], "alone", ROWS), ROWS)
    assert found.prediction.seconds == pytest.approx(alone.prediction.seconds)


def test_the_link_of_rank_0_bounds_what_all_replicas_get_together():
    """Rank 0 answers its own requests besides, and those of the others come and go over its link."""
    mbps = 10
    cluster = pis(20, 70, 70, 70, mbps=mbps)
    alone = price_plan(SPEC, cluster, chain(SPEC, cluster, [(0, 6)], "by hand", ROWS), ROWS)

    found = price_plan(SPEC, cluster, chain(SPEC, cluster, [(rank, 6) for rank in range(4)], "by hand", ROWS), ROWS)

    carried = mbps * 1e6 / 8 / (ROWS * ROW_BYTES)
    assert sum(1 / replica.period_s for replica in found.replicas[1:]) > 2 * carried
    assert found.requests_per_s == pytest.approx(alone.requests_per_s + carried, rel=0.02)


def test_replicas_that_are_alike_cost_what_each_would_cost_alone():
    """Two kinds of boards, one with jitter, as pairs of stages: priced once, and as without all the others."""
    cluster = pis(10, 20, 5, 20, 5, 5, 20, 20)
    unsteady = [replace(device, jitter_s=1e-3 * (number % 2)) for number, device in enumerate(cluster.devices)]
    cluster = replace(cluster, devices=tuple(unsteady))
    pairs = [(1, 2), (3, 4), (6, 5), (7, 0)]
    parts = [part for one, other in pairs for part in ((one, 2), (other, 4))]

    plan = chain(SPEC, cluster, parts, "by hand", ROWS)
    found = price_plan(SPEC, cluster, plan, ROWS)

    for (one, other), replica in zip(pairs, found.replicas, strict=True):
        alone = price_plan(SPEC, cluster, chain(SPEC, cluster, [(one, 2), (other, 4)], "by hand", ROWS), ROWS)
        (known,) = alone.replicas
        assert (replica.seconds, replica.period_s) == (known.seconds, known.period_s)
        assert (replica.compute_s, replica.bytes_on_wire) == (known.compute_s, known.bytes_on_wire)
        assert (
            [stage.ranks for stage in replica.stages] == [stage.ranks for stage in known.stages] == [(one,), (other,)]
        )
        steps = [(stage.enter, other.enter) for stage, other in zip(replica.stages, known.stages, strict=True)]
        for step, other_step in [*steps, (replica.leave, known.leave)]:
            assert step.times.end.tolist() == other_step.times.end.tolist()
            assert step.sent.tolist() == other_step.sent.tolist()
            assert step.received.tolist() == other_step.received.tolist()
    assert found.weights_bytes == tuple(weights_bytes(SPEC, plan, rank) for rank in range(8))


def test_stages_of_several_devices_are_priced_as_models_of_their_own():
    """A first stage of two devices that ends in full, then one of rows on the two others."""
    cluster = pis(10, 20, 5, 5)
    heads, columns = Partition.of_counts((4, 8)), Partition.of_counts((1024, 2048))
    tensor = BlockPlan("attention", Cut.BLOCK, heads), BlockPlan("mlp", Cut.BLOCK, columns)
    rows = layer_by_rows(SPEC.blocks, (0.75, 0.25))
    stages = (
        Stage(("pi-0", "pi-1"), ((Span(0, 4), tensor),)),
        Stage(("pi-2", "pi-3"), ((Span(4, 6), rows),)),
    )
    plan = Plan(stages, SPEC.name, devices=cluster.names)
    plan.check(SPEC, 4)

    replica = price_plan(SPEC, cluster, plan, ROWS).replicas[0]

    own = cluster.only([0, 1])
    alone = price(setting(SPEC, own, ROWS), uniform_plan(SPEC, own.names, tensor))
    # What the layers compute after their last exchange stands in the step that hands in.
    inner = sum(step.repeats * float(step.times.end.max()) for step in alone.steps[1:-1])
    inner += float(alone.steps[-1].times.compute.max())
    assert replica.stages[0].layers.seconds == pytest.approx(inner * 4 / 6, rel=0.01)
    # Rank 1 gets all rows to begin with; rank 0, the first that has all of them, sends them on by shares of rows.
    assert replica.stages[0].enter.received.tolist() == [0, ROWS * ROW_BYTES, 0, 0]
    assert replica.stages[1].enter.sent.tolist() == [ROWS * ROW_BYTES, 0, 0, 0]
    assert replica.stages[1].enter.received.tolist() == [0, 0, 48 * ROW_BYTES, 16 * ROW_BYTES]
    assert replica.leave.received.tolist() == [ROWS * ROW_BYTES, 0, 0, 0]


def test_devices_of_no_stage_hold_nothing():
    cluster = pis(10, 20, 5)
    plan = chain(SPEC, cluster, [(2, 6)], "by hand", ROWS)

    found = predict_plan(SPEC, cluster, plan, ROWS)

    # Rank 0 has embeddings and heads.
    assert found.weights_bytes[1] == 0
    assert 0 < found.weights_bytes[0] < found.weights_bytes[2]
