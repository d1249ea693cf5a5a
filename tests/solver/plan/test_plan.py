"""Plans: written and read back, refused where they do not fit, and what they make each rank hold."""

import json
import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.model.blocks import Cut
from solver.model.precision import INT8
from solver.model.spec import Run, tensor_shapes, with_layers
from solver.plan.file import plan_from_json, plan_to_json, read_plan
from solver.plan.holdings import layer_slices, weights_bytes
from solver.plan.plan import BlockPlan, StreamLayout
from tests.kit import refused
from tests.kit.plans import SPEC, joined, like, plans, rank_slices
from tests.sweeps import count

# By hand: 5 heads and 37 columns of F over three devices, the last of which has little or nothing.
WRITTEN = {
    "format": "hepti-plan/1",
    "model": {"name": "tiny"},
    "stages": [
        {
            "devices": ["pi-0", "pi-1", "pi-2"],
            "layers": [
                {
                    "layers": [0, 3],
                    "attention": {"cut": "block", "heads": [[0, 3], [3, 5], [5, 5]], "norm": "full"},
                    "mlp": {"cut": "rows", "rows": [0.6, 0.3, 0.1]},
                },
                {
                    "layers": [3, 4],
                    "attention": {
                        "cut": "columns",
                        "heads": [[0, 2], [2, 4], [4, 5]],
                        "columns": [[0, 7], [7, 14], [14, 20]],
                        "norm": "rows",
                        "rows": [0.33, 0.33, 0.33],
                    },
                    "mlp": {"cut": "block", "ffn": [[0, 20], [20, 36], [36, 37]]},
                },
            ],
        }
    ],
}
# Three tiles of the MLP's weights, one above the other: all F columns, of which everyone adds up some.
GRID = {
    "cut": "grid",
    "ffn": [[0, 20], [20, 37], [37, 37]],
    "columns": [[0, 9], [9, 20], [20, 20]],
    "rows": [0.5, 0.5, 0],
}
PREDICTED = {"seconds": 1.5, "compute_s": 1, "exchange_s": 0.5, "weights_bytes": [1, 2, 3], "bytes_on_wire": 7}
FIRST, LAST = ("stages", 0, "layers", 0), ("stages", 0, "layers", 1)


def changed(*steps, value=None, drop=False, table=WRITTEN):
    """Return a copy of the JSON with the node at the end of `steps` replaced or dropped."""
    table = deepcopy(table)
    node = table
    for step in steps[:-1]:
        node = node[step]
    if drop:
        del node[steps[-1]]
    else:
        node[steps[-1]] = value
    return table


def load(table):
    return plan_from_json(json.dumps(table))


def within_layers(cut="rows", **ends):
    """Return the JSON of two stages of one device each; layer 1 of 4 is in both, or what `ends` says."""
    rows = {"cut": "rows", "rows": [1]}
    block = rows if cut == "rows" else {"cut": "block", "heads": [[0, 5]]}
    spans = {"a": ([0, 2], ends.get("a", [0, 5])), "b": ([1, 4], ends.get("b", [5, 16]))}
    stages = [
        {"devices": [name], "sublayers": part, "layers": [{"layers": layers, "attention": block, "mlp": rows}]}
        for name, (layers, part) in spans.items()
    ]
    return {"format": "hepti-plan/1", "model": {"name": "tiny"}, "stages": stages}


def without_mlp(stage):
    """Return the JSON of such stages where a layer lacks its MLP: the first of the first, or the last of the second."""
    table = within_layers()
    (run,) = table["stages"][stage]["layers"]
    start, stop = run["layers"]
    some, rest = {"layers": [start, start + 1]}, {"layers": [start + 1, stop]}
    table["stages"][stage]["layers"] = [run | some, run | rest]
    del table["stages"][stage]["layers"][stage]["mlp"]
    return table


def test_stages_within_layers_survive_their_file_and_hold_their_sublayers():
    plan = load(within_layers())
    plan.check(SPEC, 2)

    assert plan_from_json(plan_to_json(plan)) == plan
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
        within_layers(cut="block"),
    ]

    kept(refused.said(lambda table: load(table).check(SPEC, 2), cases))


@settings(max_examples=count(40, 100))
@given(plans(max_replicas=3))
def test_a_plan_survives_its_file(plan):
    """A plan written and read back is the same plan, and fits the model it was made for."""
    again = plan_from_json(plan_to_json(plan))

    assert again == plan
    again.check(SPEC, len(plan.devices))


def test_a_plan_written_by_hand_is_read(kept):
    plan = load(WRITTEN)
    plan.check(SPEC, 3)

    assert plan.devices == ("pi-0", "pi-1", "pi-2")
    assert plan.layer(2)[0].cut is Cut.BLOCK
    assert plan.layer(2)[0].norm is StreamLayout.FULL
    assert plan.layer(2)[1].row_partition(10).counts == (6, 3, 1)
    assert plan.layer(3)[0].columns.counts == (7, 7, 6)
    # 0.33 three times is not one: what counts is the proportion.
    assert plan.layer(3)[0].row_partition(10).counts == (4, 3, 3)
    assert plan.layer(3)[1].norm is StreamLayout.FULL
    assert plan.layer(3)[1].row_partition(10) is None
    kept(refused.said(plan.layer, [4]))


def test_json_that_is_no_plan_is_refused(kept):
    cases = [
        [],
        changed("format", value="hepti-plan/9"),
        changed("model", drop=True),
        changed("model", value="tiny"),
        changed("stages", value={}),
        changed("rows", value=2.5),
        changed("rows", value=True),
        changed("rows", value=math.inf),
        changed("predicted", value=PREDICTED | {"seconds": "two"}),
        changed("predicted", value=PREDICTED | {"weights_bytes": [0.5]}),
        changed("stages", 0, value=3),
        changed("stages", 0, "devices", 1, value="pi-0"),
        changed("stages", 0, "devices", 1, value=1),
        changed(*FIRST, "layers", value=[3, 0]),
        changed(*FIRST, "convolution", value={"cut": "rows", "rows": [1, 0, 0]}),
        changed(*FIRST, value={"layers": [0, 3]}),
        changed(*FIRST, "mlp", "cut", value="grit"),
        changed(*FIRST, "mlp", "cut", drop=True),
        changed(*FIRST, "mlp", "norm", value="full"),
        changed(*FIRST, "mlp", "norm", value="heap"),
        changed(*FIRST, "mlp", "nrom", value="rows"),
        changed(*FIRST, "mlp", "keys", value=["avoided"] * 3),
        changed(*FIRST, "attention", "keys", value=["avoided"] * 3),
        changed(*FIRST, "mlp", "rows", drop=True),
        changed(*FIRST, "mlp", "rows", value=[0.6, 0.3, 0.2]),
        changed(*FIRST, "mlp", "rows", value=[1.5, -0.5, 0]),
        changed(*FIRST, "mlp", "rows", value=[math.nan, 0.5, 0.5]),
        changed(*FIRST, "mlp", "rows", value=["0.5", 0.5]),
        changed(*FIRST, "mlp", "ffn", value=[[0, 37]]),
        changed(*FIRST, "attention", "heads", drop=True),
        changed(*FIRST, "attention", "rows", value=[1, 0, 0]),
        changed(*FIRST, "attention", "columns", value=[[0, 20]]),
        changed(*LAST, "attention", "columns", drop=True),
        changed(*FIRST, "mlp", value=GRID | {"norm": "full"}),
        changed(*FIRST, "mlp", "cut", value="grid"),
        changed(*FIRST, "mlp", "cut", value="grid", table=changed(*FIRST, "mlp", "ffn", value=[[0, 37]])),
        changed(*FIRST, "attention", "heads", 1, value=[2, 5]),
        changed(*FIRST, "attention", "heads", 1, value=[4, 5]),
        changed(*FIRST, "attention", "heads", 0, value=[1, 3]),
        changed(*FIRST, "attention", "heads", value=[]),
        changed(*FIRST, "attention", "heads", 0, value=[0, 2.5]),
        changed(*FIRST, "attention", "heads", 0, value=[0]),
        changed("stages", value=[]),
        changed("stages", 0, "devices", value=[]),
        changed("rows", value=-4),
        changed(*FIRST, "layers", value=[0, 0]),
    ]

    kept(refused.said(load, cases))


OTHER = {"name": "bert-base", "fingerprint": "0123456789ab"}


def test_a_plan_that_does_not_fit_is_refused(kept):
    """A missing head, overlapping layers, another model, too few devices: each is named with its numbers."""
    cases = [
        (changed("model", value=OTHER), 3),
        (changed("model", value={"name": "bert-base"}), 3),
        (WRITTEN, 5),
        (WRITTEN, 2),
        (changed(*FIRST, "mlp", drop=True), 3),
        (changed(*LAST, "attention", drop=True), 3),
        (changed("stages", value=[]), 0),
        (changed(*LAST, "layers", value=[2, 4]), 3),
        (changed(*FIRST, "layers", value=[0, 2]), 3),
        (changed(*LAST, drop=True), 3),
        (changed(*FIRST, "attention", "heads", 2, value=[5, 6]), 3),
        (changed(*FIRST, "attention", "heads", value=[[0, 2], [2, 4], [4, 4]]), 3),
        (changed(*FIRST, "attention", "heads", value=[[0, 5]]), 3),
        (changed(*LAST, "attention", "columns", 2, value=[14, 19]), 3),
        (changed(*LAST, "mlp", "ffn", 2, value=[36, 38]), 3),
        (changed(*FIRST, "mlp", "rows", value=[0.5, 0.5]), 3),
        (changed(*FIRST, "mlp", value=GRID | {"columns": [[0, 9], [9, 20]]}), 3),
        (changed(*FIRST, "mlp", value=GRID | {"columns": [[0, 19]]}), 3),
        (changed(*FIRST, "mlp", value=GRID | {"ffn": [[0, 37]]}), 3),
    ]

    kept(refused.said(lambda table, ranks: load(table).check(SPEC, ranks), cases))


ATTENTION_ONLY = replace(SPEC, runs=(Run(4, SPEC.blocks[:1]),))
# Two layers as they are, and two of more heads.
MORE_HEADS = joined("more heads", with_layers(SPEC, 2), like(SPEC, heads=10, layers=2))
# The last two without an MLP.
SHORTER = joined("shorter", with_layers(SPEC, 2), replace(SPEC, runs=(Run(2, SPEC.blocks[:1]),)))


def by_block(heads, *spans):
    """Return the JSON of a plan that shares out this many heads, of attention alone or of MLPs, too."""
    tables = {"attention": {"cut": "block", "heads": [[0, heads]]}, "mlp": {"cut": "rows", "rows": [1]}}
    runs = [{"layers": span} | {name: tables[name] for name in names} for *span, names in spans]
    return {"format": "hepti-plan/1", "model": {"name": ""}, "stages": [{"devices": ["a"], "layers": runs}]}


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
    heads["stages"][0]["layers"] += by_block(10, (2, 4, BOTH))["stages"][0]["layers"]
    cases = [
        (ATTENTION_ONLY, by_block(5, (0, 4, BOTH[:1]))),
        (SHORTER, by_block(5, (0, 2, BOTH), (2, 4, BOTH[:1]))),
        (MORE_HEADS, heads),
    ]

    for spec, table in cases:
        table["model"]["name"] = spec.name
        plan = load(table)
        plan.check(spec, 1)

        assert plan_from_json(plan_to_json(plan)) == plan
        layers = {name for name in tensor_shapes(spec) if name.startswith("layers/")}
        assert {piece.name for piece in rank_slices(spec, plan, 0) if piece.name.startswith("layers/")} == layers
        assert weights_bytes(spec, plan, 0) == 4 * sum(map(math.prod, tensor_shapes(spec).values()))


ROWS = {"cut": "rows", "rows": [1]}


def staged(*stages, **keys):
    """Return the JSON of a plan of (devices, first layer, end) stages, one device each or equal rows."""
    found = []
    for devices, start, stop in stages:
        rows = ROWS | {"rows": [1 / len(devices)] * len(devices)}
        found.append({"devices": devices, "layers": [{"layers": [start, stop], "attention": rows, "mlp": rows}]})
    return {"format": "hepti-plan/1", "model": {"name": "tiny"}, "stages": found} | keys


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
        staged((["c"], 0, 4), devices=["a", "b"]),
        staged((["a"], 0, 4), devices=["a", "a"]),
        staged() | {"stages": [changed("layers", value=[], table=staged((["a"], 0, 4))["stages"][0])]},
    ]

    def read_and_check(table):
        plan = load(table)
        plan.check(SPEC, len(plan.devices))

    kept(refused.said(read_and_check, cases))


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b"9" * 5000], ids=["open", "deep", "long"])
def test_what_python_cannot_read_is_refused(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_bytes(content)

    with pytest.raises(HeptiError, match=r"plan\.json: not JSON: "):
        read_plan(path)


def test_a_file_that_is_no_plan_is_refused(tmp_path, kept):
    for name, content in (("bytes", b"\xff\xfe"), ("nothing", b"{}")):
        (tmp_path / f"{name}.json").write_bytes(content)

    kept(refused.said(read_plan, [tmp_path / f"{name}.json" for name in ("none", "bytes", "nothing")]))


FULL = WRITTEN | {"predicted": PREDICTED, "cluster": {"fingerprint": "x"}, "rows": 9, "system": "hepti"}
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | st.sampled_from([10**400, -1, 0, 1, "rows", "block", 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["cut", "layers", "x"]), inner),
    max_leaves=5,
)  # fmt: skip


def places(node, steps=()):
    """Return the path to every node of the JSON below the root."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, item in items for place in [(*steps, key), *places(item, (*steps, key))]]


@settings(max_examples=count(150, 400))
@given(st.data())
def test_damaged_json_is_a_plan_or_refused(data):
    """Whatever is dropped or replaced, the outcome is a plan that can be used, or a HeptiError."""
    table = FULL
    for _ in range(data.draw(st.integers(1, 3))):
        steps = data.draw(st.sampled_from(places(table)))
        value = data.draw(JUNK | st.sampled_from([WRITTEN["stages"], WRITTEN["stages"][0]["layers"][1]["attention"]]))
        table = changed(*steps, value=value, drop=data.draw(st.booleans()), table=table)
        if not places(table):
            return
    try:
        plan = load(table)
        plan.check(SPEC, 3)
    except HeptiError:
        return
    assert plan_from_json(plan_to_json(plan)) == plan
    assert sum(weights_bytes(SPEC, plan, rank) for rank in range(3)) >= 4 * SPEC.hidden * SPEC.blocks[1].kind.ffn


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
    plan = load(changed(*FIRST, "mlp", value=GRID))
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
    plan = load(WRITTEN)
    pieces = [piece for piece in rank_slices(SPEC, plan, 0) if piece.name.startswith("layers/")]
    numbers = sum(math.prod(piece.shape) for piece in pieces if len(piece.shape) == 2)

    assert weights_bytes(SPEC, plan, 0) - weights_bytes(SPEC, plan, 0, INT8) == 3 * numbers > 0


def test_shares_by_hand():
    """Rank 1 of the plan above: whole heads of four columns, its own F columns, all of a block cut by rows."""
    plan = load(WRITTEN)

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
