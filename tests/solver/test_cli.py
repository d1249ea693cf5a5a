"""The planning command line, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from solver.model import named_model
from solver.plan import plan_from_json

CLUSTER = """
format = "hepti-cluster/1"
[[device]]
name = "pi-0"
gflops = 24.6
memory_gib = 3.2
[[device]]
name = "pi-1"
gflops = 70
memory_gib = 6
[network]
bandwidth_mbps = 940
"""


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    return path


def solver(*arguments):
    return subprocess.run([sys.executable, "-m", "solver", *map(str, arguments)], capture_output=True, text=True)


def test_plan_is_printed_as_a_table(cluster):
    done = solver("--model", "bert-base", "--cluster", cluster, "--system", "megatron")

    assert (done.returncode, done.stderr) == (0, "")
    assert "pi-1" in done.stdout
    assert "heads" in done.stdout


def test_json_and_out_give_the_same_plan_that_fits_the_model(cluster, tmp_path):
    done = solver("--model", "bert-base", "--cluster", cluster, "--rows", 64, "--json", "--out", tmp_path / "plan.json")

    plan = plan_from_json(done.stdout)
    plan.check(named_model("bert-base"), ranks=2)
    assert plan.rows == 64
    assert json.loads(done.stdout) == json.loads((tmp_path / "plan.json").read_text())


def test_help_has_an_example():
    done = solver("--help")

    assert done.returncode == 0
    assert "example: python -m solver --model" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--modle", "bert-base"], "required: --model"),
        (["--model", "bert-lage", "--cluster", "CLUSTER"], "did you mean bert-large"),
        (["--model", "bert-base", "--cluster", "nowhere.toml"], "cannot read cluster file nowhere.toml"),
        (["--model", "bert-base", "--cluster", "CLUSTER", "--rows", "0"], "--rows is 0"),
        (["--model", "bert-base", "--cluster", "CLUSTER", "--rows", "513"], "512 positions"),
        (["--model", "vit-base", "--cluster", "CLUSTER", "--rows", "200"], "197 rows"),
        (["--model", "bert-base", "--cluster", "CLUSTER", "--rows", "x"], "invalid int value"),
        (["--model", "bert-base", "--cluster", "CLUSTER", "--layers", "0"], "--layers is 0"),
        (["--model", "bert-base", "--cluster", "CLUSTER", "--system", "galxy"], "unknown system"),
        (["--model", "bert-base", "--cluster", "CLUSTER", "--out", "no/such/plan.json"], "cannot write plan"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(cluster, arguments, complaint):
    done = solver(*(cluster if argument == "CLUSTER" else argument for argument in arguments))

    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
