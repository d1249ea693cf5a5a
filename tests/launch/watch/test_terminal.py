"""The picture of a service in a terminal: the numbers of the page, in 80 columns."""

import io
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from launch.watch import terminal
from launch.watch.terminal import Rates, picture, shares_of
from solver.base.errors import HeptiError
from tests.kit import narrow
from tests.launch.serve.states import CONVNET_PLAN, DECODER_PLAN, ENCODER_PLAN, PIS, a_board, a_model, a_state

LLAMA = a_model("llama-3.2-1b", "decoder", DECODER_PLAN, boards=list(PIS))


def shown(*states, width=80):
    """Return what is seen when states have come, one a second."""
    rates, console = Rates(), Console(file=io.StringIO(), width=width)
    for second, state in enumerate(states):
        found = picture(state, rates, float(second))
    console.print(found)
    return console.file.getvalue()


def cells(text, board):
    """Return every row of a board, each its cells."""
    rows = [[cell.strip() for cell in line.split("\u2502")[1:-1]] for line in text.splitlines() if "\u2502" in line]
    return [row for row in rows if row[0] == board]


@pytest.mark.parametrize(
    ("plan", "percents"),
    [(DECODER_PLAN, (18, 53, 18, 11)), (ENCODER_PLAN, (22, 53, 22, 3)), (CONVNET_PLAN, (18, 57, 18, 7))],
)
def test_shares_are_those_of_the_page(plan, percents):
    assert [round(100 * share) for share in shares_of(plan).values()] == list(percents)
    assert sum(shares_of(plan).values()) == pytest.approx(1)


def test_a_plan_of_stages_gives_a_device_what_its_layers_are():
    table = {"cut": "rows", "rows": [0.5, 0.5]}
    stages = [
        {"devices": ["a", "b"], "runs": [{"layers": [0, 3], "attention": table, "mlp": table}]},
        {"devices": ["c"], "runs": [{"layers": [3, 4], "attention": {"cut": "whole"}, "mlp": {"cut": "whole"}}]},
    ]

    assert shares_of({"devices": ["a", "b", "c"], "stages": stages}) == {"a": 0.375, "b": 0.375, "c": 0.25}


def test_numbers_are_of_the_last_seconds():
    busy = LLAMA | {
        "tokens": LLAMA["tokens"] + 8,
        "ranks": [{**rank, "compute_s": 10.25, "wait_s": 4.5, "sent_bytes": 302 * 2**20} for rank in LLAMA["ranks"]],
    }
    text = shown(a_state(LLAMA), a_state(busy))

    assert "4 of 4 boards alive, 0 requests" in text
    assert "8.0 tokens a second, 96 requests" in text
    assert cells(text, "pi-1") == [
        ["pi-1", "alive", "1.50 of 4.00", "62", "56"], ["pi-1", "53", "25", "50", "2.00", "302.0"]
    ]  # fmt: skip
    assert "llama-3.2-1b runs on pi-0, pi-1" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_counter_that_begins_anew_gives_no_speed_yet():
    """The ranks were started again."""
    again = LLAMA | {"tokens": 0}

    assert "ready, - tokens a second" in shown(a_state(LLAMA), a_state(again))


def test_a_lost_board_and_ranks_that_tell_nothing_are_named():
    lost = a_board("pi-3", alive=False, seen_s=5.2)
    hot = a_board("pi-1", throttled=True, temperature_c=None)
    early = LLAMA | {"ranks": [{"rank": rank, "device": name} for rank, name in enumerate(PIS)]}
    waits = a_model("minilm", "encoder", None, state="replanning", reason="pi-3 has been silent for 5 s", boards=[])
    text = shown(a_state(early, waits, boards=[a_board("pi-0"), hot, a_board("pi-2"), lost]))

    assert "3 of 4 boards alive" in text
    assert cells(text, "pi-3")[0] == ["pi-3", "lost, silent for 5 s", "-", "-", "-"]
    assert cells(text, "pi-1")[0][1:] == ["throttled", "1.50 of 4.00", "62", "-"]
    assert cells(text, "pi-0")[1] == ["pi-0", "18", "-", "-", "-", "-"]
    assert "minilm: replanning, - requests a second" in text
    assert "pi-3 has been silent for 5" in text


@pytest.mark.parametrize("ends", ["well", "badly", "before it has said anything"])
def test_in_a_file_the_last_line_ends_however_the_service_does(monkeypatch, ends):
    def states_of(url, key):
        if ends != "before it has said anything":
            yield a_state(LLAMA)
        if ends != "well":
            raise HeptiError("no service")

    monkeypatch.setattr(terminal, "states_of", states_of)
    console = Console(file=io.StringIO(), width=80)
    with suppress(HeptiError):
        terminal.watch("http://here", None, console)

    *_, last = console.file.getvalue().split("\n")
    assert last == ""
    assert ("llama-3.2-1b runs on" in console.file.getvalue()) == (ends != "before it has said anything")


def test_a_service_in_80_columns():
    lost = a_board("pi-3", alive=False, seen_s=5.2)
    text = shown(a_state(LLAMA, boards=[*map(a_board, PIS[:3]), lost]))

    narrow.check(Path(__file__).with_name("test_terminal.txt"), "serve --watch", text, figures=False)
