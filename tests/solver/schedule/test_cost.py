"""The cost model against sums done by hand, and its invariants."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from solver.base.spans import Partition, Span, tiles
from solver.cluster.cluster import Link
from solver.cluster.curves import Kernel
from solver.model.blocks import Cut
from solver.model.named import named_model
from solver.model.spec import TextInput, encoder, tensor_shapes, with_layers
from solver.plan.holdings import weights_bytes
from solver.plan.plan import BlockPlan, Plan, Stage, StreamLayout, layer_by_rows, uniform_plan
from solver.plan.routes import Route, of_owner, sources
from solver.schedule.encoders.cost import predict, price, setting
from solver.schedule.encoders.stages import predict_plan
from solver.schedule.exchange import Network, gather, move, scatter, tile_counts
from solver.schedule.timing import Machine, gather_ends, lateness, reduce_ends
from solver.systems import make_plan, plans_for
from tests.kit.clusters import pis
from tests.kit.plans import joined, rank_slices

SPEC = named_model("bert-base", layers=3)
EVERY = np.array([True, True, True])


def by_rows(*shares):
    return layer_by_rows(SPEC.blocks, [share / sum(shares) for share in shares])


def by_block(name, *counts):
    return BlockPlan(name, Cut.BLOCK, inner=Partition.of_counts(counts))


@pytest.mark.parametrize("system", plans_for(SPEC))
def test_weights_of_a_run_of_layers_are_those_of_every_layer(system):
    plan = make_plan(system, SPEC, pis(24.6, 70, 24.6, 10), rows=100)

    for rank in range(4):
        assert weights_bytes(SPEC, plan, rank) == sum(piece.held_bytes() for piece in rank_slices(SPEC, plan, rank))


def test_owner_of_the_largest_block_sends_it_to_all_others():
    blocks = np.array([70e6, 20e6, 10e6])
    exchange = gather(blocks, EVERY)
    network = Network(np.full(3, 100e6), 0.001, ())

    assert exchange.sent.tolist() == [140e6, 40e6, 20e6]
    assert exchange.received.tolist() == [30e6, 80e6, 90e6]
    # The owner waits only for the others; they wait until it has sent everything.
    assert exchange.seconds(network) == pytest.approx([0.401, 1.401, 1.401])


def test_reduce_scatter_is_the_all_gather_backwards():
    blocks = np.array([70e6, 20e6, 10e6])
    forth, back = gather(blocks, EVERY), scatter(blocks, EVERY)

    assert back.sent.tolist() == forth.received.tolist()
    assert back.received.tolist() == forth.sent.tolist()
    assert back.between(1, 0) == forth.between(0, 1) == 70e6


def test_narrow_pair_is_waited_for():
    cluster = replace(pis(10, 10, 10), links={frozenset(("pi-0", "pi-2")): Link(1e6, 0.5)})
    exchange = gather(np.full(3, 1e6), EVERY)

    seconds = exchange.seconds(Network.of(cluster))

    assert seconds[[0, 2]] == pytest.approx([1.5, 1.5])
    assert seconds[1] < 0.1


def test_device_without_a_share_neither_sends_nor_receives():
    exchange = gather(np.array([6.0, 0, 4]), np.array([True, False, True]))

    assert (exchange.sent[1], exchange.received[1], exchange.messages[1]) == (0, 0, 0)
    assert exchange.sent.tolist() == [6, 0, 4]


def test_rows_that_stay_do_not_move():
    exchange = move(np.array([4.0, 4, 2]), np.array([6.0, 1, 3]), row_bytes=8, tiles=np.ones(3))

    assert exchange.sent.tolist() == [0, 24, 0]
    assert exchange.received.tolist() == [16, 0, 8]


def test_overlapped_exchange_costs_only_what_compute_does_not_hide():
    before, during, edge, none = (np.array(value, float) for value in ([1, 2], [5, 5], [1, 1], [0, 0]))

    hidden = gather_ends(before, during, edge, np.array([3.0, 2.0]), none)
    exposed = gather_ends(before, during, edge, np.array([11.0, 4.0]), none)
    late = gather_ends(before, during, edge, np.array([3.0, 2.0]), np.array([7.0, 8.0]))

    assert hidden.tolist() == [6, 7]
    assert exposed.tolist() == [12, 7]
    # The other's last tile, 10 and 8 after the beginning, and what is computed on it.
    assert late.tolist() == [11, 9]


def test_what_is_sent_early_arrives_early():
    exchange = gather(np.array([70e6, 20e6, 10e6]), EVERY)
    network = Network(np.full(3, 100e6), 0.001, ())

    found = exchange.arrival(network, np.array([0.2, 0.1, 0.9]))

    # What the first receives after the third has begun; its own link, free since then; the first's two copies.
    assert found == pytest.approx([0.001 + 0.9 + 0.3, 0.001 + 0.9 + 0.8, 0.001 + 0.2 + 1.4])


def test_reduce_ends_with_the_last_summand():
    before, during, edge, after = (np.array(value, float) for value in ([1, 2], [5, 5], [1, 1], [2, 1]))

    assert reduce_ends(before, during, edge, after, np.array([3.0, 9.0])).tolist() == [9, 13]


def unsteady(cluster, jitter_s):
    return replace(cluster, devices=tuple(replace(device, jitter_s=jitter_s) for device in cluster.devices))


def test_a_step_is_as_late_as_the_largest_of_times_that_vary():
    """More by more ranks, and by nobody who takes no part."""
    cluster, jitter_s = pis(10, 10, 10), 0.002

    def later(*shares):
        plan = uniform_plan(SPEC, cluster.names, by_rows(*shares))
        return predict(SPEC, unsteady(cluster, jitter_s), plan, 96).seconds - predict(SPEC, cluster, plan, 96).seconds

    # What comes before it is waited for makes nobody late.
    assert 0.001 < later(1, 0, 1) < later(1, 1, 1) < (SPEC.layers + 2) * jitter_s * math.log2(3)
    assert 0 <= later(30, 1, 1) < 0.0005
    assert later(1, 0, 0) == 0


def test_how_late_a_step_is_agrees_with_drawing_times():
    """Of devices with as much to do and less, equally unsteady; and of two that are not."""
    rng = np.random.default_rng(4)
    for compute, scales in (([0.05, 0.048, 0.03], [0.002] * 3), ([0.05, 0.05], [0.004, 0.001])):
        compute, scales = np.array(compute), np.array(scales)
        drawn = compute + scales * (rng.gumbel(size=(200_000, compute.size)) - np.euler_gamma)
        machine = Machine(None, None, scales * math.log(2), np.zeros(compute.size))

        late = lateness(np.ones(compute.size, bool), compute, compute, machine)

        assert late[0] == pytest.approx(drawn.max(1).mean() - compute.max(), rel=0.05)


@pytest.mark.parametrize("rest_s", [0, 0.005])
def test_equal_shares_are_the_best_of_equal_devices_that_vary(rest_s):
    """By the second largest jitter one device would have got more: no second one would have been late."""
    machine, every = Machine(None, None, np.full(4, 0.0035), np.full(4, rest_s)), np.ones(4, bool)

    def seconds(compute):
        return compute.max() + lateness(every, compute, compute, machine)[0]

    balanced = seconds(np.full(4, 0.02))
    for more_s in (0.0001, 0.001, 0.002, 0.005):
        assert seconds(0.02 + more_s * np.array([3, -1, -1, -1])) > balanced


@pytest.mark.parametrize("route", Route)
def test_bytes_and_messages_of_a_route_are_those_of_its_sources(route):
    """Tile by tile, as the engine sends them: some devices without rows, some that want none."""
    rng = np.random.default_rng(3)
    for _ in range(100):
        p, tile_rows = int(rng.integers(1, 6)), int(rng.choice([0, 1, 3, 8]))
        rows = rng.integers(0, 40, p) * (rng.random(p) < 0.8)
        wants = rng.random(p) < 0.8
        moved, messages = np.zeros((p, p)), np.zeros(p)
        for owner, span in enumerate(Partition.of_counts(rows.tolist())):
            via = of_owner(route, rows.tolist(), owner)
            others = [rank for rank in range(p) if wants[rank] and rank != owner]
            for number, tile in enumerate(tiles(span, tile_rows)):
                for receiver, source in sources(via, owner, number, others, p).items():
                    # Equal tiles, as a cost sees them.
                    moved[source, receiver] += span.size / len(tiles(span, tile_rows))
                    messages[[source, receiver]] += 1
                assert tile.size

        found = gather(rows.astype(float), wants, tile_counts(rows.astype(float), tile_rows), route)

        between = [[float(found.between(j, i)) * (i != j) for i in range(p)] for j in range(p)]
        np.testing.assert_allclose(between, moved, atol=1e-9)
        np.testing.assert_allclose([found.sent, found.received], [moved.sum(1), moved.sum(0)], atol=1e-9)
        assert found.messages.tolist() == messages.tolist()


def test_one_device_costs_its_compute_and_no_exchange():
    cluster = pis(24.6)
    plan = make_plan("single", SPEC, cluster, rows=128)
    bank, H, F = setting(SPEC, cluster, 128).machine.bank, 768, 3072
    gemms = [(Kernel.PROJECT, H * n) for n in (3 * H, F)] + [(Kernel.CONTRACT, H * n) for n in (H, F)]
    layer = sum(bank.seconds(kernel, 128, weights)[0] for kernel, weights in gemms)
    layer += bank.attend(128, 128, 12, 64)[0] + bank.seconds(Kernel.ACTIVATE, 128 * F)[0]
    layer += 2 * bank.seconds(Kernel.NORM, 128 * H)[0]

    predicted = predict(SPEC, cluster, plan, 128)

    assert predicted.seconds == pytest.approx(3 * layer + 2 * bank.seconds(Kernel.NORM, 128 * H)[0])
    assert (predicted.exchange_s, predicted.bytes_on_wire) == (0, 0)


@pytest.mark.parametrize(
    ("layer", "per_layer"),
    [
        # [S, H] elements sent by all together: K and V of every row to two others.
        (by_rows(1, 2, 1), 2 * 2),
        # A reduce-scatter sends 2/3 of three summands, and so does the all-gather of the sum; twice a layer.
        ((by_block("attention", 4, 4, 4), by_block("mlp", 1024, 1024, 1024)), 8),
    ],
)
def test_bytes_on_the_wire_are_the_formulas(layer, per_layer):
    """systems.md 8.5, S = 96, H = 768."""
    cluster = pis(10, 10, 10)

    three, two = (
        predict(with_layers(SPEC, n), cluster, uniform_plan(with_layers(SPEC, n), cluster.names, layer), 96)
        for n in (3, 2)
    )

    assert three.bytes_on_wire - two.bytes_on_wire == per_layer * 4 * 96 * 768


def test_rank_0_hands_out_rows_and_the_first_block_gathers_them():
    norm_rows = BlockPlan("attention", Cut.BLOCK, Partition.of_counts((6, 6)), norm=StreamLayout.ROWS, rows=(0.5, 0.5))
    plan = uniform_plan(SPEC, ("pi-0", "pi-1"), (norm_rows, by_rows(1, 1)[1]))

    steps = price(setting(SPEC, pis(10, 10), 64), plan).steps

    names = [(step.name, step.repeats) for step in steps]
    layers = [("gather rows", 1), ("reduce", 3), ("gather rows", 2)]
    assert names == [("hand out", 1), *layers, ("hand in", 1)]
    assert steps[0].sent.tolist() == [32 * 768 * 4, 0]


def test_stream_that_changes_rows_pays_for_the_move():
    cluster = pis(10, 10)
    same = uniform_plan(SPEC, cluster.names, by_rows(1, 1))
    other = uniform_plan(SPEC, cluster.names, (by_rows(1, 1)[0], by_rows(3, 1)[1]))

    moved = predict(SPEC, cluster, other, 64).bytes_on_wire - predict(SPEC, cluster, same, 64).bytes_on_wire

    # 16 rows there and back in every layer, but the last is handed in from where it lies: 16 fewer rows to rank 0.
    assert moved == (3 * 16 + 2 * 16 - 16) * 768 * 4


@cache
def plans_of_three():
    """Return every system's plan for three unlike boards."""
    return [make_plan(system, SPEC, pis(24.6, 70, 10), 100) for system in plans_for(SPEC)]


def test_compute_exchange_and_idle_of_a_device_are_all_of_its_time():
    cluster = pis(24.6, 70, 10)
    for plan in plans_of_three():
        if not plan.in_one:
            continue
        found = price(setting(SPEC, cluster, 100), plan)

        assert found.compute_s + found.exchange_s + found.idle_s == pytest.approx(np.full(3, found.seconds))
        assert min(found.compute_s.min(), found.exchange_s.min(), found.idle_s.min()) > -1e-12


def test_slower_link_never_costs_less():
    """The same plan; a system that plans for throughput may find a faster one on slower links."""
    for plan in plans_of_three():
        seconds = [predict_plan(SPEC, pis(24.6, 70, 10, mbps=mbps), plan, 100).seconds for mbps in (940, 240, 80)]
        assert seconds == sorted(seconds)


# Two layers of one kind, and three of another.
NARROW, WIDE = (
    encoder(f"{ffn}", 64, ffn, heads, layers, input=TextInput(50, 128, 128))
    for ffn, heads, layers in ((64, 4, 2), (128, 8, 3))
)
CLUSTER, ROWS = pis(24.6, 70, 10), 96
ROW_BYTES = 4 * 64


def rows_layer(blocks):
    return layer_by_rows(blocks, (0.25, 0.5, 0.25))


def block_layer(blocks, norm=StreamLayout.FULL):
    parts = [Partition.of_shares((0.25, 0.5, 0.25), block.inner.count) for block in blocks]
    rows = (0.25, 0.5, 0.25) if norm is StreamLayout.ROWS else None
    return tuple(
        BlockPlan(block.name, Cut.BLOCK, part, norm=norm, rows=rows) for block, part in zip(blocks, parts, strict=True)
    )


def mixed_layer(blocks):
    """Attention by blocks and the MLP by rows, of the model with more heads; the other's layers by rows."""
    return (
        (block_layer(blocks, StreamLayout.ROWS)[0], rows_layer(blocks)[1])
        if blocks == WIDE.blocks
        else rows_layer(blocks)
    )


CUTS = [rows_layer, block_layer, partial(block_layer, norm=StreamLayout.ROWS), mixed_layer]


def priced(narrow, wide, cut):
    """Return what so many layers of each kind cost."""
    parts = [with_layers(spec, layers) for spec, layers in ((NARROW, narrow), (WIDE, wide)) if layers]
    spec = joined("two kinds", *parts)
    stops = np.cumsum([part.layers for part in parts]).tolist()
    spans = [Span(stop - part.layers, stop) for stop, part in zip(stops, parts, strict=True)]
    runs = tuple((span, cut(part.blocks)) for span, part in zip(spans, parts, strict=True))
    plan = Plan((Stage(CLUSTER.names, runs),), spec.name)
    plan.check(spec, 3)
    return price(setting(spec, CLUSTER, ROWS), plan)


@pytest.mark.parametrize("cut", CUTS)
def test_unlike_layers_hold_compute_and_send_what_they_do_in_models_of_their_own(cut):
    """All but the seconds, which overlap where one kind follows the other, add up; the ends are there once."""
    both, narrow, wide = priced(2, 3, cut), priced(2, 0, cut), priced(0, 3, cut)
    ends = 2 * priced(0, 1, cut).compute_s - priced(0, 2, cut).compute_s
    handed = 2 * priced(0, 1, cut).prediction.bytes_on_wire - priced(0, 2, cut).prediction.bytes_on_wire
    embeddings = 4 * sum(math.prod(shape) for name, shape in tensor_shapes(NARROW).items() if "layers" not in name)

    assert both.compute_s == pytest.approx(narrow.compute_s + wide.compute_s - ends, rel=1e-9)
    sent = [found.prediction.bytes_on_wire for found in (both, narrow, wide)]
    assert sent[0] == sent[1] + sent[2] - handed
    held = zip(narrow.weights_bytes, wide.weights_bytes, (embeddings, 0, 0), strict=True)
    assert both.weights_bytes == tuple(one + other - twice for one, other, twice in held)


@pytest.mark.parametrize("cut", CUTS)
def test_a_layer_more_of_either_kind_costs_what_it_costs_among_its_like(cut):
    def seconds(*layers):
        return priced(*layers, cut).seconds

    of_narrow, of_wide = seconds(2, 0) - seconds(1, 0), seconds(0, 2) - seconds(0, 1)

    assert seconds(2, 3) == pytest.approx(seconds(1, 1) + of_narrow + 2 * of_wide, rel=1e-9)
    assert of_narrow < of_wide


def test_where_all_have_all_between_layers_their_seconds_add_up():
    """What a layer ends with, its norm, is that of every other layer as wide."""
    both, narrow, wide, fewer = (priced(*layers, block_layer).seconds for layers in ((2, 3), (2, 0), (0, 3), (0, 2)))

    assert both == pytest.approx(narrow + 3 * (wide - fewer), rel=1e-9)


def test_unlike_layers_on_one_device_take_the_sum_of_their_seconds():
    bank = setting(NARROW, CLUSTER, ROWS).machine.bank

    def alone(blocks):
        return layer_by_rows(blocks, (1.0, 0.0, 0.0))

    both, narrow, wide = (priced(*layers, alone) for layers in ((2, 3), (2, 0), (0, 3)))

    embed_s = float(2 * bank.seconds(Kernel.NORM, ROWS * 64)[0])
    assert both.seconds == pytest.approx(narrow.seconds + wide.seconds - embed_s, rel=1e-9)
    assert both.prediction.bytes_on_wire == 0


def test_bytes_of_unlike_layers_by_hand():
    """Rank 0 has a quarter of the rows: three quarters are handed out and in; heads change nothing of what is sent."""
    by_rows, by_blocks = priced(2, 3, rows_layer), priced(2, 3, block_layer)

    handed = 72 * ROW_BYTES
    assert by_rows.prediction.bytes_on_wire == 5 * 2 * 2 * ROWS * ROW_BYTES + 2 * handed
    # All rows go to both others; all ranks have the result.
    assert by_blocks.prediction.bytes_on_wire == 5 * 8 * ROWS * ROW_BYTES + 2 * ROWS * ROW_BYTES
    # Rank 2 has 1 of 4 heads, then 2 of 8, of 16 and of 8 columns: a quarter of all matrices and of their biases.
    quarter = 2 * (4 * 64 * 64 + 2 * 64 * 64 + 3 * 64 + 64) + 3 * (4 * 64 * 64 + 2 * 64 * 128 + 3 * 64 + 128)
    vectors = 5 * 6 * 64  # last biases and norms of both blocks
    assert by_blocks.weights_bytes[2] == 4 * (quarter // 4 + vectors)


def test_one_run_of_a_plan_may_have_layers_of_both_kinds():
    spec = joined("two kinds", NARROW, WIDE)
    whole = uniform_plan(spec, CLUSTER.names, rows_layer(spec.run(0).blocks))
    s = setting(spec, CLUSTER, ROWS)

    assert price(s, whole).prediction == priced(2, 3, rows_layer).prediction
