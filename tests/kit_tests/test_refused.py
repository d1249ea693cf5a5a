"""What is not refused, or in more than a line, is told."""

import pytest

from solver.base.errors import HeptiError
from tests.kit import refused


def picky(value, least=0):
    if value < least:
        raise HeptiError(f"{value} is below {least}")


def test_every_case_is_a_line():
    assert refused.said(picky, [-1, (4, 5)]) == "-1 is below 0\n4 is below 5"


def test_what_is_taken_is_told():
    with pytest.raises(AssertionError, match=r"not refused: .*7"):
        refused.said(picky, [-1, 7])


def test_another_error_is_passed_on():
    with pytest.raises(TypeError):
        refused.said(picky, ["text"])


def test_a_case_drops_what_is_none():
    assert refused.without_none({"a": 0, "b": None}) == {"a": 0}
