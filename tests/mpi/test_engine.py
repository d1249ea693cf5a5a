"""Requests may be submitted at any time: answers come in the order of submission, and are the oracle's."""

from types import SimpleNamespace

import numpy as np
import pytest

from hepti_mpi.engine.engine import Engine
from hepti_mpi.kernels.products import NUMPY
from hepti_mpi.live.member import follow
from solver.plan.plan import Wire
from tests.kit.encoder_ranks import Run, make_stack
from tests.kit.encoders import FIVE as SPEC
from tests.kit.encoders import POST, expected, one_device_plan, rows_plan, tensors_of
from tests.kit.rank_requests import requests_of

LENGTHS = [[3, 1, 17], [2], [30], [5, 5], [1], [40], [8], [2, 9]] * 3


def check(spec, answers, batches):
    lengths = [rows for batch in batches for rows in batch]
    wanted = [hidden for batch in batches for hidden in expected(spec, tuple(batch))[1]]

    assert [answer.entry["tokens"] for answer in answers] == lengths
    for answer, hidden in zip(answers, wanted, strict=True):
        np.testing.assert_allclose(answer.hidden, hidden, rtol=0, atol=1e-4)


@pytest.fixture
def replicas(world):
    """Return on rank 0 an engine with a replica on every rank, which the others follow."""
    plan = one_device_plan(SPEC, [(rank, 0, SPEC.layers) for rank in range(world.size)], world.size)
    stack = make_stack(SPEC, plan, tensors_of(SPEC), world, NUMPY, Wire.FLOAT32)
    if world.rank:
        follow(world, stack)
        return None
    return Engine(SPEC, tensors_of(SPEC), stack, world)


@pytest.mark.sizes
def test_what_is_submitted_while_others_are_under_way_is_answered_behind_them(replicas, world):
    """One batch more after every step, and one step more after every batch."""
    if world.rank:
        return
    engine, answers = replicas, []
    assert engine.idle
    assert engine.step() == []
    for lengths in LENGTHS:
        engine.submit(requests_of(SPEC, lengths))
        assert not engine.idle
        answers += engine.step()
    assert len(answers) < sum(map(len, LENGTHS))
    while not engine.idle:
        answers += engine.step()
    world.orders.send(None, world.others())

    check(SPEC, answers, LENGTHS)


@pytest.mark.sizes
def test_a_source_may_have_nothing_and_end_before_all_is_answered(replicas, world):
    if world.rank:
        return
    first, *others = [requests_of(SPEC, lengths) for lengths in LENGTHS]

    answers = list(replicas.serve([[], [first], [], [], others]))
    world.orders.send(None, world.others())

    assert replicas.idle
    check(SPEC, answers, LENGTHS)


@pytest.mark.sizes
def test_a_batch_of_another_plan_waits_until_nothing_is_under_way(world, files):
    """Those of the plan that runs do not wait; all ranks change over together."""
    short, long = (rows_plan([*weights]) for weights in ([1.0] + [0.0] * (world.size - 1), [1.0] * world.size))
    run = Run(POST, long, world, files)
    run.stack.loaded = {0: run.stack.layers}
    if world.rank:
        follow(run.world, run.stack)
        return
    plans = SimpleNamespace(
        several=False,
        settled=True,
        number=0,
        of=lambda rows: long if rows > 8 else short,
        ran=lambda rows, seconds: None,
    )
    engine = Engine(POST, tensors_of(POST), run.stack, run.world, plans)
    answers, answered, adopt = [], [], run.stack.adopt

    def noted(plan, layers):
        answered.append(len(answers))
        adopt(plan, layers)

    run.stack.adopt = noted
    batches = [[20], [12], [3], [4], [30]]
    for lengths in batches:
        engine.submit(requests_of(POST, lengths))
        answers += engine.step()
    while not engine.idle:
        answers += engine.step()
    run.world.orders.send(None, world.others())

    assert answered == ([2, 4] if short != long else [])
    check(POST, answers, batches)
