"""A system by its name: one of a table, or one device alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean

ALONE = "single:"  # and a device's name: all on that one
AnyPlanner = TypeVar("AnyPlanner")


def planner_named(system: str, systems: Mapping[str, AnyPlanner], alone: Callable[..., Any]) -> AnyPlanner:
    """Return what plans by the named system; `alone` with a `name` is what plans for that device.

    Raises
    ------
    HeptiError
        If there is none of that name.
    """
    if system in systems:
        return systems[system]
    device = system.removeprefix(ALONE)
    if device and device != system:
        return cast(AnyPlanner, partial(alone, name=device))
    raise HeptiError(f"unknown system {system!r}{did_you_mean(system, (*systems, f'{ALONE}DEVICE'))}")
