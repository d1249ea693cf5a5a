"""The one schedule: what follows from parts as they are placed."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.model.kinds.part import FFN, HEAD, ROW, WORD, Value
from solver.plan.decoder_plan import DecoderPlan, DecoderStage
from solver.plan.layout import moves
from solver.schedule.decoders import steps
from solver.schedule.places import by_sockets
from solver.schedule.regions import some_have
from solver.schedule.schedule import ComputeStep, ExchangeStep, unfolded
from tests.kit.decoders import shares, small_model
from tests.kit.placed import shorten

MODEL = small_model(layers=4, heads=8, kv_heads=4, d=32, hidden=64, ffn=128, vocab=96)


OUTPUTS = {HEAD: Partition.of_counts([32, 0, 32]), FFN: Partition.of_counts([0, 64, 0])}
# How else than by heads and columns alone, as of `DecoderStage`.
CUTS = {
    "rows": {"rows": (1, 2, 1)},
    "columns": {"outputs": OUTPUTS},
    "keys": {"keys": (2, 0, 3)},
    "keys and rows": {"keys": (2, 0, 3), "rows": (1, 2, 1)},
    "rows of the output product": {"rows": (1, 2, 1), "rows_end": True},
    "keys and columns": {"keys": (2, 0, 3), "outputs": OUTPUTS},
}


def plan(*, rows=(), stages=1, layers=4, heads=(3, 0, 5), columns=(64, 64, 0), words=(0, 48, 48), **cuts):
    edges = [layers * number // stages for number in range(stages + 1)]
    made = tuple(DecoderStage(Span(*ends), shares(heads, columns), rows, **cuts) for ends in pairwise(edges))
    names = ("a", "b", "c")
    return DecoderPlan("x", names, made, Partition.of_counts(words), context=64, rows_from=8 * bool(rows))


def pass_schedule(model, plan, rows, chosen=1, **folded):
    """Return what ranks do in a pass of rows, of which the last `chosen` are asked for."""
    return steps.pass_schedule(model, plan, steps.pass_rows(model, plan, rows, chosen), **folded)


def told(steps):
    """Return the steps in words: an exchange by its name, a computation by its parts."""
    return [
        step.name if isinstance(step, ExchangeStep) else " ".join(part.role for part, _ in step.parts) for step in steps
    ]


def test_summands_stand_between_half_layers():
    half, other = "join keys queries contexts output", "join up down"
    steps = told(pass_schedule(MODEL, plan(), 1))

    assert steps[:6] == ["words", "tokens", half.removeprefix("join "), "sum of attention", other, "sum of mlp"]
    assert steps[6:-2] == 3 * [half, "sum of attention", other, "sum of mlp"]
    assert steps[-2:] == ["join logits", "candidates"]


def test_prompts_that_are_cut_by_rows_bring_contexts_to_rows_and_rows_to_heads():
    steps = told(pass_schedule(MODEL, plan(rows=(1, 2, 1)), 16))
    layer = ["keys queries contexts", "contexts", "output join up down join", "rows"]

    assert steps == ["words", "tokens", *4 * layer, "logits", "candidates"]


def test_output_products_that_are_cut_by_rows_bring_contexts_to_rows_and_what_comes_of_them_to_all():
    """The MLP is cut as for tokens, and its graphs are those of tokens."""
    steps = told(pass_schedule(MODEL, plan(rows=(1, 2, 1), rows_end=True), 16))
    half, other = ["contexts", "output", "output of attention"], ["join up down", "sum of mlp", "sum of mlp"]

    assert steps[:9] == ["words", "tokens", "keys queries contexts", *half, *other]
    assert steps[9:17] == ["join keys queries contexts", *half, *other, "join keys queries contexts"]


def test_results_that_are_cut_by_columns_are_not_summed():
    steps = told(pass_schedule(MODEL, plan(outputs=OUTPUTS), 1))

    assert steps[2:8] == ["keys queries contexts", "contexts", "output", "output of attention", "join up", "inner"]
    assert steps[8:10] == ["down", "output of mlp"]


def test_keys_that_are_shared_out_by_tokens_bring_queries_to_keys_and_contexts_to_heads():
    steps = told(pass_schedule(MODEL, plan(keys=(2, 0, 3)), 1))

    assert steps[2:8] == [
        "new keys queries", "queries", "new keys", "kept partial contexts", "partial contexts", "joined contexts output"
    ]  # fmt: skip
    assert steps[8] == "sum of attention"


def test_a_head_that_is_cut_by_hidden_leaves_summands_of_logits():
    by_hidden = replace(plan(), hidden=Partition.of_counts([32, 0, 32]))
    steps = pass_schedule(MODEL, by_hidden, 1)

    assert told(steps)[-4:] == ["join sums", "sum of logits", "logits", "candidates"]
    bringing = steps[-3]
    assert bringing.partial
    assert bringing.moved[0].tolist() == [[0, 48, 48], [0, 0, 0], [0, 48, 0]]


def test_layers_that_are_alike_stand_in_a_folded_schedule_once():
    model = small_model(layers=7, heads=8, kv_heads=4, d=32, hidden=64, ffn=128, vocab=96)
    every, folded = (pass_schedule(model, plan(layers=7), 1, folded=own) for own in (False, True))

    assert sum(step.repeats for step in folded) == len(every)
    assert len(folded) < len(every)
    for name in ("sum of attention", "sum of mlp"):
        layers = sorted(
            n for step in folded if told([step]) == [name] for n in range(step.layers.start, step.layers.stop)
        )
        assert layers == list(range(7))


def named(steps):
    """Return what steps are about: an exchange's value, or the parts of a computation and what leaves it."""
    return [
        called(step.value.name) if isinstance(step, ExchangeStep)
        else ([called(part.name) for part, _ in step.parts], {called(name) for name in step.leaves},
              {called(value.name) for part, _ in step.parts for value in part.reads})
        for step, called in steps
    ]  # fmt: skip


@pytest.mark.parametrize("windows", [[0] * 9, [4, 4, 4, 4, 0, 0, 0, 0, 4], [4, 0, 0, 0, 0, 4, 4, 4, 4]])
@pytest.mark.parametrize(
    ("cuts", "stages"),
    [({}, 1), ({}, 2), (CUTS["rows"], 1), (CUTS["rows"], 3), (CUTS["rows of the output product"], 2),
     (CUTS["columns"], 1), (CUTS["keys"], 2), (CUTS["keys and rows"], 1)],
)  # fmt: skip
def test_a_folded_schedule_unfolds_to_that_of_every_layer(windows, cuts, stages):
    model = small_model(layers=9, heads=8, kv_heads=4, d=32, hidden=64, ffn=128, vocab=96, windows=windows)
    own = plan(stages=stages, layers=9, **cuts)
    every, folded = (pass_schedule(model, own, 16, 16, folded=one) for one in (False, True))

    assert named(unfolded(folded)) == named((step, str) for step in every)
    assert len(folded) < len(every) or stages == 3


def test_of_the_last_layer_only_rows_are_computed_that_are_asked_for():
    """What is kept is of all rows; without a word to choose nothing comes after it."""
    *_, last = (step for step in pass_schedule(MODEL, plan(), 16, 3) if told([step]) == ["join up down"])
    ((_, region), *_) = last.parts

    assert region[ROW][0].tolist() == [[13, 16], [13, 16], [13, 16]]
    assert told(pass_schedule(MODEL, plan(), 16, 0))[-1] == "join keys queries contexts output"


@pytest.mark.parametrize("cuts", [{}, *CUTS.values()])
@pytest.mark.parametrize("stages", [1, 2])
def test_everybody_has_what_a_computation_needs(cuts, stages):
    """Followed step by step: what was computed and what came is what parts read."""
    own = plan(stages=stages, **cuts)
    steps = pass_schedule(MODEL, own, 16)
    have = {}
    for step in steps[2:-1]:
        if isinstance(step, ExchangeStep):
            moves(*step.layouts())
            have.setdefault(step.value.name, []).append(step.want)
            continue
        for part, region in step.parts:
            for value in part.reads:
                needs, there = part.needs(region)[value.name], have.get(value.name)
                if value.state:
                    continue
                if there is None:
                    assert value.name == "embedding"
                    continue
                for rank in range(3):
                    sizes = [spans[0, rank, 1] - spans[0, rank, 0] for spans in needs.values()]
                    inside = [
                        all(
                            box[axis][0, rank, 0] <= spans[0, rank, 0] and spans[0, rank, 1] <= box[axis][0, rank, 1]
                            for axis, spans in needs.items()
                        )
                        for box in there
                    ]
                    assert min(sizes) == 0 or any(inside), (part.name, value.name, rank)
            have[part.writes.name] = [part.result(region)]
            if (
                part.name.endswith(("/output", "/down"))
                and part.kind.axis not in own.stages[0].outputs
                and not cuts.get("rows")
            ):
                have.pop(part.writes.name)  # summands: nobody has the sum before it has come


@pytest.mark.parametrize(
    ("role", "cuts"),
    [*((role, "rows") for role in ("contexts", "output", "down", "join")),
     *((role, "columns") for role in ("contexts", "output", "up", "down")),
     *((role, "keys") for role in ("queries", "new keys", "partial contexts"))],
)  # fmt: skip
def test_a_span_that_is_one_too_short_is_something_that_nobody_has(role, cuts, monkeypatch):
    shorten(monkeypatch, role)

    steps = [step for step in pass_schedule(MODEL, plan(**CUTS[cuts]), 16, 16) if isinstance(step, ExchangeStep)]

    with pytest.raises(HeptiError, match="nobody has it"):
        _ = [moves(*step.layouts()) for step in steps]


def test_many_plans_at_once_are_those_one_by_one():
    """Spans are arrays over plans: what one plan sends is a row of what several send."""
    (first, *_), (second, *_) = (
        [step for step in pass_schedule(MODEL, plan(rows=own), 16) if told([step]) == ["contexts"]]
        for own in ((1, 2, 1), (2, 1, 1))
    )

    def both(one, two):
        return {axis: np.concatenate([one[axis], two[axis]]) for axis in one}

    have = tuple(both(*own) for own in zip(first.have, second.have, strict=True))
    together = ExchangeStep("contexts", first.value, have, both(first.want, second.want))

    assert together.moved.tolist() == [first.moved[0].tolist(), second.moved[0].tolist()]
    assert together.coded.tolist() == [first.coded[0].tolist(), second.coded[0].tolist()]


def test_computations_say_what_leaves_them():
    for step in pass_schedule(MODEL, plan(), 1):
        if isinstance(step, ComputeStep) and "up" in told([step])[0].split():
            assert {name.rsplit("/", 1)[-1] for name in step.leaves} == {"joined", "mlp"}


def test_few_rows_go_by_sockets_where_these_hold_their_messages():
    def bringing(rows, words):
        value = Value("logits", (ROW, WORD), (rows, words))
        have, want = (some_have(value, [rank], 2) for rank in (0, 1))
        has, wants = ExchangeStep("logits", value, (have,), want).layouts()
        return wants, moves(has, wants)

    assert by_sockets(*bringing(7, 9000))
    assert not by_sockets(*bringing(8, 9))
    assert not by_sockets(*bringing(1, 70000))
