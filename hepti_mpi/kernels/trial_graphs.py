"""Every kind of graph that a run makes, tiny, compared with numpy; `kernels.trial` starts it, since it may die of it.

    python -m hepti_mpi.kernels.trial_graphs

Exit code 0 where all agree; else 1, and what does not as the last line of its errors.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hepti_mpi.kernels.products import NUMPY, AddResidual, Backend, Linear, Norm, Operation
from solver.base.arrays import Numbers

# One row has kernels of its own; the sizes are above what vector instructions take at a time, and no multiples of it.
ROWS, INNER, WIDTH = (1, 37), 67, 139
HEADS, HEAD_DIM = 3, 19
# How far a result may lie from numpy's, root mean square by root mean square: rounding to int8 costs 0.8 %.
CLOSE = {"float32": 1e-4, "int8": 0.02}


def main() -> int:
    """Compute and compare; say what disagrees."""
    wrong = disagreement()
    if wrong:
        print(wrong, file=sys.stderr)
    return 1 if wrong else 0


def disagreement() -> str:
    """Return which graph does not compute what numpy does, "" if all do."""
    from hepti_mpi.kernels import (
        int8,  # where a broken wheel ends the process
        ort,  # where a broken wheel ends the process
    )

    for precision, tried in (("float32", ort.FLOAT32), ("int8", int8.INT8)):
        for name, ours, numpys in results(tried, ("identity", *ort.ACTIVATIONS)):
            apart = np.linalg.norm(ours - numpys) / np.linalg.norm(numpys)
            if not apart <= CLOSE[precision]:
                return f"{name} in {precision} is {apart:.2g} of its size off"
    return ""


def results(tried: Backend, activations: tuple[str, ...]) -> Iterator[tuple[str, Numbers, Numbers]]:
    """Yield every kind of graph by name: its result, and numpy's."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32)

    for rows, activation in product(ROWS, activations):
        x, weight, bias = normal(rows, INNER), normal(WIDTH, INNER) * INNER**-0.5, normal(WIDTH)
        ours, numpys = (backend.product(weight, bias, activation)(x) for backend in (tried, NUMPY))
        yield f"a product with {activation}", ours, numpys
        ours, numpys = (backend.product(weight.T.copy(), None)(x) for backend in (tried, NUMPY))
        yield "a product without bias", ours, numpys
        residual, vector = normal(rows, INNER), normal(INNER)
        operations: list[Operation] = [Linear(weight, bias, activation), Linear(weight, None), AddResidual(vector)]
        operations.append(Norm(vector, vector, 1e-5))
        for count in (3, 4):
            ours, numpys = (backend.graph(operations[:count])(x, residual=residual) for backend in (tried, NUMPY))
            yield f"a block with {activation}", ours, numpys
    for rows in ROWS:
        q, k, v = normal(rows, HEADS * HEAD_DIM), *normal(2, max(ROWS), HEADS * HEAD_DIM)
        everything = [(slice(None), slice(None))]
        ours, numpys = (backend.attend(q, k, v, everything, HEAD_DIM) for backend in (tried, NUMPY))
        yield "attention", ours, numpys
        parts = [backend.attend_part(q, k, v, HEAD_DIM) for backend in (tried, NUMPY)]
        for ours, numpys in zip(*parts, strict=True):
            yield "attention to some keys", ours, numpys
    exact: Numbers = normal(INNER)
    half: Numbers = exact.astype(np.float16)
    for x, into in ((exact, np.empty_like(half)), (half, np.empty_like(exact))):
        tried.cast(into, x)
        yield f"a cast to {into.dtype}", into, x.astype(into.dtype)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # to die here is no news
    sys.exit(main())
