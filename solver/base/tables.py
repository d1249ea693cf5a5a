"""Tables of a terminal: words to the left, numbers to the right; in narrow ones lines end between words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.styled import Styled
from rich.table import Table
from rich.text import Text

BESIDE = 3  # characters of a column besides its text: padding, and a line
WIDTH = 80  # where there is no terminal to ask, and COLUMNS does not say


class FittedTable(Table):
    """A table that breaks headings first, and cells between words, where the terminal is narrow.

    Where words would break, columns move to a table below, which begins with the same columns of words. The title is as
    wide as the terminal. Without a row nothing is shown.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what the terminal shows."""
        if not self.rows:
            return
        if self.title:
            title = console.render_str(self.title) if isinstance(self.title, str) else self.title
            yield Styled(title, "table.title")
        for part in self._parts(console, options.max_width):
            part._fit(console, options.max_width)
            yield from super(FittedTable, part).__rich_console__(console, options)

    def _parts(self, console: Console, width: int) -> Iterator[FittedTable]:
        """Yield this table, or where words would break several, each with the columns of words that stand in front.

        These are the first one at least, and alone where all are words.
        """
        room, found = width - 1, [*self._widths(console)]
        words = [column.justify == "left" for column in self.columns]
        keys = max(words.index(False), 1) if False in words else 1
        if sum(least + BESIDE for _, _, least in found) <= room:
            parts = [[*range(keys, len(words))]]
        else:
            needed = [BESIDE + (least if left else whole) for left, (_, whole, least) in zip(words, found, strict=True)]
            parts = [[]]
            for number in range(keys, len(words)):
                if parts[-1] and sum(needed[:keys]) + sum(needed[each] for each in (*parts[-1], number)) > room:
                    parts.append([])
                parts[-1].append(number)
        for numbers in parts:
            part = copy(self)
            part.title = None
            columns = (self.columns[number] for number in (*range(keys), *numbers))
            part.columns = [replace(column, _index=index) for index, column in enumerate(columns)]
            yield part

    def _widths(self, console: Console) -> Iterator[tuple[int, int, int]]:
        """Yield every column's width as it is, with its heading broken, and with its cells broken, too."""

        def longest(cells: Sequence[RenderableType], *, words: bool = False) -> int:
            texts = (console.render_str(cell) if isinstance(cell, str) else cell for cell in cells)
            lines = (line for text in texts if isinstance(text, Text) for line in text.plain.splitlines())
            return max((cell_len(part) for line in lines for part in (line.split() if words else [line])), default=0)

        for column in self.columns:
            heads, cells = [column.header] if self.show_header else [], [*column.cells]
            cell, word = longest(cells), max(longest(heads, words=True), longest(cells, words=True))
            whole = max(longest(heads, words=True), cell)
            yield max(longest(heads), cell), whole, whole if column.no_wrap else word

    def _fit(self, console: Console, width: int) -> None:
        """Give every column a width, if there is a way that breaks no word."""
        widths, whole, least = ([*each] for each in zip(*self._widths(console), strict=True))
        room = width - BESIDE * len(widths) - 1
        for floor in (whole, least):
            while sum(widths) > room and any(size > end for size, end in zip(widths, floor, strict=True)):
                wide = [size if size > end else 0 for size, end in zip(widths, floor, strict=True)]
                widths[wide.index(max(wide))] -= 1
        for column, size in zip(self.columns, widths, strict=True):
            column.width = size if sum(widths) <= room else None


class PipedConsole(Console):
    """A console that leaves it to the program what a pipe is whose reader has gone; rich ends it with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise what `print` has caught."""
        raise


def new_console(**options: Any) -> Console:
    """Return where tables go: as wide as COLUMNS says, else as the terminal is, else 80 characters.

    Parameters
    ----------
    **options
        As `Console` has them.
    """
    console = PipedConsole(**options)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH  # rich would ask the terminal of standard input
    return console


def new_table(title: str, *headings: str, words: int = 1) -> FittedTable:
    """Return a table without rows, of which the first columns are words."""
    table = FittedTable(title=title, title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < words else "right", overflow="fold")
    return table
