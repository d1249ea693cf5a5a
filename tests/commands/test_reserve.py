"""Ranks in reserve: they wait for the words of any job, and are then that job."""

import json

import pytest

from hepti_mpi.comm import reserve
from solver.base.errors import HeptiError
from tests.kit.asked import check_hidden
from tests.kit.commands import complaints, hepti, succeeded
from tests.kit.shared_ranks import jobs


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough("one rank")), 3])
def test_ranks_in_reserve_become_the_job_that_they_are_told(converted, ranks, tmp_path):
    checkpoint = converted("bert")
    out = tmp_path / "hidden.npz"
    told = {"run": ["--model", str(checkpoint.path), "--input", "-", "--output", str(out)]}
    # In one piece: what follows the first line is the job's.
    done = hepti(ranks, "reserve", stdin=f'{json.dumps(told)}\n{{"tokens": [5, 6, 7]}}\n')

    assert json.loads(succeeded(done).stdout.splitlines()[0]) == {"reserve": ranks}
    check_hidden(out, {1: checkpoint.expected([5, 6, 7])})


def test_what_is_no_job_is_one_line(kept):
    for line in ("", "{}", "[]", '{"run": [1]}', '{"run": "--model"}', "run"):
        with pytest.raises(HeptiError) as raised:
            reserve._words(line.encode())
        kept(raised.value)

    done = hepti(1, "reserve", stdin="run\n")

    (complaint,) = complaints(done)
    assert done.returncode == 2
    assert "are told" in complaint


def test_bad_words_of_a_job_are_its_own_complaint():
    done = jobs(2, "reserve", stdin='{"run": ["--model", "nowhere.h5"]}\n')

    (complaint,) = complaints(done)
    assert done.returncode == 2
    assert "nowhere.h5" in complaint
