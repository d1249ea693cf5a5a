"""The one address of mpi4py: what Open MPI is told before it starts, and the tags of all messages."""

from __future__ import annotations

import os
from contextlib import suppress
from enum import IntEnum, unique
from pathlib import Path

import mpi4py

# `start` does both: a fork server imports this, and is no rank.
mpi4py.rc.initialize, mpi4py.rc.finalize = False, True

from mpi4py import MPI as MPI  # noqa: E402

# Open MPI reads these when it starts. Up to 8 MiB a message goes to the kernel at once and travels while we compute: of
# 1 MiB at 240 Mbps after 41 ms of compute, 0.3 ms are left to wait, not 35.
SETTINGS = {
    "btl_tcp_eager_limit": "8388608",
    "btl_tcp_sndbuf": "4194304",
    "btl_tcp_rcvbuf": "4194304",
    # A waiting rank gives its core away; ranks that share a core otherwise wait for each other's time slice.
    "mpi_yield_when_idle": "1",
    # Looking for a fabric that boards do not have takes a second: MPI_Init 1.1 s with it, 0.2 s without.
    "btl": "^ofi",
}
BTL = "OMPI_MCA_btl"
# Linux wakes sleepers up to 50 us late, so that several wake at once: of the 100 us that a rank sleeps before it looks
# again for what it waits for, 167 became, and so 120 do.
TIMER_SLACK, TIMER_SLACK_NS = Path("/proc/self/timerslack_ns"), "1000"

LARGEST_TAG = 32767  # every MPI has this one, and may refuse larger ones


@unique
class Tag(IntEnum):
    """A kind of message. What one rank sends another stays in order within a kind."""

    ORDER = 0  # from rank 0, between batches: what to do next
    DECISION = 1  # from rank 0, within a batch: which plan holds from a layer on
    REPORT = 2  # to rank 0: what a rank has measured
    WEIGHTS = 3  # to rank 0: which slices of tensors a rank lacks next, or none; from rank 0: a piece of one
    CLOCK = 4  # to rank 0 and back: what its clock shows
    NOTHING = 5  # no message: who looks for one lets MPI move all others
    TILE = 6  # of segments that are cut by tiles: from rank 0 which, and what it needs; to rank 0 what came out
    PASS = 7  # of language models, from rank 0: the embedded rows of what is to be computed next
    SUMS = 8  # to rank 0: what a rank has done so far
    PARTS = 9  # parts of values, exchanged in the layers; their owner's rank is added: the last one


def start() -> None:
    """Start MPI, if it has not been; what the user or mpirun has set stays."""
    with suppress(OSError):  # a system that has none, or does not let us
        TIMER_SLACK.write_text(TIMER_SLACK_NS)
    # A rank that no mpirun has started is alone: it would leave 16 MiB for shared memory in /dev/shm behind.
    alone = not {"PMIX_RANK", BTL} & set(os.environ)
    for name, value in SETTINGS.items():
        os.environ.setdefault(f"OMPI_MCA_{name}", value)
    if not MPI.Is_initialized():
        if alone:
            os.environ[BTL] = "self"
        MPI.Init_thread()
        if alone:
            os.environ[BTL] = SETTINGS["btl"]  # an mpirun that it starts has ranks that are not


def check_tags(ranks: int) -> None:
    """Raise a ValueError where parts of so many ranks have tags of other messages, or some that MPI may refuse."""
    if max(Tag) is not Tag.PARTS or Tag.PARTS + ranks - 1 > LARGEST_TAG:
        raise ValueError(f"no tags for the parts of {ranks} ranks between {max(Tag).name} and {LARGEST_TAG}")
