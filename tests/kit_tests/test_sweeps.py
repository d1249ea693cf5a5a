"""The few cases of a cross product have every value of every parameter."""

from itertools import product

import pytest

from tests import sweeps


@pytest.mark.parametrize("sizes", [(3, 2, 2), (6, 6, 3), (2, 5), (4,), (1, 3, 3)])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_few_cases_have_every_value(sizes, more, monkeypatch):
    monkeypatch.setattr(sweeps, "ALL", False)
    axes = [range(size) for size in sizes]

    cases = sweeps.cycled(max(sizes) + more, *axes)

    assert all({case[place] for case in cases} == {*axis} for place, axis in enumerate(axes))
    assert len(cases) <= max(sizes) + more
    assert {*cases} <= {*product(*axes)}


def test_all_cases_are_the_product(monkeypatch):
    monkeypatch.setattr(sweeps, "ALL", True)

    assert sweeps.cycled(3, "abc", "xy") == [*product("abc", "xy")]


def test_pairs_come_once_where_there_are_as_many_cases_as_pairs(monkeypatch):
    monkeypatch.setattr(sweeps, "ALL", False)

    assert len({case[:2] for case in sweeps.cycled(36, range(6), range(6), range(3))}) == 36
