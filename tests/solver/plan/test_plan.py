"""Plans of encoders: refused where they do not fit, and what they make each rank hold."""

import json
import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from solver.base.spans import Partition, Span
from solver.model.blocks import Cut
from solver.model.precision import INT8
from solver.model.spec import Run, tensor_shapes, with_layers
from solver.plan.file import plan_from_json
from solver.plan.holdings import layer_slices, weights_bytes
from solver.plan.plan import BlockPlan, Plan, StreamLayout
from solver.plan.writing import plan_to_json
from tests.kit import refused
from tests.kit.plans import SPEC, changed, joined, like, plans, rank_slices
from tests.solver.plan.test_file import ENCODER
from tests.sweeps import count

GRID = {"cut": "grid", "columns": [20, 17, 0], "output": [9, 11, 0], "rows": [0.5, 0.5, 0]}
FIRST, LAST = ("stages", 0, "runs", 0), ("stages", 0, "runs", 1)


def load(table):
    return plan_from_json(json.dumps(table), Plan)


def within_layers(cut="rows", **ends):
    """Return the JSON of two stages of one device each; layer 1 of 4 is in both, or what `ends` says."""
    rows = {"cut": "rows", "rows": [1]}
    block = rows if cut == "rows" else {"cut": "heads", "heads": [5]}
    spans = {"a": ([0, 2], ends.get("a", [0, 5])), "b": ([1, 4], ends.get("b", [5, 16]))}
    stages = [
        {"devices": [name], "sublayers": part, "runs": [{"layers": layers, "attention": block, "mlp": rows}]}
        for name, (layers, part) in spans.items()
    ]
    return {"format": "hepti-plan/2", "model": {"name": "tiny"}, "stages": stages}


def without_mlp(stage):
    """Return the JSON of such stages where a layer lacks its MLP: the first of the first, or the last of the second."""
    table = within_layers()
    (run,) = table["stages"][stage]["runs"]
    start, stop = run["layers"]
    some, rest = {"layers": [start, start + 1]}, {"layers": [start + 1, stop]}
    table["stages"][stage]["runs"] = [run | some, run | rest]
    del table["stages"][stage]["runs"][stage]["mlp"]
    return table


def test_stages_within_layers_survive_their_file_and_hold_their_sublayers():
    plan = load(within_layers())
    plan.check(SPEC, 2)

    assert plan_from_json(plan_to_json(plan), Plan) == plan
    assert [stage.label for stage in plan.stages] == ["0.0-1.0", "1.1-3.3"]
    names = [{piece.name.split("/", 2)[2] for piece in layer_slices(SPEC, plan, 1, rank)} for rank in range(2)]
    assert names[0] == {f"attention/{name}/{part}" for name in ("query", "key", "value") for part in ("weight", "bias")}
    assert names[0] | names[1] == {
        name.split("/", 2)[2] for name in tensor_shapes(SPEC) if name.startswith("layers/1/")
    }
    assert not names[0] & names[1]


def test_stages_that_do_not_meet_within_a_layer_are_refused(kept):
    cases = [
        within_layers(a=[0, 4]),
        within_layers(a=[0, 6]),
        within_layers(b=[6, 16]),
        within_layers(b=[5, 15]),
        without_mlp(0),
        without_mlp(1),
        within_layers(cut="heads"),
    ]

    kept(refused.said(lambda table: load(table).check(SPEC, 2), cases))


def test_a_plan_says_the_cuts_of_every_layer(kept):
    plan = load(ENCODER)
    plan.check(SPEC, 3)

    assert plan.layer(2)[0].cut is Cut.BLOCK
    assert plan.layer(2)[0].norm is StreamLayout.FULL
    assert plan.layer(2)[1].row_partition(10).counts == (6, 3, 1)
    assert plan.layer(3)[0].columns.counts == (7, 7, 6)
    assert plan.layer(3)[0].row_partition(10).counts == (4, 3, 3)
    assert plan.layer(3)[1].norm is StreamLayout.FULL
    assert plan.layer(3)[1].row_partition(10) is None
    kept(refused.said(plan.layer, [4]))


OTHER = {"name": "bert-base", "fingerprint": "0123456789ab"}


def test_a_plan_that_does_not_fit_is_refused(kept):
    """A missing head, overlapping layers, another model, too few devices: each is named with its numbers."""
    cases = [
        (changed(ENCODER, "model", value=OTHER), 3),
        (changed(ENCODER, "model", value={"name": "bert-base"}), 3),
        (ENCODER, 5),
        (ENCODER, 2),
        (changed(ENCODER, *FIRST, "mlp", drop=True), 3),
        (changed(ENCODER, *LAST, "attention", drop=True), 3),
        (changed(ENCODER, *LAST, "layers", value=[2, 4]), 3),
        (changed(ENCODER, *FIRST, "layers", value=[0, 2]), 3),
        (changed(ENCODER, *LAST, drop=True), 3),
        (changed(ENCODER, *FIRST, "attention", "heads", 2, value=1), 3),
        (changed(ENCODER, *FIRST, "attention", "heads", value=[2, 2, 0]), 3),
        (changed(ENCODER, *LAST, "attention", "output", 2, value=5), 3),
        (changed(ENCODER, *LAST, "mlp", "columns", 2, value=2), 3),
        (changed(ENCODER, *FIRST, "mlp", value=GRID | {"output": [9, 11]}), 3),
        (changed(ENCODER, *FIRST, "mlp", value=GRID | {"output": [19]}), 3),
        (changed(ENCODER, *LAST, "mlp", value={"cut": "whole"}), 3),
    ]

    kept(refused.said(lambda table, ranks: load(table).check(SPEC, ranks), cases))


def test_more_groups_than_any_device_has_heads_are_told(kept):
    to_rows = {"cut": "to_rows", "heads": [4, 1, 0], "rows": [1, 1, 1], "groups": 5}
    plan = load(changed(ENCODER, *FIRST, "attention", value=to_rows))

    assert load(ENCODER).unheeded == []
    kept("\n".join(plan.unheeded))


ATTENTION_ONLY = replace(SPEC, runs=(Run(4, SPEC.blocks[:1]),))
# Two layers as they are, and two of more heads.
MORE_HEADS = joined("more heads", with_layers(SPEC, 2), like(SPEC, heads=10, layers=2))
# The last two without an MLP.
SHORTER = joined("shorter", with_layers(SPEC, 2), replace(SPEC, runs=(Run(2, SPEC.blocks[:1]),)))


def by_block(heads, *spans):
    """Return the JSON of a plan that shares out this many heads, of attention alone or of MLPs, too."""
    tables = {"attention": {"cut": "heads", "heads": [heads]}, "mlp": {"cut": "rows", "rows": [1]}}
    runs = [{"layers": span} | {name: tables[name] for name in names} for *span, names in spans]
    return {"format": "hepti-plan/2", "model": {"name": ""}, "stages": [{"devices": ["a"], "runs": runs}]}


BOTH = ("attention", "mlp")


def test_a_plan_of_other_blocks_than_the_models_is_refused(kept):
    cases = [
        (ATTENTION_ONLY, by_block(5, (0, 4, BOTH))),
        (SHORTER, by_block(5, (0, 4, BOTH))),
        (SHORTER, by_block(5, (0, 3, BOTH), (3, 4, BOTH[:1]))),
        (MORE_HEADS, by_block(5, (0, 4, BOTH))),
        (MORE_HEADS, by_block(10, (0, 4, BOTH))),
    ]

    def check(spec, table):
        load(table | {"model": {"name": spec.name}}).check(spec, 1)

    kept(refused.said(check, cases))


def test_plans_of_models_of_other_blocks_survive_their_file():
    """Of attention alone, of layers with and without an MLP, and of layers with unlike heads."""
    heads = by_block(5, (0, 2, BOTH))
    heads["stages"][0]["runs"] += by_block(10, (2, 4, BOTH))["stages"][0]["runs"]
    cases = [
        (ATTENTION_ONLY, by_block(5, (0, 4, BOTH[:1]))),
        (SHORTER, by_block(5, (0, 2, BOTH), (2, 4, BOTH[:1]))),
        (MORE_HEADS, heads),
    ]

    for spec, table in cases:
        table["model"]["name"] = spec.name
        plan = load(table)
        plan.check(spec, 1)

        assert plan_from_json(plan_to_json(plan), Plan) == plan
        layers = {name for name in tensor_shapes(spec) if name.startswith("layers/")}
        assert {piece.name for piece in rank_slices(spec, plan, 0) if piece.name.startswith("layers/")} == layers
        assert weights_bytes(spec, plan, 0) == 4 * sum(map(math.prod, tensor_shapes(spec).values()))


ROWS = {"cut": "rows", "rows": [1]}


def staged(*stages, **keys):
    """Return the JSON of a plan of (devices, first layer, end) stages, one device each or equal rows."""
    found = []
    for devices, start, stop in stages:
        rows = ROWS | {"rows": [1 / len(devices)] * len(devices)}
        found.append({"devices": devices, "runs": [{"layers": [start, stop], "attention": rows, "mlp": rows}]})
    return {"format": "hepti-plan/2", "model": {"name": "tiny"}, "stages": found} | keys


def test_where_layer_0_comes_again_a_replica_begins():
    plan = load(staged((["a", "b"], 0, 2), (["c"], 2, 4), (["d"], 0, 4), devices=["a", "b", "c", "d", "idle"]))
    plan.check(SPEC, 5)

    assert [[stage.devices for stage in replica] for replica in plan.replicas] == [[("a", "b"), ("c",)], [("d",)]]
    assert [place and (place[0].span, place[1]) for place in map(plan.place, range(5))] == [
        (Span(0, 2), 0), (Span(0, 2), 1), (Span(2, 4), 0), (Span(0, 4), 0), None,
    ]  # fmt: skip
    assert plan.ranks(plan.stages[1]) == (2,)
    # Rank 2 holds its own two layers, and the one that is in no stage nothing.
    held = {piece.name.split("/")[1] for piece in rank_slices(SPEC, plan, 2)}
    assert held == {"2", "3"}
    assert rank_slices(SPEC, plan, 4) == []


def test_stages_that_do_not_fit_are_refused(kept):
    cases = [
        staged((["a"], 0, 2), (["a"], 2, 4)),
        staged((["b", "a"], 0, 4), devices=["a", "b"]),
        staged((["a"], 0, 2), (["b"], 3, 4)),
        staged((["a"], 0, 4), (["b"], 0, 3)),
        staged((["a"], 0, 2), (["b"], 0, 4)),
    ]

    def read_and_check(table):
        plan = load(table)
        plan.check(SPEC, len(plan.devices))

    kept(refused.said(read_and_check, cases))


@settings(max_examples=count(40, 100))
@given(plans())
def test_every_element_of_a_cut_matrix_is_held_once(plan):
    """Over all ranks, matrices cut by heads or columns are held exactly once; by rows, where there are rows."""
    held = {name: np.zeros(shape, int) for name, shape in tensor_shapes(SPEC).items()}
    for rank in range(len(plan.devices)):
        for piece in rank_slices(SPEC, plan, rank):
            assert held[piece.name][piece.index].shape == piece.shape
            held[piece.name][piece.index] += 1

    for name, times in held.items():
        if not name.startswith("layers/"):
            assert (times == 1).all(), name
            continue
        _, layer, block, tensor = name.split("/", 3)
        (part,) = (part for part in plan.layer(int(layer)) if part.block == block)
        if tensor.startswith("norm") or tensor in ("output/bias", "down/bias"):
            assert (times >= 1).all(), name
        elif part.cut is Cut.ROWS or (part.cut is Cut.TO_ROWS and tensor in ("output/weight", "down/weight")):
            assert (times == sum(share > 0 for share in part.rows)).all(), name
        else:
            assert (times == 1).all(), name


@settings(max_examples=count(40, 100))
@given(plans(max_replicas=3))
def test_bytes_of_weights_are_those_of_the_slices(plan):
    for rank in range(len(plan.devices)):
        sizes = [4 * math.prod(piece.shape) for piece in rank_slices(SPEC, plan, rank)]

        assert weights_bytes(SPEC, plan, rank) == sum(sizes)


def test_tiles_of_a_grid_by_hand():
    """All have all F columns of some columns of H, a bias of what they add up, and vectors; the last has no tile."""
    plan = load(changed(ENCODER, *FIRST, "mlp", value=GRID))
    plan.check(SPEC, 3)

    one, two, three = (
        {piece.name.removeprefix("layers/0/mlp/"): piece for piece in layer_slices(SPEC, plan, 0, rank)}
        for rank in range(3)
    )
    for matrix in ("up/weight", "down/weight"):
        assert (one[matrix].span, one[matrix].columns, one[matrix].shape) == (Span(0, 37), Span(0, 9), (37, 9))
        assert (two[matrix].span, two[matrix].columns, two[matrix].shape) == (Span(0, 37), Span(9, 20), (37, 11))
    assert (one["up/bias"].span, two["up/bias"].span) == (Span(0, 20), Span(20, 37))
    assert {name for name in three if name.startswith(("up", "down"))} == {"down/bias"}
    # Two by two: rank 2 is in the first row and the second column.
    block = BlockPlan(
        "mlp", Cut.GRID, Partition.of_counts([3, 2, 4, 1]), Partition.of_counts([12, 8]), StreamLayout.ROWS, (0.25,) * 4
    )
    assert block.tile(2) == (Span(5, 10), Span(0, 12))
    assert list(block.crew(2)) == [2, 3]


def test_in_int8_the_matrices_of_the_layers_take_a_quarter():
    """Biases, norms, embeddings and heads stay float32."""
    plan = load(ENCODER)
    pieces = [piece for piece in rank_slices(SPEC, plan, 0) if piece.name.startswith("layers/")]
    numbers = sum(math.prod(piece.shape) for piece in pieces if len(piece.shape) == 2)

    assert weights_bytes(SPEC, plan, 0) - weights_bytes(SPEC, plan, 0, INT8) == 3 * numbers > 0


def test_shares_by_hand():
    """Rank 1 of the plan above: whole heads of four columns, its own F columns, all of a block cut by rows."""
    plan = load(ENCODER)

    first = {piece.name.removeprefix("layers/0/"): piece for piece in layer_slices(SPEC, plan, 0, 1)}
    assert first["attention/query/weight"].span == Span(12, 20)
    assert first["attention/output/weight"].span == Span(12, 20)
    assert first["attention/output/weight"].columns is None
    assert first["mlp/up/weight"].shape == (37, 20)
    last = {piece.name.removeprefix("layers/3/"): piece for piece in layer_slices(SPEC, plan, 3, 1)}
    assert last["attention/key/bias"].span == Span(8, 16)
    assert (last["attention/output/weight"].span, last["attention/output/weight"].columns) == (Span(0, 20), Span(7, 14))
    assert last["attention/output/weight"].shape == (20, 7)
    assert last["mlp/down/weight"].shape == (16, 20)
    # Rank 2 has no head: only the vectors that follow the attention.
    idle = [piece.name.removeprefix("layers/0/") for piece in layer_slices(SPEC, plan, 0, 2)]
    attention = [name for name in idle if name.startswith("attention/")]
    assert attention == ["attention/output/bias", "attention/norm/weight", "attention/norm/bias"]
