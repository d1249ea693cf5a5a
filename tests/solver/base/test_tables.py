"""In a narrow terminal tables break headings first, then cells between words, and are not shown without a row."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from solver.base.tables import FittedTable, new_table


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
