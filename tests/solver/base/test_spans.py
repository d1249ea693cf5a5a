"""Spans, partitions, and rounding by the largest remainder."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from solver.base.spans import Partition, Span, largest_remainder
from tests.kit import refused

SHARES = st.lists(st.floats(0, 1e9, allow_subnormal=False), min_size=1, max_size=8).filter(any)
COUNTS = st.lists(st.integers(0, 20), min_size=1, max_size=6)


@given(SHARES, st.integers(0, 5000))
@example([0.1, 0.2, 0.7], 511)
@example([1.0, 1e-300], 3)
def test_rounded_shares_add_up_and_stay_within_one(shares, total):
    """The parts add up to the total, each within one of its exact share; a share of zero gets nothing."""
    counts = largest_remainder(shares, total)

    assert sum(counts) == total
    for share, count in zip(shares, counts, strict=True):
        exact = Fraction(share) * total / sum(map(Fraction, shares))
        assert abs(count - exact) <= 1 + 1e-9
        assert share > 0 or count == 0


@pytest.mark.parametrize(
    ("shares", "total", "counts"),
    [
        ([1, 1, 1], 10, [4, 3, 3]),  # ties go to the lower rank
        ([0.5, 0.3, 0.2], 7, [4, 2, 1]),  # 3.5 2.1 1.4: the one goes to the largest remainder
        ([0, 1, 0], 5, [0, 5, 0]),
        ([1, 2, 1], 0, [0, 0, 0]),
        ([3], 7, [7]),
        ([1, 1, 1, 1, 1], 2, [1, 1, 0, 0, 0]),
    ],
)
def test_largest_remainder_by_hand(shares, total, counts):
    assert largest_remainder(shares, total) == counts


def test_weights_that_cannot_be_shared_are_refused(kept):
    cases = [
        ([], 3),
        ([0, 0], 3),
        ([1, -1], 3),
        ([2, -1], 3),
        ([1], -1),
        ([float("nan"), 1], 3),
        ([float("inf"), 1], 3),
        ([1.7e308, 1.7e308], 3),
        ([1.7e308], 3),
    ]

    kept(refused.said(largest_remainder, cases))


@given(COUNTS)
def test_a_partition_covers_its_axis(counts):
    """Spans built from counts follow each other and cover the axis; empty ones are legal."""
    partition = Partition.of_counts(counts)

    covered = [index for span in partition for index in range(span.start, span.stop)]
    assert covered == list(range(partition.total))
    assert partition.counts == tuple(counts)
    assert len(partition) == len(counts)
    assert [partition[rank] for rank in range(len(counts))] == list(partition)


@given(SHARES, st.integers(0, 600))
def test_a_partition_of_shares_has_the_rounded_counts(shares, total):
    assert list(Partition.of_shares(shares, total).counts) == largest_remainder(shares, total)


def test_spans_that_do_not_cover_an_axis_are_refused(kept):
    cases = [
        [(0, 4), (3, 6)],
        [(0, 4), (5, 6)],
        [(1, 4), (4, 6)],
        [],
    ]

    kept(refused.said(lambda spans: Partition(tuple(Span(*span) for span in spans)), cases))


def test_a_span_ascends_from_zero(kept):
    cases = [
        (3, 2),
        (-1, 2),
    ]

    kept(refused.said(Span, cases))


ENDS = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)


@given(ENDS, ENDS)
def test_spans_are_sets_of_indices(one, other):
    """Size, slice, intersection and heads-to-columns agree with the sets of indices."""
    a, b = Span(*one), Span(*other)
    indices = list(range(60))
    both = set(indices[a.slice]) & set(indices[b.slice])

    assert a.size == len(indices[a.slice])
    assert set(indices[a.intersect(b).slice]) == both
    assert indices[a.scaled(3).slice] == [3 * head + column for head in indices[a.slice] for column in range(3)]
    if both:
        assert indices[b.slice][a.intersect(b).within(b).slice] == sorted(both)
