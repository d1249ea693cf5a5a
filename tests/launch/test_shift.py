"""`bench shift`: what its script changes, and what its oracle knows."""

from pathlib import Path

import pytest

from launch import bench_shift
from launch.bench_shift import Phase, State, oracle, script
from launch.lab import plan_lab
from solver.cluster import GIB
from solver.model import named_model
from solver.plan_file import read_plan
from tests.solver.clusters import pis

SPEC = named_model("bert-base")
CLUSTER = pis(24.6, 70, 24.6, 10)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Return a lab that is not up."""
    monkeypatch.setattr("launch.lab.RUNTIME", tmp_path)
    (tmp_path / "shift").mkdir()
    return plan_lab("shift", CLUSTER)


def test_the_script_changes_one_thing_at_a_time_and_ends_with_a_blip(lab):
    phases = script(lab, 15, GIB)

    assert [phase.name for phase in phases[1::2]] == ["cpu 25 %", "link 240", "both", "competitor", "memory", "blip"]
    assert all(phase.state == State() and phase.requests == 15 for phase in phases[::2])
    assert [phase.requests for phase in phases[1::2]] == [15] * 5 + [1]


def test_memory_goes_down_to_what_a_rank_needs(lab):
    (memory,) = (phase.state.memory for phase in script(lab, 15, GIB) if phase.state.memory)

    assert GIB + 300 * 2**20 < memory["pi-1"] < lab.host("pi-1").memory_bytes


@pytest.mark.parametrize("fastest", [0, 1])
def test_the_oracle_takes_whatever_is_fastest_where_all_is_known(lab, fastest, monkeypatch):
    """In every state the planner's plan and the best plan by rows are run, made for the true speeds."""
    asked = []

    def run(lab, model, rows, options, phases, before):
        seconds = 0.1 if len(asked) % 2 == fastest else 0.2
        asked.append((phases[0].name, read_plan(Path(options[1])).predicted.seconds))
        return {"latency_s": [seconds + number / 1000 for number in range(phases[0].requests)]}

    monkeypatch.setattr(bench_shift, "_run", run)
    slow = State(cpu={"pi-1": 0.1}, memory={"pi-2": GIB})
    phases = [Phase("calm", 9, State()), Phase("slow", 1, slow), Phase("calm", 9, State())]

    report = oracle(lab, "model.h5", SPEC, CLUSTER, 128, phases)

    assert [name for name, _ in asked] == ["calm", "calm", "slow", "slow"]
    assert asked[2][1] > 1.5 * asked[0][1]
    assert report["total_s"] == pytest.approx(sum(report["latency_s"]))
    calm = [0.1 + number / 1000 for number in range(9)]  # as measured: totals of other strategies have outliers, too
    assert report["latency_s"] == [*calm, 0.1, *calm]
    assert [state["name"] for state in report["states"]] == ["calm", "slow"]
    for state in report["states"]:
        assert list(state["median_s"]) == ["best", "by rows"]
        # Of nine requests, and of the eight that a state has at least.
        assert list(state["median_s"].values())[fastest] == pytest.approx(0.104 if state["name"] == "calm" else 0.1035)
