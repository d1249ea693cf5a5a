"""A line asks in one way, and has no key that nothing reads."""

import pytest

from hepti_mpi.requests.inputs import check_keys
from solver.base.errors import HeptiError

WAYS = ("text", "pair", "tokens")


def test_what_every_key_says_is_read():
    check_keys({"id": 1, "tokens": [5], "types": [0]}, ["tokens"], ["types"], WAYS)


@pytest.mark.parametrize(
    ("entry", "given", "named"),
    [
        ({"text": "a", "pair": ["a", "b"]}, ["text", "pair"], "text and pair: give one"),
        ({"id": 1, "text": "a", "types": [0]}, ["text"], "key types "),
        ({"text": "a", "norm\x1balize": False}, ["text"], "known: id, text, pair, tokens"),
    ],
)
def test_a_line_that_asks_twice_or_for_what_nothing_reads_is_refused_by_name(entry, given, named):
    with pytest.raises(HeptiError) as refused:
        check_keys(entry, given, (), WAYS)

    assert named in str(refused.value)
    assert str(refused.value).isprintable()
