"""What others raise becomes one line in which nothing stands twice."""

import json

import pytest

from solver.base.errors import HeptiError, explained


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": }', "Expecting value in column 7"),
        ('{"a": }\n', "Expecting value in column 7"),  # a line of a file, whose number stands before it
        ('{"a": 1,\n b}', "Expecting property name enclosed in double quotes in line 2, column 2"),
    ],
)
def test_what_is_no_json_has_its_line_only_where_there_are_several(text, reason):
    with pytest.raises(HeptiError) as error, explained("asked.jsonl, line 3: not JSON", ValueError):
        json.loads(text)

    assert str(error.value) == f"asked.jsonl, line 3: not JSON: {reason}"


def test_a_name_with_line_ends_or_terminal_codes_leaves_the_complaint_one_readable_line():
    assert str(HeptiError("node a\n\x1b[31mb\udc80 is Göte, 3 µs — wrong")) == (
        r"node a\n\x1b[31mb\udc80 is Göte, 3 µs — wrong"
    )
