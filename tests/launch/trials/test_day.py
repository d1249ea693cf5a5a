"""What `bench day` makes of latencies, and of processes that grow."""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.lab.lab import plan_lab
from launch.trials import day, day_command
from launch.trials.asking import Bench, BenchQuestion, Heard
from launch.trials.day import Sample, bench_day, sample
from solver.cluster.named import find_cluster


def samples(*mib):
    return [Sample(number * day_command.MIB, 9) for number in mib]


def test_a_process_is_seen_with_its_memory_and_its_open_files():
    before = sample(os.getpid())
    with Path(os.devnull).open():
        now = sample(os.getpid())

    assert now.descriptors == before.descriptors + 1
    assert now.resident_bytes > day_command.MIB
    assert sample(2**22 + 1) is None


def test_growth_is_counted_behind_the_warm_up():
    """Of ten samples four are of the warm-up, and of six a quarter is one."""
    found = day._grown("rank", samples(1, 50, 90, 100, 100, 101, 101, 101, 103, 102), *samples(1, 1))

    assert found["grown"] == pytest.approx(0.02)
    assert found["descriptors"] == 0


def test_a_process_that_is_gone_has_not_grown():
    assert day._grown("rank", samples(5, 5, 5), Sample(5, 9), None) == {"process": "rank", "gone": True}


def test_one_in_a_hundred_waits_longer_than_the_99th_percentile():
    found = day._latency([1.0] * 97 + [2.0, 3.0, 9.0])

    assert (found["median_s"], found["p99_s"], found["worst_s"], found["p99_by_median"]) == (1.0, 9.0, 9.0, 9.0)
    assert day._latency([1.0] * 98 + [3.0] * 2 + [9.0])["p99_s"] == 3.0


class Asked:
    """A bench whose service is this process, and answers when the lab has changed three times."""

    def __init__(self):
        self.lab = plan_lab("lab", find_cluster("pi4x4"), ssh=True)
        self.told = []
        process = SimpleNamespace(pid=os.getpid())
        acted, kept = {"line": "pi-3 went …", "acted": True}, {"line": "nothing pays", "acted": False}
        models = [{"name": "m", "restarts": 0, "replans": [acted, kept], "reason": "pi-1 is silent"}]
        self.service = SimpleNamespace(process=process, state=lambda: {"models": models})

    def ranks(self):
        return [("pi-1", os.getppid())]

    def ask(self, questions, until, heard):
        assert not until()
        for number in range(len(questions)):
            heard.answers.append((number, (1.0,)))
        heard.took_s["m"] = [0.5] * len(questions)
        assert until()
        while len(self.told) < 3:
            time.sleep(0.01)


def test_a_host_is_slow_and_fast_in_turn_while_all_is_asked(monkeypatch, capsys):
    bench = Asked()
    monkeypatch.setattr(day, "tell_lab", lambda *words: bench.told.append(words))
    monkeypatch.setattr(day, "SAMPLE_S", 0.01)
    monkeypatch.setattr(day, "SETTLED_S", 0.0)
    done = []

    report = bench_day(bench, [BenchQuestion("/", {"model": "m"})] * 8, 0.1, done.append)

    assert bench.told[:3] == [("set", "lab", "pi-3", word) for word in (day.SLOW, day.SAME, day.SLOW)]
    assert sum(done) == report["requests"] == 8
    assert report["changes"] >= 3
    assert len(report["replans"]["m"]) == 1
    assert report["not_ready"] == {"m": ["pi-1 is silent"]}
    day_command.print_tables(report | {"left": 0})
    said = capsys.readouterr().out
    assert "8 requests" in said
    assert "1 of plans: 0 lost" in said
    assert "rank on pi-1" in said


def test_the_faster_model_is_asked_on_until_the_slower_has_all_its_answers():
    class Quick(Bench):
        def __init__(self):
            self._clients, self._going = 2, threading.Event()
            self._going.set()

        def _ask(self, number, question, heard):
            time.sleep(0.02 * (question.path == "/slow"))
            heard.answers.append((number, (1.0,)))

    questions = [BenchQuestion(path, {}) for path in ("/fast", "/slow") for _ in range(10)]
    heard = Heard()
    Quick().ask(questions, lambda: sum(number >= 10 for number, _ in heard.answers) >= 10, heard)
    slow = [number for number, _ in heard.answers if number >= 10]

    assert set(slow) == {*range(10, 20)}
    assert len(slow) <= 12  # a client may have begun with another before the last one has its answer
    assert len(heard.answers) - len(slow) > 10


def test_what_goes_wrong_beside_the_clients_is_told(monkeypatch):
    bench = Asked()

    def refuse(*words):
        bench.told.append(words)
        if len(bench.told) == 3:
            raise OSError("no lab")

    monkeypatch.setattr(day, "tell_lab", refuse)
    with pytest.raises(OSError, match="no lab"):
        bench_day(bench, [BenchQuestion("/", {"model": "m"})], 0.01, lambda _: None)
