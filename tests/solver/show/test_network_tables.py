"""What is printed of a convolutional network's plan."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from solver.base.spans import Span
from solver.cluster.named import find_cluster
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on, equal_shares
from solver.plan.writing import plan_table
from solver.show.comparison import ComparedSystem
from solver.show.network_facts import compare_networks, network_bounds, network_systems, priced_network, work
from solver.show.network_tables import (
    network_to_json,
    networks_to_json,
    print_map,
    print_network,
    print_networks,
    print_spent,
)
from solver.show.schedule_table import schedule_rows
from tests.kit.convnets import equal_segments
from weights.networks_zoo import zoo_network


@pytest.fixture(scope="module")
def net():
    return zoo_network("resnet18", size=64)[0]


@pytest.fixture(scope="module")
def cluster():
    return find_cluster("mixed4")


def printed(show, *arguments):
    text = StringIO()
    show(Console(file=text, width=80, highlight=False), *arguments)
    return text.getvalue()


def test_every_segment_says_its_nodes_and_everybodys_rows(net, cluster):
    found = priced_network(net, cluster, equal_segments(net, cluster, [11, 25]))

    out = printed(print_network, found)

    assert re.search(r"│ 0-10 +│ conv1 +│ 16 rows +│ 4 4 4 4 +│ +\d+\.\d │ +\d+\.\d │", out)
    assert re.search(rf"│ 11-24 +│ {net.nodes[11].name} +│ 4 rows +│ 1 1 1 1 +│", out)
    assert re.search(rf"│ 25-{len(net.nodes) - 1} +│ .* +│ whole +│ pi-0 +│", out)
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_channels_sums_and_segments_without_nodes_have_words(net, cluster):
    last = len(net.nodes) - 1
    halves = equal_shares([0, 3], 4)
    segments = (
        Segment(Span(0, last), SegmentCut.ROWS, equal_shares([1], 4)),
        Segment(Span(last, last), SegmentCut.CHANNELS, halves),
        Segment(Span(last, last + 1), SegmentCut.INPUT_CHANNELS, halves),
    )
    found = priced_network(net, cluster, SegmentPlan(segments, cluster.names, net.name, system=""))

    out = printed(print_network, found)

    assert re.search(rf"│ before {last} +│ +│ 512 channels +│ 256 - - 256 +│", out)
    assert re.search(rf"│ {last} +│ fc +│ 512 input channels +│ 256 - - 256", out)
    assert "ms for an image: " in out


def test_the_parts_of_the_prediction_are_its_whole(net, cluster):
    found = priced_network(net, cluster, equal_segments(net, cluster, [11, 25]))
    table = json.loads(network_to_json(found, [], network_bounds(found)))

    seconds = table["predicted"]["seconds"]
    parts = sum(entry["compute_s"] + entry["exchange_s"] for entry in table["per_segment"])
    assert 0.5 * seconds < parts < 1.1 * seconds  # the rest hands the outputs in; ranks may begin a segment early
    for device in table["per_device"]:
        assert device["compute_s"] + device["exchange_s"] + device["idle_s"] == pytest.approx(seconds)
    assert sum(device["flop"] for device in table["per_device"]) == pytest.approx((1 + found.twice) * work(net))
    assert 0 < found.twice < 1
    assert table["bounds"]["compute_bound_s"] < seconds
    assert table.items() >= plan_table(found.plan, net).items()


def test_one_device_alone_does_all_work_once(net, cluster):
    found = priced_network(net, cluster, equal_segments(net, cluster))

    out = printed(print_network, found)

    assert found.flop.tolist() == [work(net), 0, 0, 0]
    assert found.memory[1:] == (0, 0, 0)
    assert "By equal all is on pi-0." in out
    assert "twice" not in out


@pytest.mark.parametrize("starts", [[11], [11, 25], [5, 11, 19, 25, 40]])
def test_what_devices_spend_their_time_on_is_all_of_it_and_the_work_is_done_once(net, cluster, starts):
    found = priced_network(net, cluster, equal_segments(net, cluster, starts))
    spent, alone_s = found.spent, found.setting.whole_s(Span(0, len(net.nodes)))

    of_all = [sum(spent.of(rank).values()) for rank in range(4)]

    assert of_all == pytest.approx(found.price.compute_s)
    assert (spent.part / alone_s).sum() == pytest.approx(1)
    assert (spent.twice / alone_s).sum() == pytest.approx(found.twice, rel=0.5)
    assert all(spent.few_rows[1:] > 0)
    assert all(spent.graphs > 0)


def test_a_device_alone_does_nothing_twice_and_has_all_rows(net, cluster):
    every = Segment(Span(0, len(net.nodes)), SegmentCut.ROWS, alone_on(1, 4))
    found = priced_network(net, cluster, SegmentPlan((every,), cluster.names, net.name))

    out = printed(print_spent, found)

    assert found.spent.of(1)["part"] == pytest.approx(found.setting.whole_s(every.nodes)[1])
    assert [found.spent.of(1)[name] for name in ("twice", "few_rows")] == pytest.approx([0, 0])
    assert "pi-1" in out
    assert "pi-0" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_many_devices_that_are_alike_stand_together(net, cluster):
    device = cluster.devices[0]
    many = replace(cluster, devices=tuple(replace(device, name=f"pi-{n}") for n in range(20)), links={})
    shares = equal_shares(range(16), 20)
    segments = (Segment(Span(0, 11), SegmentCut.ROWS, shares), Segment(Span(11, 49), SegmentCut.ROWS, alone_on(0, 20)))
    found = priced_network(net, many, SegmentPlan(segments, many.names, net.name))

    out = printed(print_network, found)

    assert "│ 1 ×16, - ×4" in out  # noqa: RUF001
    assert "The 4 others hold nothing." in out
    assert network_systems(many)[:2] == ("hepti", "single")


def test_what_memory_is_missing_is_said(net, cluster):
    devices = (replace(cluster.devices[0], memory_bytes=170 * 2**20), *cluster.devices[1:])
    found = priced_network(net, replace(cluster, devices=devices), equal_segments(net, cluster))

    assert re.search(r"MiB more on pi-0 \(has 170\)$", found.lacks)


def test_the_map_shows_whose_rows_are_where(net, cluster):
    out = printed(print_map, priced_network(net, cluster, equal_segments(net, cluster, [11])))

    first, second = (line.split("│")[4].strip() for line in out.splitlines() if line.startswith("│"))
    assert re.fullmatch(r"(0+)(1+)(2+)(3+)", first)
    assert set(second) == {"0"}
    assert "0 pi-0, 1 pi-1, 2 pi-2" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_schedule_is_the_price_step_by_step(net, cluster):
    found = priced_network(net, cluster, equal_segments(net, cluster, [11, 25]))

    steps = schedule_rows(cluster, found.price)
    mine = schedule_rows(cluster, found.price, "pi-3")

    assert [step.moves for step in steps] == ["pixels", "what segment 1 needs", "what segment 2 needs", "result"]
    assert [step.layers for step in steps] == ["0", "1", "2", ""]
    assert sum(step.seconds for step in steps) == pytest.approx(found.price.seconds)
    assert [step.moves for step in mine] == ["pixels", "what segment 1 needs", "what segment 2 needs"]


def test_systems_stand_side_by_side_the_fastest_first(net, cluster):
    entries = compare_networks(net, cluster, Wire.FLOAT32, ["hepti", "single:pi-1", "single:pi-9"])

    table = json.loads(networks_to_json(net, cluster, entries, Wire.FLOAT32))
    out = printed(print_networks, entries, "title")

    assert [entry["system"] for entry in table["systems"]] == ["hepti", "single:pi-1", "single:pi-9"]
    assert table["winner"] in ("hepti", "single:pi-1")
    assert table["systems"][2]["seconds"] is None
    assert f"{table['winner']} wins with" in out
    assert "† single:pi-9 cannot be run: " in out


def test_nothing_that_can_be_run_is_said(net, cluster):
    entries = [ComparedSystem("hepti", float("inf"), 0.0, 0, (), "no room")]

    assert "None of them can be run." in printed(print_networks, entries, "title")
    assert json.loads(networks_to_json(net, cluster, entries, Wire.FLOAT32))["winner"] is None
