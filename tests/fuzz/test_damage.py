"""Files and lines that strangers give us, damaged in many ways each: read, or refused in one line."""

import pytest

from tests.fuzz.run import failures, try_once
from tests.fuzz.subjects import SUBJECTS

FEW, MANY = 12, 1000


def test_what_is_damaged_is_refused_in_a_line_or_read(tmp_path):
    wrong = []
    for name, subject in SUBJECTS.items():
        good = subject.good(tmp_path)
        subject.read(good, tmp_path)  # what is not damaged is taken
        found = [(seed, try_once(subject, good, tmp_path, seed)) for seed in range(FEW)]
        wrong += [f"{name}, seed {seed}: {trouble}" for seed, trouble in found if trouble]

    assert wrong == []


@pytest.mark.thorough("by the thousand, with an eye on memory and on what hangs")
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_thousand_of_each_are(name):
    assert failures(name, MANY) == []
