"""The program of shares: it counts what clocks do, its shares are better, and its duals keep their promises."""

from dataclasses import replace

import numpy as np
import pytest

from solver.base.spans import largest_remainder
from solver.model.blocks import Axis
from solver.model.named import named_model
from solver.programs.layers import program_of
from solver.programs.polish import rounded
from solver.programs.search import Configuration, Terms
from solver.programs.tiles_and_routes import plan_of
from solver.schedule.encoders.cost import request_seconds, setting
from solver.schedule.encoders.layer_table import layer_kinds, layer_weights, unit_count
from tests.kit.clusters import pis
from tests.sweeps import ALL, count

BERT_LARGE = named_model("bert-large")
KINDS = layer_kinds(BERT_LARGE.blocks)
SPEEDS = (24.6, 70, 24.6, 10)
STILL = 1e-9  # of a device's units: so far that nothing moves
FREE = Terms(np.zeros(4), np.full(4, np.inf))


def layer_by_speed(s, kind, speeds=SPEEDS):
    units = {axis: np.array(largest_remainder(speeds, unit_count(s, axis))) for axis in kind.axes(s.spec.blocks)}
    return Configuration(kind, units, 0.0, layer_weights(s, kind).held_bytes(units))


def seconds_of(s, layer):
    return request_seconds(s, plan_of(s, [(layer, BERT_LARGE.layers)]))


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[::2], ids=str)
def test_where_nothing_moves_it_counts_what_clocks_do(kind):
    """But for the layers until ranks keep pace."""
    s = setting(BERT_LARGE, pis(*SPEEDS, mbps=240), 256)
    layer = layer_by_speed(s, kind)

    program = program_of(s, layer, FREE, reach=STILL)
    program.rows.bound(program.y, 0.0, 0.0)

    assert program.solve().seconds == pytest.approx(seconds_of(s, layer), rel=0.01)


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[1::3], ids=str)
def test_its_shares_are_better_and_whole_ones_take_hardly_longer(kind):
    s = setting(BERT_LARGE, pis(*SPEEDS), 256)
    layer = layer_by_speed(s, kind)
    program = program_of(s, layer, FREE)
    fractions, whole = program.solve(), program.solve(range(len(layer.units)))

    totals = np.array([unit_count(s, axis) for axis in layer.units])
    better = replace(layer, units=dict(zip(layer.units, rounded(whole, totals), strict=True)))

    assert fractions.seconds <= whole.seconds * (1 + 1e-6)
    assert all(counts.sum() == unit_count(s, axis) for axis, counts in better.units.items())
    assert seconds_of(s, better) <= 1.005 * seconds_of(s, layer)
    # Who computes K and V of all rows does so for the first of its own: that is no line.
    assert seconds_of(s, better) <= (1.5 if kind.input_gathered else 1.1) * fractions.seconds


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[1::3], ids=str)
def test_value_of_speed_and_link_agrees_with_solving_again(kind):
    """A value lies between what a small gain saves and what as small a loss costs, or near: at a kink these differ.

    And who begins to send first, or sends last, is taken as it is: which of several that is may change. Who computes K
    and V of all rows does so for the first of its own, which is no line.
    """
    cluster, change = pis(*SPEEDS), 1e-2

    def solved(rank=0, speed=1.0, link=1.0):
        devices = list(cluster.devices)
        flops, bandwidth = devices[rank].compute_flop_per_s * speed, cluster.network.bandwidth_bytes_per_s * link
        devices[rank] = replace(devices[rank], compute_flop_per_s=flops, bandwidth_bytes_per_s=bandwidth)
        s = setting(BERT_LARGE, replace(cluster, devices=tuple(devices)), 256)
        return program_of(s, layer_by_speed(s, kind), FREE).solve()

    now = solved()
    slack = (0.2 if kind.input_gathered else 0.1) * now.seconds
    for rank in range(count(1, 4)):
        for value, name in ((now.by_speed[rank], "speed"), (now.by_link[rank], "link")):
            saved = (now.seconds - solved(rank, **{name: 1 + change}).seconds) / change
            lost = (solved(rank, **{name: 1 - change}).seconds - now.seconds) / change
            assert min(saved, lost) - slack <= value <= max(saved, lost) + slack


def test_all_time_is_compute_or_link_but_for_what_messages_cost():
    """Twice the speed, twice the bandwidth: half the time."""
    (kind,) = [kind for kind in KINDS if str(kind) == "block/rows rr"]
    s = setting(BERT_LARGE, pis(*SPEEDS), 256)

    found = program_of(s, layer_by_speed(s, kind), FREE).solve()

    assert found.by_speed.sum() + found.by_link.sum() == pytest.approx(found.seconds, rel=0.03)


def test_value_of_memory_agrees_with_solving_again():
    (kind,) = [kind for kind in KINDS if str(kind) == "block/block rr"]
    s, mib = setting(BERT_LARGE, pis(*SPEEDS), 256), 2**20
    layer = layer_by_speed(s, kind, (1.0, 1.0, 1.0, 1.0))
    caps = layer.held_bytes + np.array([1.0, 1.0, 1.0, 1.0]) * mib

    def solved(caps):
        return program_of(s, layer, Terms(np.zeros(4), caps)).solve()

    before = solved(caps)

    assert before.per_byte[1] > 0
    for rank in range(4):
        saved = before.seconds - solved(caps + mib / 64 * (np.arange(4) == rank)).seconds
        assert saved == pytest.approx(before.per_byte[rank] * mib / 64, rel=0.02, abs=1e-8)


def test_it_says_how_many_bytes_are_lacking_wherever_they_lie():
    """As many as all boards together have too few; where they have enough none, whoever has too many."""
    (kind,) = [kind for kind in KINDS if str(kind) == "block/block rr"]
    s, mib = setting(BERT_LARGE, pis(*SPEEDS), 256), 2**20
    layer = layer_by_speed(s, kind, (1.0, 1.0, 1.0, 1.0))

    def solved(*beside):
        return program_of(s, layer, Terms(np.zeros(4), layer.held_bytes + mib * np.array(beside))).solve()

    lacking, moved = solved(-1, 0.5, 0, 0), solved(-1, 1.5, 0, 0)

    assert lacking.short.sum() == pytest.approx(0.5 * mib, rel=1e-6)
    assert not lacking.fits
    assert moved.fits
    assert moved.units[1, 0] < layer.units[Axis.HEADS][0]


def test_bytes_that_have_a_price_move_to_who_has_them_for_nothing():
    (kind,) = [kind for kind in KINDS if str(kind) == "block/block rr"]
    s = setting(BERT_LARGE, pis(*SPEEDS), 256)
    layer = layer_by_speed(s, kind)
    dear = Terms(np.array([0.0, 1e-8, 0.0, 0.0]), np.full(4, np.inf))

    free, found = (program_of(s, layer, terms).solve() for terms in (FREE, dear))

    assert found.units[1, 1] + found.units[2, 1] < free.units[1, 1] + free.units[2, 1]
    assert found.cost > found.seconds > free.seconds
