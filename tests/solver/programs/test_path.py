"""The path: the best of all ways to put parts of a model onto devices, one after the other."""

from functools import reduce
from itertools import permutations

import numpy as np
import pytest

from solver.programs.path import Leg, best_path
from tests.sweeps import seeds

UNITS = 4


def instance(rng):
    """Return legs of one or two resources at three ports, how much of these there is, and what leads to and fro."""
    resources, ports = int(rng.integers(1, 4)), 3
    free = tuple(rng.integers(1, 3, resources).tolist())
    forward = np.triu(np.ones((UNITS + 1, UNITS + 1), bool), 1)
    legs = []
    for _ in range(int(rng.integers(1, 5))):
        uses = np.zeros(resources, int)
        uses[rng.integers(resources, size=int(rng.integers(1, 3)))] = 1
        seconds, last = (
            np.where(forward & (rng.random(forward.shape) < 0.8), rng.uniform(0, 9, forward.shape), np.inf)
            for _ in range(2)
        )
        legs.append(Leg(tuple(uses.tolist()), seconds, int(rng.integers(ports)), last if rng.random() < 0.5 else None))
    return legs, free, rng.uniform(0, 5, (ports, ports, UNITS + 1)), rng.uniform(0, 5, (2, ports))


def paths(legs, free):
    """Yield all paths: legs in turn, each with how many units it takes."""
    every = [number for number in range(len(legs)) for _ in range(max(free))]
    for count in range(1, UNITS + 1):
        for chosen in sorted(set(permutations(every, min(count, len(every))))):
            used = np.sum([legs[number].uses for number in chosen], 0)
            if (used <= free).all():
                for stops in permutations(range(1, UNITS), len(chosen) - 1):
                    if list(stops) == sorted(stops):
                        yield list(zip(chosen, np.diff([0, *stops, UNITS]).tolist(), strict=True))


def seconds_of(path, legs, hops, ends, along):
    """Return what a path takes."""
    start, back = ends
    numbers = [number for number, _ in path]
    stops = np.cumsum([0, *(units for _, units in path)])
    spent = [start[legs[numbers[0]].port], back[legs[numbers[-1]].port]]
    for place, number in enumerate(numbers):
        leg, at_end = legs[number], place == len(numbers) - 1
        own = leg.last if at_end and leg.last is not None else leg.seconds
        spent.append(own[stops[place], stops[place + 1]])
        if not at_end:
            spent.append(hops[leg.port, legs[numbers[place + 1]].port, stops[place + 1]])
    return reduce(along, spent)


@pytest.mark.parametrize("slowest", [False, True])
@pytest.mark.parametrize("seed", seeds(12, 400))
def test_no_path_is_better(seed, slowest):
    legs, free, hops, ends = instance(np.random.default_rng(seed))
    along = max if slowest else np.add
    best = min((seconds_of(path, legs, hops, ends, along) for path in paths(legs, free)), default=np.inf)

    found = best_path(legs, free, hops, start=ends[0], back=ends[1], slowest=slowest)

    if found is None:
        assert np.isinf(best)
    else:
        assert found.seconds == pytest.approx(best)
        assert seconds_of(found.legs, legs, hops, ends, along) == pytest.approx(best)
        assert (np.sum([legs[number].uses for number, _ in found.legs], 0) <= free).all()
