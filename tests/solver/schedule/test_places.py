"""Where a rank's values lie: what is there at the same time lies apart, and what comes later may lie in its place."""

from types import SimpleNamespace

import numpy as np
import pytest

from solver.plan.layout import Box
from solver.schedule.places import OwnCompute, OwnExchange, OwnItem, Places, places_of
from tests import sweeps

NOBODY = None  # of a layout that is not asked for


def sized(**sizes):
    """Return boxes of so many numbers, by the names of their places."""
    return [(name, Box.whole(size)) for name, size in sizes.items()]


@pytest.mark.parametrize("seed", sweeps.seeds(20, 400))
def test_what_is_there_at_the_same_time_lies_apart(seed):
    rng = np.random.default_rng(seed)
    sizes = {f"v{number}": int(rng.integers(1, 40)) for number in range(12)}
    used = [sized(**{name: size for name, size in sizes.items() if rng.random() < 0.3}) for _ in range(9)]
    at = {name: [number for number, step in enumerate(used) if name in dict(step)] for name in sizes}
    pixels = {name for name in sizes if rng.random() < 0.2}

    places = Places(used, pixels)

    for name, own in places.memory.items():
        assert places.sizes[own] >= (sizes[name] / 4 if name in pixels else sizes[name])
        for other in places.memory.keys() - {name}:
            if at[name][0] <= at[other][-1] and at[other][0] <= at[name][-1]:
                assert places.memory[other] != own
    assert places.numbers <= sum(sizes[name] for name in places.memory)


def test_a_place_is_taken_where_it_is_large_enough_or_the_largest_grows():
    """C lies where a was, since b's place is too small; e where d was, which grows."""
    places = Places([sized(a=10), sized(a=10, b=4), sized(b=4, c=8), sized(c=8, d=6), sized(d=6), sized(e=12)])

    assert places.memory == {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}
    assert places.sizes == [12, 6]


@pytest.mark.parametrize(("ahead", "sizes"), [(False, [7, 5]), (True, [7, 5, 7])])
def test_where_receives_are_posted_ahead_of_a_computation_their_places_are_taken_from_then_on(ahead, sizes):
    """Else what arrives may lie where the computation has read."""

    def exchange(pieces, wanted):
        return OwnExchange((), (OwnItem(NOBODY, NOBODY, (), pieces, wanted),), ahead=ahead)

    steps = [exchange([], sized(x=7)), SimpleNamespace(used=sized(x=7, y=5)), exchange(sized(y=5), sized(z=7))]

    assert places_of([(step, str) for step in steps]).sizes == sizes


@pytest.mark.parametrize(("comes", "sizes"), [("", [7, 6]), ("x", [7, 6, 6])])
def test_what_is_computed_as_others_rows_come_does_not_lie_where_own_ones_are_sent_from(comes, sizes):
    """They may still be on their way, also where the rank itself goes on with a copy of some of them."""
    sends = OwnExchange((), (OwnItem(NOBODY, NOBODY, (), sized(own=7), sized(x=6)),))
    computes = OwnCompute((), dict(sized(x=6)), [("y", "y", Box.whole(6))], comes)

    assert places_of([(step, str) for step in (sends, computes)]).sizes == sizes
