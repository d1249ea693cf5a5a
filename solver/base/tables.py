"""Tables of a terminal: words to the left, numbers to the right; in narrow ones lines end between words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

BESIDE = 3  # characters of a column besides its text: padding, and a line


class FittedTable(Table):
    """A table that breaks headings first, and cells between words, where the terminal is narrow.

    Without a row it is not shown.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what the terminal shows."""
        if self.rows:
            self._fit(console, options.max_width)
            yield from super().__rich_console__(console, options)

    def _fit(self, console: Console, width: int) -> None:
        """Give every column a width, if there is a way that breaks no word."""

        def longest(cells: Sequence[RenderableType], *, words: bool = False) -> int:
            texts = (console.render_str(cell) if isinstance(cell, str) else cell for cell in cells)
            lines = (line for text in texts if isinstance(text, Text) for line in text.plain.splitlines())
            return max((cell_len(part) for line in lines for part in (line.split() if words else [line])), default=0)

        widths, whole, least = [], [], []
        for column in self.columns:
            heads, cells = [column.header] if self.show_header else [], [*column.cells]
            cell, word = longest(cells), max(longest(heads, words=True), longest(cells, words=True))
            widths.append(max(longest(heads), cell))
            whole.append(max(longest(heads, words=True), cell))
            least.append(whole[-1] if column.no_wrap else word)
        room = width - BESIDE * len(widths) - 1
        for floor in (whole, least):
            while sum(widths) > room and any(size > end for size, end in zip(widths, floor, strict=True)):
                wide = [size if size > end else 0 for size, end in zip(widths, floor, strict=True)]
                widths[wide.index(max(wide))] -= 1
        for column, size in zip(self.columns, widths, strict=True):
            column.width = size if sum(widths) <= room else None


def new_table(title: str, *headings: str, words: int = 1) -> FittedTable:
    """Return a table without rows, of which the first columns are words."""
    table = FittedTable(title=title, title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < words else "right", overflow="fold")
    return table
