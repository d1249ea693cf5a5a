"""Answers are written whole or not at all."""

import resource
from contextlib import contextmanager

import numpy as np
import pytest

from hepti_mpi.requests.answers import Answer
from hepti_mpi.requests.outputs import writing
from solver.base.errors import HeptiError

HIDDEN = np.random.default_rng(0).standard_normal((100, 256), np.float32)  # 100 KiB


def written(path, *answers):
    with writing(path) as take:
        for answer in answers:
            take(answer)


@contextmanager
def small_files():
    """Let no file grow above 10 KiB, as on a disk that is nearly full.

    No fixture: pytest reports a test before it takes its fixtures down, and its own output may be such a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 << 10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["answers.jsonl", "hidden.npz"])
@pytest.mark.parametrize("earlier", [True, False])
def test_a_full_disk_leaves_what_was_there(name, earlier, tmp_path):
    path = tmp_path / name
    if earlier:
        path.write_text("of an earlier job")
    answers = [Answer({"id": "one", "embedding": [0.125] * 10_000}, HIDDEN)]

    with small_files(), pytest.raises(HeptiError, match=f"cannot write .*{name}: File too large"):
        written(path, *answers)

    assert list(tmp_path.iterdir()) == ([path] if earlier else [])
    assert not earlier or path.read_text() == "of an earlier job"


def test_lines_are_utf_8_whatever_the_terminal_speaks(tmp_path):
    written(tmp_path / "answers.jsonl", Answer({"id": "ä 你"}, HIDDEN), Answer({"id": 2}, HIDDEN))

    assert (tmp_path / "answers.jsonl").read_bytes() == '{"id": "ä 你"}\n{"id": 2}\n'.encode()
