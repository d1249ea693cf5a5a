"""What `bench faults` makes of what clients have heard."""

import http.client
import io
import json
import random

import pytest

from launch.bench import faults
from launch.bench.faults import FAULTS, Heard, questions_of, seconds_by_fault
from launch.bench.faults_command import print_tables
from solver.base.errors import HeptiError


class Answer(io.BytesIO):
    """An answer as http.client gives it."""

    status = http.client.OK


def stream(*entries):
    return Answer(b"".join(b"data: " + entry + b"\n\n" for entry in entries))


def chunk(*tokens):
    return json.dumps({"choices": [{"logprobs": {"tokens": [f"token_id:{token}" for token in tokens]}}]}).encode()


def test_tokens_of_a_stream_are_heard_one_by_one():
    times = []

    assert list(faults._tokens(stream(chunk(3), chunk(7, 1), b"[DONE]"), times)) == [3, 7, 1]
    assert len(times) == 3


def test_a_stream_without_an_end_is_a_broken_connection_and_an_error_is_told():
    with pytest.raises(ConnectionError):
        list(faults._tokens(stream(chunk(3)), []))
    with pytest.raises(HeptiError, match="too late"):
        list(faults._tokens(stream(b'{"error": {"message": "too late"}}'), []))


def test_questions_are_of_both_models_in_turn_and_the_same_of_a_seed():
    found = questions_of("m", 50, "e", 90, 6, random.Random(3))

    assert [question.body["model"] for question in found] == ["m", "e"] * 3
    assert found == questions_of("m", 50, "e", 90, 6, random.Random(3))
    assert all(max(question.body.get("prompt", question.body.get("input"))) < 90 for question in found)


def test_every_sort_of_fault_comes_as_often():
    names = faults._in_turn([*FAULTS], 2 * len(FAULTS), random.Random(1))

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
    report = {"lab": "pi4x4", "requests": 9, "lost": ["request 3: no"], "different": 0, "again": 1, "faults": told}

    print_tables(report)

    assert seconds_by_fault(report) == [(names[0], 2, 2.5, 4.0), (names[1], 1, 2.0, 2.0)]
    said = capsys.readouterr().out
    assert "9 requests, 3 faults: 1 lost" in said
    assert "request 3: no" in said


def test_nothing_is_asked_again_but_where_the_connection_breaks(monkeypatch):
    bench = object.__new__(faults.Bench)
    answers = iter([ConnectionError(), (1.0, 2.0)])

    def answer(question, heard):
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    bench._answer = answer
    monkeypatch.setattr(faults, "ASK_AGAIN_S", 0.0)
    heard = Heard()
    bench._ask(5, None, heard)

    assert heard.answers == [(5, (1.0, 2.0))]
    assert (heard.again, heard.errors) == (1, [])
