"""Requests as lines, and their answers beside what transformers computes."""

import json

import numpy as np

from tests.kit.checkpoints import LABELS


def of_lengths(*lengths):
    """Return requests of so many tokens, numbered."""
    return [{"id": number, "tokens": [7 + row % 40 for row in range(rows)]} for number, rows in enumerate(lengths)]


def to_lines(entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def from_lines(lines):
    return [json.loads(line) for line in lines.splitlines()]


def check_answer(answer, expected):
    """Compare one answer with what `checkpoints.expected` says."""
    assert answer["tokens"] == len(expected["hidden"])
    assert answer["seconds"] > 0
    for name in expected.keys() - {"hidden"}:
        np.testing.assert_allclose(answer[name], expected[name], rtol=0, atol=1e-4)
    if "logits" in expected:
        assert answer["label"] == LABELS[np.argmax(expected["logits"])]


def check_answers(lines, expected):
    """Compare answers, in the order of the requests, with those expected by id."""
    answers = from_lines(lines)

    assert [answer["id"] for answer in answers] == list(expected)
    for answer in answers:
        check_answer(answer, expected[answer["id"]])


def check_hidden(path, expected):
    """Compare the arrays of an `.npz` with those expected by id."""
    with np.load(path) as arrays:
        assert list(arrays) == [str(name) for name in expected]
        for name, wanted in expected.items():
            assert arrays[str(name)].dtype == np.float32
            np.testing.assert_allclose(arrays[str(name)], wanted["hidden"], rtol=0, atol=1e-4)
