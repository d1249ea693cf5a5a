"""Starts: hostfiles, mpirun command lines, the doctor, the virtual lab, benchmarks.

`from launch import Cluster` starts a model on hosts from a program. (What it is to plan for is another thing, the
description in `solver.cluster.cluster`.)

This file imports nothing until `Cluster` is asked for.
"""

TYPE_CHECKING = False  # not imported from typing; type checkers know the name
if TYPE_CHECKING:
    from launch.program import HostCluster as Cluster
    from launch.program import StartedModel as StartedModel

    __all__ = ["Cluster", "StartedModel"]


def __getattr__(name: str) -> object:
    """Import what programs use when they ask for it."""
    names = {"Cluster": "HostCluster", "StartedModel": "StartedModel"}
    if name not in names:
        raise AttributeError(f"module 'launch' has no attribute {name!r}")
    from launch import program

    found: object = getattr(program, names[name])
    return found
