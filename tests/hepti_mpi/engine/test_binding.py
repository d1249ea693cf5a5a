"""Contexts of keys that come one after the other, and which rows are here before others come."""

from itertools import pairwise

import numpy as np
import pytest

from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.binding import PartialContexts, without
from hepti_mpi.kernels import numpy_kernels, ort
from hepti_mpi.kernels.products import NUMPY
from solver.base.spans import Span
from tests import sweeps

HEAD_DIM, HEADS = 8, 3


def blocks_of(rows, rng):
    """Return consecutive blocks of some rows, empty ones among them, in any order."""
    cuts = [rows.start, *sorted(rng.integers(rows.start, rows.stop + 1, 3)), rows.stop]
    blocks = [Span(int(start), int(stop)) for start, stop in pairwise(cuts)]
    return [blocks[number] for number in rng.permutation(len(blocks))]


@pytest.mark.parametrize("seed", sweeps.seeds(12, 200))
@pytest.mark.parametrize("backend", [NUMPY, ort.FLOAT32], ids=["numpy", "onnxruntime"])
def test_contexts_of_keys_that_come_in_any_order_are_those_of_all_at_once(backend, seed):
    """Of several requests, some of whose rows this rank has; distances may add to scores. Twice: nothing is left."""
    rng = np.random.default_rng(seed)
    batch = Batch.of_lengths([int(length) for length in rng.integers(1, 9, int(rng.integers(1, 4)))])
    start, stop = sorted(rng.integers(0, batch.rows + 1, 2).tolist())
    rows = Span(start, stop) if start < stop else Span(0, batch.rows)
    seen = batch.keys_of(rows)
    pieces, width = batch.pieces(rows, seen), HEADS * HEAD_DIM
    q = rng.standard_normal((rows.size, width), np.float32)
    k, v = rng.standard_normal((2, seen.size, width), np.float32)
    lengths = [(own.stop - own.start, keys.stop - keys.start) for own, keys in pieces]
    added = [rng.standard_normal((HEADS, *length), np.float32) for length in lengths] if rng.random() < 0.5 else []
    out = np.full_like(q, np.nan)
    contexts = PartialContexts(q, k, v, out, seen, pieces, HEAD_DIM, added, backend)
    expected = numpy_kernels.attend(q, k, v, pieces, HEAD_DIM, added=added)

    for _ in range(2):
        for block in blocks_of(seen, rng):
            contexts.take(block)
        contexts.merge()
        np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)
        out[...] = np.nan


def test_rows_that_are_here_are_all_but_those_that_come():
    assert without(Span(2, 20), []) == [Span(2, 20)]
    assert without(Span(2, 20), [Span(5, 9), Span(0, 3), Span(9, 11)]) == [Span(3, 5), Span(11, 20)]
    assert without(Span(2, 20), [Span(0, 30)]) == []
