"""What becomes of a field: it is honoured, it cannot change an answer, or it is refused by its name.

A table has every field of an endpoint that OpenAI, vLLM and llama.cpp know. A field that stands in no table is refused,
too: what it would change there is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from solver.base.phrases import did_you_mean


class Fate(Enum):
    """What becomes of a field."""

    HONOURED = "honoured"
    HARMLESS = "changes no answer"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of one field.

    Parameters
    ----------
    fate
        Of any value but `taken`.
    why
        Why it is harmless, or refused.
    taken
        Values of a field that is refused otherwise: those that change nothing.
    inner
        Of an object, or of the objects of a list: its own fields.
    """

    fate: Fate
    why: str = ""
    taken: tuple[Any, ...] = ()
    inner: FieldTable | None = None

    def takes(self, value: Any) -> bool:
        """Return whether a value is let through."""
        return self.fate is not Fate.REFUSED or any(_same(value, one) for one in self.taken)


FieldTable = Mapping[str, Rule]


@dataclass(frozen=True, slots=True)
class RefusedField:
    """A field that is refused.

    Parameters
    ----------
    name
        With the path to it: `messages[0].name`.
    message
        Says why, and what to do.
    known
        Whether it stands in the table.
    """

    name: str
    message: str
    known: bool


def honoured(names: str, inner: FieldTable | None = None) -> dict[str, Rule]:
    """Return the rules of fields, by their names with spaces between, that the code reads."""
    return dict.fromkeys(names.split(), Rule(Fate.HONOURED, inner=inner))


def harmless(why: str, names: str) -> dict[str, Rule]:
    """Return the rules of fields that cannot change an answer."""
    return dict.fromkeys(names.split(), Rule(Fate.HARMLESS, why))


def refused(why: str, names: str, *taken: Any) -> dict[str, Rule]:
    """Return the rules of fields that may only be what changes nothing."""
    return dict.fromkeys(names.split(), Rule(Fate.REFUSED, why, taken))


def first_refused(table: FieldTable, fields: Mapping[str, Any], path: str = "") -> RefusedField | None:
    """Return the first field of an object that is refused, if any; null is as if a field were not there."""
    for name, value in fields.items():
        if value is None:
            continue
        rule, where = table.get(name), f"{path}{name}"
        if rule is None:
            shown = where if len(where) <= 80 else f"{where[:80]} …"
            message = f"{shown} is not a field that is known here{_near(name, table)}: leave it out"
            return RefusedField(shown, message, known=False)
        if not rule.takes(value):
            return RefusedField(where, f"{where} is not supported: {rule.why}: leave it out", known=True)
        if rule.inner is not None:
            for place, inside in _objects(value):
                if (found := first_refused(rule.inner, inside, f"{where}{place}.")) is not None:
                    return found
    return None


def _objects(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield an object, or those of a list, each with its place; what is neither is refused where it is read."""
    if isinstance(value, dict):
        yield "", value
    elif isinstance(value, list):
        yield from ((f"[{number}]", one) for number, one in enumerate(value) if isinstance(one, dict))


def _near(name: str, table: FieldTable) -> str:
    """Return a hint at a field that may be meant; of names that are like none, nothing."""
    hint = did_you_mean(name, [known for known, rule in table.items() if rule.fate is Fate.HONOURED])
    return hint if "did you mean" in hint else ""


def _same(value: Any, one: Any) -> bool:
    """Return whether two JSON values are the same; 1 and 1.0 are, 1 and true are not."""
    return isinstance(value, bool) is isinstance(one, bool) and bool(value == one)
