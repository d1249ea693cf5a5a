"""What `hepti`, the one command, and the programs that it starts tell each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

CALLED = "HEPTI_CALLED"  # variable: what the person has typed, as "hepti plan"
JOB_OF = "HEPTI_JOB_OF"  # variable: the process id of the `hepti` that has started mpirun
# Rank 0's first line of errors, for `hepti` alone: what came before is mpirun's and ssh's.
BEGUN = "hepti: the job has begun"


def program(module: str) -> str:
    """Return what the person has typed to start this program: `module`, as "python -m solver", or `hepti`'s words."""
    return _called() or module


def typed(module: str, arguments: Sequence[str]) -> str:
    """Return what lines about mistakes begin with where a program has commands: itself, and the command typed."""
    return " ".join([program(module), *(word for word in arguments[:1] if not word.startswith("-"))])


@cache
def _called() -> str | None:
    # Programs that this one starts were not typed by the person.
    return os.environ.pop(CALLED, None)
