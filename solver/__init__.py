"""Decides: model and cluster descriptions, cost model, programs and published systems. No MPI, no h5py.

`from solver import make_plan` plans from a program. (The name is not `plan`, which is the room of plans, `solver/plan`:
once that is imported it is `solver.plan`, and would hide a function.)

This file imports nothing until `make_plan` is asked for, so that reading a plan costs only the standard library and
numpy.
"""

TYPE_CHECKING = False  # not imported from typing; type checkers know the name
if TYPE_CHECKING:
    from solver.api import MadePlan as MadePlan
    from solver.api import make_plan as make_plan


def __getattr__(name: str) -> object:
    """Import what programs use when they ask for it."""
    if name not in ("MadePlan", "make_plan"):
        raise AttributeError(f"module 'solver' has no attribute {name!r}")
    from solver import api

    found: object = getattr(api, name)
    return found
