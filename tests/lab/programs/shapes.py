"""All ranks profile themselves and time shapes that a profile does not measure, in turn; rank 0 prints them as JSON.

shapes.py MODEL BACKEND TIMES    {host: [[curves, [[shape, kernel, first, second, heads, seconds], …]], …]}

The shapes are 37, 100 and 200 rows of a layer, and 3, 7 and 11 heads of its attention for 100 and 256 rows.
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hepti_mpi.comm.group import host_name, world
from hepti_mpi.kernels import backends
from hepti_mpi.kernels.products import AddResidual, Norm
from hepti_mpi.measure.profile_kernels import measure_kernels
from hepti_mpi.measure.timing import seconds_of
from solver.cluster.curves import Kernel, curves_to_table
from solver.model.named import named_model
from solver.model.spec import encoder_blocks

ROWS, HEADS, HEAD_ROWS, KEYS = (37, 100, 200), (3, 7, 11), (100, 256), 256

group = world()
spec, backend, times = named_model(sys.argv[1]), backends.backend(sys.argv[2]), int(sys.argv[3])
make = backend.product
own_attention, own_mlp = encoder_blocks(spec)
H, F, d = spec.hidden, own_mlp.ffn, own_attention.head_dim
numbers = np.random.default_rng(1).standard_normal((KEYS, F), np.float32)


def weights(rows, columns):
    return np.resize(0.02 * numbers, (rows, columns))


into = {n: make(weights(n, H), weights(1, n)[0]) for n in (3 * H, *(3 * d * heads for heads in HEADS))}
out = {n: make(weights(n, H), None) for n in (H, F, *(d * heads for heads in HEADS))}
up = make(weights(F, H), weights(1, F)[0], own_mlp.activation)
x, bias = np.ascontiguousarray(numbers[:, :H]), weights(1, H)[0]


norm = backend.graph([AddResidual(bias), Norm(bias, bias, own_mlp.norm_eps)])


def attention(rows, keys, heads):
    """Yield the calls of an attention block by their kernels and arguments, in a layer's order."""
    width, pieces = d * heads, [(slice(0, rows), slice(0, keys))]
    q, k, context = x[:rows, :width], x[:keys, :width], np.ascontiguousarray(x[:rows, :width])
    yield (Kernel.PROJECT, rows, 3 * width * H, 1), partial(into[3 * width], x[:rows])
    yield (Kernel.ATTEND, rows, keys, heads), partial(backend.attend, q, k, k, pieces, d)
    yield (Kernel.CONTRACT, rows, width * H, 1), partial(out[width], context)


calls = {}
for rows in ROWS:
    shape = f"{rows} rows"
    calls |= {(shape, *kernel): call for kernel, call in attention(rows, KEYS, own_attention.heads)}
    calls[shape, Kernel.NORM, rows * H, 0, 1] = partial(norm, x[:rows], residual=x[:rows])
    calls[shape, "mlp in", rows, H * F, 1] = partial(up, x[:rows])
    calls[shape, Kernel.CONTRACT, rows, H * F, 1] = partial(out[F], np.ascontiguousarray(numbers[:rows]))
for rows, heads in ((rows, heads) for heads in HEADS for rows in HEAD_ROWS):
    calls |= {(f"{heads} heads of {rows} rows", *kernel): call for kernel, call in attention(rows, rows, heads)}

found = []
for _ in range(times):
    curves, _ = measure_kernels(spec, backend, group)
    seconds, _ = seconds_of(list(calls.values()), group)
    found.append([curves_to_table(curves), [[*key, taken] for key, taken in zip(calls, seconds, strict=True)]])
everything = group.on_all(lambda: (host_name(), found))
if group.rank == 0:
    print(json.dumps(dict(everything)), flush=True)
