"""Why an mpirun has failed, of all that it, ssh and ranks have said."""

from __future__ import annotations

import re
from collections.abc import Iterator


def reasons(log: str) -> Iterator[str]:
    """Yield what mpirun and ssh have said as single lines, the likeliest reason for a failure first."""
    killed = r"process rank (\d+) with PID \d+ on node (\S+)\s+exited on\s+signal (\d+) \(([^)]*)\)"
    for rank, host, number, name in re.findall(killed, log):
        yield f"rank {rank} on {host} was ended by signal {number} ({name})"
    if "An error occurred in Socket closed" in log:  # one that was ended is not named where another saw that first
        for rank, host in re.findall(r'process rank (\d+) with PID \d+ on node (\S+)\s+calling\s+"abort"', log):
            yield f"rank {rank} on {host} lost another rank, which has ended"
    framed = re.findall(r"^-{60,74}\n(.*?)^-{60,74}$", log, flags=re.MULTILINE | re.DOTALL)
    without = re.sub(r"^-{60,74}\n(.*?)^-{60,74}$", "", log, flags=re.MULTILINE | re.DOTALL)
    # Of a traceback the last line says what it is.
    yield from reversed([line.strip() for line in without.splitlines() if line.strip()])
    for block in framed:
        first, *others = (" ".join(some.split()) for some in re.split(r"\n\s*\n", block.strip()))
        # What it says of: a directory and an error, or a program.
        yield f"{first} {others[0]}" if first.endswith(":") and others else re.split(r"(?<=[.:])\s", first)[0]
