"""Who has what of a language model, and which plans are refused."""

from dataclasses import replace

from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Partition, Span
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.part import FFN, HEAD, ROW
from solver.plan.decoder_plan import DecoderPlan, DecoderStage, whole_on
from tests.kit import refused
from tests.kit.decoders import shares
from tests.solver.model.test_decoder import model

DEVICES = ("a", "b", "c")
STAGE = DecoderStage(Span(0, 4), shares([4, 2, 0], [64, 0, 32]))
PLAN = DecoderPlan("hepti", DEVICES, (STAGE,), Partition.of_counts([20, 30, 0]), context=64)


def test_a_plan_that_fits_is_taken():
    PLAN.check(model(), 3)
    replace(PLAN, precision="int4").check(model(), 3)
    replace(PLAN, embedding=Partition.of_counts([49, 0, 1])).check(model(), 3)
    outputs = {HEAD: Partition.of_counts([96, 0, 0]), FFN: Partition.of_counts([0, 64, 32])}
    by_columns = replace(STAGE, shares=shares([1, 5, 0], [60, 4, 32]), outputs=outputs)
    replace(PLAN, precision="int4", stages=(by_columns,)).check(model(hidden=96), 3)
    replace(PLAN, hidden=Partition.of_counts([0, 40, 0])).check(model(), 3)
    replace(PLAN, stages=(replace(STAGE, keys=(0, 60, 4)),)).check(model(), 3)
    replace(PLAN, rows_from=8, stages=(replace(STAGE, rows=(1, 0, 3)),)).check(model(), 3)
    whole_on(model(), DEVICES, 1, context=64).check(model(), 3)


def test_a_plan_that_does_not_fit_is_refused_with_its_number(kept):
    cases = [
        {"devices": ("a", "b")},
        {"words": Partition.of_counts([20, 20, 0])},
        {"context": 65},
        {"stages": (replace(STAGE, layers=Span(0, 3)),)},
        {"stages": (replace(STAGE, shares=shares([4, 1, 0], [64, 0, 32])),)},
        {"precision": "int4", "stages": (replace(STAGE, shares=shares([4, 2, 0], [60, 4, 32])),)},
        {"precision": "int4", "stages": (replace(STAGE, shares=shares([3, 3, 0], [64, 0, 32])),)},
        {"stages": (replace(STAGE, outputs={FFN: Partition.of_counts([64, 32])}),)},
        {"stages": (replace(STAGE, outputs={FFN: Partition.of_counts([64, 0, 0])}),)},
        {"stages": (replace(STAGE, outputs={HEAD: Partition.of_counts([40, 24, 32])}),)},
        {"stages": (replace(STAGE, outputs={"experts": Partition.of_counts([64, 0, 32])}),)},
        {"stages": (replace(STAGE, keys=(3, 1)),)},
        {"stages": (replace(STAGE, keys=(3, -1, 0)),)},
        {"stages": (replace(STAGE, keys=(60, 0, 5)),)},
        {"hidden": Partition.of_counts([64, 0, 0])},
        {"hidden": Partition.of_counts([80, 16, 0])},
        {"stages": (replace(STAGE, shares={**STAGE.shares, "experts": Partition.of_counts([1, 0, 0])}),)},
        {"stages": (replace(STAGE, shares={HEAD: STAGE.shares[HEAD]}),)},
        {"rows_from": 8, "stages": (replace(STAGE, rows=(1, 1)),)},
        {"rows_from": 8, "stages": (replace(STAGE, shares=shares([6, 0, 0], [64, 0, 32]), rows=(1, 1, 1)),)},
        {"rows_from": 8, "stages": (replace(STAGE, rows=(0, 0, 0)),)},
        {"rows_from": 1, "stages": (replace(STAGE, rows=(1, 1, 1)),)},
        {"rows_from": 64},
    ]

    kept(refused.said(lambda changes: replace(PLAN, **changes).check(model(hidden=96), 3), cases, InfeasiblePlanError))


class Whole(Mlp):
    """An MLP whose parts do not say that its result has columns."""

    def parts(self, name, stream, x):
        up, down = Mlp.parts(self, name, stream, x)
        return up, replace(down, axes={ROW: x.shape[0], FFN: self.ffn})


def test_what_a_kind_of_block_does_not_have_cannot_be_shared_out(kept):
    layers = ((Whole(ffn=96),),) * 4
    columns = replace(STAGE, shares={FFN: STAGE.shares[FFN]})
    stages = (
        replace(columns, outputs={FFN: Partition.of_counts([40, 0, 0])}),
        replace(columns, keys=(1, 1, 1)),
    )
    plans = (replace(PLAN, stages=(stage,), words=Partition.of_counts([50, 0, 0])) for stage in stages)

    kept(refused.said(lambda plan: plan.check(model(layers=layers), 3), plans, InfeasiblePlanError))


def test_an_embedding_that_does_not_fit_is_refused_with_its_number(kept):
    """Who takes no part has none of it, and of rows of places nobody has a share."""
    idle = (DecoderStage(Span(0, 4), shares([4, 2, 0], [64, 32, 0])),)
    cases = [
        (model(), {"embedding": Partition.of_counts([20, 20, 0])}),
        (model(), {"embedding": Partition.of_counts([20, 30])}),
        (model(), {"stages": idle, "embedding": Partition.of_counts([20, 20, 10])}),
        (model(learned_positions=True), {"embedding": Partition.of_counts([20, 30, 0])}),
    ]

    kept(refused.said(lambda own, changes: replace(PLAN, **changes).check(own, 3), cases, InfeasiblePlanError))


def test_words_are_for_ranks_of_the_last_stage(kept):
    stages = (
        DecoderStage(Span(0, 2), shares([6, 0, 0], [96, 0, 0])),
        DecoderStage(Span(2, 4), shares([0, 6, 0], [0, 96, 0])),
    )

    by_hidden = replace(PLAN, words=Partition.of_counts([0, 50, 0]), hidden=Partition.of_counts([40, 0, 0]))

    plans = (replace(own, stages=stages) for own in (PLAN, by_hidden))
    kept(refused.said(lambda plan: plan.check(model(), 3), plans, InfeasiblePlanError))
