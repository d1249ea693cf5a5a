"""Cross products of cases, of which `make test` needs every value once and `make test-all` every combination."""

from itertools import product

from tests import sweeps


def pairs(*axes):
    """Return as many combinations as the longest axis has values, with each value of each; or all of them."""
    axes = [list(axis) for axis in axes]
    if sweeps.ALL:
        return [*product(*axes)]
    return [tuple(axis[number % len(axis)] for axis in axes) for number in range(max(map(len, axes)))]
