"""The plan file of a convolutional network: round trips, plans by hand, and every mistake in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from solver.base.errors import HeptiError
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
from tests.kit.convnets import plan_of, random_net, random_plan
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


@pytest.mark.parametrize("seed", range(20))
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


def test_the_plan_in_the_documents_fits_its_network():
    page = (Path(__file__).parents[3] / "docs" / "plans.md").read_text()
    (text,) = (block for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if '"convnet"' in block)
    net, _ = zoo_network("resnet18")

    plan = segments_from_json(text, net)

    plan.check(net, ranks=2)
    assert [whole_parts(net, segment) for segment in plan.segments] == [(36, 20), (9, 5), (7, 0), (700, 300)]


def test_nodes_of_another_network_are_not_held_against_this_one(resnet):
    """That it is another one `check` says, in plainer words."""
    text = changed(model={"name": "other", "fingerprint": "0123"}, segment={"first": "conv7"})

    with pytest.raises(HeptiError, match="the plan is for other with fingerprint 0123"):
        segments_from_json(text, resnet).check(resnet, ranks=2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON: "),
        (changed(format="hepti-plan/2"), "format is 'hepti-plan/2', this version reads 'hepti-plan/1'"),
        (changed(kind="graph"), "kind 'graph' is not one of convnet"),
        (changed(kind=1), "kind is 1, must be a text"),
        (changed(model={}), "the plan has no 'name'"),
        (changed(model=[]), "model is [], must be a table"),
        (changed(devices=[]), "devices is empty"),
        (changed(devices=["a", "a"]), "one is named twice"),
        (changed(wire="int7"), "wire 'int7' is not one of float32, "),
        (changed(segments=[]), "the plan has no segments"),
        (changed(segments=[7]), "segment 0: what holds cut is 7, must be a table"),
        (changed(predicted={"seconds": "1"}), "seconds is '1', must be a number"),
        (changed(segment={"nodes": [32]}), "segment 0: [32] is not a span: write [start, stop]"),
        (changed(segment={"nodes": [32, 0]}), "segment 0: span [32, 0) does not ascend from zero"),
        (changed(segment={"cut": "columns"}), "segment 0: cut 'columns' is not one of rows, channels, sums"),
        (changed(segment={"cut": "channels"}), "segment 0: unknown key 'rows' (known: nodes, first, cut, channels, "),
        (changed(segment={"first": "conv2"}), "nodes begin with 0, first is conv2; of resnet18 node 0 is conv1"),
        (changed(segment={"nodes": [99, 99]}), "nodes begin with 99, first is conv1; of resnet18 there are 49 nodes"),
        (changed(segment={"shares": [0.5, 0.5]}), "segment 0: write either rows or shares, one a device"),
        (changed(segment={"rows": [5, 2, 1]}), "segment 0: rows are 3, there are 2 devices"),
        (changed(segment={"rows": [5, 2.5]}), "segment 0: rows is 2.5, must be a whole number"),
        (changed(segment={"rows": [5, -2]}), "segment 0: rows is -2, must not be negative"),
        (changed(segment={"rows": [0, 0]}), "segment 0: rows are all 0: somebody must have some"),
        (changed(segment={"edges_first": 1}), "segment 0: edges_first is 1, must be true or false"),
        (changed(segment={"grid": [2, 2]}), "segment 0: unknown key 'grid' (known: nodes, first, cut, rows, shares, "),
        (changed(segments=[TILES | {"grid": [5]}]), "segment 0: grid is [5], must be two numbers of at least 1"),
        (changed(segments=[TILES | {"grid": [5, 0]}]), "segment 0: grid is [5, 0], must be two numbers of at least 1"),
        (changed(segments=[TILES | {"grid": [2, 2], "stealing": 1}]), "stealing is 1, must be true or false"),
        (changed(segments=[TILES | {"grid": [2, 2], "reuse": 1}]), "reuse is 1, must be true or false"),
        (changed(segments=[TILES]), "segment 0 has no 'grid'"),
        (changed(segments=[{"nodes": [0, 49]}]), "segment 0: write either rows or shares"),
        (changed(segments=[{"rows": [1, 1]}]), "segment 0 has no 'nodes'"),
        (changed(segments=[{"nodes": [0, 49], "shares": [0.5, 0.4]}]), "segment 0: shares add up to 0.9, must add up"),
        (changed(segments=[{"nodes": [0, 49], "shares": [float("nan"), 1]}]), "there is one that is no number"),
    ],
)
def test_every_mistake_is_one_line_that_names_the_field(text, complaint, resnet, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text)

    with pytest.raises(HeptiError) as error:
        read_segments(path, resnet)

    assert str(error.value).startswith(f"{path}: ")
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_plans_of_the_other_kind_are_refused_plainly(tmp_path):
    convnet, transformer = tmp_path / "convnet.json", tmp_path / "transformer.json"
    convnet.write_text(json.dumps(HAND))
    transformer.write_text(json.dumps(TRANSFORMER))

    assert isinstance(read_any_plan(convnet), SegmentPlan)
    assert isinstance(read_any_plan(transformer), Plan)
    with pytest.raises(HeptiError, match="the plan of a convnet, resnet18: here an encoder's is needed"):
        read_plan(convnet)
    with pytest.raises(HeptiError, match="the plan of an encoder, bert-base: here a convnet's is needed"):
        read_segments(transformer)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(HeptiError, match=r"cannot read plan .*no.json: No such file"):
        read_any_plan(tmp_path / "no.json")


def test_either_kind_is_read_from_text():
    assert any_plan_from_json(json.dumps(HAND)) == segments_from_json(json.dumps(HAND))
    assert any_plan_from_json(json.dumps(TRANSFORMER)) == plan_from_json(json.dumps(TRANSFORMER))
