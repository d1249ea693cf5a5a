"""`--plan-by measure`: several plans in turn, each with its weights, and the fastest stays; answers are the same."""

import json

import pytest

from solver.cluster.cluster import write_cluster
from solver.live.trials import cuts_of
from solver.live.turns import TURNS
from solver.plan.file import plan_from_json
from solver.plan.plan import Plan
from tests.kit.asked import check_answer, check_answers, from_lines, of_lengths, to_lines
from tests.kit.clusters import pis
from tests.kit.commands import succeeded
from tests.kit.shared_ranks import jobs

RANKS = 3


@pytest.fixture
def job(converted, tmp_path):
    """Return a checkpoint, and the words of a job on boards for which several kinds of plans are about as fast."""
    write_cluster(pis(*[0.003] * RANKS, mbps=300), tmp_path / "boards.toml")
    checkpoint = converted("bert")
    return checkpoint, (
        "--model", checkpoint.path, "--cluster", tmp_path / "boards.toml", "--report", tmp_path / "report.json",
    )  # fmt: skip


def test_every_answer_is_right_under_every_plan_and_one_stays(job, tmp_path):
    """On standard input, of many lengths: also of those that each plan has other shares for; some four run together."""
    checkpoint, words = job
    lines = of_lengths(*(20 + 37 * number % 230 for number in range(4 * 4 * TURNS)))

    done = succeeded(jobs(RANKS, *words, "--input", "-", "--plan-by", "measure", stdin=to_lines(lines)))

    for answer, line in zip(from_lines(done.stdout), lines, strict=True):
        check_answer(answer, checkpoint.expected(line["tokens"]))
    trials = json.loads((tmp_path / "report.json").read_text())["trials"]
    assert len(trials) > 1
    assert [entry["turns"] for entry in trials] == [TURNS] * len(trials)
    (stays,) = (entry for entry in trials if entry["stays"])
    assert stays["seconds"] == min(entry["seconds"] for entry in trials)
    assert f"{len(trials)} plans tried in turn" in done.stderr
    assert f"{stays['cuts']} stays" in done.stderr


def test_the_plan_that_stays_is_that_of_the_report(job, tmp_path):
    checkpoint, words = job
    path, lines = tmp_path / "requests.jsonl", of_lengths(128)
    path.write_text(to_lines(lines))
    answers = tmp_path / "answers.jsonl"

    again = ("--input", path, "--output", answers, "--repeat", 4 * TURNS)
    succeeded(jobs(RANKS, *words, *again, "--plan-by", "measure"))

    check_answers(answers.read_text(), {0: checkpoint.expected(lines[0]["tokens"])})
    report = json.loads((tmp_path / "report.json").read_text())
    (stays,) = (entry for entry in report["trials"] if entry["stays"])
    assert cuts_of(plan_from_json(json.dumps(report["plan"]), Plan)) == stays["cuts"]


def test_few_requests_are_not_worth_the_weights_of_other_plans(job, tmp_path):
    _, words = job

    succeeded(jobs(RANKS, *words, "--random", 128, "--repeat", 2))

    assert json.loads((tmp_path / "report.json").read_text())["trials"] == []


@pytest.mark.slow("sixty requests twice, of which the first ones try plans")
def test_many_requests_are_worth_trying_plans_unless_a_person_says_otherwise(job, tmp_path):
    _, words = job
    tried = []
    for more in ((), ("--plan-by", "estimate")):
        succeeded(jobs(RANKS, *words, "--random", 128, "--repeat", 60, *more))
        tried.append(len(json.loads((tmp_path / "report.json").read_text())["trials"]))

    assert tried[0] > 1
    assert tried[1] == 0
