"""Some of a test's cases also run at other numbers of ranks: `@pytest.mark.sizes` for a part of a list of cases."""

import pytest


def called(value):
    """Return how a value is called in a test's name: a model or an enumeration's by its name."""
    return getattr(value, "name", None) or str(value)


def sized(cases, every=1):
    """Return cases for `pytest.mark.parametrize`, the first and then every so many-th with the mark `sizes`."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.sizes] * (number % every == 0))
        for number, case in enumerate(cases)
    ]
