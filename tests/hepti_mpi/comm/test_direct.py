"""Who may connect to a rank: the ranks above it, which say the job's token."""

import os
import socket
import threading

from hepti_mpi.comm import direct
from hepti_mpi.comm.direct import TOKEN_BYTES, Direct
from hepti_mpi.comm.group import world


def test_a_stranger_is_closed_and_one_that_says_nothing_keeps_no_rank_waiting(monkeypatch):
    """What scans ports connects and waits; ranks that come after it are taken."""
    monkeypatch.setattr(direct, "CONNECT_S", 0.2)
    token, above = os.urandom(TOKEN_BYTES), 3
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = (b"", os.urandom(TOKEN_BYTES + 4), token[:-1], token + above.to_bytes(4, "big"))
        *_, rank = callers = [socket.create_connection(server.getsockname()) for _ in words]
        for caller, said in zip(callers, words, strict=True):
            caller.sendall(said)
        own = Direct(world())
        taking = threading.Thread(target=own._accept, args=(server, 1, token), daemon=True)
        taking.start()
        taking.join(10)

        assert not taking.is_alive()
        assert own._sockets.keys() == {above}
        assert own._sockets[above].getpeername() == rank.getsockname()
        assert own._sockets[above].gettimeout() is None  # a token may take as long as it takes
        assert [caller.recv(1) for caller in callers[:-1]] == [b""] * 3
    own.close()
    for caller in callers:
        caller.close()
