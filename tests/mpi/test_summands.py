"""Sums of summands: equal on all ranks of a stage, however they go."""

import numpy as np
import pytest

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.summands import Summands
from hepti_mpi.comm.wires import coding
from solver.plan.plan import Wire
from tests import sweeps
from tests.kit.sized import sized

WIDTH = 96  # three blocks of 32: fewer than some numbers of ranks
ERRORS = {Wire.FLOAT32: 1e-6, Wire.FLOAT16: 4e-3, Wire.INT8: 0.1}


@pytest.mark.parametrize(("seed", "wire"), sized(sweeps.cycled(3, sweeps.seeds(3, 20), ERRORS)))
def test_all_ranks_of_a_stage_have_one_sum(world, seed, wire):
    """In one step, in two, and by MPI, of some ranks' summands, run again and again."""
    rng = np.random.default_rng([3, seed])
    stage = [0, *(rank for rank in range(1, world.size) if rng.random() < 0.8)]
    senders = [rank for rank in stage if rng.random() < 0.7] or [stage[-1]]
    direct = Direct(world)
    for rows in (1, 2, 3, 7, 9):
        for since in (1, 3, 8):
            parts = rng.normal(size=(2, world.size, rows, WIDTH)).astype(np.float32)
            found = []
            if world.rank in stage:
                summands = Summands(world, direct, stage, senders, rows, WIDTH, coding(wire), since)
                for own in parts:
                    if summands.part is not None:
                        summands.part[...] = own[world.rank]
                    summands.run()
                    found.append(summands.total.copy())
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
    for since in (8, 1):
        summands = Summands(world, direct, everyone, everyone, rows, 32 * world.size, two_steps_from=since)
        before = world.traffic.sent_bytes
        summands.run()
        sent.append(world.traffic.sent_bytes - before)
    direct.close()

    size = 4 * rows * 32 * world.size
    assert sent == [(world.size - 1) * size, 2 * (world.size - 1) * size / world.size]
