"""Tables of a terminal: words to the left, numbers to the right."""

from __future__ import annotations

from rich.table import Table


def new_table(title: str, *headings: str, words: int = 1) -> Table:
    """Return a table without rows, of which the first columns are words."""
    table = Table(title=title, title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < words else "right", overflow="fold")
    return table
