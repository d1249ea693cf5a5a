"""Sums of summands: equal on all ranks of a stage, however they go."""

import numpy as np
import pytest

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.exchange import Item, RankExchange
from hepti_mpi.comm.wires import EXACT, coding
from hepti_mpi.program.compiled import Memory
from solver.base.spans import Span
from solver.model.kinds.part import Residual
from solver.plan.layout import moves
from solver.plan.plan import Wire
from solver.schedule.places import Places, by_sockets
from solver.schedule.regions import some_have
from solver.schedule.schedule import added, exchanges
from solver.schedule.stretches import rows_to_add
from tests import sweeps
from tests.kit.sized import sized

WIDTH = 96  # three blocks of 32: fewer than some numbers of ranks
ERRORS = {Wire.FLOAT32: 1e-6, Wire.FLOAT16: 4e-3, Wire.INT8: 0.1}


def summing(world, direct, stage, senders, rows, width, wire=EXACT, *, two_steps):
    """Return this rank's place for its summand, the place of the sum, and what makes it."""
    value = Residual(width).value("s", rows)
    have, want = (some_have(value, own, world.size) for own in (senders, stage))
    two = two_steps and len(stage) > 1
    between = added(want, rows_to_add(Span(0, rows), value.shape[1], len(stage))) if two else None
    steps = exchanges("sum", value, (have,), want, partial=True, between=between)
    sides = [[("+" if step.partial else "s", "s"), step.layouts()] for step in steps]
    used = [
        [(name, box) for name, layout in zip(names, layouts, strict=True) for box in layout.boxes[world.rank]]
        for names, layouts in sides
    ]
    places = Places(used)
    memory = Memory(places)
    calls = []
    for step, (names, layouts) in zip(steps, sides, strict=True):
        lies = [
            [(box, memory.view(name, box)) for box in layout.boxes[world.rank]]
            for name, layout in zip(names, layouts, strict=True)
        ]
        exchange = RankExchange.of(world, [Item(*layouts, *lies)], wire, equal=step is steps[-1])
        calls += (
            [exchange.over(direct)] if by_sockets(layouts[1], moves(*layouts)) else [exchange.run, world.finish_sending]
        )

    def run():
        for call in calls:
            call()

    part = memory.whole("+").reshape(rows, width, copy=False) if "+" in places.boxes else None
    return part, memory.whole("s").reshape(rows, width, copy=False), run


@pytest.mark.parametrize(("seed", "wire"), sized(sweeps.cycled(3, sweeps.seeds(3, 20), ERRORS)))
def test_all_ranks_of_a_stage_have_one_sum(world, seed, wire):
    """In one step, in two, and by MPI, of some ranks' summands, run again and again."""
    rng = np.random.default_rng([3, seed])
    stage = [0, *(rank for rank in range(1, world.size) if rng.random() < 0.8)]
    senders = [rank for rank in stage if rng.random() < 0.7] or [stage[-1]]
    direct = Direct(world)
    for rows in (1, 2, 3, 7, 9):
        for two_steps in (False, True):
            parts = rng.normal(size=(2, world.size, rows, WIDTH)).astype(np.float32)
            found = []
            if world.rank in stage:
                part, total, run = summing(
                    world, direct, stage, senders, rows, WIDTH, coding(wire), two_steps=two_steps
                )
                for own in parts:
                    if part is not None:
                        part[...] = own[world.rank]
                    run()
                    found.append(total.copy())
            of_all = world.on_all(lambda found=found: found)
            for number, own in enumerate(parts):
                sums = [of_all[rank][number] for rank in stage]
                np.testing.assert_allclose(sums[0], own[senders].sum(0), atol=ERRORS[wire])
                assert all((other == sums[0]).all() for other in sums)
    direct.close()


@pytest.mark.sizes
@pytest.mark.parametrize("rows", [1, 2])
def test_two_steps_send_fewer_bytes(world, rows):
    """Of p ranks each sends 2 (p - 1) / p summands, where in one step it sends p - 1."""
    direct, everyone = Direct(world), range(world.size)
    sent = []
    for two_steps in (False, True):
        _, _, run = summing(world, direct, everyone, everyone, rows, 32 * world.size, two_steps=two_steps)
        before = world.traffic.sent_bytes
        run()
        sent.append(world.traffic.sent_bytes - before)
    direct.close()

    size = 4 * rows * 32 * world.size
    assert sent == [(world.size - 1) * size, 2 * (world.size - 1) * size / world.size]
