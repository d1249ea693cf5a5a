"""What `bench faults` makes of what clients have heard."""

import http.client
import io
import json
import os
import random
import signal
import threading
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.base import plot
from launch.lab.lab import plan_lab
from launch.trials import asking, faults, faults_command, sorts
from launch.trials.asking import Bench, BenchQuestion, Heard
from launch.trials.faults import bench_faults, in_turn, seconds_by_fault
from launch.trials.models import TwoModels
from launch.trials.sorts import FAULTS
from solver.base.errors import HeptiError
from solver.cluster.named import find_cluster
from solver.model.spec import TextInput
from tests.kit.figures import check_readable, drawn_by


class Answer(io.BytesIO):
    """An answer as http.client gives it."""

    status = http.client.OK


def stream(*entries):
    return Answer(b"".join(b"data: " + entry + b"\n\n" for entry in entries))


def chunk(*tokens):
    return json.dumps({"choices": [{"logprobs": {"tokens": [f"token_id:{token}" for token in tokens]}}]}).encode()


def test_tokens_of_a_stream_are_heard_one_by_one():
    times = []

    assert list(asking._tokens(stream(chunk(3), chunk(7, 1), b"[DONE]"), times)) == [3, 7, 1]
    assert len(times) == 3


def test_a_stream_without_an_end_is_a_broken_connection_and_an_error_is_told():
    with pytest.raises(ConnectionError):
        list(asking._tokens(stream(chunk(3)), []))
    with pytest.raises(HeptiError, match="too late"):
        list(asking._tokens(stream(b'{"error": {"message": "too late"}}'), []))


def test_questions_are_of_both_models_in_turn_and_the_same_of_a_seed():
    decoder = SimpleNamespace(path=Path("m.h5"), model=SimpleNamespace(vocab=50))
    text = object.__new__(TextInput)
    object.__setattr__(text, "vocab", 90)
    models = TwoModels(decoder, SimpleNamespace(path=Path("e.h5"), spec=SimpleNamespace(input=text)))
    found = models.questions(6, random.Random(3), most=9, tokens=5)

    assert [question.body["model"] for question in found] == ["m", "e"] * 3
    assert found == models.questions(6, random.Random(3), most=9, tokens=5)
    assert all(max(question.body["prompt"]) < 50 for question in found[::2])
    assert all(4 <= len(question.body["input"]) <= 9 for question in found[1::2])


def test_every_sort_of_fault_comes_as_often():
    names = in_turn([*FAULTS], 2 * len(FAULTS), random.Random(1))

    assert sorted(names) == sorted([*FAULTS] * 2)


def test_silence_is_the_longest_time_without_a_token_behind_a_fault():
    assert faults._longest([1.0, 2.0, 7.0, 8.0], 3.0, 9.0) == 4.0
    assert faults._longest([1.0, 2.0], 3.0, 9.0) == 6.0


def test_answers_are_alike_up_to_rounding():
    assert faults._same((1.0, 2.0), (1.00005, 2.0))
    assert not faults._same((1.0, 2.0), (1.001, 2.0))
    assert not faults._same((1.0, 2.0), (1.0,))


def test_the_table_says_what_is_lost(capsys):
    names = [*FAULTS][:2]
    told = [
        {"fault": names[0], "silent_s": 1.0},
        {"fault": names[0], "silent_s": 4.0},
        {"fault": names[1], "silent_s": 2.0},
    ]
    report = {
        "lab": "pi4x4",
        "requests": 9,
        "lost": ["request 3: no"],
        "different": 0,
        "again": 1,
        "faults": told,
        "left": 0,
    }

    faults_command.print_tables(report)

    assert seconds_by_fault(report) == [(names[0], 2, 2.5, 4.0), (names[1], 1, 2.0, 2.0)]
    said = capsys.readouterr().out
    assert "9 requests, 3 faults: 1 lost" in said
    assert "request 3: no" in said


def test_nothing_is_asked_again_but_where_the_connection_breaks(monkeypatch):
    bench = object.__new__(Bench)
    answers = iter([ConnectionError(), (1.0, 2.0)])

    def answer(question, heard):
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    bench._answer = answer
    monkeypatch.setattr(asking, "ASK_AGAIN_S", 0.0)
    heard = Heard()
    bench._ask(5, BenchQuestion("/", {"model": "m"}), heard)

    assert heard.answers == [(5, (1.0, 2.0))]
    assert (heard.again, heard.errors) == (1, [])
    assert len(heard.took_s["m"]) == 1


class Asked:
    """A bench whose service answers number n with n, and with another number as long as something fails."""

    def __init__(self):
        self.lab = SimpleNamespace(name="lab", scale=1.0, hosts=())
        self.service = SimpleNamespace(wait_ready=lambda: None, wait_whole=lambda boards: None)
        self.paused = nullcontext
        self.failing = False

    def ask(self, questions, until=lambda: True, heard=None):
        heard = heard or Heard()
        while True:
            for number in range(len(questions)):
                heard.answers.append((number, (number + self.failing,)))
                heard.at.setdefault("m", []).append(time.monotonic())
            if until():
                return heard
            time.sleep(0.005)


@pytest.fixture
def asked(monkeypatch):
    """Return a bench on which a and b can fail."""
    bench = Asked()

    def fault(harmful):
        @contextmanager
        def failing(found, rng):
            found.failing = harmful
            yield f"pi-{rng.randrange(4)}"
            time.sleep(0.02)
            found.failing = False

        return failing

    monkeypatch.setattr(faults, "FAULTS", {"a": fault(False), "b": fault(True)})
    monkeypatch.setattr(faults, "CALM_S", (0.01, 0.02))
    monkeypatch.setattr(faults, "FOUND_S", 0.01)
    return bench


def test_every_answer_while_things_fail_is_held_against_the_calm_one(asked):
    questions = [BenchQuestion("/", {}), BenchQuestion("/", {})]
    kept = []
    report = bench_faults(asked, questions, ["a", "b"], 3, kept.append, None)

    assert [entry["fault"] for entry in report["faults"]] == ["a", "b"]
    assert report["different"] > 0
    assert (kept[0]["different"], len(kept[0]["faults"])) == (0, 1)
    assert len(kept) == 2


def test_a_run_that_was_ended_goes_on_behind_the_faults_that_it_has(asked):
    """With the same boards at the same place in the row as in a run of one piece."""
    questions = [BenchQuestion("/", {})]
    whole = bench_faults(asked, questions, ["a", "a", "a"], 3, lambda _: None, None)
    kept = []
    bench_faults(asked, questions, ["a"], 3, kept.append, None)
    report = bench_faults(asked, questions, ["a", "a", "a"], 3, kept.append, kept[0])

    assert [entry["board"] for entry in report["faults"]] == [entry["board"] for entry in whole["faults"]]
    assert report["requests"] > kept[0]["requests"]
    assert [len(found["faults"]) for found in kept] == [1, 2, 3]


def test_a_run_before_counts_where_its_settings_are_the_same(tmp_path):
    settings = {"seed": 3}
    assert faults_command._before(tmp_path, settings) is None
    assert faults_command._before(None, settings) is None
    (tmp_path / "faults.json").write_text(json.dumps({"settings": settings, "faults": []}))

    assert faults_command._before(tmp_path, settings) == {"settings": settings, "faults": []}
    assert faults_command._before(tmp_path, {"seed": 4}) is None


def test_the_help_says_the_one_command(capsys):
    from launch.__main__ import main

    with pytest.raises(SystemExit):
        main(["bench", "faults", "--help"])

    assert "hepti bench faults --out results" in capsys.readouterr().out


@pytest.fixture
def told(monkeypatch):
    """Return what the lab is told, and signals; no time passes."""
    found = []
    monkeypatch.setattr(sorts, "tell_lab", lambda *words: found.append(" ".join(words)))
    monkeypatch.setattr(os, "kill", lambda pid, number: found.append(f"kill -{number} {pid}"))
    monkeypatch.setattr(sorts.time, "sleep", lambda _: None)
    return found


def on_a_lab(name):
    """Do a fault on a lab of four whose rank on pi-2 is process 7."""
    bench = SimpleNamespace(lab=plan_lab("lab", find_cluster("pi4x4"), ssh=True), ranks=lambda: [("pi-2", 7)])
    with FAULTS[name](bench, random.Random(1)) as board:
        return board


def test_what_is_started_again_finds_a_full_disk(told):
    assert on_a_lab("disk full") == "pi-2"
    assert told == ["fill lab pi-2", f"kill -{signal.SIGKILL} 7", "clear lab pi-2"]


def test_nobody_hears_from_a_host_whose_current_is_gone(told):
    assert on_a_lab("rank 0's host restarted") == "pi-0"
    assert told == ["cut lab pi-0", "kill lab pi-0", "mend lab pi-0", "boot lab pi-0"]
    assert on_a_lab("host restarted") != "pi-0"


def test_a_clock_that_is_moved_is_put_right(told, monkeypatch):
    """By the time that has passed meanwhile, on a clock that nobody sets."""
    now = {"wall": 1000.0, "monotonic": 5.0}
    monkeypatch.setattr(sorts.time, "time", lambda: now["wall"])
    monkeypatch.setattr(sorts.time, "monotonic", lambda: now["monotonic"])
    monkeypatch.setattr(sorts.time, "sleep", lambda seconds: now.update(monotonic=now["monotonic"] + seconds))
    moved = []
    monkeypatch.setattr(sorts.time, "clock_settime", lambda clock, value: moved.append((clock, value)))

    assert on_a_lab(sorts.CLOCK) == ""

    assert abs(moved[0][1] - 1000.0) == sorts.HOUR_S
    assert moved[1:] == [(time.CLOCK_REALTIME, 1000.0 + sorts.LASTS_S)]


def test_nothing_is_asked_while_boards_are_taken_in(monkeypatch):
    bench = object.__new__(Bench)
    bench._going, bench._clients = threading.Event(), 1
    asked = []
    monkeypatch.setattr(Bench, "_ask", lambda self, number, question, heard: asked.append(number))
    asking_all = threading.Thread(target=bench.ask, args=([BenchQuestion("/", {})] * 3,))
    with bench.paused():
        asking_all.start()
        time.sleep(0.05)
        assert asked == []
    asking_all.join(10)

    assert asked == [0, 1, 2]


def test_a_service_is_whole_when_every_model_is_planned_for_all_boards(monkeypatch):
    monkeypatch.setattr(asking, "ASK_AGAIN_S", 0.0)
    rest, whole = {"planned_for": ["pi-0"]}, {"planned_for": ["pi-0", "pi-1"]}
    states = [[rest, rest], [whole, rest], [whole, whole]]
    service = asking.StartedService(None, 0)
    monkeypatch.setattr(asking.StartedService, "wait_ready", lambda self: None)
    monkeypatch.setattr(asking.StartedService, "state", lambda self: {"models": states.pop(0)})

    service.wait_whole(2)

    assert states == []


def test_the_picture_names_faults_and_shades_the_silence_behind_them(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    happened = [
        {"fault": "rank killed", "at": 2.0, "silent_s": 1.5},
        {"fault": "cable out", "at": 6.5, "silent_s": 1.0},
    ]
    drawn = drawn_by(monkeypatch, plot)

    faults_command.draw_picture(
        {"lab": "mixed4-faults", "faults": happened, "a_second": {"llama": [4, 5, 0, 0, 4, 5, 4, 0]}},
        tmp_path,
        tmp_path,
    )

    (figure,) = drawn
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["rank killed", "cable out"]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(2.0, 1.5), (6.5, 1.0)]
    check_readable(figure)
