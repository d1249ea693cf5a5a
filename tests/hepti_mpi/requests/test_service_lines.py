"""Requests come in turn, and what overtakes them at once, however many wait; what waits is bounded."""

import json
import os
import sys
import threading

import pytest

from hepti_mpi.requests import service_lines, stdin
from hepti_mpi.requests.ahead import Ahead
from hepti_mpi.requests.service_lines import Complaint, ServiceLines, id_of
from hepti_mpi.requests.stdin import check_length, read_lines
from solver.base.errors import HeptiError


def asked(**entry):
    return json.dumps(entry).encode()


def taken(lines, *entries):
    """Return the first request among lines, which have all been read when it returns, and the others."""
    read = threading.Event()

    def source():
        yield from entries
        read.set()

    requests = lines.of(source())
    first = next(requests)
    assert read.wait(10)
    return first, requests


@pytest.fixture
def printed(capsys):
    """Return what gives the lines that were printed."""
    return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.timeout(20)
def test_questions_overtake_requests_that_wait_and_all_lines_are_counted(printed):
    lines = ServiceLines()
    entries = [asked(id=1), asked(status="a"), asked(id=2), b"a.png", asked(status=1.5), asked(id=3, status=1)]

    first, rest = taken(lines, *entries)
    lines.tell(lambda: {"model": "m"})

    assert printed() == [{"status": "a", "model": "m"}, {"status": 1.5, "model": "m"}]
    assert [first, *rest] == [(1, entries[0]), (3, entries[2]), (4, b"a.png"), (6, entries[5])]
    lines.tell(pytest.fail)


@pytest.mark.timeout(20)
def test_what_waits_and_is_cancelled_is_never_taken(printed):
    lines = ServiceLines()

    first, rest = taken(lines, asked(id="a"), asked(id="b"), asked(), asked(id="c"), asked(cancel="b"), asked(cancel=3))
    lines.tell(pytest.fail)

    assert [number for number, _ in (first, *rest)] == [1, 4]
    assert printed() == [{"id": name, "finish_reason": "cancelled"} for name in ("b", 3)]
    assert not lines.is_cancelled(1)


@pytest.mark.timeout(20)
def test_what_was_taken_and_is_cancelled_is_left_out_and_the_same_id_can_come_again(printed):
    lines = ServiceLines()

    def source():
        yield asked(id="a")
        yield asked(id="b")
        assert both.wait(10)
        yield from (asked(cancel="a"), asked(cancel="unknown"), asked(cancel="1"), asked(id="a"))

    both = threading.Event()
    requests = lines.of(source())
    numbers = [next(requests)[0], next(requests)[0]]
    both.set()
    numbers.append(next(requests)[0])

    assert numbers == [1, 2, 6]
    assert [lines.is_cancelled(number) for number in numbers] == [True, False, False]
    assert [lines.leaves_out("a", 1), lines.leaves_out("b", 2), lines.leaves_out("a", 6)] == [True, False, False]
    assert printed() == [{"id": "a", "finish_reason": "cancelled"}]
    assert not lines.is_cancelled(1)  # it has ended


@pytest.mark.timeout(20)
def test_a_complaint_ends_a_request_also_a_cancelled_one(printed):
    lines = ServiceLines()

    def source():
        yield from (asked(id="a"), asked(id="b"))
        assert both.wait(10)
        yield asked(cancel="b")

    both = threading.Event()
    requests = lines.of(source())
    for _ in range(2):
        next(requests)
    both.set()
    assert not [*requests]
    for number, name in enumerate("ab", start=1):
        lines.complain(Complaint(f"line {number}: bad", number, name, "bad"))

    assert printed() == [{"id": "a", "error": "bad"}, {"id": "b", "finish_reason": "cancelled"}]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "line",
    [
        b'{"cancel": true}', b'{"cancel": 1.5}', b'{"cancel": null}', b'{"status": [1]}', b'{"status": {}}',
        b'{"status": true}', b'{"status": NaN}', b'{"status": 1e999}', b'["status"]', b'"cancel"', b'{"status": 1',
        b'{"cancel": 1, "status": 2}', b"\xff\"status\"",
        b'{"id": 1, "text": "\\"cancel\\""}', b'{"status": ' + b"9" * 5000 + b"}", b'{"cancel":' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_only_looks_like_a_question_is_a_request(line):
    lines = ServiceLines()

    assert [*lines.of([line])] == [(1, line)]
    assert (lines.take_status(), lines.take_dropped()) == ([], [])


@pytest.mark.timeout(20)
@pytest.mark.parametrize("bound", ["WAITING_LINES", "WAITING_BYTES"])
def test_no_more_is_read_than_may_wait(bound, monkeypatch):
    """After that the reader goes on as soon as there is room; a line larger than all that may wait comes, too."""
    line = asked(id=1, text="a" * 1000)
    few = 10 if bound == "WAITING_LINES" else 10 * sys.getsizeof(line)
    monkeypatch.setattr(service_lines, bound, few)
    given = threading.Semaphore(0)
    count = 0

    def source():
        nonlocal count
        for _ in range(100):
            count += 1
            given.release()
            yield line
        yield line * 20

    requests = ServiceLines().of(source())
    next(requests)
    for _ in range(12):  # ten wait, one was taken, and one is in the reader's hands
        assert given.acquire(timeout=10)
    assert not given.acquire(timeout=0.2)
    assert count == 12
    assert len([*requests]) == 100


@pytest.mark.timeout(20)
def test_what_reading_raises_is_raised_behind_what_was_read():
    def source():
        yield b"1"
        raise FloatingPointError("no")

    requests = ServiceLines().of(source())

    assert next(requests) == (1, b"1")
    with pytest.raises(FloatingPointError):
        next(requests)


@pytest.mark.timeout(20)
def test_whoever_waits_for_a_request_looks_as_soon_as_somebody_asks():
    """Before anything has come, and after a request; the last time when nothing comes any more."""
    looked = threading.Semaphore(0)
    ahead = Ahead(pytest.fail, lambda: told.extend(lines.take_status()) or looked.release())
    lines, told = ServiceLines(ahead.wake), []

    def source():
        for number in range(3):
            yield asked(status=number)
            while number not in told:
                assert looked.acquire(timeout=10)
            yield asked(id=number)
        yield asked(status="last")

    assert [number for number, _ in ahead.of(lines.of(source()))] == [2, 4, 6]
    assert told == [0, 1, 2, "last"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b'{"id": "a"}', "a"), (b'{"id": 0}', 0), (b"{}", 7), (b'{"id": null}', 7), (b'{"id": true}', 7),
        (b'{"id": 1.5}', 7), (b'{"id": "\\ud800"}', 7), (b"[1]", 7), (b"a.png", 7), (b"", 7), (b"\xff", 7),
        (b"[" * 100_000, 7),
    ],
)  # fmt: skip
def test_a_line_without_an_id_is_called_by_its_number(line, name):
    assert id_of(7, line) == name


@pytest.mark.timeout(20)
def test_standard_input_comes_line_by_line_and_too_long_a_one_is_cut(monkeypatch):
    monkeypatch.setattr(stdin, "MOST_LINE_BYTES", 100_000)
    lines = [b"first", b"", b"x" * 100_000, b"y" * 300_000, b"z" * 100_001, b"last"]
    reading, writing = os.pipe()
    threading.Thread(target=lambda: (os.write(writing, b"\n".join(lines)), os.close(writing)), daemon=True).start()

    with os.fdopen(reading) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        found = list(read_lines())

    assert found == [line[:100_001] for line in lines]
    for line in found:
        if len(line) <= 100_000:
            check_length(line)
        else:
            with pytest.raises(HeptiError, match="longer than 100000 bytes"):
                check_length(line)
