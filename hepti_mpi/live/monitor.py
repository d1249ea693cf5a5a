"""What a rank measures while it computes, for rank 0: its compute and wait, its connections, its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hepti_mpi.base.memory import own_bytes
from hepti_mpi.comm.tcp import Connection, carried, open_sockets
from hepti_mpi.kernels.products import Backend
from solver.base import clock
from solver.cluster.board import free_bytes
from solver.live.observe import DELAYS, NOISE, Cusum
from solver.model.spec import ModelSpec

LOOK_EVERY_S = 1.0  # at what is free: it takes 0.4 ms
# A device without a share computes for so long, so often: under a CPU quota a shorter time says little. What differs
# from the last probe by more than requests err by, or is the first for long, is measured once more at once: rank 0
# believes a change that two say, and else a device that is as fast as ever would wait for its share a request longer.
PROBE_S, PROBE_EVERY_S, PROBE_ROWS = 0.05, 0.5, 64


@dataclass(frozen=True, slots=True)
class Measured:
    """One rank's word about one batch.

    Parameters
    ----------
    batch
        Its number.
    compute_s, wait_s
        Of this batch; 0 where the rank had no share.
    flows
        For every connection, bytes and busy seconds since it was made.
    room_bytes
        What its host has for this rank: what its process holds, and what is free besides.
    change, ready, short
        Which change of plan it prepares, how many layers of it are prepared, and whether memory holds it up.
    """

    batch: int
    compute_s: float
    wait_s: float
    flows: Mapping[Connection, tuple[int, float]]
    room_bytes: int
    change: int
    ready: int
    short: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """The word of a rank without a share, whenever it has measured it: the seconds of its product."""

    product_s: float


@dataclass(frozen=True, slots=True)
class PartialReport:
    """One rank's word within a batch: its number, before which layer, and compute and wait until then."""

    batch: int
    layer: int
    compute_s: float
    wait_s: float


class Monitor:
    """Looks at this rank's process and host; cheap enough for every batch.

    Parameters
    ----------
    spec, backend
        What a probe computes, and with what.
    """

    def __init__(self, spec: ModelSpec, backend: Backend) -> None:
        self._spec, self._backend = spec, backend
        self._sockets: list[int] = []
        self._batches = 0
        self._room, self._looked_at, self._probed_at = 0, 0.0, clock.now()
        self._noise = Cusum(NOISE, DELAYS[-1]).change
        self._probe_s, self._confirmed = math.nan, True  # the last probe, and whether the one before bears it out

    def flows(self) -> dict[Connection, tuple[int, float]]:
        """Return what this process's TCP connections have carried; nothing where the system does not say.

        Looking for sockets takes 0.3 ms and is done at the first, second, fourth, … batch: connections come early.
        """
        self._batches += 1
        if self._batches & (self._batches - 1) == 0:
            self._sockets = open_sockets()
        return {ends: (flow.acknowledged, flow.busy_s) for ends, flow in carried(self._sockets).items()}

    def room(self) -> int:
        """Return the bytes that this host has for this process, as of a second ago: what it holds, and what is free.

        Weights that come or go do not change it.
        """
        now = clock.now()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at, self._room = now, free_bytes() + own_bytes()
        return self._room

    def probe(self, every_s: float | None = None) -> Probe | None:
        """Now and then, time a product, for a device that has no share; None if it is not time yet."""
        started = clock.now()
        since_s = started - self._probed_at
        if every_s is None:
            every_s = PROBE_EVERY_S if self._confirmed else 0.0
        if since_s < every_s:
            return None
        H = self._spec.hidden
        product = self._backend.product(np.zeros((H, H), np.float32), None)
        x = np.zeros((PROBE_ROWS, H), np.float32)
        product(x)
        calls, begun = 0, clock.now()
        while not calls or clock.now() - begun < PROBE_S:  # One call, though others kept the core meanwhile.
            product(x)
            calls += 1
        self._probed_at = clock.now()
        probe_s = (self._probed_at - begun) / calls
        agrees = abs(math.log(probe_s / self._probe_s)) <= self._noise
        self._confirmed = agrees and since_s < 2 * PROBE_EVERY_S
        self._probe_s = probe_s
        return Probe(probe_s)
