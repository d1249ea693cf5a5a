"""`bench shift`: what its script changes, who is asked when, and what its oracle knows."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from launch.base import plot
from launch.bench import shift as bench_shift
from launch.bench.shift import Phase, State, script
from launch.bench.shift_command import draw_picture, print_tables
from launch.compare.model import BenchModel
from launch.lab.lab import plan_lab
from solver.cluster.cluster import GIB
from solver.model.named import named_model
from tests.kit.clusters import pis
from tests.kit.figures import check_readable, drawn_by, legend

SPEC = named_model("bert-base")
MODEL = BenchModel(Path("/model.h5"), SPEC)
CLUSTER = pis(24.6, 70, 24.6, 10)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Return a lab that is not up."""
    monkeypatch.setattr("launch.lab.lab.RUNTIME", tmp_path)
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


class Labs:
    """In the place of labs: notes what is asked of whom, and refuses what stands still."""

    def __init__(self, monkeypatch):
        self.awake, self.asked, self.states, self.plans = [], [], [], []
        monkeypatch.setattr(bench_shift.lab_up, "another", lambda lab, name: nullcontext(replace(lab, name=name)))
        monkeypatch.setattr(bench_shift.lab_up, "awake", self.let_go_on)
        monkeypatch.setattr(bench_shift, "_profile", lambda *_: CLUSTER)
        monkeypatch.setattr(bench_shift, "_state", self.state)
        monkeypatch.setattr(bench_shift, "_write", lambda lab, plan: self.plans.append((lab.name, plan)))
        monkeypatch.setattr(bench_shift, "_start", lambda lab, *_: lab.name)
        monkeypatch.setattr(bench_shift, "_ask", self.ask)
        monkeypatch.setattr(bench_shift, "_end", lambda lab, job: [f"by {job}"])

    @contextmanager
    def let_go_on(self, lab):
        self.awake.append(lab.name)
        yield
        self.awake.remove(lab.name)

    def state(self, lab, state):
        self.states.append((lab.name, state))
        return nullcontext()

    def ask(self, job, rows):
        assert self.awake == [job]
        self.asked.append(job)
        return 0.1 * int(job[-1])


def test_strategies_take_turns_each_on_a_lab_of_its_own_while_the_others_stand_still(lab, monkeypatch):
    slow = State(cpu={"pi-1": 0.1})
    labs = Labs(monkeypatch)
    monkeypatch.setattr(
        bench_shift, "script", lambda *_: [Phase("calm", 7, State()), Phase("slow", 1, slow), Phase("calm", 2, State())]
    )

    report = bench_shift.bench_shift(lab, MODEL, 128, 7, ["static-equal", "live-hepti", "oracle"])

    own = ["shift-1", "shift-2", "shift-3"]
    assert labs.asked == [name for turn in (5, 2, 1, 2) for name in own for _ in range(turn)]
    assert labs.states == [(name, state) for state in (State(), slow, State()) for name in own]
    totals = {entry["system"]: entry["total_s"] for entry in report["results"]}
    assert totals == pytest.approx({"static-equal": 1.0, "live-hepti": 2.0, "oracle": 3.0})
    assert [len(entry["latency_s"]) for entry in report["results"]] == [10, 10, 10]
    assert [entry["replans"] for entry in report["results"]] == [["by shift-1"], ["by shift-2"], []]
    # The plan that stays, and the oracle's for every state.
    assert [name for name, _ in labs.plans] == ["shift-1", "shift-3", "shift-3", "shift-3"]
    calm, slowed, calm_again = (plan for name, plan in labs.plans if name == "shift-3")
    assert calm == calm_again != slowed
    assert slowed.predicted_s > 1.5 * calm.predicted_s


def test_a_person_sees_totals_beside_the_best_and_what_every_state_took(capsys, kept):
    def entry(name, *latency_s):
        return {"system": name, "latency_s": latency_s, "total_s": sum(latency_s), "replans": [{"taken": True}]}

    results = [
        entry("static-equal", 0.5, 0.5, 0.5, 0.5, 3.0),
        entry("static-hepti", 0.4, 0.4, 0.4, 0.4, 2.4),
        entry("live-hepti", 0.4, 0.3, 0.35, 0.25, 0.7),
        entry("oracle", 0.4, 0.3, 0.3, 0.3, 0.3),
    ]
    of = {"model": "bert-base", "layers": 1, "rows": 128, "cluster": "mixed4", "lab_scale": 0.5, "mbps": [940.2, 240.0]}
    phases = [{"name": "calm", "requests": 4}, {"name": "blip", "requests": 1}]
    print_tables({**of, "results": results, "phases": phases})

    kept(capsys.readouterr().out)


def test_the_picture_names_the_labs_states_and_marks_where_plans_changed(monkeypatch, tmp_path):
    """A request after the three before the script is the first that is drawn."""
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    replans = [{"taken": True, "after_requests": 3 + 5}, {"taken": False, "after_requests": 3 + 6}]
    results = [
        {"system": "static-equal", "latency_s": [0.5] * 8, "replans": []},
        {"system": "live-hepti", "latency_s": [0.1, 0.1, 0.1, 0.1, 0.9, 0.4, 0.1, 0.1], "replans": replans},
    ]
    of = {"model": "bert-base", "layers": 1, "rows": 128, "cluster": "mixed4", "lab_scale": 0.5, "mbps": [940.2]}
    states = [("calm", 4), ("cpu 25 %", 2), ("calm", 1), ("blip", 1)]
    phases = [{"name": name, "requests": requests} for name, requests in states]
    drawn = drawn_by(monkeypatch, plot)

    draw_picture({**of, "results": results, "phases": phases}, tmp_path, tmp_path)

    (figure,) = drawn
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["cpu 25 %", "blip"]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(3.5, 2), (6.5, 1)]
    assert legend(figure) == ["static-equal", "live-hepti", "live-hepti changes its plan"]
    (changes,) = (line for line in axes.lines if line.get_linestyle() == "None")
    assert [*changes.get_xdata(), *changes.get_ydata()] == [5, 400]
    check_readable(figure)


def test_the_oracle_plans_every_state_with_the_true_values(lab):
    slow = State(cpu={"pi-1": 0.25}, link={"pi-1": 0.5}, memory={"pi-2": GIB}, busy=("pi-0",))

    truth = bench_shift._truth(lab, CLUSTER, slow)

    now, was = truth.devices, CLUSTER.devices
    factors = [device.compute_flop_per_s / before.compute_flop_per_s for device, before in zip(now, was, strict=True)]
    assert factors == pytest.approx([0.5, 0.25, 1, 1])
    links = [truth.bandwidth(rank) / CLUSTER.bandwidth(rank) for rank in range(4)]
    assert links == pytest.approx([1, 0.5, 1, 1])
    assert [device.memory_bytes for device in now] == [
        was[0].memory_bytes,
        was[1].memory_bytes,
        GIB,
        was[3].memory_bytes,
    ]
