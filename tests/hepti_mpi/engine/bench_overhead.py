"""What a layer costs a rank beside arithmetic and wire: CPU time, on a model that has next to none of either.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 mpirun -np 4 python -m tests.hepti_mpi.engine.bench_overhead [--runs 200]

Prints milliseconds of CPU a layer and rank, and what of it the kernels take that a layer calls, called by themselves.
"""

import argparse
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from hepti_mpi.comm import group as comm
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels.backends import backend
from solver.base.spans import Partition
from solver.model.blocks import Cut
from solver.model.named import named_model
from solver.model.spec import tensor_shapes
from solver.plan.plan import layer_by_rows, uniform_plan
from tests.kit.in_memory import layers_of
from tests.kit.plans import like

ROWS, LAYERS = 64, 8
SPEC = like(named_model("bert-large"), layers=LAYERS, hidden=64, ffn=128, heads=4)


def metered(computes, kernel_s):
    """Return a backend that adds up the CPU seconds of its kernels in kernel_s[0]."""

    def timed(call):
        def run(*arguments, **named):
            started = time.process_time()
            result = call(*arguments, **named)
            kernel_s[0] += time.process_time() - started
            return result

        return run

    def graph(operations):
        bound = computes.graph(operations).bound
        return SimpleNamespace(bound=lambda *arrays: timed(bound(*arrays)))

    return replace(
        computes,
        graph=graph,
        attend=timed(computes.attend),
        attend_part=timed(computes.attend_part),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    group, kernel_s = comm.world(), [0.0]
    computes = metered(backend("onnxruntime"), kernel_s)
    shares = tuple(Partition.of_shares([4, 12, 4, 2][: group.size], ROWS).counts)
    rows = layer_by_rows(SPEC.blocks, [share / ROWS for share in shares])
    heads = Partition.of_shares(shares, SPEC.blocks[0].inner.count)
    block = replace(rows[0], cut=Cut.BLOCK, inner=heads)
    numbers = np.random.default_rng(0)

    shapes = tensor_shapes(SPEC)

    def tensor_of(name):
        return 0.1 * numbers.standard_normal(shapes[name], np.float32)

    to_rows = replace(block, cut=Cut.TO_ROWS)
    for name, attention in (("rows, rows", rows[0]), ("block, rows", block), ("to_rows, rows", to_rows)):
        names = [f"pi-{rank}" for rank in range(group.size)]
        plan = uniform_plan(SPEC, names, (attention, rows[1]), tile_rows=12 if group.size > 1 else 0)
        stack = Stack(SPEC, plan, layers_of(tensor_of, SPEC, plan, group, computes), group, computes)
        x = np.ones((ROWS, SPEC.hidden), np.float32) if group.rank == 0 else None
        for turn in range(1 + runs):
            if turn == 1:
                kernel_s[0], started = 0.0, time.process_time()
            stack.run(Batch.of_lengths([ROWS]), x, count=True)
        cpu_s = time.process_time() - started
        told = group.on_all(lambda cpu_s=cpu_s: (cpu_s, kernel_s[0]))
        if group.rank == 0:
            each = ", ".join(
                f"{1e3 * all_s / runs / LAYERS:.2f} ({1e3 * own / runs / LAYERS:.2f})" for all_s, own in told
            )
            print(f"{name}: {each} ms of CPU a layer (in products and attention)")


if __name__ == "__main__":
    main()
