"""Requests of many lengths on standard input, each answered under the plan for its length."""

import json

import pytest

from solver.cluster.cluster import write_cluster
from tests.kit.asked import check_answer, from_lines, of_lengths, to_lines
from tests.kit.clusters import pis
from tests.kit.commands import mpirun, succeeded
from tests.kit.long_jobs import long_job
from tests.kit.shared_ranks import jobs

RANKS = 3


@pytest.fixture
def job(converted, tmp_path):
    """Return a checkpoint, and the words of a job on equal boards that are as slow as it is small."""
    write_cluster(pis(*[0.1] * RANKS, mbps=100), tmp_path / "boards.toml")
    checkpoint = converted("bert")
    return checkpoint, (
        "--model", checkpoint.path, "--cluster", tmp_path / "boards.toml", "--input", "-",
        "--report", tmp_path / "report.json",
    )  # fmt: skip


def test_every_line_is_answered_at_once_whatever_its_length(job, tmp_path):
    checkpoint, words = job
    lines = of_lengths(20, 250, 60, 500, 20)

    with long_job(*mpirun(RANKS, *words)) as running:
        for line in lines:
            answer = running.ask(line)
            assert answer["id"] == line["id"]
            check_answer(answer, checkpoint.expected(line["tokens"]))
        code, rest, _ = running.end()

    assert (code, rest) == (0, "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert [request["id"] for request in report["requests"]] == [line["id"] for line in lines]
    assert report["plan"]["rows"] == 128  # nothing was known of the lengths
    assert report["predicted_rows"] == 60
    assert all(entry["compute_s"] > 0 for entry in report["per_rank"])


def test_boards_of_no_use_to_short_requests_do_nothing_for_them(job, tmp_path):
    """They have their weights all the same; what is predicted is for the short ones, too."""
    checkpoint, words = job
    # By rows only: who has heads computes for all lengths.
    write_cluster(pis(*[0.1] * RANKS, mbps=5), tmp_path / "boards.toml")
    lines = of_lengths(20, 18)

    done = succeeded(jobs(RANKS, *words, stdin=to_lines(lines)))
    for answer, line in zip(from_lines(done.stdout), lines, strict=True):
        check_answer(answer, checkpoint.expected(line["tokens"]))
    short = json.loads((tmp_path / "report.json").read_text())
    succeeded(jobs(RANKS, *words, stdin=to_lines(of_lengths(120))))
    long = json.loads((tmp_path / "report.json").read_text())

    at_work = [sum(entry["compute_s"] > 0 for entry in report["per_rank"]) for report in (short, long)]
    assert at_work == [1, 2]
    assert [entry["weights_bytes"] for entry in short["per_rank"]] == [
        entry["weights_bytes"] for entry in long["per_rank"]
    ]
    assert short["plan"] == long["plan"]
    assert 0 < short["predicted_seconds"] < long["predicted_seconds"]
