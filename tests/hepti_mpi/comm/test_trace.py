"""Traces of several ranks as one Chrome trace."""

from itertools import pairwise

from hepti_mpi.comm.trace import OUTSIDE, Trace, chrome_trace


def slices(table, rank):
    return [
        (event["name"], event["cat"], event["ts"], event["dur"])
        for event in table["traceEvents"]
        if event["ph"] == "X" and event["tid"] == rank
    ]


def test_all_ranks_are_on_one_clock_that_begins_with_the_first():
    first = Trace([("layer 0 mlp", 5.25, 6.0)], [(5.5, 5.75)])
    second = Trace([(OUTSIDE, 5.0, 5.125)])
    table = chrome_trace(["pi-0", "pi-1"], [first, second])

    assert slices(table, 0) == [("layer 0 mlp", "compute", 250e3, 750e3), ("wait", "wait", 500e3, 250e3)]
    assert slices(table, 1) == [(OUTSIDE, "compute", 0.0, 125e3)]
    assert [event["args"]["name"] for event in table["traceEvents"] if event["ph"] == "M"] == ["pi-0", "pi-1"]


def test_a_clock_that_is_ahead_is_set_back():
    trace = Trace([("layer 0 mlp", 7.0, 7.5)], [(7.0, 7.25)]).shifted(2.5)

    assert (trace.slices, trace.waits) == ([("layer 0 mlp", 4.5, 5.0)], [(4.5, 4.75)])


def test_work_on_a_tile_interrupts_the_block_that_asks_for_it():
    trace = Trace()
    trace.begin()
    tiles = trace.over("mlp", [1, 2])
    with trace.block("attention"):
        assert list(tiles) == [1, 2]
    trace.end()

    names = [name for name, _, _ in trace.slices]
    assert names == [OUTSIDE, "attention", "mlp", "attention", "mlp", "attention", "mlp", "attention", OUTSIDE]
    assert all(one[2] == other[1] for one, other in pairwise(trace.slices))


def test_only_the_last_request_is_kept():
    trace = Trace()
    trace.begin()
    trace.waits.append((1.0, 2.0))
    trace.begin()
    trace.end()

    assert [name for name, _, _ in trace.slices] == [OUTSIDE]
    assert trace.waits == []


def test_no_request_is_an_empty_trace():
    assert slices(chrome_trace(["pi-0"], [Trace()]), 0) == []
