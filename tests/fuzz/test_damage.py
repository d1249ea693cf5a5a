"""Files and lines that strangers give us, damaged in a thousand ways each: read, or refused in one line."""

import pytest

from tests.fuzz.run import failures
from tests.fuzz.subjects import SUBJECTS

COUNT = 1000


@pytest.mark.parametrize("name", SUBJECTS)
def test_what_is_damaged_is_refused_in_a_line_or_read(name):
    assert failures(name, COUNT) == []
