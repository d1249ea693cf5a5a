"""The published systems give the shares that the papers' rules give by hand."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from solver.model.blocks import Cut
from solver.model.named import named_model
from solver.plan.file import plan_from_json
from solver.plan.plan import Plan, StreamLayout
from solver.plan.writing import plan_to_json
from solver.systems import make_plan, plans_for
from tests.kit import refused
from tests.kit.clusters import pis
from tests.sweeps import count

SPEC = named_model("bert-base")  # 12 heads, 3072 columns of F


def cuts(system, *gflops, rows=128):
    plan = make_plan(system, SPEC, pis(*gflops), rows)
    plan.check(SPEC, len(gflops))
    assert (plan.system, plan.rows, plan.layer(0)) == (system, rows, plan.layer(SPEC.layers - 1))
    return plan.layer(0)


def test_megatron_shares_equally():
    attention, mlp = cuts("megatron", 10, 20, 90)

    assert (attention.cut, mlp.cut) == (Cut.BLOCK, Cut.BLOCK)
    assert (attention.norm, mlp.norm) == (StreamLayout.FULL, StreamLayout.FULL)
    assert attention.inner.counts == (4, 4, 4)
    assert mlp.inner.counts == (1024, 1024, 1024)


def test_megatron_gives_whole_heads_and_the_rest_to_the_first():
    attention, mlp = cuts("megatron", *[1] * 5)

    assert attention.inner.counts == (3, 3, 2, 2, 2)
    assert mlp.inner.counts == (615, 615, 614, 614, 614)


def test_more_devices_than_heads_leave_some_without():
    assert cuts("megatron", *[1] * 14)[0].inner.counts == (1,) * 12 + (0, 0)


def test_megatron_weighted_shares_by_speed():
    """Speeds 24.6, 70, 24.6, 10: heads 2.28, 6.50, 2.28, 0.93 are rounded by the largest remainder."""
    attention, mlp = cuts("megatron-weighted", 24.6, 70, 24.6, 10)

    assert attention.inner.counts == (2, 7, 2, 1)
    assert mlp.inner.counts == (585, 1664, 585, 238)
    assert attention.cut is mlp.cut is Cut.BLOCK


def test_rows_shares_rows_by_speed():
    attention, mlp = cuts("sequence-weighted", 10, 20, 10)

    assert replace(attention, block="mlp") == mlp
    assert mlp.cut is Cut.ROWS
    assert mlp.rows == (0.25, 0.5, 0.25)
    assert mlp.row_partition(511).counts == (128, 255, 128)


def test_single_takes_the_fastest():
    assert cuts("single", 10, 90, 20)[1].rows == (0, 1, 0)
    # Equally fast: one of them, not both.
    assert cuts("single", 90, 90)[0].row_partition(7).counts == (7, 0)


def test_single_takes_the_one_that_answers_first_and_holds_the_model():
    """Over a slow link rank 0 answers before a board that is nine times as fast; with too little memory nobody else."""
    slow, small = pis(10, 90, 20, mbps=1), pis(10, 90, 20).with_device(1, memory_bytes=2**20)

    assert [make_plan("single", SPEC, cluster, 64).stages[0].active for cluster in (slow, small)] == [(0,), (2,)]


def test_single_takes_the_device_that_is_named(kept):
    plan = make_plan("single:pi-2", SPEC, pis(10, 90, 20), 64)

    assert plan.system == "single:pi-2"
    assert plan.stages[0].active == (2,)
    kept(refused.said(lambda system: make_plan(system, SPEC, pis(10, 90, 20), 64), ["single:pi-3", "single:"]))


@settings(max_examples=count(15, 40))
@given(
    st.sampled_from(plans_for(SPEC)),
    st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6),
    st.integers(1, SPEC.max_positions),
)
def test_every_system_plans_for_every_cluster(system, gflops, rows):
    """The plan fits the model and the devices, names both, and survives its file."""
    devices = pis(*gflops)
    plan = make_plan(system, SPEC, devices, rows)

    plan.check(SPEC, len(gflops))
    assert plan.devices == devices.names
    assert plan.cluster_fingerprint == devices.fingerprint
    assert plan.model_fingerprint == SPEC.fingerprint
    assert plan_from_json(plan_to_json(plan), Plan) == plan


def test_what_cannot_be_planned_is_refused(kept):
    cases = [("megatorn", 128), ("xyz", 128), ("sequence-weighted", 0), ("sequence-weighted", -3)]

    kept(refused.said(lambda system, rows: make_plan(system, SPEC, pis(1), rows), cases))
