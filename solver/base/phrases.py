"""Words for people."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal


def counted(number: int, noun: str) -> str:
    """Return how many there are: "1 row", "2 rows"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def percent(part: float) -> str:
    """Return a part of one to two digits, as a person writes it: "0.031 %", "490 %"."""
    return f"{Decimal(f'{100 * part:.2g}'):f} %"


def mbps(speeds: Sequence[float]) -> str:
    """Return how fast links are: "940 Mbps", "240 to 940 Mbps"."""
    ends = [f"{float(f'{speed:.3g}'):g}" for speed in (min(speeds), max(speeds))]
    return f"{' to '.join(dict.fromkeys(ends))} Mbps"
