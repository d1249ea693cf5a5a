"""A language model over the ranks of a test, by a plan with shares of any size."""

from dataclasses import replace
from itertools import chain, pairwise

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.wires import coding
from hepti_mpi.decoding.ranks import Ranks
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.kernels.backends import ONNXRUNTIME
from hepti_mpi.program.share import Share
from solver.base.spans import Partition, Span, largest_remainder
from solver.plan.decoder_plan import ROWS_BY_MPI, DecoderPlan, DecoderStage, cut_unit, totals_of
from solver.plan.plan import Wire
from solver.schedule.decoders.passes import DecoderPasses

MIXED = "mixed"
BACKENDS = (ONNXRUNTIME, "numpy", MIXED)


def random_plan(
    world, model, rng, *, stages=1, rows_from=0, rows_end=False, outputs=(), keys=0, hidden=False, embeds=None, **facts
):
    """Return a plan with shares of any size, also none; every rank is in one stage at most.

    `rows_from`: passes of so many rows are cut by rows; 0: none is. `rows_end`: of these passes only output products
    are. `outputs`: of these axes blocks' results are cut by columns. `keys`: of every so many tokens some are kept by
    each who has a share of a stage, or by nobody else; 0: none is shared out. `hidden`: ranks have summands of all
    logits. `embeds`: whether words of the embedding are shared out; None: that, or rank 0 has it whole.
    """
    ranks = range(world.size)
    stages = min(stages, world.size, len(model.layers))
    of_stage = [rank % stages if rank < stages else int(rng.integers(stages)) for rank in ranks]

    def cut(total, stage, unit):
        shares = [rng.random() * (rng.random() < 0.7) * (of_stage[rank] == stage) for rank in ranks]
        shares[stage] += 0.3
        stops = np.cumsum(largest_remainder(shares, -(-total // unit))) * unit
        return Partition.of_counts(np.diff(np.minimum(stops, total), prepend=0).tolist())

    def row_parts(ranks_of_stage):
        """Return parts of one at least."""
        taking = {ranks_of_stage[0], *(rank for rank in ranks_of_stage if rng.random() < 0.8)}
        return tuple(int(rng.integers(1, 4)) * (rank in taking) for rank in ranks)

    precision = facts.get("precision", "float32")
    edges = [len(model.layers) * number // stages for number in range(stages + 1)]
    units = {kind.axis: cut_unit(kind, model.stream, precision) for kind in chain(*model.layers)}
    units |= dict.fromkeys(outputs, 1)  # what they sum over is not cut
    layers = [Span(*ends) for ends in pairwise(edges)]
    made = tuple(
        DecoderStage(
            own,
            {axis: cut(total, n, units[axis]) for axis, total in totals_of(model, own).items()},
            outputs={axis: cut(model.hidden, n, model.stream.unit) for axis in outputs},
        )
        for n, own in enumerate(layers)
    )
    if keys:
        made = tuple(replace(own, keys=cut(keys, number, 1).counts) for number, own in enumerate(made))
    if rows_from:
        made = tuple(replace(own, rows=row_parts(own.ranks), rows_end=rows_end) for own in made)
    words = [rng.random() * (rank in made[-1].ranks) for rank in ranks]
    words = Partition.of_counts(largest_remainder(words, model.vocab))
    at_work = {rank for own in made for rank in own.ranks}
    embedded = [rng.random() * (rank in at_work) for rank in ranks]
    embeds = rng.random() < 0.5 and not model.learned_positions if embeds is None else embeds
    embedding = Partition.of_counts(largest_remainder(embedded, model.vocab)) if embeds else None
    if hidden:
        parts = [0.01 + rng.random() * (rng.random() < 0.7) if rank in made[-1].ranks else 0.0 for rank in ranks]
        blocks = largest_remainder(parts, model.hidden // model.stream.unit)
        facts["hidden"] = Partition.of_counts(own * model.stream.unit for own in blocks)
    names = tuple(f"board-{rank}" for rank in ranks)
    facts = {
        "context": 64,
        "rows_from": rows_from,
        "sequences": 3,
        "two_steps_from": int(rng.integers(1, ROWS_BY_MPI + 1)),
        **facts,
    }
    plan = DecoderPlan("test", names, made, words, embedding=embedding, **facts)
    plan.check(model, world.size)
    return plan


def on_ranks(world, weights, plan, lead, wire=Wire.FLOAT32, backend=ONNXRUNTIME):
    """Call `lead` with all ranks as one model on rank 0, and return on all ranks what it returns.

    `backend`: what computes, MIXED: numpy on every other rank.
    """
    if backend == MIXED:
        backend = ("numpy", ONNXRUNTIME)[world.rank % 2]
    direct = Direct(world)

    share = Share(DecoderPasses(weights.model, plan), world.rank, backend=backend)
    source = WeightsSource(world, weights)
    source.complete(share.lacking())
    ranks = Ranks(share, world, direct, coding(wire), source, weights)
    result = None
    if world.rank == 0:
        try:
            result = lead(ranks)
        finally:
            ranks.finish()
    else:
        ranks.follow()
    direct.close()
    return world.from_root((lambda: result) if world.rank == 0 else None)
