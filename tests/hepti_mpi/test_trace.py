"""Traces of several ranks as one Chrome trace."""

import pytest

from hepti_mpi.trace import Trace, chrome_trace


def slices(table, rank):
    return [
        (event["name"], event["cat"], event["ts"], event["dur"])
        for event in table["traceEvents"]
        if event["ph"] == "X" and event["tid"] == rank
    ]


def test_a_block_lasts_until_the_next_one_begins():
    first = Trace([("hand out", 5.0), ("layer 0 mlp", 5.25), ("end", 6.0)], [(5.5, 5.75)])
    second = Trace([("hand out", 5.5), ("end", 5.75)])
    table = chrome_trace(["pi-0", "pi-1"], [first, second])

    assert slices(table, 0) == [
        ("hand out", "compute", 0.0, 250e3),
        ("layer 0 mlp", "compute", 250e3, 750e3),
        ("wait", "wait", 500e3, 250e3),
    ]
    assert slices(table, 1) == [("hand out", "compute", 500e3, 250e3)]
    assert [event["args"]["name"] for event in table["traceEvents"] if event["ph"] == "M"] == ["pi-0", "pi-1"]


def test_a_clock_that_is_ahead_is_set_back():
    assert Trace([("end", 7.5)], [(7.0, 7.25)]).shifted(2.5) == Trace([("end", 5.0)], [(4.5, 4.75)])


def test_only_the_last_request_is_kept():
    trace = Trace()
    trace.begin("hand out")
    trace.waits.append((1.0, 2.0))
    trace.reset()
    trace.begin("end")

    assert [block for block, _ in trace.begun] == ["end"]
    assert trace.waits == []


def test_no_request_is_an_empty_trace():
    assert slices(chrome_trace(["pi-0"], [Trace()]), 0) == pytest.approx([])
