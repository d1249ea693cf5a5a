"""The plan file of every kind of model: written and read back, by hand, and every mistake in one line."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.model.blocks import Cut
from solver.model.kinds.part import FFN, HEAD
from solver.model.named_decoders import named_decoder
from solver.plan.decoder_plan import DecoderPlan, DecoderStage
from solver.plan.file import plan_from_json, planned_model, read_any_plan, read_plan
from solver.plan.plan import Keys, Plan, StreamLayout, Wire
from solver.plan.routes import Route
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, whole_parts
from solver.plan.writing import plan_table, plan_to_json
from tests.kit import refused
from tests.kit.convnets import plan_of, random_net, random_plan
from tests.kit.decoders import shares
from tests.kit.plans import SPEC, changed, decoder_plans, plans
from tests.sweeps import count, seeds
from weights.networks_zoo import zoo_network

LLAMA = named_decoder("llama-3.2-1b", 4)
RESNET, _ = zoo_network("resnet18", size=64)


@dataclass(frozen=True)
class Written:
    """A plan as a person writes it: its table, what it is a plan of, and its numbers of devices."""

    table: dict
    kind: type
    model: object
    ranks: int

    @property
    def named(self):
        """What is given to read and write it."""
        return None if self.kind is Plan else self.model


# 5 heads and 37 columns of F over three devices, the last of which has little or nothing.
ENCODER = {
    "format": "hepti-plan/2",
    "model": {"name": "tiny"},
    "devices": ["pi-0", "pi-1", "pi-2"],
    "stages": [
        {
            "runs": [
                {
                    "layers": [0, 3],
                    "attention": {"cut": "heads", "heads": [3, 2, 0]},
                    "mlp": {"cut": "rows", "rows": [6, 3, 1], "route": "ring"},
                },
                {
                    "layers": [3, 4],
                    "attention": {"cut": "output", "heads": [2, 2, 1], "output": [7, 7, 6], "rows": [0.33, 0.33, 0.33]},
                    "mlp": {"cut": "columns", "columns": [20, 16, 1]},
                },
            ]
        }
    ],
}
NETWORK = {
    "format": "hepti-plan/2",
    "model": {"name": "resnet18"},
    "devices": ["pi-0", "pi-1"],
    "stages": [
        {
            "runs": [
                {"nodes": [0, 32], "first": "conv1", "cut": "rows", "rows": [5, 2], "edges_first": True},
                {"nodes": [32, 48], "cut": "tiles", "tiles": [3, 1], "grid": [2, 2], "reuse": True},
            ]
        },
        {"devices": ["pi-1"], "runs": [{"nodes": [48, 49], "cut": "input_channels", "input_channels": [1]}]},
    ],
}
LANGUAGE_MODEL = {
    "format": "hepti-plan/2",
    "model": {"name": "llama-3.2-1b"},
    "precision": "int4",
    "context": 4096,
    "rows_from": 8,
    "stages": [
        {
            "devices": ["pi-0", "pi-1"],
            "runs": [
                {
                    "layers": [0, 3],
                    "attention": {"cut": "heads", "heads": [8, 24], "keys": [64, 128]},
                    "mlp": {"cut": "columns", "columns": [2048, 6144]},
                    "rows": [0.3, 0.7],
                }
            ],
        },
        {
            "devices": ["pi-2"],
            "runs": [
                {
                    "layers": [3, 4],
                    "attention": {"cut": "heads", "heads": [32]},
                    "mlp": {"cut": "output", "columns": [8192], "output": [2048]},
                }
            ],
        },
    ],
    "head": {"cut": "hidden", "words": [128256], "hidden": [2048]},
}
BY_HAND = {
    "encoder": Written(ENCODER, Plan, SPEC, 3),
    "network": Written(NETWORK, SegmentPlan, RESNET, 2),
    "language model": Written(LANGUAGE_MODEL, DecoderPlan, LLAMA, 3),
}
EVERY_KIND = pytest.mark.parametrize("own", BY_HAND.values(), ids=BY_HAND)
FIRST, LAST = ("stages", 0, "runs", 0), ("stages", 0, "runs", 1)


def load(own, table):
    return plan_from_json(json.dumps(table), own.kind, own.named)


# By hand.


@EVERY_KIND
def test_a_plan_by_hand_is_read_and_fits(own, tmp_path):
    plan, path = load(own, own.table), tmp_path / "plan.json"
    path.write_text(json.dumps(own.table))

    plan.check(own.model, own.ranks)
    assert read_plan(path, own.kind, own.named) == read_any_plan(path) == plan
    assert plan.devices == ("pi-0", "pi-1", "pi-2")[: own.ranks]
    assert (plan.system, plan.wire, plan.predicted) == ("", Wire.FLOAT32, None)
    assert planned_model(path) == (own.model.name, "")


def test_an_encoder_by_hand_has_what_is_written():
    (stage,) = load(BY_HAND["encoder"], ENCODER).stages
    (three, (attention, mlp)), (one, (last, behind)) = stage.layers

    assert (three, one) == (Span(0, 3), Span(3, 4))
    assert (attention.cut, attention.inner.counts, attention.norm) == (Cut.BLOCK, (3, 2, 0), StreamLayout.FULL)
    assert (mlp.cut, mlp.rows, mlp.route) == (Cut.ROWS, (0.6, 0.3, 0.1), Route.RING)
    assert (last.cut, last.inner.counts, last.columns.counts) == (Cut.COLUMNS, (2, 2, 1), (7, 7, 6))
    # 0.33 three times is not one: what counts is the proportion. The block leaves rows, where it says whose.
    assert (last.norm, last.rows) == (StreamLayout.ROWS, pytest.approx([1 / 3] * 3))
    assert (behind.norm, behind.rows) == (StreamLayout.FULL, None)


def test_a_network_by_hand_has_what_is_written():
    assert load(BY_HAND["network"], NETWORK).segments == (
        Segment(Span(0, 32), SegmentCut.ROWS, (5 / 7, 2 / 7), edges_first=True),
        Segment(Span(32, 48), SegmentCut.TILES, (0.75, 0.25), grid=(2, 2), reuse=True),
        Segment(Span(48, 49), SegmentCut.INPUT_CHANNELS, (0, 1)),
    )


def test_a_language_model_by_hand_has_what_is_written():
    """Who is in no stage of a layer has nothing of it; words are the last stage's."""
    plan = load(BY_HAND["language model"], LANGUAGE_MODEL)

    assert plan.stages[0] == DecoderStage(
        Span(0, 3), shares([8, 24, 0], [2048, 6144, 0]), (0.3, 0.7, 0), keys=(64, 128, 0)
    )
    assert plan.stages[1].shares[HEAD].counts == (0, 0, 32)
    assert plan.stages[1].outputs == {FFN: Partition.of_counts([0, 0, 2048])}
    assert (plan.words.counts, plan.hidden.counts) == ((0, 0, 128256), (0, 0, 2048))
    assert (plan.precision, plan.context, plan.rows_from, plan.sequences) == ("int4", 4096, 8, 1)


def test_what_a_block_by_rows_may_say_is_read():
    mlp = {"cut": "grid", "columns": [20, 17, 0], "output": [20], "rows": [0.5, 0.5, 0]}
    attention = {"cut": "rows", "rows": [1, 1, 0], "keys": ["avoided", "projected", "projected"], "route": "relay"}
    table = changed(changed(ENCODER, *FIRST, "mlp", value=mlp), *FIRST, "attention", value=attention)

    to_rows = {"cut": "to_rows", "heads": [3, 1, 1], "rows": [1, 3, 0], "groups": 2}

    plan = load(BY_HAND["encoder"], changed(table, *LAST, "attention", value=to_rows))

    plan.check(SPEC, 3)
    contexts, _ = plan.layer(3)
    assert (contexts.cut, contexts.inner.counts, contexts.rows) == (Cut.TO_ROWS, (3, 1, 1), (0.25, 0.75, 0))
    assert (contexts.norm, contexts.groups) == (StreamLayout.ROWS, 2)
    by_rows, grid = plan.layer(0)
    assert (by_rows.keys, by_rows.route) == ((Keys.AVOIDED, Keys.PROJECTED, Keys.PROJECTED), Route.RELAY)
    assert (grid.cut, grid.inner.counts, grid.columns.counts) == (Cut.GRID, (20, 17, 0), (20,))


# Written and read back.


@EVERY_KIND
def test_a_plan_by_hand_survives_its_file(own):
    plan = load(own, own.table)

    assert plan_from_json(plan_to_json(plan, own.named), own.kind, own.named) == plan


@settings(max_examples=count(40, 100))
@given(plans(max_replicas=3))
def test_every_plan_of_an_encoder_survives_its_file(plan):
    """And fits the model that it was made for."""
    again = plan_from_json(plan_to_json(plan), Plan)

    assert again == plan
    again.check(SPEC, len(plan.devices))


@pytest.mark.parametrize("seed", seeds(6, 20))
def test_every_plan_of_a_network_survives_its_file(seed):
    rng = np.random.default_rng(seed)
    net, _ = random_net(rng)
    plan = random_plan(net, rng, ranks=int(rng.integers(1, 6)), tiles=bool(rng.integers(2)))

    for given_net in (net, None):
        assert plan_from_json(plan_to_json(plan, given_net), SegmentPlan, net) == plan


@settings(max_examples=count(40, 100))
@given(decoder_plans(LLAMA))
def test_every_plan_of_a_language_model_survives_its_file(plan):
    again = plan_from_json(plan_to_json(plan, LLAMA), DecoderPlan, LLAMA)

    assert again == plan
    again.check(LLAMA, len(plan.devices))


def test_what_is_written_can_be_read_by_people(kept):
    """What is usual is left out; a line holds what fits into it."""
    shown = (plan_to_json(load(own, own.table), own.named) for own in BY_HAND.values())

    kept("\n".join(shown))


def test_whole_rows_are_written_where_they_say_the_shares_exactly():
    whole = plan_of(RESNET, [(1, "rows", (0.75, 0.25)), (len(RESNET.nodes), "channels", (0.1, 0.9))], 2)
    split = plan_of(RESNET, [(len(RESNET.nodes), "rows", (0.123, 0.877))], 2)

    first, second = plan_table(whole, RESNET)["stages"][0]["runs"]
    assert (first["rows"], first["first"], second["channels"]) == ([24, 8], "conv1", [100, 900])
    (run,) = plan_table(split, RESNET)["stages"][0]["runs"]
    assert run["rows"] == [0.123, 0.877]
    tiles = plan_of(RESNET, [(1, "tiles", (0.5, 0.5), False, (40, 3), True), (len(RESNET.nodes), "rows", (1, 0))], 2)
    run = plan_table(tiles, RESNET)["stages"][0]["runs"][0]
    assert (run["tiles"], run["grid"], run["stealing"]) == ([48, 48], [40, 3], True)  # of 32 rows there are no 40 parts


def test_whole_rows_are_those_of_the_coarsest_value():
    """After a stage the rows of its output, where rows are pooled those of what is pooled."""
    stop = next(number for number, node in enumerate(RESNET.nodes) if node.op == "GlobalAveragePool") + 1
    shares = (0.75, 0.25)

    assert whole_parts(RESNET, Segment(Span(0, 1), SegmentCut.ROWS, shares)) == (24, 8)
    assert whole_parts(RESNET, Segment(Span(0, stop), SegmentCut.ROWS, (0.5, 0.5))) == (1, 1)
    assert whole_parts(RESNET, Segment(Span(0, stop), SegmentCut.CHANNELS, shares)) == (384, 128)
    last = Segment(Span(len(RESNET.nodes) - 1, len(RESNET.nodes)), SegmentCut.INPUT_CHANNELS, shares)
    assert whole_parts(RESNET, last) == (384, 128)
    assert whole_parts(RESNET, Segment(last.nodes, SegmentCut.CHANNELS, shares)) == (750, 250)


# Mistakes.

PREDICTED = {"seconds": 1.5, "compute_s": 1, "exchange_s": 0.5, "weights_bytes": [1, 2, 3], "bytes_on_wire": 7}
MLP, ATTENTION = (*FIRST, "mlp"), (*FIRST, "attention")
GRID = {"cut": "grid", "columns": [20, 17, 0], "output": [9, 11, 0], "rows": [0.5, 0.5, 0]}
# Where, and what stands there instead; nothing: it is dropped.
OF_ALL = [
    (("format",), "hepti-plan/9"), (("colour",), 1), (("model",),), (("model",), "tiny"), (("model",), {}),
    (("model", "nmae"), "tiny"), (("wire",), "int7"), (("system",), 1), (("stages",),), (("stages",), {}),
    (("stages",), []), (("stages",), [7]), (("stages", 0, "layers"), [0, 3]), (("stages", 0, "runs"),),
    (("stages", 0, "runs"), []), (("stages", 0, "runs"), [7]), (("stages", 0, "devices"), []),
    (("stages", 0, "devices"), ["pi-0", "pi-0"]), (("stages", 0, "devices"), [1]), (("devices",), []),
    (("devices",), ["pi-0", "pi-9"]), (("predicted",), {"seconds": 1}), (("predicted",), {"second": 1}),
]  # fmt: skip
OF_ENCODERS = [
    (("devices",),), (("rows",), 2.5), (("rows",), True), (("rows",), math.inf), (("rows",), -4), (("rows",), None),
    (("cluster",), {"name": "x"}), (("predicted",), PREDICTED | {"seconds": "two"}),
    (("predicted",), PREDICTED | {"weights_bytes": [0.5]}), (("stages", 0, "sublayers"), [0]),
    ((*FIRST, "layers"),), ((*FIRST, "layers"), [3, 0]), ((*FIRST, "layers"), [0, 0]), ((*FIRST, "layers"), [0, 2.5]),
    ((*FIRST, "layers"), [0]), ((*FIRST, "convolution"), {"cut": "rows"}), (FIRST, {"layers": [0, 3]}), (MLP, 7),
    ((*MLP, "cut"),), ((*MLP, "cut"), "block"), ((*MLP, "cut"), "whole"), ((*MLP, "norm"), "rows"),
    ((*MLP, "rout"), "ring"), ((*MLP, "route"), "spiral"), ((*MLP, "keys"), ["avoided"] * 3),
    ((*ATTENTION, "keys"), ["avoided"] * 3), ((*LAST, "mlp", "cut"), "heads"),
    (ATTENTION, {"cut": "rows", "rows": [1, 1, 1], "keys": ["lost"] * 3}), ((*MLP, "rows"),),
    ((*MLP, "rows"), [0.6, 0.3]), ((*MLP, "rows"), [0.6, 0.3, 0.2]), ((*MLP, "rows"), [1.5, -0.5, 0]),
    ((*MLP, "rows"), [math.nan, 0.5, 0.5]), ((*MLP, "rows"), ["0.5", 0.5, 0]), ((*MLP, "rows"), [0, 0, 0]),
    ((*MLP, "rows"), [7, 2.5, 0]), ((*MLP, "columns"), [37, 0, 0]), ((*ATTENTION, "heads"),),
    ((*ATTENTION, "heads"), [[0, 3], [3, 5], [5, 5]]), ((*ATTENTION, "heads"), [3, 2]), ((*ATTENTION, "heads"), 5),
    ((*ATTENTION, "heads"), [3, -1, 3]), ((*ATTENTION, "heads"), [2.5, 2.5, 0]), ((*ATTENTION, "output"), [20, 0, 0]),
    ((*LAST, "attention", "output"),), ((*LAST, "attention", "output"), [20]), (MLP, GRID | {"columns": [37]}),
    ((*ATTENTION, "groups"), 2), (ATTENTION, {"cut": "to_rows", "heads": [3, 2, 0]}),
    (ATTENTION, {"cut": "to_rows", "heads": [3, 2, 0], "rows": [1, 1, 1], "groups": 0}),
    (MLP, {"cut": "grid", "columns": [20, 17, 0]}), (MLP, GRID | {"output": []}), (MLP, GRID | {"keys": []}),
    (ATTENTION, {"cut": "to_rows", "heads": [3, 2, 0], "rows": [1, 1, 1], "group": 2}), ((*ATTENTION, "cut"), "block"),
    ((*MLP, "ffn"), [37, 0, 0]), (("segments",), []),
]  # fmt: skip
OF_NETWORKS = [
    (("rows",), 9), (("context",), 9), (("devices",),), ((*FIRST, "nodes"), [32]), ((*FIRST, "nodes"), [32, 0]),
    ((*FIRST, "nodes"),), ((*FIRST, "first"), "conv2"), ((*FIRST, "nodes"), [99, 99]), ((*FIRST, "cut"),),
    ((*FIRST, "cut"), "columns"), ((*FIRST, "cut"), "channels"), ((*FIRST, "rows"),), ((*FIRST, "rows"), [5, 2, 1]),
    ((*FIRST, "rows"), [5, 2.5]), ((*FIRST, "rows"), [0.5, 0.4]), ((*FIRST, "rows"), [5, -2]),
    ((*FIRST, "rows"), [0, 0]), ((*FIRST, "edges_first"), 1), ((*FIRST, "grid"), [2, 2]), ((*LAST, "grid"),),
    ((*LAST, "grid"), [5]), ((*LAST, "grid"), [5, 0]), ((*LAST, "stealing"), 1), ((*LAST, "reuse"), "yes"),
    ((*LAST, "edges_first"), True), ((*FIRST, "attention"), {"cut": "rows", "rows": [1, 0]}),
    ((*FIRST, "sublayers"), [0, 5]), ((*FIRST, "shares"), [1, 0]), ((*FIRST, "cut"), "sums"),
    (("head",), {"cut": "words", "words": [1]}),
]  # fmt: skip
OF_LANGUAGE_MODELS = [
    (("model", "name"), "gpt2"), (("model", "fingerprint"), "0"), (("cluster",), {}), (("rows",), 9), (("context",),),
    (("context",), 1.5), (("sequences",), 0), (("cache",), "int4"), (("wire",), "int2"), (("precision",), "int2"),
    (("rows_from",), -1), (("head",),), (("head",), 7), (("head", "words"),), (("head", "words"), [1, True]),
    (("head", "words"), [1, 128255]), (("head", "cut"), "rows"), (("head", "heads"), [1]), (("devices",), ["pi-0"]),
    (("head", "hidden"),), (("head", "cut"), "words"),
    (("stages", 0, "sublayers"), [0, 5]), ((*FIRST, "tokens"), [1, 1]), ((*FIRST, "attention"),), ((*FIRST, "mlp"),),
    ((*FIRST, "rows"), [1, -1]), ((*FIRST, "rows"), [1]), ((*ATTENTION, "heads"), [32]),
    ((*ATTENTION, "heads"), [33, -1]), ((*ATTENTION, "keys"), [0, 0]), ((*ATTENTION, "keys"), ["projected"] * 2),
    ((*MLP, "keys"), [64, 128]), ((*ATTENTION, "cut"), "rows"), ((*ATTENTION, "route"), "ring"),
    ((*ATTENTION, "rows"), [1, 0]), ((*MLP, "rows"), [1, 0]),
    ((*MLP, "columns"), [8192.0, 0]), ((*MLP, "output"), [2048, 0]), ((*MLP, "cut"), "output"),
    ((*FIRST, "layers"), [0]), ((*FIRST, "layers"), [3, 3]), (("predicted",), {"token_s": 1}),
    (("embedding",), [1]), (("embedding",), {"cut": "words", "words": [128256]}),
    (("embedding",), {"cut": "rows", "rows": [1, 0, 0]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "cases"),
    [("encoder", OF_ALL + OF_ENCODERS), ("network", OF_NETWORKS), ("language model", OF_LANGUAGE_MODELS)],
    ids=["encoder", "network", "language-model"],
)
def test_every_mistake_is_one_line_that_says_where_and_what_to_write(kind, cases, kept):
    own = BY_HAND[kind]

    def read(steps, *value):
        load(own, changed(own.table, *steps, value=[*value, None][0], drop=not value))

    kept(refused.said(read, cases))


def test_the_plan_of_another_kind_is_refused_plainly(tmp_path, kept):
    cases = []
    for name, own in BY_HAND.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(own.table))
        cases += [(path, other.kind) for other in BY_HAND.values() if other is not own]

    kept(refused.said(read_plan, cases))


def test_a_file_that_is_no_plan_is_refused(tmp_path, kept):
    contents = {"bytes": b"\xff\xfe", "nothing": b"{}", "list": b"[]", "open": b"{", "twice": b'{"rows": 1, "rows": 2}'}
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_bytes(content)

    kept(refused.said(read_any_plan, [tmp_path / f"{name}.json" for name in ("none", *contents)]))


@pytest.mark.parametrize("content", [b"[" * 100_000, b"9" * 5000], ids=["deep", "long"])
def test_what_python_cannot_read_is_refused(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_bytes(content)

    with pytest.raises(HeptiError, match=r"plan\.json: not JSON: "):
        read_any_plan(path)


def test_nodes_of_another_network_are_not_held_against_this_one(kept):
    """That it is another one `check` says, in plainer words."""
    other = changed(NETWORK, "model", value={"name": "other", "fingerprint": "0123"})
    plan = load(BY_HAND["network"], changed(other, *FIRST, "first", value="conv7"))

    kept(refused.said(plan.check, [(RESNET, 2)]))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | st.sampled_from([10**400, -1, 0, 1, "rows", "heads", "output", 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["cut", "layers", "x"]), inner),
    max_leaves=5,
)  # fmt: skip


def places(node, steps=()):
    """Return the path to every node of the JSON below the root."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, item in items for place in [(*steps, key), *places(item, (*steps, key))]]


@EVERY_KIND
@settings(max_examples=count(100, 400))
@given(data=st.data())
def test_damaged_json_is_a_plan_or_refused(own, data):
    """Whatever is dropped or replaced, the outcome is a plan that can be used, or a HeptiError."""
    table = own.table
    for _ in range(data.draw(st.integers(1, 3))):
        steps = data.draw(st.sampled_from(places(table)))
        value = data.draw(JUNK | st.sampled_from([part["stages"] for part in (ENCODER, NETWORK, LANGUAGE_MODEL)]))
        table = changed(table, *steps, value=value, drop=data.draw(st.booleans()))
        if not places(table):
            return
    try:
        plan = load(own, table)
        plan.check(own.model, own.ranks)
    except HeptiError:
        return
    assert plan_from_json(plan_to_json(plan, own.named), own.kind, own.named) == plan
