"""Words for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from difflib import SequenceMatcher, get_close_matches
from textwrap import shorten

JOINERS = "\u200c\u200d"  # no terminal obeys them, and Persian and some emoji need them


def counted(number: int, noun: str) -> str:
    """Return how many there are: "1 row", "2 rows"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def ms(seconds: float) -> str:
    """Return milliseconds to a tenth, as tables have them: "12.3"."""
    return f"{1e3 * seconds:.1f}"


def percent(part: float) -> str:
    """Return a part of one to two digits, as a person writes it: "0.031 %", "490 %"."""
    return f"{Decimal(f'{100 * part:.2g}'):f} %"


def mbps(speeds: Sequence[float]) -> str:
    """Return how fast links are: "940 Mbps", "240 to 940 Mbps"."""
    ends = [f"{float(f'{speed:.3g}'):g}" for speed in (min(speeds), max(speeds))]
    return f"{' to '.join(dict.fromkeys(ends))} Mbps"


def printable(text: str) -> str:
    """Return a stranger's text with line ends, and what a terminal obeys, as Python writes them."""
    return "".join(sign if sign.isprintable() or sign in JOINERS else repr(sign)[1:-1] for sign in text)


def excerpt(text: str, most: int) -> str:
    """Return a text on one line of at most so many characters, cut between words if these are not too long."""
    line, words = " ".join(text.split()), shorten(text, most, placeholder=" …")
    return words if len(words) > most // 2 or words == line else f"{line[: most - 2]} …"


def did_you_mean(word: str, known: Iterable[str], alike: float = 0.6) -> str:
    """Return the end of an error line about a word that is not known: those nearest to it, or all there are.

    Parameters
    ----------
    alike
        How much of the letters two words must have in common, in order; short words have some by chance.
    """
    names = list(known)
    near = get_close_matches(word, names, n=1, cutoff=alike)
    if near:
        # Of pi-0 to pi-3 none is nearer to pi-7 than the others.
        ratio = SequenceMatcher(None, near[0], word).ratio()
        nearest = [name for name in names if SequenceMatcher(None, name, word).ratio() == ratio]
        return f" (did you mean {' or '.join(filter(None, [', '.join(nearest[:-1]), nearest[-1]]))}?)"
    return f" (known: {', '.join(names)})" if names else ""
