"""What others raise becomes one line in which nothing stands twice."""

import json
import re

import pytest

from solver.base.errors import HeptiError, explained


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": }', "in column 7"),
        ('{"a": }\n', "in column 7"),  # a line of a file, whose number stands before it
        ('{"a": 1,\n b}', "in line 2, column 2"),
    ],
)
def test_what_is_no_json_has_its_line_only_where_there_are_several(text, place):
    with pytest.raises(HeptiError) as error, explained("asked.jsonl, line 3: not JSON", ValueError):
        json.loads(text)

    assert re.fullmatch(r"asked.jsonl, line 3: not JSON: [^,]* " + place, str(error.value))


def test_a_name_with_line_ends_or_terminal_codes_leaves_the_complaint_one_readable_line():
    assert str(HeptiError("node a\n\x1b[31mb\udc80 is Göte, 3 µs — wrong")) == (
        r"node a\n\x1b[31mb\udc80 is Göte, 3 µs — wrong"
    )
