"""In a narrow terminal tables break headings first, then cells between words, and are not shown without a row."""

import io
import os

import pytest
from rich.console import Console
from rich.text import Text

from solver.base.tables import FittedTable, new_console, new_table


def shown(table, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue().splitlines()


def example():
    table = new_table("who", "device", "what it computes", "compute ms", "weights MiB", words=2)
    table.add_row("pi-0", "28 rows, edges first", "12.5", Text("342"))
    table.add_row("raspberrypi", "14 rows", "100.25", "[bold]7[/]")
    return table


def test_where_there_is_room_nothing_is_broken():
    lines = shown(example(), 80)

    assert "┃ device      ┃ what it computes     ┃ compute ms ┃ weights MiB ┃" in lines
    assert "│ pi-0        │ 28 rows, edges first │       12.5 │         342 │" in lines


def test_headings_break_before_cells():
    lines = shown(example(), 64)

    assert max(map(len, lines)) <= 64
    assert any(line.startswith("│ pi-0        │ 28 rows, edges first │") for line in lines)
    assert not any("weights MiB" in line for line in lines)


@pytest.mark.parametrize("width", range(47, 80))
def test_no_word_is_broken(width):
    lines = shown(example(), width)

    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.replace("┃", " ").replace("│", " ").split()}
    assert {"device", "computes", "compute", "weights", "raspberrypi", "edges", "100.25", "342", "7"} <= words


def test_a_column_that_must_not_break_does_not():
    table = example()
    table.columns[1].no_wrap = True

    assert any("28 rows, edges first" in line for line in shown(table, 62))


def test_a_table_without_a_row_is_not_shown():
    assert shown(new_table("who", "device"), 80) == []


def test_without_headings_only_cells_count():
    table = FittedTable("", "", show_header=False)
    table.add_row("model", "a rather long sentence about it")

    assert "│ model │ a rather long sentence about it │" in shown(table, 80)
    assert max(map(len, shown(table, 30))) <= 30


def test_columns_for_which_there_is_no_room_stand_below_beside_the_same_words():
    lines = shown(example(), 40)

    assert max(map(len, lines)) <= 40
    assert lines[0].strip() == "who"
    heads = [line for line in lines if line.startswith("┃") and "device" in line]
    assert [[cell.strip() for cell in line.split("┃")[1:-1]] for line in heads] == [
        ["device", "computes", "ms"],
        ["device", "computes", "MiB"],
    ]
    assert "raspberrypi" in " ".join(lines)
    assert "100.25" in " ".join(lines)


def test_without_room_for_the_words_in_front_they_break():
    assert max(map(len, shown(example(), 20))) <= 20


@pytest.mark.parametrize(("told", "width"), [(None, 80), ("60", 60), ("200", 200)])
def test_into_a_pipe_tables_are_as_wide_as_columns_says_or_80(told, width, monkeypatch):
    """Whatever the terminal of standard input is."""
    monkeypatch.setattr("os.get_terminal_size", lambda number=0: os.terminal_size((170, 50)))
    monkeypatch.delenv("COLUMNS", raising=False)
    if told:
        monkeypatch.setenv("COLUMNS", told)

    assert new_console(file=io.StringIO()).width == width
