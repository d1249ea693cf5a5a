"""Boxes of values change hands: every rank has what it wants afterwards, whatever the layouts, wires and transports."""

from itertools import pairwise

import numpy as np
import pytest

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.exchange import Item, RankExchange
from hepti_mpi.comm.wires import coding
from solver.base.spans import Partition, Span
from solver.plan.layout import Box, Layout, moves, without
from solver.plan.plan import Wire
from tests import sweeps

SHAPE = (7, 6, 4)
WHOLE = Box.whole(*SHAPE)
ERRORS = {Wire.FLOAT32: 1e-6, Wire.FLOAT16: 4e-3, Wire.INT8: 0.1}

pytestmark = pytest.mark.sizes


def random_box(rng):
    ends = [sorted(rng.integers(0, length + 1, 2)) for length in SHAPE]
    return Box(tuple(Span(int(start), int(stop)) for start, stop in ends))


def random_rows(rng, ranks):
    """Return boxes of rows, some of them empty, in up to three pieces a rank."""
    rows = Partition.of_shares([*rng.random(ranks - 1) * (rng.random(ranks - 1) < 0.7), 1.0], SHAPE[0])
    cuts = [sorted({own.start, *rng.integers(own.start, own.stop + 1, 2), own.stop}) for own in rows]
    boxes = [
        tuple(Box((Span(int(start), int(stop)), *WHOLE.spans[1:])) for start, stop in pairwise(own)) for own in cuts
    ]
    return Layout(tuple(boxes))


def placed(boxes, array):
    return [(box, array[tuple(span.slice for span in box.spans)].copy()) for box in boxes]


def wanted_of(want, rank, numbers=np.nan):
    return [(box, np.full(box.shape, numbers, np.float32)) for box in want.boxes[rank]]


def run(transfer, world, way):
    direct = Direct(world) if way == "sockets" else None
    for _ in range(2):  # it may run again and again
        if direct is not None:
            transfer.over(direct)()
        else:
            transfer.run()
    world.finish_sending()
    world.barrier()
    if direct is not None:
        direct.close()


@pytest.mark.parametrize("way", ["mpi", "sockets"])
@pytest.mark.parametrize("seed", sweeps.seeds(6, 40))
def test_every_rank_has_what_it_wants(world, seed, way):
    """Of two values at once: numbers, and bytes of another layout."""
    rng = np.random.default_rng([1, seed])
    items, values = [], []
    wire = list(ERRORS)[seed % len(ERRORS)]
    for dtype in (np.float32, np.uint8):
        array = (100 * rng.random(SHAPE)).astype(dtype) if dtype is np.uint8 else rng.random(SHAPE).astype(dtype)
        have = random_rows(rng, world.size)
        want = Layout(tuple((random_box(rng), random_box(rng)) for _ in range(world.size)))
        places = [(box, np.zeros(box.shape, dtype)) for box in want.boxes[world.rank]]
        items.append(Item(have, want, placed(have.boxes[world.rank], array), places))
        values.append(array)

    run(RankExchange.of(world, items, coding(wire), scaled=seed % 2), world, way)

    for item, array in zip(items, values, strict=True):
        for box, place in item.places:
            expected = array[tuple(span.slice for span in box.spans)]
            np.testing.assert_allclose(place, expected, atol=ERRORS[wire] if array.dtype == np.float32 else 0)


@pytest.mark.parametrize("way", ["mpi", "sockets"])
@pytest.mark.parametrize("wire", ERRORS)
def test_summands_become_their_sum_and_equal_ones_where_that_is_asked(world, wire, way):
    rng = np.random.default_rng(3)
    givers = [rank for rank in range(world.size) if rank != 1]
    parts = rng.normal(size=(world.size, *SHAPE)).astype(np.float32)
    have = Layout.of([WHOLE if rank in givers else None for rank in range(world.size)], partial=True)
    want = Layout.of([WHOLE] * world.size)
    places = [(WHOLE, np.empty(SHAPE, np.float32))]

    pieces = placed(have.boxes[world.rank], parts[world.rank])
    run(RankExchange.of(world, [Item(have, want, pieces, places)], coding(wire), equal=True), world, way)

    np.testing.assert_allclose(places[0][1], parts[givers].sum(0), atol=ERRORS[wire])
    every = world.on_all(lambda: places[0][1])
    assert all((other == every[0]).all() for other in every)


def test_summands_in_pieces_are_added_where_rows_are_wanted(world):
    rng = np.random.default_rng(5)
    parts = rng.normal(size=(world.size, *SHAPE)).astype(np.float32)
    halves = tuple(Box((Span(*ends), *WHOLE.spans[1:])) for ends in ((0, 3), (3, SHAPE[0])))
    have = Layout((halves,) * world.size, partial=True)
    want = Layout.of([Box((own, *WHOLE.spans[1:])) for own in Partition.of_shares([1.0] * world.size, SHAPE[0])])
    places = wanted_of(want, world.rank)

    item = Item(have, want, placed(halves, parts[world.rank]), places)
    run(RankExchange.of(world, [item], coding(Wire.FLOAT32)), world, "mpi")

    for box, place in places:
        np.testing.assert_allclose(place, parts.sum(0)[box.spans[0].slice], atol=1e-5)


def test_an_empty_piece_may_be_of_any_kind(world):
    """Rank 0 has bytes and numbers, others a piece of neither; the two go in messages of their own."""
    nothing = Box((Span(0, 0), *WHOLE.spans[1:]))
    have = Layout(tuple((WHOLE if rank == 0 else nothing,) for rank in range(world.size)))
    want, items = Layout.of([WHOLE] * world.size), []
    for dtype in (np.uint8, np.float32):
        own = np.arange(WHOLE.size, dtype=dtype).reshape(SHAPE) if world.rank == 0 else np.empty(0, np.float32)
        pieces = [(have.boxes[world.rank][0], own)]
        items.append(Item(have, want, pieces, [(WHOLE, np.empty(SHAPE, dtype))]))

    run(RankExchange.of(world, items, coding(Wire.FLOAT32)), world, "mpi")

    for item in items:
        np.testing.assert_array_equal(item.places[0][1].reshape(-1), np.arange(WHOLE.size))


def test_what_is_sent_are_the_bytes_of_the_moves(world):
    rng = np.random.default_rng(7)
    array = rng.random(SHAPE, np.float32)
    have = random_rows(rng, world.size)
    want = Layout.of([random_box(rng) for _ in range(world.size)])
    before = world.traffic.sent_bytes

    item = Item(have, want, placed(have.boxes[world.rank], array), wanted_of(want, world.rank))
    RankExchange.of(world, [item], coding(Wire.FLOAT32)).run()
    world.finish_sending()

    own = [move for move in moves(have, want) if move.sender == world.rank]
    assert world.traffic.sent_bytes - before == 4 * sum(move.box.size for move in own)
    assert not without([box for box, _ in item.places], [WHOLE])
