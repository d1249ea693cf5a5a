"""An encoder over the ranks of a test: its stack, one batch through it, and a stack whose plan changes."""

from dataclasses import replace
from functools import partial

import numpy as np

from hepti_mpi.comm import group as comm
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.layers import block_kernels, load, rank_layers
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels import embeddings
from hepti_mpi.kernels.products import NUMPY
from hepti_mpi.live.change_over import Mover
from solver.base.spans import Span
from solver.plan.plan import Plan, Stage, Wire
from tests.kit.encoders import expected, tensors_of
from tests.kit.in_memory import layers_of


def make_stack(spec, plan, tensors, world, computes, wire):
    plan.check(spec, world.size)
    plan = replace(plan, wire=wire)
    return Stack(spec, plan, layers_of(tensors.__getitem__, spec, plan, world, computes), world, computes)


def check(spec, layers, lengths, world, computes=NUMPY, tile_rows=0, atol=1e-4, wire=Wire.FLOAT32):
    """Run a batch through the stack, its rows in tiles, and compare rank 0's result with the oracle's."""
    stage = Stage(
        tuple(f"pi-{rank}" for rank in range(world.size)),
        tuple((Span(number, number + 1), layer) for number, layer in enumerate(layers)),
    )
    return check_plan(spec, Plan((stage,), spec.name, tile_rows=tile_rows), lengths, world, computes, atol, wire)


def check_plan(spec, plan, lengths, world, computes=NUMPY, atol=1e-4, wire=Wire.FLOAT32):
    """Run a batch as a plan says, and compare rank 0's result with the oracle's."""
    tensors = tensors_of(spec)
    stack = make_stack(spec, plan, tensors, world, computes, wire)
    contents, answers = expected(spec, tuple(lengths))
    batch = Batch.of_lengths(lengths)
    embedded = np.concatenate([embeddings.embed(spec, tensors, content) for content in contents])

    hidden = stack.run(batch, embedded if world.rank == 0 else None, count=True)
    world.finish_sending()

    assert hidden.dtype == np.float32
    if world.rank == 0:
        hidden = embeddings.last_hidden(spec, tensors, hidden)
        np.testing.assert_allclose(hidden, np.concatenate(answers), rtol=0, atol=atol)
    else:
        assert not hidden.size
    return stack


class Run:
    """The layers and their mover, which every rank of the test has."""

    def __init__(self, spec, plan, world, files, computes=NUMPY, with_file=None, spare=None):
        # A communicator of its own: pieces of weights of a change that a job ended in stay in it.
        world = comm.world()
        self.spec, self.world = spec, world
        has = range(world.size) if with_file is None else with_file
        without = [rank for rank in range(world.size) if rank not in has]
        source = self.source = WeightsSource(world, files[spec.name] if world.rank in has else None, without)
        plans = [plan] if spare is None else [plan, spare]
        make = partial(block_kernels, computes.graph)
        _, held = load(source, spec, plans, make)
        self.stack = Stack(spec, plan, rank_layers(spec, plan, world.rank, held), world, computes)
        self.mover = Mover(spec, self.stack, source, make, held, spare)

    def prepare(self, plan, steps=None):
        """Prepare a plan, all of it or so many pieces of work on every rank."""
        self.mover.prepare(plan)
        self.work(steps)

    def work(self, steps=None):
        while min(self.world.on_all(lambda: self.mover.ready)) < self.spec.layers and steps != 0:
            self.mover.step()
            steps = steps and steps - 1

    def check(self, lengths, look=None):
        """Answer a batch; compare with the oracle."""
        contents, answers = expected(self.spec, tuple(lengths))
        tensors = tensors_of(self.spec)
        x = np.concatenate([embeddings.embed(self.spec, tensors, content) for content in contents])
        hidden = self.stack.run(Batch.of_lengths(lengths), x if self.world.rank == 0 else None, count=True, look=look)
        if self.world.rank == 0:
            hidden = embeddings.last_hidden(self.spec, tensors, hidden)
            np.testing.assert_allclose(hidden, np.concatenate(answers), rtol=0, atol=1e-4)
        else:
            assert hidden.shape == (0, self.spec.hidden)
