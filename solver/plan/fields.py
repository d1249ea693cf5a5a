"""The fields of a plan file: reading them one by one, every mistake in one line that names the field."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from solver.base.errors import HeptiError, explained, no_text
from solver.base.spans import Span
from solver.plan.plan import Prediction

FORMAT = "hepti-plan/1"

T = TypeVar("T")


def read_with(path: Path, from_json: Callable[[str], T]) -> T:
    """Read a plan file by what reads its text.

    Raises
    ------
    HeptiError
        If the file is missing or is refused, naming it.
    """
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeptiError(f"cannot read plan {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise HeptiError(f"{path}: {no_text(error)}") from error
    except HeptiError as error:
        raise HeptiError(f"{path}: {error}") from error


def plan_table(text: str) -> dict[str, Any]:
    """Return the JSON of a plan of any kind.

    Raises
    ------
    HeptiError
        If it is not JSON, or of another format.
    """
    with explained("not JSON", (ValueError, RecursionError)):
        table = json.loads(text)
    if not isinstance(table, dict) or "format" not in table:
        raise HeptiError(f'no plan, which is a JSON object with "format": "{FORMAT}": hepti plan --out writes one')
    if table["format"] != FORMAT:
        raise HeptiError(f"format is {table['format']!r}, this version reads {FORMAT!r}")
    return table


def named_in(table: dict[str, Any]) -> str:
    """Return the name of the model that a plan is for."""
    return str(get(get(table, "model", dict, {}), "name", str, "of no name"))


def prediction_of(entry: Any) -> Prediction:
    """Return what the planner expects, of the table that has it."""
    return Prediction(
        seconds=get(entry, "seconds", int | float),
        compute_s=get(entry, "compute_s", int | float),
        exchange_s=get(entry, "exchange_s", int | float),
        weights_bytes=tuple(checked(size, int, "weights_bytes") for size in get(entry, "weights_bytes", list)),
        bytes_on_wire=get(entry, "bytes_on_wire", int),
    )


def prediction_to_table(facts: Prediction) -> dict[str, Any]:
    """Write what the planner expects."""
    return {
        "seconds": facts.seconds,
        "compute_s": facts.compute_s,
        "exchange_s": facts.exchange_s,
        "weights_bytes": list(facts.weights_bytes),
        "bytes_on_wire": facts.bytes_on_wire,
    }


def devices_of(entry: Any) -> tuple[str, ...]:
    """Return the devices that a table names."""
    devices = tuple(checked(name, str, "the name of a device") for name in get(entry, "devices", list))
    if not devices:
        raise HeptiError("plan: devices is empty: write the names of those that take part")
    if len(set(devices)) < len(devices):
        raise HeptiError(f"plan: devices {', '.join(devices)}: one is named twice")
    return devices


def span_of(value: Any) -> Span:
    """Return a span, written [start, stop]."""
    if not isinstance(value, list) or len(value) != 2:
        raise HeptiError(f"{value!r} is not a span: write [start, stop]")
    start, stop = (checked(end, int, "the end of a span") for end in value)
    return Span(start, stop)


def get(entry: Any, key: str, kind: Any, *default: Any) -> Any:
    """Return a value of the JSON; KeyError if it is not there and has no default."""
    table = checked(entry, dict, f"what holds {key}")
    return checked(table[key], kind, key) if key in table or not default else default[0]


def checked(value: Any, kind: Any, what: str) -> Any:
    """Refuse a value of another kind; true and false are no numbers."""
    if not isinstance(value, kind) or isinstance(value, bool):
        words = {dict: "a table", list: "a list", str: "a text", int: "a whole number"}
        raise HeptiError(f"{what} is {value!r}, must be {words.get(kind, 'a number')}")
    return value


def not_negative(value: int, what: str) -> int:
    """Refuse a number below zero."""
    if value < 0:
        raise HeptiError(f"{what} is {value}, must not be negative")
    return value


def one_of(value: str, what: str, known: Sequence[str]) -> str:
    """Refuse a word that is none of those known."""
    if value not in known:
        raise HeptiError(f"{what} {value!r} is not one of {', '.join(known)}")
    return value
