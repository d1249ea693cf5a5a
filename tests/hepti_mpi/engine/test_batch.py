"""Rows of a batch without padding: which of them a share of rows attends to."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hepti_mpi.engine.batch import Batch
from solver.base.spans import Span


@st.composite
def batches_and_rows(draw):
    """Return a batch, and any span of its rows."""
    batch = Batch.of_lengths(draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)))
    start = draw(st.integers(0, batch.rows))
    return batch, Span(start, draw(st.integers(start, batch.rows)))


@given(batches_and_rows())
def test_rows_attend_to_all_rows_of_their_own_requests_and_no_others(given_):
    batch, rows = given_
    request_of = np.repeat(np.arange(len(batch.requests)), batch.requests.counts)

    keys = batch.keys_of(rows)

    touched = set(request_of[rows.slice])
    assert set(request_of[keys.slice]) == touched
    assert keys.size == sum(request in touched for request in request_of)


@given(batches_and_rows())
def test_pieces_cover_every_row_once_beside_its_requests_keys(given_):
    batch, rows = given_
    keys = batch.keys_of(rows)
    numbers = np.arange(batch.rows)

    pieces = batch.pieces(rows, keys)

    covered = [row for piece, _ in pieces for row in numbers[rows.slice][piece]]
    assert covered == list(numbers[rows.slice])
    for piece, others in pieces:
        row = numbers[rows.slice][piece][0]
        (request,) = (span for span in batch.requests if span.start <= row < span.stop)
        assert list(numbers[keys.slice][others]) == list(numbers[request.slice])


def test_a_batch_lays_its_requests_one_after_the_other():
    batch = Batch.of_lengths([3, 1, 2])

    assert batch.rows == 6
    assert batch.requests.spans == (Span(0, 3), Span(3, 4), Span(4, 6))
