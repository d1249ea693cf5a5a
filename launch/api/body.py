"""The fields of a body, each checked as it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from launch.api.errors import ApiError
from launch.api.rules import FieldTable, first_refused

MOST_WHOLE = (1 << 31) - 1  # a number of tokens, where nothing else limits it
SHOWN = 100  # characters of what was sent


class Fields:
    """The fields of a JSON body; null is as if a field were not there.

    Parameters
    ----------
    table
        The JSON object.

    Raises
    ------
    ApiError
        From all methods, if a field is not what it must be.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = {name: value for name, value in table.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def value(self, name: str) -> Any:
        """Return a field as it is; None where it is not there."""
        return self._table.get(name)

    def text(self, name: str) -> str:
        """Return a string that must be there."""
        return check_text(self.value(name), name)

    def flag(self, name: str, *, otherwise: bool = False) -> bool:
        """Return a boolean; `otherwise` where it is not there."""
        value = self._table.get(name, otherwise)
        if not isinstance(value, bool):
            raise wrong(name, "a boolean", value)
        return value

    def number(self, name: str, least: float, most: float, otherwise: float) -> float:
        """Return a number between two, both allowed."""
        value = self._table.get(name, otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(name, "a number", value)
        self._check_range(name, value, least, most)
        return float(value)

    def whole(self, name: str, least: int, most: int = MOST_WHOLE) -> int | None:
        """Return a whole number between two, both allowed; None where it is not there."""
        value = self._table.get(name)
        if value is None:
            return None
        if type(value) not in (int, float):
            raise wrong(name, "a whole number", value)
        if not isinstance(value, int):
            raise ApiError(400, f"{name} is {shown(value)}, must be a whole number", name, "invalid_type")
        self._check_range(name, value, least, most)
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object as it is; an empty one where it is not there."""
        value = self._table.get(name, {})
        if not isinstance(value, dict):
            raise wrong(name, "an object", value)
        return value

    def object(self, name: str) -> Fields:
        """Return an object's fields; none where it is not there."""
        return Fields(self.mapping(name))

    def strings(self, name: str, most: int) -> list[str]:
        """Return a string or a list of strings as a list, none of them empty."""
        value = self._table.get(name, [])
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise wrong(name, "a string or a list of strings", value)
        if len(texts) > most:
            raise ApiError(400, f"{name} has {len(texts)} strings, at most {most} are taken", name, "array_too_long")
        if "" in texts:
            raise ApiError(400, f"{name} has an empty string", name, "empty_string")
        return [check_text(text, name) for text in texts]

    def check(self, table: FieldTable, path: str = "") -> None:
        """Refuse what a table refuses or does not know, also within objects; `path` leads to these fields."""
        if (found := first_refused(table, self._table, path)) is not None:
            code = "unsupported_parameter" if found.known else "unknown_parameter"
            raise ApiError(400, found.message, found.name, code)

    @staticmethod
    def _check_range(name: str, value: float, least: float, most: float) -> None:
        if not least <= value <= most:
            raise ApiError(400, f"{name} is {_short(value)}, must be {least} to {most}", name, "invalid_value")


def check_text(value: Any, name: str) -> str:
    """Return a string of whole characters.

    Raises
    ------
    ApiError
        If it is none, or has halves of surrogate pairs.
    """
    if not isinstance(value, str):
        raise wrong(name, "a string", value)
    with suppress(UnicodeEncodeError):
        value.encode()
        return value
    raise ApiError(400, f"{name} is not Unicode: it has half of a surrogate pair", name, "invalid_value")


def wrong(name: str, wanted: str, value: Any) -> ApiError:
    """Return what says that a field is of another kind than it must be, or is missing."""
    if value is None:
        return ApiError(400, f"{name} is missing, it must be {wanted}", name, "missing_required_parameter")
    return ApiError(400, f"{name} must be {wanted}, not {kind_of(value)}", name, "invalid_type")


def shown(value: Any) -> str:
    """Return what a client has sent as a sentence can show it: of a long string the beginning, of a list its kind."""
    if isinstance(value, str):
        return value if len(value) <= SHOWN else f"{value[:SHOWN]} …"
    return _short(value) if type(value) in (int, float) else kind_of(value)


def kind_of(value: Any) -> str:
    """Return what JSON calls a value."""
    names = {
        bool: "a boolean", int: "a whole number", float: "a number", str: "a string", list: "a list", dict: "an object"
    }  # fmt: skip
    return names.get(type(value), "null")


def _short(value: float) -> str:
    """Return a number as a few characters: JSON has numbers of thousands of digits."""
    return str(value) if isinstance(value, float) or value.bit_length() < 80 else f"of {value.bit_length()} bits"
