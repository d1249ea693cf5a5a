"""Who sends whom what: every rank gets what it wants and has not, once, whatever the boxes."""

from itertools import combinations, product

import numpy as np
import pytest

from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.plan.layout import Box, Layout, disjoint, moves, without
from tests.sweeps import seeds

SHAPE = (5, 4, 3)


def random_box(rng):
    ends = [sorted(rng.integers(0, length + 1, 2)) for length in SHAPE]
    return Box(tuple(Span(int(start), int(stop)) for start, stop in ends))


def random_layout(rng, ranks, *, partial=False):
    return Layout(tuple(tuple(random_box(rng) for _ in range(rng.integers(0, 3))) for _ in range(ranks)), partial)


def covered(boxes):
    """Return how often boxes have every number."""
    found = np.zeros(SHAPE, int)
    for box in boxes:
        found[tuple(span.slice for span in box.spans)] += 1
    return found


@pytest.mark.parametrize("seed", seeds(12, 300))
def test_boxes_without_others_are_what_numbers_without_others_are(seed):
    rng = np.random.default_rng(seed)
    boxes, others = ([random_box(rng) for _ in range(3)] for _ in range(2))

    left = without(disjoint(boxes), others)

    assert (covered(left) == (covered(boxes) > 0) * (covered(others) == 0)).all()


def test_a_box_lies_side_by_side_where_numpy_says_so():
    """One number does, wherever it is: a message of one arrives in its place, and what it needs is priced so."""
    spans = [[Span(*ends) for ends in combinations(range(length + 1), 2)] for length in SHAPE]
    for box in map(Box, product(*spans)):
        array = np.zeros(SHAPE)[tuple(span.slice for span in box.spans)]
        assert box.lies_together(Box.whole(*SHAPE)) == array.flags.c_contiguous, box


@pytest.mark.parametrize("seed", seeds(12, 300))
def test_every_rank_gets_once_what_it_wants_and_has_not(seed):
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(1, 6))
    have = random_layout(rng, ranks)
    rest = without([Box.whole(*SHAPE)], [box for own in have.boxes for box in own])
    have = Layout(((*have.boxes[0], *rest), *have.boxes[1:]))
    want = random_layout(rng, ranks)

    for rank in range(ranks):
        came = covered(move.box for move in moves(have, want) if move.receiver == rank)
        wanted, has = covered(want.boxes[rank]) > 0, covered(have.boxes[rank]) > 0
        assert (came == (wanted & ~has)).all()
    for move in moves(have, want):
        assert not without([move.box], [have.boxes[move.sender][move.piece]])


@pytest.mark.parametrize("seed", seeds(8, 100))
def test_of_summands_every_rank_gets_each_that_there_is(seed):
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, 6))
    whole = Box.whole(*SHAPE)
    have = Layout.of([whole if rank == 0 or rng.random() < 0.7 else None for rank in range(ranks)], partial=True)
    want = Layout.of([random_box(rng) for _ in range(ranks)])

    sent = {(move.sender, move.receiver, move.box) for move in moves(have, want)}

    givers = [rank for rank, own in enumerate(have.boxes) if own]
    takers = [(rank, box) for rank, own in enumerate(want.boxes) for box in own]
    assert sent == {(giver, rank, box) for giver, (rank, box) in product(givers, takers) if giver != rank}


def test_what_nobody_has_is_named_with_who_wants_it():
    have, want = Layout.of([Box.whole(3), None]), Layout.of([None, Box.whole(4)])

    with pytest.raises(HeptiError, match=r"rank 1 wants \[3, 4\)"):
        moves(have, want)
