"""The file of `--trace`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace, chrome_trace
from hepti_mpi.requests.outputs import write_json


def write_trace(path: Path, devices: Sequence[str], trace: Trace, group: Group) -> None:
    """Write the traces of all ranks, by rank 0's clock; a step of all ranks.

    Raises
    ------
    SharedError
        If the file cannot be written.
    """
    ahead_s = group.clock_ahead()
    traces = group.on_all(lambda: trace.shifted(ahead_s))
    write = partial(write_json, path)
    group.from_root((lambda: write(chrome_trace(devices, traces))) if group.rank == 0 else None)
