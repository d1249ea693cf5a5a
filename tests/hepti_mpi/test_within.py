"""When ranks look up within a request, and how much of it is done then."""

import pytest

from hepti_mpi.within import HOLDS, LOOK_EVERY_S, PARTS, done_before, looks
from solver.model import named_model


@pytest.mark.parametrize("layers", [1, 2, 4, 8, 12, 24, 48])
def test_looks_are_apart_and_leave_layers_in_which_their_word_holds(layers):
    for seconds in (0.0, 0.1, 0.2, 0.4, 1.0, 60.0):
        at = looks(layers, seconds)

        assert len(at) < PARTS
        assert all(late - early >= HOLDS for early, late in zip((0, *at), at, strict=False))
        assert all(number + HOLDS < layers for number in at)
        assert (len(at) + 1) * LOOK_EVERY_S <= seconds or not at


def test_short_requests_have_no_looks():
    assert looks(24, 1.9 * LOOK_EVERY_S) == ()


def test_where_requests_take_long_a_quarter_is_between_two_looks():
    assert looks(8, 0.4) == (2, 4)
    assert looks(24, 10.0) == (6, 12, 18)


def test_what_is_done_before_a_layer_is_all_but_the_output_and_the_mlp_of_the_layer_before():
    spec = named_model("bert-large")
    layer = 1 / spec.layers

    done = [done_before(spec, 128, number) for number in (1, 2, 3)]

    assert done[0] == pytest.approx((6 + 0.5) / (6 + 0.5 + 2 + 16) * layer)
    assert done[1] - done[0] == pytest.approx(layer)
    assert done[2] - done[1] == pytest.approx(layer)
