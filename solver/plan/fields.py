"""The fields of a plan file: read one by one, every mistake in one line that says where it is, and what to write."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from solver.base.errors import HeptiError, explained, no_text
from solver.base.phrases import counted, did_you_mean
from solver.base.spans import Span

T = TypeVar("T")
Amounts = tuple[float, ...]
_KINDS = {dict: "a table", list: "a list", str: "a text", int: "a whole number", bool: "true or false"}
_SLACK = 0.02  # a person may write 0.33 three times, or 0.34
# What to write where a key is missing, or is of another kind.
_EXAMPLES = {
    "model": '{"name": "bert-base"}', "layers": "[0, 12]", "nodes": "[0, 13]",
    "stages": '[{"runs": […]}]', "runs": '[{"layers": [0, 12], …}]',
    "attention": '{"cut": "heads", "heads": [9, 3]}', "mlp": '{"cut": "columns", "columns": [2048, 1024]}',
    "embedding": '{"cut": "words", "words": [32064, 96192]}',
    "head": '{"cut": "words", "words": [32064, 96192]}',
}  # fmt: skip
# Words of the first version's files, and what says the same now.
_NOW = {
    "block": ("heads", "columns"), "sums": ("input_channels",), "ffn": ("columns",), "inner": ("heads", "columns"),
    "norm": ("rows",), "segments": ("stages",), "shares": ("rows", "channels", "input_channels", "tiles"),
}  # fmt: skip


def _wanted(key: str, kind: Any) -> str:
    """Return what to write under a key, with an example where it is more than a number or a word."""
    example = f", as {_EXAMPLES[key]}" if kind in (dict, list) and key in _EXAMPLES else ""
    return _KINDS.get(kind, "a number") + example


def _meant(word: str, known: Collection[str]) -> str:
    """Return the end of a complaint about a word that is not known: what is, of an old word what it is called now."""
    if now := [new for new in _NOW.get(word, ()) if new in known]:
        return f" (now called {' or '.join(now)})"
    return did_you_mean(word, known, 0.75)


@dataclass(frozen=True, slots=True)
class PlanFields:
    """A table of a plan file, and where it stands in it: with that every complaint begins."""

    table: Mapping[str, Any]
    where: str = ""

    def __contains__(self, key: str) -> bool:
        return key in self.table

    def error(self, text: str) -> HeptiError:
        """Return the complaint about something in this table."""
        return HeptiError(f"{self.where}: {text}" if self.where else text)

    def missing(self, key: str, needed: str) -> HeptiError:
        """Return the complaint that a key is not there, which needs that."""
        return self.error(f"{key!r} is missing: write {needed}")

    def only(self, *known: str) -> None:
        """Refuse other keys."""
        for key in self.table:
            if key not in known:
                raise self.error(f"unknown key {key!r}{_meant(key, known)}")

    def get(self, key: str, kind: Any, *default: Any) -> Any:
        """Return a value of this kind; where it is not there the default, if there is one."""
        if key in self.table or default:
            return self.checked(self.table[key], kind, key) if key in self.table else default[0]
        raise self.missing(key, _wanted(key, kind))

    def checked(self, value: Any, kind: Any, what: str) -> Any:
        """Refuse a value of another kind; true and false are no numbers."""
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise self.error(f"{what} is {value!r}, must be {_wanted(what, kind)}")
        return value

    def word(self, key: str, known: Collection[str], *default: str) -> str:
        """Return one of the words that are known."""
        if key not in self.table and not default:
            raise self.missing(key, f"one of {', '.join(known)}")
        return self.known(self.get(key, str, *default), key, known)

    def known(self, value: str, what: str, known: Collection[str]) -> str:
        """Refuse a word that is none of those known."""
        if value not in known:
            raise self.error(f"unknown {what} {value!r}{_meant(value, known)}")
        return value

    def count(self, key: str, *default: int, least: int = 0) -> int:
        """Return a whole number, of this at least."""
        found: int = self.get(key, int, *default)
        if found < least:
            raise self.error(f"{key} is {found}, must be at least {least}")
        return found

    def several(self, key: str, kind: Any) -> list[Any]:
        """Return a list of values of this kind."""
        return [self.checked(value, kind, key) for value in self.get(key, list)]

    def span(self, key: str, *, empty: bool = False) -> Span:
        """Return a span, written [start, stop]."""
        ends = self.several(key, int)
        if len(ends) != 2 or not 0 <= ends[0] < ends[1] + empty:
            raise self.error(f"{key} is {ends}: write the first, and the one after the last, as [0, 12]")
        return Span(*ends)

    def names(self, key: str) -> tuple[str, ...]:
        """Return different names, one at least."""
        found = tuple(self.several(key, str)) if key in self.table else ()
        if not found:
            raise self.missing(key, 'the names of those that take part, in the order of ranks, as ["pi-0", "pi-1"]')
        if len(set(found)) < len(found):
            raise self.error(f"{key} {', '.join(found)}: one is named twice")
        return found

    def sub(self, key: str, *default: Mapping[str, Any]) -> PlanFields:
        """Return a table within this one."""
        return PlanFields(self.get(key, dict, *default), self._within(key))

    def subs(self, key: str, name: str) -> list[PlanFields]:
        """Return the tables of a list that is not empty; each is called by this name and its number."""
        if not (entries := self.get(key, list)):
            raise self.error(f"{key} is empty: write one {name} at least")
        named = [(entry, f"{name} {number}") for number, entry in enumerate(entries)]
        return [PlanFields(self.checked(entry, dict, name), self._within(name)) for entry, name in named]

    def cut(self, words: Collection[str]) -> tuple[str, PlanFields]:
        """Return by which of these words it is cut, and the same table, whose complaints then name that, too."""
        word = self.word("cut", words)
        return word, PlanFields(self.table, f"{self.where}, cut {word}")

    def numbers(self, axis: str, devices: int, kind: Any = int | float) -> Amounts:
        """Return what every device has of an axis: whole numbers, or parts of one; where `devices` is 0, any count."""
        owners = f"for {counted(devices, 'device')}" if devices else "for the rows of the grid"
        if axis not in self.table:
            raise self.missing(axis, f"numbers {owners}")
        found = tuple(self.several(axis, kind))
        if devices and len(found) != devices:
            raise self.error(f"{axis} has {counted(len(found), 'number')} {owners}: write one for each")
        if not any(found) or min(found) < 0:
            raise self.error(f"{axis} are {list(found)}: none may be negative, and somebody must have some")
        whole = math.inf if max(found) > 1e300 else sum(found)  # a whole number may be too large for a float
        if any(isinstance(number, float) for number in found) and not abs(whole - 1) <= _SLACK:
            raise self.error(
                f"{axis} are {list(found)}, which add up to {whole:g}: write parts that add up to 1, or whole numbers, "
                f"in whose ratio they are shared out"
            )
        return found

    def record(self, kind: type[T]) -> T:
        """Return a dataclass of numbers, and of lists of whole ones, by the names of its fields."""
        fields = {field.name: field.type for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        self.only(*fields)
        values = {}
        for name, form in fields.items():
            single = {"int": int, "float": int | float}.get(str(form))
            values[name] = tuple(self.several(name, int)) if single is None else self.get(name, single)
        return kind(**values)

    def _within(self, name: str) -> str:
        return f"{self.where}, {name}" if self.where else name


def read_with(path: Path, from_text: Callable[[str], T]) -> T:
    """Read a plan file by what reads its text.

    Raises
    ------
    HeptiError
        If the file is missing or is refused, naming it.
    """
    try:
        return from_text(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeptiError(f"cannot read plan {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise HeptiError(f"{path}: {no_text(error)}") from error
    except HeptiError as error:
        raise HeptiError(f"{path}: {error}") from error


def parsed(text: str) -> Any:
    """Return what a text of JSON says.

    Raises
    ------
    HeptiError
        If it is none, or says something twice.
    """
    with explained("not JSON", (ValueError, RecursionError)):
        return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, times in Counter(name for name, _ in pairs).most_common(1):
        if times > 1:
            raise HeptiError(f"{name} is written {times} times in one table: write it once")
    return dict(pairs)
