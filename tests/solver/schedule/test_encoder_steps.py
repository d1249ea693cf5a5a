"""What the common schedule makes of an encoder's plans: who has, sends and computes what under every cut."""

from collections import defaultdict
from dataclasses import replace
from itertools import count, takewhile

import numpy as np
import pytest

from solver.base.spans import Span
from solver.model.blocks import Cut
from solver.model.sublayers import HALVES
from solver.plan.plan import WIRES, Keys, Stage, StreamLayout, layer_by_rows
from solver.plan.routes import Route
from solver.schedule.encoders.cost import price, setting
from solver.schedule.encoders.placing import batch_rows, request_schedule, stage_parts
from solver.schedule.regions import box_of
from solver.schedule.schedule import ComputeStep, ExchangeStep, unfolded
from tests import sweeps
from tests.kit.clusters import pis
from tests.kit.decoupled import ORIGINALS, random_layers
from tests.kit.encoders import LONG, POST, PRE, TEXTS, plan_of, random_plan
from tests.kit.plans import like

RELATIVE = like(POST, name="relative", buckets=32)
BATCH = [3, 1, 17, 2, 30]


def changed(plan, change, **facts):
    """Return a plan with every block changed."""
    layers = tuple((span, tuple(map(change, layer))) for span, layer in plan.stages[0].layers)
    return replace(plan, stages=(replace(plan.stages[0], layers=layers),), **facts)


def some_avoid(rng, ranks):
    """Return a change of blocks: attention by rows may gather its input, and some ranks avoid keys."""

    def change(block):
        if block.cut is not Cut.ROWS or block.block != "attention" or rng.random() < 0.5:
            return block
        return replace(block, keys=tuple(rng.choice(list(Keys), ranks)))

    return change


class Ranks:
    """What ranks have of every value, and have summands of: for each a mask of its numbers, as they run a schedule."""

    def __init__(self, ranks):
        self.ranks, self.has, self.sums = ranks, {}, defaultdict(dict)

    def masks(self, value, region):
        found = [np.zeros(value.shape, bool) for _ in range(self.ranks)]
        pieces = {axis: spans.reshape(-1, *spans.shape[-2:]) for axis, spans in region.items()}
        for piece in range(len(pieces[value.axes[0]])):
            of_piece = {axis: spans[piece : piece + 1] for axis, spans in pieces.items()}
            for rank, mask in enumerate(found):
                mask[tuple(span.slice for span in box_of(of_piece, value.axes, rank).spans)] = True
        return found

    def gives(self, value, region):
        before = self.has.get(value.name, [False] * self.ranks)
        self.has[value.name] = [own | new for own, new in zip(before, self.masks(value, region), strict=True)]

    def lacks(self, value, region):
        wanted = self.masks(value, region)
        has = self.has.get(value.name, [np.zeros(value.shape, bool)] * self.ranks)
        return [rank for rank in range(self.ranks) if (wanted[rank] & ~has[rank]).any()]

    def run(self, step):
        if isinstance(step, ExchangeStep):
            wanted = self.masks(step.value, step.want)
            every = self.sums.pop(step.value.name) if step.partial else self.has[step.value.name]
            having = [sum(own) > 0 for own in zip(*(self.masks(step.value, own) for own in step.have), strict=True)]
            assert all((own <= known).all() for own, known in zip(having, every, strict=True))
            assert all((own <= np.logical_or.reduce(every)).all() for own in wanted)
            self.gives(step.value, step.want)
            return
        values = {value.name: value for own in step.placed for value in own.part.reads}
        for name, region in step.walked[1].items():
            assert not self.lacks(values[name], region), (name, step.placed[-1].part.name)
        for own in step.placed:
            value = own.part.writes
            if value.name in step.leaves:
                made = step.made[value.name]
                if own.partial:
                    self.sums[value.name] = self.masks(value, made)
                else:
                    self.gives(value, made)


def check(spec, stage, ranks, requests, tile_rows=0):
    """Run a stage's schedule: everybody has what it computes with, and in the end what its last block leaves."""
    parts = stage_parts(spec, stage, range(ranks), batch_rows(stage, range(ranks), requests, tile_rows))
    here = Ranks(ranks)
    for value, region in parts.given.values():
        here.gives(value, region)
    values = {own.part.writes.name: own.part.writes for _, some in parts.layers for own in some}
    values |= {name: value for name, (value, _) in parts.given.items()}
    steps = parts.steps()
    for step in steps:
        here.run(step)
    for name, region in parts.left.items():
        assert not here.lacks(values[name], region)
    return steps


@pytest.mark.parametrize("seed", sweeps.seeds(12, 60))
@pytest.mark.parametrize("spec", [POST, PRE, RELATIVE], ids=["post", "pre", "relative"])
def test_everybody_has_what_it_computes_with(spec, seed):
    """Whatever the cuts of blocks one after the other, rows of several requests, in tiles or not."""
    rng = np.random.default_rng([seed, len(spec.name)])
    ranks = int(rng.integers(1, 6))
    plan = changed(random_plan(spec, rng, ranks), some_avoid(rng, ranks))

    check(spec, plan.stages[0], ranks, [15, 15] if spec is PRE else BATCH, int(rng.choice([0, 8])))


@pytest.mark.parametrize(("how", "kind"), sweeps.cycled(6, [*ORIGINALS, "any"], ["equal", "uneven", "empty"]))
def test_sub_blocks_exchange_nothing_within_a_group(how, kind):
    rng = np.random.default_rng(3)
    plan = plan_of(TEXTS, random_layers(TEXTS, how, kind, 4, rng), 4)

    steps = check(TEXTS, plan.stages[0], 4, BATCH)

    layer = ["full keys", "queries", "full contexts", "output", "join", "up", "down", "join"]
    of_group = takewhile(lambda step: isinstance(step, ComputeStep), steps[isinstance(steps[0], ExchangeStep) :])
    assert [own.part.role for step in of_group for own in step.placed][: 2 * len(layer)] == 2 * layer


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (1, 9), (5, 12), (6, 7), (3, 10)])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_stage_may_begin_and_end_within_a_block(start, stop, norm):
    spec = like(LONG, norm=norm)
    per_layer = HALVES * 2
    touched = Span(start // per_layer, -(-stop // per_layer))
    layer = layer_by_rows(spec.blocks, [0.3, 0.0, 0.7])
    stage = Stage(("a", "b", "c"), ((touched, layer),), Span(start, stop))

    steps = check(spec, stage, 3, BATCH, 8)

    roles = [own.part.role for step in steps if isinstance(step, ComputeStep) for own in step.placed]
    assert ("output" if start % 4 == 1 else "down") in roles[:1] or start % 2 == 0
    assert roles[-1] == ("join" if stop % 2 == 0 else "full contexts" if stop % 4 == 1 else "up")


def named(steps):
    """Return what steps are about: an exchange's value, or the parts of a computation and what leaves it."""
    return [
        called(step.value.name) if isinstance(step, ExchangeStep)
        else ([called(own.part.name) for own in step.placed], {called(name) for name in step.leaves})
        for step, called in steps
    ]  # fmt: skip


@pytest.mark.parametrize("seed", sweeps.seeds(6, 40))
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_folded_schedule_unfolds_to_that_of_every_layer(norm, seed):
    rng = np.random.default_rng(seed)
    spec = like(LONG, norm=norm)
    plan = random_plan(spec, rng, 3)

    rows = batch_rows(plan.stages[0], range(3), BATCH)

    every, folded = (stage_parts(spec, plan.stages[0], range(3), rows, folded=own).steps() for own in (False, True))

    assert named(unfolded(folded)) == named((step, str) for step in every)


@pytest.mark.parametrize("seed", sweeps.seeds(4, 20))
def test_a_layer_alone_does_what_it_does_among_others(seed):
    """It begins as the one before leaves the stream, which may be said: where that is of another plan."""
    rng = np.random.default_rng(seed)
    stage = random_plan(LONG, rng, 3).stages[0]
    rows, before = batch_rows(stage, range(3), BATCH), None
    every = stage_parts(LONG, stage, range(3), rows)

    for number in range(LONG.layers):
        alone = stage_parts(LONG, stage, range(3), rows, some=Span(number, number + 1), before=before)
        (_, parts), (_, others) = alone.layers[0], every.layers[number]
        assert [(own.part.role, own.axis) for own in parts] == [(own.part.role, own.axis) for own in others]
        *_, before = stage.layer(number)


def bytes_of(spec, plan, rows):
    """Return what every rank sends and receives of a request, by the schedule."""
    ranks, steps = request_schedule(spec, plan, rows)
    found = np.zeros((2, len(plan.devices)))
    for step in steps:
        if isinstance(step, ExchangeStep):
            moved = step.repeats * step.wire_bytes(plan.wire).sum(0)[0]
            found[:, ranks] += moved.sum(1), moved.sum(0)
    return found


@pytest.mark.parametrize("grids", [False, True])
@pytest.mark.parametrize("seed", sweeps.seeds(8, 100))
@pytest.mark.parametrize("spec", [POST, PRE, RELATIVE], ids=["post", "pre", "relative"])
def test_bytes_are_those_of_the_steps_of_blocks(spec, seed, grids):
    """Less by rows that were normed for who adds up others than it computes with, and by scales of groups of columns.

    Of blocks by columns whose norm is on rows, and of grids on other rows than before them, other numbers move.
    """
    rng = np.random.default_rng([seed, len(spec.name), 1])
    ranks, rows = int(rng.integers(1, 6)), 15 if spec is PRE else 37
    kept = tuple(rng.dirichlet(np.ones(ranks)))

    def change(block):
        block = replace(block, route=Route.DIRECT, groups=1 if block.block == "mlp" else block.groups)
        if block.cut is Cut.COLUMNS:
            return replace(block, norm=StreamLayout.FULL, rows=None)
        return block if block.rows is None or not grids else replace(block, rows=kept)

    def is_used(plan):
        every = [block for _, layer in plan.stages[0].layers for block in layer]
        return grids == any(block.cut is Cut.GRID for block in every) and not (
            grids and any(b.rows is None for b in every)
        )

    plans = (changed(random_plan(spec, rng, ranks), change) for _ in count())
    plan = replace(next(filter(is_used, plans)), wire=WIRES[seed % 3], tile_rows=int(rng.choice([0, 8])))
    steps = price(setting(spec, pis(*[10.0] * ranks), rows), plan).steps
    counted = [step for step in steps if spec is not PRE or step.name != "move rows"]

    sent, received = (sum(step.repeats * getattr(step, way) for step in counted) for way in ("sent", "received"))

    np.testing.assert_allclose(bytes_of(spec, plan, rows), [sent, received])
