"""What ranks tell is handed on in order, once all that have a say have spoken."""

from hepti_mpi.live.batch_reports import BatchReports
from hepti_mpi.live.monitor import Measured, PartialReport
from solver.model.named import named_model
from solver.plan.plan import layer_by_rows, uniform_plan

SPEC = named_model("bert-large", layers=8)
PLAN = uniform_plan(SPEC, ("a", "b", "c"), layer_by_rows(SPEC.blocks, (0.5, 0.5, 0.0)))


def part(batch, layer):
    return PartialReport(batch, layer, 1.0, 0.0)


def whole(batch):
    return Measured(batch, 1.0, 0.0, {}, 0, 0, 8, False)


def heard(told):
    return [(begun.number, parts and parts[0].layer) for begun, parts in told.complete()]


def test_within_a_batch_those_with_a_share_speak_and_behind_it_all():
    told = BatchReports(3)
    told.begin(1, PLAN, 64)
    found = []
    for rank, word in ((0, part(1, 2)), (1, part(1, 2)), (0, whole(1)), (1, whole(1)), (2, whole(1))):
        told.take(rank, word)
        found.append(heard(told))

    assert found == [[], [(1, 2)], [], [], [(1, None)]]
    assert not told.waits(1)


def test_a_batch_waits_for_the_one_before():
    told = BatchReports(3)
    for number in (1, 2):
        told.begin(number, PLAN, 64)
    for rank, word in ((0, whole(1)), (1, whole(1)), (0, part(2, 4)), (1, part(2, 4)), (0, part(2, 6))):
        told.take(rank, word)
    before = heard(told)
    told.take(2, whole(1))

    assert before == []
    assert heard(told) == [(1, None), (2, 4)]
    assert told.waits(2)
