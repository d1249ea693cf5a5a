"""In which order weights are read, and that the next block is read while the former is packed."""

from threading import Event

import pytest

from hepti_mpi.engine.load import _ahead
from hepti_mpi.program.share import Share
from solver.base.errors import HeptiError
from solver.plan.decoder_plan import whole_on
from solver.schedule.decoders.passes import DecoderPasses
from tests.kit.decoders import small_model


def test_a_step_runs_while_the_result_before_it_is_used():
    """And no further one: at most two blocks are held unpacked."""
    started = [Event(), Event(), Event()]

    results = _ahead(event.set for event in started)

    next(results)
    assert started[1].wait(timeout=10)
    assert not started[2].is_set()
    assert len(list(results)) == 2


def test_results_come_in_order_up_to_the_step_that_fails():
    def fail():
        raise HeptiError("tensor up is damaged")

    results = _ahead(iter([lambda: 0, lambda: 1, fail, lambda: 3]))

    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(HeptiError, match="damaged"):
        next(results)


def test_nothing_to_do_gives_nothing():
    assert list(_ahead(iter([]))) == []


def test_what_is_largest_is_made_first():
    """A graph takes its weights up to three times while it is made: of the head that is more than all layers' slack."""
    model = small_model(layers=2, vocab=5000)
    share = Share(DecoderPasses(model, whole_on(model, ("one",), 0, context=32, precision="int4")), 0)

    first, *others = share.lacking()

    assert model.head in {piece.name for piece, _ in first.places}
    assert [own.nbytes for own in others] == sorted((own.nbytes for own in others), reverse=True)
