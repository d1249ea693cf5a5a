"""Rows counted in stretches: a schedule of them is that of the rows, and serves all passes that are cut alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.base.spans import Span
from solver.plan.layout import Box
from solver.schedule.decoders.passes import DecoderPasses
from solver.schedule.places import OwnExchange, own_steps, places_of
from solver.schedule.stretches import Stretches, rows_to_add
from tests.kit.decoders import small_model
from tests.kit.plans import decoder_plans

MODEL = small_model(heads=8, kv_heads=4, d=8, hidden=96, ffn=64, vocab=90, windows=[0, 0, 16, 0])
LENGTHS = st.integers(1, 40)


def asked(draw, rows):
    """Draw of how many rows the next word is asked for: none, one, some, or all."""
    return draw(st.sampled_from([0, 1, rows, draw(st.integers(0, rows))]))


def lying(passes, rank, rows):
    """Return a rank's part in every step, and where its values lie."""
    every, given = own_steps(passes.steps(rows, folded=True), rank), passes.given(rows.count)
    return every, places_of(every, [(given.name, Box.whole(*given.shape))] if rank in passes.first else ())


def told(own):
    """Return a rank's part in a step as plain values."""
    if isinstance(own, OwnExchange):
        items = [(item.have, item.want, [*item.moves], item.pieces, item.places) for item in own.items]
        return own.by_rows, own.ahead, own.equal, own.by_sockets, items
    return [part.name for part, _ in own.run], own.reads, own.written


def in_rows(own, stretches):
    """Return a rank's part in a step, counted in stretches, as plain values of rows."""
    if isinstance(own, OwnExchange):
        return told(own.stretched(stretches))
    names, reads, written = told(own)
    reads = {name: stretches.box(box) for name, box in reads.items()}
    return names, reads, [(place, name, stretches.box(box)) for place, name, box in written]


@given(st.data())
def test_a_pass_counted_in_stretches_is_the_pass(data):
    """Of every rank of any plan: who computes, has and wants what, who sends whom what, and where it lies."""
    passes, rows = DecoderPasses(MODEL, data.draw(decoder_plans(MODEL))), data.draw(LENGTHS)
    real = passes.rows(rows, asked(data.draw, rows))
    counted, stretches = real.in_stretches()

    for rank in range(len(passes.plan.devices)):
        (every, places), (own, own_places) = lying(passes, rank, real), lying(passes, rank, counted)

        assert [in_rows(step, stretches) for step, _ in own] == [told(step) for step, _ in every]
        found = own_places.stretched(stretches)
        assert (found.boxes, found.memory, found.sizes) == (places.boxes, places.memory, places.sizes)


@given(st.data())
def test_lengths_of_prompts_share_their_structure(data):
    """A chat asks for another length every time: a dozen structures at the most serve sixty of them."""
    passes = DecoderPasses(MODEL, data.draw(decoder_plans(MODEL)))

    lengths = range(200, 260)
    structures = {passes.rows(rows, 1).in_stretches()[0] for rows in lengths}

    assert len(structures) <= 12


def test_stretches_lie_between_all_edges():
    stretches = Stretches.between([Span(0, 20), Span(19, 20), Span(0, 7), Span(7, 7)])

    assert stretches.edges == (0, 7, 19, 20)
    assert [stretches.counted(own) for own in (Span(0, 7), Span(7, 7), Span(7, 20))] == [
        Span(0, 1),
        Span(1, 1),
        Span(1, 3),
    ]
    assert stretches.box(Box((Span(1, 3), Span(2, 5)))) == Box((Span(7, 20), Span(2, 5)))
    with pytest.raises(ValueError, match="not in tuple"):
        stretches.counted(Span(0, 8))


@pytest.mark.parametrize(
    ("rows", "columns", "added"),
    [(9, 3, ((4, 7), (7, 10), (10, 13))), (2, 3, ()), (1, 2, ()), (2, 1, ((4, 5), (5, 6), (6, 6)))],
)
def test_sums_are_shared_out_by_rows_where_that_leaves_the_largest_part_no_larger(rows, columns, added):
    assert rows_to_add(Span(4, 4 + rows), columns, 3) == tuple(Span(*own) for own in added)
