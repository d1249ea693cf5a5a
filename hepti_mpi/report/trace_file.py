"""The file of `--trace`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace, chrome_trace


def write_trace(path: Path, devices: Sequence[str], trace: Trace, group: Group) -> None:
    """Write the traces of all ranks, by rank 0's clock; a step of all ranks.

    Raises
    ------
    SharedError
        If the file cannot be written.
    """
    ahead_s = group.clock_ahead()
    traces = group.on_all(lambda: trace.shifted(ahead_s))

    def write() -> None:
        from hepti_mpi.requests.outputs import write_json  # with tokenizers, which rank 0 alone has

        write_json(path, chrome_trace(devices, traces))

    group.from_root(write if group.rank == 0 else None)
