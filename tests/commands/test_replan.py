"""The plan lives, seen from outside: answers stay right, and what is decided is said and reported."""

import json

import pytest

from solver import cli as solver
from solver.cluster.cluster import Cluster, Device, Link, write_cluster
from tests.kit import inside
from tests.kit.asked import check_answers, to_lines
from tests.kit.commands import succeeded
from tests.kit.shared_ranks import jobs

ROWS = (64, 100)


@pytest.fixture
def wrong_cluster(tmp_path):
    """Return a cluster file that says of two ranks on one host that one is five times as fast, on a slow link."""
    devices = tuple(Device(f"pi-{number}", speed, 2**33) for number, speed in enumerate((50e9, 10e9)))
    write_cluster(Cluster(devices, Link(1e9, 1e-5)), tmp_path / "cluster.toml")
    return tmp_path / "cluster.toml"


THOROUGH = pytest.mark.thorough("what is decided is tested in tests/hepti_mpi/live; that answers stay right, here once")


@pytest.mark.parametrize(
    ("mode", "given"),
    [("auto", True), *(pytest.param(mode, False, marks=THOROUGH) for mode in ("auto", "dry-run", "off"))],
)
def test_answers_are_right_whatever_is_decided(mode, given, converted, wrong_cluster, tmp_path):
    checkpoint = converted("bert")
    contents = {f"{rows} rows": [7 + row % 40 for row in range(rows)] for rows in ROWS}
    (tmp_path / "requests.jsonl").write_text(to_lines({"id": name, "tokens": ids} for name, ids in contents.items()))
    report = tmp_path / "report.json"
    plan = ()
    if given:
        plan = "--plan", tmp_path / "plan.json"
        succeeded(
            inside.run(
                solver.main, "--model", checkpoint.path, "--cluster", wrong_cluster, "--rows", 64, "--out", plan[1]
            )
        )

    succeeded(
        jobs(
            2, "--model", checkpoint.path, "--cluster", wrong_cluster, *plan, "--input", tmp_path / "requests.jsonl",
            "--output", tmp_path / "answers.jsonl", "--report", report, "--repeat", 200, "--replan", mode,
        )
    )  # fmt: skip

    expected = {name: checkpoint.expected(ids) for name, ids in contents.items()}
    check_answers((tmp_path / "answers.jsonl").read_text(), expected)
    replans = json.loads(report.read_text())["replans"]
    assert mode != "off" or replans == []
    for entry in replans:
        assert entry["acted"] <= (mode == "auto" and entry["taken"])
        assert entry["after_requests"] <= 200
        assert {"after_seconds", "why", "gain_s", "cost_s", "shares"} <= entry.keys()
