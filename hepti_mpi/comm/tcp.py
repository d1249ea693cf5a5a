"""What this process's TCP connections have carried, as Linux counts: bytes, and the seconds in which there were any."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from solver.base import clock
from solver.cluster.curves import Floats

# Of Linux's struct tcp_info (linux/tcp.h): bytes that the other side has acknowledged, and microseconds for which there
# was something to send or to be acknowledged. Their ratio is what the connection carried, whatever the program did.
# Between them, bytes a second: of the last round trip in which there was enough to send, without late acknowledgements.
# After them, those of the microseconds for which the other side had no room, since its program did not read.
ACKNOWLEDGED_AT, DELIVERY_RATE_AT, BUSY_US_AT, NO_ROOM_US_AT, INFO_BYTES = 120, 160, 168, 176, 184
OPEN_FILES = Path("/proc/self/fd")

Connection = tuple[object, object]  # own and other address


@dataclass(frozen=True, slots=True)
class Carried:
    """What a connection has carried: bytes acknowledged and seconds busy since it was made; bytes a second lately.

    Seconds for which the receiver had no room are left out: they say nothing of the network.
    """

    acknowledged: int
    delivery_rate: float
    busy_s: float


def between_ranks(flows: Mapping[int, Mapping[Connection, tuple[int, float]]], ranks: int) -> tuple[Floats, Floats]:
    """Return the bytes and busy seconds from every rank to every other, [p, p], of what all ranks say of their own.

    The two ranks of a connection see its addresses the other way round.
    """
    owners = {ends: rank for rank, own in flows.items() for ends in own}
    sent, busy_s = np.zeros((ranks, ranks)), np.zeros((ranks, ranks))
    for rank, own in flows.items():
        for (here, there), (acknowledged, busy) in own.items():
            peer = owners.get((there, here))
            if peer is not None and peer != rank:
                sent[rank, peer] += acknowledged
                busy_s[rank, peer] += busy
    return sent, busy_s


def carried(sockets: Iterable[int]) -> dict[Connection, Carried]:
    """Return what these TCP connections have carried; nothing where the system does not say."""
    found = {}
    for number in sockets:
        try:
            connection = socket.socket(fileno=number)
        except OSError:  # closed meanwhile
            continue
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
            ends = connection.getsockname()[:2], connection.getpeername()[:2]
        except OSError:
            continue
        finally:
            connection.detach()  # it stays MPI's
        if len(info) >= INFO_BYTES:
            acknowledged, rate, busy_us, no_room_us = (
                struct.unpack_from("Q", info, at)[0]
                for at in (ACKNOWLEDGED_AT, DELIVERY_RATE_AT, BUSY_US_AT, NO_ROOM_US_AT)
            )
            found[ends] = Carried(acknowledged, rate / clock.SCALE, (busy_us - no_room_us) / 1e6 * clock.SCALE)
    return found


def open_sockets() -> list[int]:
    """Return the numbers of this process's open TCP sockets."""
    found = []
    for number in OPEN_FILES.iterdir() if OPEN_FILES.is_dir() else ():
        try:
            if not str(number.readlink()).startswith("socket:"):
                continue
            connection = socket.socket(fileno=int(number.name))
        except OSError:
            continue
        internet = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
        connection.detach()
        if internet:
            found.append(int(number.name))
    return found
