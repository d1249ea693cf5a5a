"""The plan file of a convolutional network: round trips, plans by hand, and every mistake in one line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from solver.base.spans import Span
from solver.plan.file import plan_from_json, read_plan
from solver.plan.plan import Plan, Prediction, Wire
from solver.plan.segment_file import (
    any_plan_from_json,
    read_any_plan,
    read_segments,
    segments_from_json,
    segments_to_json,
    whole_parts,
)
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on, equal_shares
from tests.kit import refused
from tests.kit.chains import chain
from tests.kit.convnets import plan_of, random_net, random_plan
from tests.sweeps import seeds
from weights.networks_zoo import zoo_network

HAND = {
    "format": "hepti-plan/1",
    "kind": "convnet",
    "model": {"name": "resnet18"},
    "devices": ["pi-0", "pi-1"],
    "segments": [
        {"nodes": [0, 32], "first": "conv1", "cut": "rows", "rows": [5, 2]},
        {"nodes": [32, 49], "cut": "rows", "shares": [1, 0]},
    ],
}
TILES = {"nodes": [0, 49], "cut": "tiles", "tiles": [3, 1]}
ALL_ROWS = {"cut": "rows", "rows": [1]}
TRANSFORMER = {
    "format": "hepti-plan/1",
    "model": {"name": "bert-base"},
    "stages": [{"devices": ["pi-0"], "layers": [{"layers": [0, 12], "attention": ALL_ROWS, "mlp": ALL_ROWS}]}],
}


@pytest.fixture(scope="module")
def resnet():
    return zoo_network("resnet18", size=64)[0]


def changed(**fields):
    """Return the plan above as JSON with other fields; those of a segment are in `segment`."""
    table = json.loads(json.dumps(HAND))
    table["segments"][0] |= fields.pop("segment", {})
    return json.dumps({**table, **fields})


@pytest.mark.parametrize("seed", seeds(6, 20))
def test_what_is_written_is_read_back(seed):
    rng = np.random.default_rng(seed)
    net, _ = random_net(rng)
    plan = random_plan(net, rng, ranks=int(rng.integers(1, 6)), tiles=bool(rng.integers(2)))

    assert segments_from_json(segments_to_json(net, plan), net) == plan


def test_all_that_a_plan_has_is_read_back(resnet, tmp_path):
    segments = (
        Segment(Span(0, 20), SegmentCut.ROWS, (0.5, 0.25, 0.25), edges_first=True),
        Segment(Span(20, 20), SegmentCut.CHANNELS, equal_shares([0, 2], 3)),
        Segment(Span(20, len(resnet.nodes)), SegmentCut.ROWS, alone_on(1, 3)),
    )
    facts = Prediction(0.25, 0.2, 0.05, (1, 2, 3), 4)
    names = ("a", "b", "c")
    plan = SegmentPlan(segments, names, resnet.name, resnet.fingerprint, "0123", "coedge", Wire.INT8, facts)
    path = tmp_path / "plan.json"
    path.write_text(segments_to_json(resnet, plan))

    assert read_segments(path, resnet) == read_any_plan(path) == plan


def test_whole_rows_are_those_of_the_coarsest_value(resnet):
    """Behind a stage the rows of its output, where rows are pooled those of what is pooled."""
    stop = next(number for number, node in enumerate(resnet.nodes) if node.op == "GlobalAveragePool") + 1
    shares = (0.75, 0.25)

    assert whole_parts(resnet, Segment(Span(0, 1), SegmentCut.ROWS, shares)) == (24, 8)
    assert whole_parts(resnet, Segment(Span(0, stop), SegmentCut.ROWS, (0.5, 0.5))) == (1, 1)
    assert whole_parts(resnet, Segment(Span(0, stop), SegmentCut.CHANNELS, shares)) == (384, 128)
    last = Segment(Span(len(resnet.nodes) - 1, len(resnet.nodes)), SegmentCut.SUMS, shares)
    assert whole_parts(resnet, last) == (384, 128)
    assert whole_parts(resnet, Segment(last.nodes, SegmentCut.CHANNELS, shares)) == (750, 250)


def test_tiles_stand_in_the_file_with_their_grid(resnet):
    plan = plan_of(resnet, [(1, "tiles", (0.5, 0.5), False, (40, 3), True), (len(resnet.nodes), "rows", (1, 0))], 2)

    table = json.loads(segments_to_json(resnet, plan))
    entry = table["segments"][0]

    assert entry["tiles"] == [48, 48]  # of 32 rows there are no 40 parts
    assert (entry["grid"], entry["stealing"], "edges_first" in entry) == ([40, 3], True, False)
    assert entry.pop("reuse") is False
    assert segments_from_json(json.dumps(table)) == plan  # as older files have it


def test_rows_stand_in_the_file_where_they_say_the_shares_exactly(resnet):
    whole = plan_of(resnet, [(1, "rows", (0.75, 0.25)), (len(resnet.nodes), "channels", (0.1, 0.9))], 2)
    split = plan_of(resnet, [(len(resnet.nodes), "rows", (0.123, 0.877))], 2)

    first, second = json.loads(segments_to_json(resnet, whole))["segments"]
    assert (first["rows"], first["first"], "shares" in first) == ([24, 8], "conv1", False)
    assert second["channels"] == [100, 900]
    (entry,) = json.loads(segments_to_json(resnet, split))["segments"]
    assert (entry["shares"], "rows" in entry) == ([0.123, 0.877], False)


def test_a_plan_by_hand_is_read(resnet):
    plan = segments_from_json(json.dumps(HAND), resnet)

    plan.check(resnet, ranks=2)
    assert plan.segments[0] == Segment(Span(0, 32), SegmentCut.ROWS, (5 / 7, 2 / 7))
    assert (plan.system, plan.wire, plan.predicted) == ("", Wire.FLOAT32, None)


def test_what_adds_up_nothing_is_not_cut_by_sums(kept):
    """A convolution in groups, and a pool; one that is in none adds up over its channels."""
    net = chain(("conv", 4), ("conv", 4), ("pool",), size=8)
    node = net.nodes[1]
    grouped = replace(node, attributes=node.attributes | {"group": 4})
    net = replace(net, nodes=(net.nodes[0], grouped, net.nodes[2]))
    every = [
        plan_of(net, [(at, "rows", (1, 0)), (at + 1, "sums", (0.5, 0.5)), (3, "rows", (1, 0))][at == 0 :], 2)
        for at in range(3)
    ]

    every[0].check(net, ranks=2)
    kept(refused.said(lambda plan: plan.check(net, ranks=2), every[1:]))


def test_the_plan_in_the_documents_fits_its_network():
    page = (Path(__file__).parents[3] / "docs" / "plans.md").read_text()
    (text,) = (block for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if '"convnet"' in block)
    net, _ = zoo_network("resnet18")

    plan = segments_from_json(text, net)

    plan.check(net, ranks=2)
    assert [whole_parts(net, segment) for segment in plan.segments] == [(36, 20), (9, 5), (7, 0), (700, 300)]


def test_nodes_of_another_network_are_not_held_against_this_one(resnet, kept):
    """That it is another one `check` says, in plainer words."""
    text = changed(model={"name": "other", "fingerprint": "0123"}, segment={"first": "conv7"})

    kept(refused.said(segments_from_json(text, resnet).check, [(resnet, 2)]))


def test_every_mistake_is_one_line_that_names_the_field(kept, resnet, tmp_path):
    cases = [
        "{",
        changed(format="hepti-plan/2"),
        changed(kind="graph"),
        changed(kind=1),
        changed(model={}),
        changed(model=[]),
        changed(devices=[]),
        changed(devices=["a", "a"]),
        changed(wire="int7"),
        changed(segments=[]),
        changed(segments=[7]),
        changed(predicted={"seconds": "1"}),
        changed(segment={"nodes": [32]}),
        changed(segment={"nodes": [32, 0]}),
        changed(segment={"cut": "columns"}),
        changed(segment={"cut": "channels"}),
        changed(segment={"first": "conv2"}),
        changed(segment={"nodes": [99, 99]}),
        changed(segment={"shares": [0.5, 0.5]}),
        changed(segment={"rows": [5, 2, 1]}),
        changed(segment={"rows": [5, 2.5]}),
        changed(segment={"rows": [5, -2]}),
        changed(segment={"rows": [0, 0]}),
        changed(segment={"edges_first": 1}),
        changed(segment={"grid": [2, 2]}),
        changed(segments=[TILES | {"grid": [5]}]),
        changed(segments=[TILES | {"grid": [5, 0]}]),
        changed(segments=[TILES | {"grid": [2, 2], "stealing": 1}]),
        changed(segments=[TILES | {"grid": [2, 2], "reuse": 1}]),
        changed(segments=[TILES]),
        changed(segments=[{"nodes": [0, 49]}]),
        changed(segments=[{"rows": [1, 1]}]),
        changed(segments=[{"nodes": [0, 49], "shares": [0.5, 0.4]}]),
        changed(segments=[{"nodes": [0, 49], "shares": [float("nan"), 1]}]),
    ]

    path = tmp_path / "plan.json"

    def read(text):
        path.write_text(text)
        read_segments(path, resnet)

    kept(refused.said(read, cases))


def test_plans_of_the_other_kind_are_refused_plainly(tmp_path, kept):
    convnet, transformer = tmp_path / "convnet.json", tmp_path / "transformer.json"
    convnet.write_text(json.dumps(HAND))
    transformer.write_text(json.dumps(TRANSFORMER))

    assert isinstance(read_any_plan(convnet), SegmentPlan)
    assert isinstance(read_any_plan(transformer), Plan)
    kept(refused.said(read_plan, [convnet]))
    kept(refused.said(read_segments, [transformer]))


def test_a_missing_file_is_named(tmp_path, kept):
    kept(refused.said(read_any_plan, [tmp_path / "no.json"]))


def test_either_kind_is_read_from_text():
    assert any_plan_from_json(json.dumps(HAND)) == segments_from_json(json.dumps(HAND))
    assert any_plan_from_json(json.dumps(TRANSFORMER)) == plan_from_json(json.dumps(TRANSFORMER))
