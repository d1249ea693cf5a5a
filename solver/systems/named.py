"""A system by its name: one of a table, or one device alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean

ALONE = "single:"  # and a device's name: all on that one
AnyPlanner = TypeVar("AnyPlanner")


def planner_named(
    system: str,
    systems: Mapping[str, AnyPlanner],
    alone: Callable[..., Any],
    family: str = "encoders",
    of_encoders: Collection[str] = (),
) -> AnyPlanner:
    """Return what plans by the named system.

    Parameters
    ----------
    systems
        Of the `family` of models that is to be planned for.
    alone
        Plans for the device that it is given as `name`.
    of_encoders
        What somebody may name who has read what encoders have.

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
    names = (*systems, f"{ALONE}DEVICE")
    if system in of_encoders:
        raise HeptiError(f"{system!r} is a system of encoders: {family} have {', '.join(names)}")
    raise HeptiError(f"unknown system {system!r}{did_you_mean(system, names)}")
