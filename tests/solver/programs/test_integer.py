"""The integer program against exhaustive search, and its duals."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pulp
import pytest

from solver.programs import integer
from tests.sweeps import count


def random_program(rng, devices=3, configurations=6):
    seconds = rng.uniform(1, 10, configurations).tolist()
    held = [rng.integers(0, 100, devices) * 1e6 for _ in seconds]
    return seconds, held, rng.uniform(100, 400, devices) * 1e6


@pytest.mark.parametrize("solver", ["HiGHS", "CBC"])
def test_mix_is_that_of_exhaustive_search(solver, monkeypatch):
    if solver == "CBC":
        monkeypatch.setattr(pulp.HiGHS, "available", lambda self: False)
    rng = np.random.default_rng(0)
    for _ in range(count(6, 10)):
        seconds, held, room = random_program(rng)
        mixes = [list(mix) for mix in combinations_with_replacement(range(6), 5)]
        fits = [mix for mix in mixes if (sum(held[c] for c in mix) <= room).all()]

        mix = integer.best_mix(seconds, held, room, 5)

        assert sum(mix.layers) == 5
        if fits:
            assert mix.seconds == pytest.approx(min(sum(seconds[c] for c in mix) for mix in fits))
            assert mix.short_bytes == pytest.approx(np.zeros(3), abs=100)
        else:
            assert mix.short_bytes.max() > 1000


def test_price_of_memory_is_what_a_byte_more_saves():
    seconds, held = [1.0, 2.0], [np.array([10e6, 0.0]), np.array([2e6, 0.0])]
    room = np.array([60e6, 0.0])

    now, more = (integer.prices(seconds, held, room + extra, 10) for extra in (0.0, 1e3))

    assert now.per_byte == pytest.approx([1 / 8e6, 0.0])
    assert now.bound_s - more.bound_s == pytest.approx(1e3 * now.per_byte[0])


def test_relaxation_never_exceeds_the_whole_mix():
    rng = np.random.default_rng(1)
    for _ in range(10):
        seconds, held, room = random_program(rng)
        mix = integer.best_mix(seconds, held, room, 5)
        if mix.short_bytes.max() < 1:
            assert integer.prices(seconds, held, room, 5).bound_s <= mix.seconds * (1 + 1e-9)
