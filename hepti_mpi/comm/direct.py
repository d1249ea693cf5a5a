"""Connections of our own between all ranks, for the small messages of a token: sent at once, and waited for blocked.

Through MPI an exchange of 8 KiB among four ranks cost 170 us of CPU time each, 93 of them for waiting: MPI has no wait
that rests, and looking costs. Blocked in the kernel a rank costs nothing while it waits. On a quarter of a core that
decides: of 16 layers 32 exchanges are a token.

Each message fits what a socket holds, so that all ranks may send before anybody receives.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hepti_mpi.comm.group import Group, host_name
from hepti_mpi.comm.mailbox import Traffic
from hepti_mpi.comm.tcp import open_sockets
from hepti_mpi.comm.wires import Message
from solver.base import clock
from solver.base.errors import HeptiError

CONNECT_S = 5.0  # to one address
SOCKET_BYTES = 1 << 20  # asked for; a system may give less, Linux 208 KiB
TOKEN_BYTES = 16
WAIT_FOR_ALL = int(socket.MSG_WAITALL)


class Direct:
    """The connections of a rank to all others; making them is a step of all ranks.

    Parameters
    ----------
    group
        All ranks.

    Raises
    ------
    SharedError
        If a rank cannot reach another.
    """

    def __init__(self, group: Group) -> None:
        self.rank, self._traffic = group.rank, group.traffic
        self._sockets: dict[int, socket.socket] = {}
        if group.size == 1:
            return
        # Who connects shows that it is of this job.
        token = group.from_root((lambda: secrets.token_bytes(TOKEN_BYTES)) if group.rank == 0 else None)
        group.barrier()  # MPI's connections are there now, and with them the addresses by which ranks reach each other
        with socket.create_server(("", 0), backlog=group.size) as server:
            port = server.getsockname()[1]
            places = group.on_all(lambda: (host_name(), port, _addresses()))
            group.on_all(lambda: self._connect(places, token))
            # Those of lower ranks have connected: what they said waits here.
            group.on_all(lambda: self._accept(server, group.size - 1 - group.rank, token))

    def _connect(self, places: list[tuple[str, int, list[str]]], token: bytes) -> None:
        """Connect to all ranks below."""
        own_host = places[self.rank][0]
        for peer, (host, port, addresses) in enumerate(places[: self.rank]):
            tried = ["127.0.0.1"] if host == own_host else addresses
            for address in tried:
                with suppress(OSError):
                    connection = socket.create_connection((address, port), CONNECT_S)
                    connection.sendall(token + self.rank.to_bytes(4, "big"))
                    self._sockets[peer] = _prepared(connection)
                    break
            else:
                raise HeptiError(
                    f"{own_host} cannot reach {host} by TCP, port {port} of {', '.join(tried) or 'no address'}: "
                    f"let the hosts of a cluster connect to each other"
                )

    def _accept(self, server: socket.socket, count: int, token: bytes) -> None:
        """Take the connections of all ranks above; a stranger's is closed."""
        server.settimeout(CONNECT_S)
        while count:
            connection, _ = server.accept()
            connection.settimeout(CONNECT_S)
            said = b""
            with suppress(OSError):
                said = connection.recv(TOKEN_BYTES + 4, socket.MSG_WAITALL)
            if said[:TOKEN_BYTES] != token:
                connection.close()
                continue
            self._sockets[int.from_bytes(said[TOKEN_BYTES:], "big")] = _prepared(connection)
            count -= 1

    def exchange(self, sends: Sequence[tuple[int, Message]], receives: Sequence[tuple[int, Message]]) -> DirectExchange:
        """Return what sends C-contiguous arrays to ranks, and fills others from ranks, whenever it is run."""
        leaving = [(self._sockets[peer].sendall, message.data.cast("B")) for peer, message in sends]
        coming = [
            (self._sockets[peer].recv_into, message.data.cast("B"), message.nbytes, peer) for peer, message in receives
        ]
        return DirectExchange(
            self._traffic, leaving, coming,
            sum(view.nbytes for _, view in leaving), sum(size for _, _, size, _ in coming),
        )  # fmt: skip

    def send(self, message: Message, peer: int) -> None:
        """Send a C-contiguous array to a rank."""
        self.exchange([(peer, message)], []).run()

    def receive(self, message: Message, peer: int) -> None:
        """Fill a C-contiguous array from a rank; wait until all of it is there."""
        self.exchange([], [(peer, message)]).run()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._sockets.values():
            connection.close()


@dataclass(frozen=True, slots=True, eq=False)
class DirectExchange:
    """Messages to some ranks and from some, always the same arrays; made by `Direct.exchange`.

    Between two of them a rank's weights pass through the caches: what a run touches comes from memory, every time.
    """

    traffic: Traffic
    sends: Sequence[tuple[Callable[[memoryview], None], memoryview]]
    receives: Sequence[tuple[Callable[[memoryview, int, int], int], memoryview, int, int]]
    sent_bytes: int
    received_bytes: int

    def run(self) -> None:
        """Send everything as it is now, then wait for everything."""
        for send, view in self.sends:
            send(view)
        traffic = self.traffic
        traffic.sent_bytes += self.sent_bytes
        if not self.receives:
            return
        started = clock.now()
        for receive, view, size, peer in self.receives:
            if receive(view, 0, WAIT_FOR_ALL) != size:
                raise ConnectionError(f"rank {peer} has gone")
        traffic.received_bytes += self.received_bytes
        traffic.waited(started)


def _addresses() -> list[str]:
    """Return the addresses by which other hosts reach this one: those of MPI's connections, then its name's."""
    found = []
    for number in open_sockets():
        connection = socket.socket(fileno=number)
        with suppress(OSError):
            if connection.family == socket.AF_INET:
                connection.getpeername()
                found.append(connection.getsockname()[0])
        connection.detach()  # it stays MPI's
    with suppress(OSError):
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def _prepared(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, buffer, SOCKET_BYTES)
    return connection
