"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from solver.base.tables import FittedTable, new_console

# Columns of words; all others are of numbers.
WORDS = (
    "host",
    "finding",
    "mend",
    "links",
    "system",
    "kernels",
    "why",
    "beside",
    "source",
    "where",
    "strategy",
    "state",
)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in markdown, aligned as `show` does."""
    rule = ["---" if column in WORDS else "---:" for column in columns]
    return "".join(f"| {' | '.join(row)} |\n" for row in (columns, rule, *rows))


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns whose heads end in a unit stand to the right."""
    table = FittedTable(title=Text(title), title_justify="left")
    for column in columns:
        if column in WORDS:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    new_console().print(table)


def tell(line: str) -> None:
    """Print a sentence beside tables, as wide as these."""
    new_console().print(Text(line))
