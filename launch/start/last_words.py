"""Why an mpirun, or another program, has ended: one line of all that it, ssh and ranks have said."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from contextlib import suppress

# What mpirun says, across the lines that it breaks: of a rank that a signal ended, of a host that it lost, of one where
# its own daemon did not start, and of a rank that gave up because another had ended, of which nothing may be said.
SIGNALLED = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)")
LOST = re.compile(r"lost communication with a remote daemon.*?Remote daemon: \S+ on node (\S+)")
UNSTARTED = re.compile(r"daemon failed to report back.*?Remote host: (\S+)")
ABORTED = re.compile(r'occurred in Socket closed.*?process rank (\d+) with PID \d+ on node (\S+) calling "abort"')
FRAMED = re.compile(r"^-{60,74}\n(.*?)^-{60,74}$", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"python -m [\w.]+[^:\n]*: (.+)")  # a program of ours that finds fault with what it is asked


def why_ended(said: str, code: int, hosts: Sequence[str] = (), program: str = "mpirun") -> str:
    """Return the likeliest reason, in one line; `hosts` are those of the ranks, as people call them."""
    words = " ".join(said.split())
    if found := killed_rank(said, hosts):
        return found
    if lost := LOST.search(words):
        return f"mpirun lost {lost[1]}"
    if unstarted := UNSTARTED.search(words):
        return f"mpirun's daemon did not start on {unstarted[1]}"
    if code < 0:
        return how_it_ended(code, program)
    if ours := OURS.findall(said):
        return " ".join(ours[-1].split())
    if aborted := ABORTED.search(words):
        return f"rank {aborted[1]} on {aborted[2]} lost another rank, which has ended"
    # Of a traceback the last line says what it is.
    for line in reversed(FRAMED.sub("", said).splitlines()):
        if line.strip() and not line.startswith("note: "):
            return line.strip()
    for block in FRAMED.findall(said):
        first, *others = (" ".join(some.split()) for some in re.split(r"\n\s*\n", block.strip()))
        # What it says of: a directory and an error, or a program.
        return f"{first} {others[0]}" if first.endswith(":") and others else re.split(r"(?<=[.:])\s", first)[0]
    return how_it_ended(code, program)


def killed_rank(said: str, hosts: Sequence[str] = ()) -> str | None:
    """Say which rank a signal has ended, as far as mpirun has said so."""
    found = SIGNALLED.search(" ".join(said.split()))
    if found is None:
        return None
    rank, node, number = found.groups()
    host = hosts[int(rank)] if int(rank) < len(hosts) else node
    return f"rank {rank} on {host} was ended by {signal_name(int(number))}"


def blamed_host(said: str) -> str | None:
    """Return the host that mpirun says it lost, or could not start on."""
    words = " ".join(said.split())
    found = LOST.search(words) or UNSTARTED.search(words)
    return found[1] if found else None


def how_it_ended(code: int, program: str = "mpirun") -> str:
    """Say what an exit code tells by itself: below 0 a signal ended the program, above 128 one that it has started.

    Open MPI 5.0.11 loses the line that names the rank where it is killed in MPI_Init, in 10 of 20 ends.
    """
    if code < 0:
        return f"{program} was ended by {signal_name(-code)}"
    if code - 128 in signal.valid_signals():
        return f"{'a rank' if program == 'mpirun' else program} was ended by {signal_name(code - 128)}"
    return f"{program} ended with exit code {code}"


def signal_name(number: int) -> str:
    """Return a signal as people know it."""
    with suppress(ValueError):
        return f"signal {number} ({signal.Signals(number).name})"
    return f"signal {number}"
