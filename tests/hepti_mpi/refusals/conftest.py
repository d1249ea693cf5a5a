"""Jobs that are refused, in this process: what rank 0 of two says, in a folder where nothing may be left behind."""

import re

import pytest

from hepti_mpi.__main__ import main
from hepti_mpi.comm import group
from tests.kit import inside
from tests.kit.pretended import RankZero

OUTPUTS = ("--output", "answers.jsonl", "--report", "report.json")


@pytest.fixture
def two_ranks(monkeypatch):
    """Let this process be rank 0 of two."""
    monkeypatch.setattr(group, "world", lambda: RankZero(2))


@pytest.fixture
def job():
    """Return what makes a program of `refusals.check`: a job with a model that would write two files."""
    return lambda model: lambda words: main(["--model", model, *words, *OUTPUTS])


@pytest.fixture
def complaint(place, monkeypatch, kept):
    """Run a job in the folder, check that it refuses in one line that is kept, and that it leaves no file."""

    def check(*words):
        monkeypatch.chdir(place)
        before = sorted(place.rglob("*"))
        done = inside.run(main, *words, *OUTPUTS)
        assert done.returncode == 2, done.stderr
        # Notes of what is measured or converted stand before it.
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("python -m "))
        assert sorted(place.rglob("*")) == before
        # What HDF5 says besides, and which opsets onnx knows, is theirs.
        said = re.sub(r"(Can't|Unable to) synchronously .*|(?<=up to )\d+", "…", line)
        kept(said.replace(str(place), "TMP"))
        return line

    return check
