"""Plans change at any moment between requests: every result is the oracle's, none is lost or twice."""

import numpy as np
import pytest

from hepti_mpi.engine import load
from hepti_mpi.kernels.backends import backend
from hepti_mpi.live import change_over
from solver.base.spans import Partition
from solver.model.blocks import Cut
from solver.model.spec import with_layers
from solver.plan.changes import blend
from solver.plan.plan import BlockPlan, StreamLayout, block_by_rows
from tests import sweeps
from tests.kit.encoder_ranks import Run
from tests.kit.encoders import POST, PRE, lengths_of, plan_of, random_plan, rows_plan
from tests.kit.sized import called, sized

CHANGES = sweeps.count(4, 20)  # of every case; all cases of one size of world make more than 200


@pytest.mark.parametrize(("spec", "seed"), sized(sweeps.cycled(2, [POST, PRE], sweeps.seeds(1, 3)), 2), ids=called)
def test_between_requests_any_plan_follows_any_other(spec, seed, world, files):
    rng = np.random.default_rng(seed)
    run = Run(spec, random_plan(spec, rng, world.size), world, files)
    for _ in range(CHANGES):
        if rng.random() < 0.2:
            run.prepare(random_plan(spec, rng, world.size), steps=int(rng.integers(4)))  # and given up
        run.prepare(random_plan(spec, rng, world.size), steps=int(rng.integers(4)))
        run.check(lengths_of(spec, rng))  # the old plan runs while the new one is prepared
        run.work()
        run.mover.adopt(spec.layers)
        run.check(lengths_of(spec, rng))


@pytest.mark.parametrize("seed", sweeps.seeds(1, 3))
def test_layers_change_one_after_the_other_where_memory_is_short(seed, world, files, monkeypatch):
    """No rank holds more than one layer besides its share; between, the front lies by the new plan."""
    monkeypatch.setattr(change_over, "free_bytes", lambda: 0)
    rng = np.random.default_rng([seed, 2])
    run = Run(POST, random_plan(POST, rng, world.size), world, files)
    for _ in range(CHANGES):
        run.mover.prepare(random_plan(POST, rng, world.size))
        adopted = 0
        while adopted < POST.layers:
            while run.mover.step():
                assert sum(map(bool, run.mover._prepared.values())) <= 1
            layers = min(world.on_all(lambda: run.mover.ready))
            assert layers > adopted
            run.mover.adopt(adopted := layers)
            run.check(lengths_of(POST, rng))
        assert not run.mover.busy


@pytest.mark.parametrize("who", ["every second", "rank 0 alone"])
def test_ranks_without_the_file_get_from_rank_0_what_they_lack(who, world, files, monkeypatch):
    """In bounded pieces, while requests run."""
    monkeypatch.setattr(load, "STREAM_BYTES", 2000)
    rng = np.random.default_rng(3)
    with_file = range(0, world.size, 2) if who == "every second" else [0]
    run = Run(POST, random_plan(POST, rng, world.size), world, files, with_file=with_file)
    for _ in range(CHANGES // 2):
        run.prepare(random_plan(POST, rng, world.size), steps=3)
        run.check(lengths_of(POST, rng))
        run.work()
        run.mover.adopt(POST.layers)
        run.check(lengths_of(POST, rng))


def test_shares_of_rows_move_no_weights_and_keep_the_kernels(world, files):
    rng = np.random.default_rng(4)
    run = Run(POST, rows_plan([1.0] * world.size), world, files)
    kernels = run.stack.layers
    for _ in range(CHANGES):
        plan = rows_plan(rng.uniform(0.1, 1, world.size))
        assert run.mover.holdings.moved_bytes(POST, plan, world.rank) == 0
        run.mover.prepare(plan)
        run.mover.adopt(POST.layers)
        run.check([30])

    for ours, theirs in zip(run.stack.layers, kernels, strict=True):
        assert all(a is b for (a,), (b,) in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("short", sized([True, False], 2))
def test_a_rank_is_emptied_and_comes_back(short, world, files):
    """It keeps its weights, and takes rows again at once; where its memory is short they are freed, and got again."""
    run = Run(POST, rows_plan([1.0] * world.size), world, files)
    for number in range(2 * world.size):
        weights, out = np.ones(world.size), number // 2
        if world.size > 1 and number % 2:
            weights[out] = 0
        plan = rows_plan(weights)
        if not short:
            assert not any(run.mover.holdings.lacking(POST, plan, rank) for rank in range(world.size))
        run.mover.prepare(plan, (out,) if short and not weights.all() else ())
        run.work()
        run.mover.adopt(POST.layers)
        run.check([7, 20])

        holds = ("queries",) in run.stack.layers[0][0][0].graphs
        assert holds == (weights[world.rank] > 0 or not short)


@pytest.mark.parametrize("heads", ["all", "rank 0"])
def test_a_rank_is_emptied_of_rows_beside_heads_and_comes_back(heads, world, files):
    """Whether it has heads left or nothing, it keeps the weights that rows need."""
    has_heads = np.ones(world.size) if heads == "all" else np.eye(world.size)[0]
    inner = Partition.of_shares(tuple((has_heads / has_heads.sum()).tolist()), POST.blocks[0].inner.count)

    def plan(weights):
        rows = tuple((weights / weights.sum()).tolist())
        attention = BlockPlan("attention", Cut.BLOCK, inner, norm=StreamLayout.ROWS, rows=rows)
        mlp = block_by_rows(POST.blocks[1], rows)
        return plan_of(POST, [(attention, mlp)] * POST.layers, world.size)

    run = Run(POST, plan(np.ones(world.size)), world, files)
    kernels = run.stack.layers
    for number in range(2 * world.size):
        weights, out = np.ones(world.size), number // 2
        if world.size > 1 and number % 2:
            weights[out] = 0
        assert not any(run.mover.holdings.lacking(POST, plan(weights), rank) for rank in range(world.size))
        run.mover.prepare(plan(weights))
        run.mover.adopt(POST.layers)
        run.check([7, 20])

        assert all(ours[1][0] is theirs[1][0] for ours, theirs in zip(run.stack.layers, kernels, strict=True))


@pytest.mark.parametrize("with_file", ["all", "rank 0"])
def test_what_was_freed_is_got_again_while_requests_run(with_file, world, files):
    """A rank that was short of memory has room again: all may change to rows at once, as before."""
    rng = np.random.default_rng(10)
    cut, rows, short = random_plan(POST, rng, world.size), rows_plan([1.0] * world.size), world.size - 1
    run = Run(POST, cut, world, files, with_file=None if with_file == "all" else [0], spare=rows)

    def lacks():
        return any(run.mover.holdings.lacking(POST, rows, rank) for rank in range(world.size))

    held = run.mover.holdings.held_bytes(POST, short)
    assert not lacks()
    run.mover.prepare(cut, frees=(short,))
    run.mover.adopt(POST.layers)
    assert lacks()
    assert run.mover.holdings.held_bytes(POST, short) < held
    run.check([7, 20])
    run.mover.prepare(cut, spare=rows)
    assert run.mover.busy
    run.mover.step()
    run.check([7, 20])
    run.work()
    run.mover.adopt(POST.layers)
    assert not run.mover.busy
    assert not lacks()
    for plan in (rows, cut):
        run.check([7, 20])
        run.mover.prepare(plan)
        run.mover.adopt(POST.layers)
    run.check([7, 20])


def test_weights_that_were_kept_do_not_serve_other_cuts(world, files):
    """Between plans by rows, which let a rank keep them, come plans that do not."""
    rng = np.random.default_rng(9)
    run = Run(POST, rows_plan([1.0] * world.size), world, files)
    for number in range(CHANGES):
        weights = rng.uniform(0.1, 1, world.size)
        weights[number % world.size] *= world.size == 1
        run.prepare(random_plan(POST, rng, world.size) if number % 3 == 2 else rows_plan(weights))
        run.mover.adopt(POST.layers)
        run.check(lengths_of(POST, rng))


def test_packed_kernels_follow_as_well(world, files):
    pytest.importorskip("onnxruntime", reason="the extra `fast` is not installed")
    rng = np.random.default_rng(5)
    run = Run(POST, random_plan(POST, rng, world.size), world, files, backend("onnxruntime"))
    for _ in range(CHANGES // 2):
        run.prepare(random_plan(POST, rng, world.size))
        run.mover.adopt(POST.layers)
        run.check([3, 1, 30])


def test_a_blend_of_two_plans_has_the_layers_of_both(world):
    rng = np.random.default_rng(6)
    spec = with_layers(POST, 5)
    front, back = random_plan(spec, rng, world.size), random_plan(spec, rng, world.size)

    for layers in range(6):
        mixed = blend(front, back, layers)
        mixed.check(spec, world.size)
        assert [mixed.layer(n) for n in range(5)] == [(front if n < layers else back).layer(n) for n in range(5)]
