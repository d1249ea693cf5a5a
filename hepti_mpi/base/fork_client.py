"""What mpirun starts in a rank's place: it asks the fork server for the rank, and ends as that ends.

    python -E -S -s fork_client.py NAME [WORDS …]

NAME is the server's abstract socket. Without a server it becomes `python -m hepti_mpi WORDS …` itself. It imports
little: what it is good for is the time that it saves.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from typing import NoReturn

STREAMS = (0, 1, 2)
# The server may still be importing; one that is silent for so long has come to harm.
BEGIN_S = 120.0
SIZE = struct.Struct("!I")
# As subprocess has it: an exit code, or minus the signal that ended the rank.
CODE = struct.Struct("!i")
PEER = struct.Struct("iII")  # process, user, group


def main(name: str, words: list[str]) -> NoReturn:
    """Be the rank, or let the server be it."""
    code = _served(name, words)
    if code is None:
        os.execv(sys.executable, [sys.executable, "-P", "-m", "hepti_mpi", *words])
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end of a Unix socket: an abstract one is open to all users."""
    process, user, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return process, user


def _served(name: str, words: list[str]) -> int | None:
    """Return how the server's rank ended; None where there is no server, or it would not be the same program."""
    asked = {"client": __file__, "words": words, "environment": dict(os.environ)}
    text = json.dumps(asked).encode()
    folder = os.open(".", os.O_PATH)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect("\0" + name)
            if peer(connection)[1] != os.geteuid():
                return None
            socket.send_fds(connection, [SIZE.pack(len(text))], [*STREAMS, folder])
            connection.sendall(text)
            connection.settimeout(BEGIN_S)
            begun = connection.recv(1)
        except OSError:
            return None
        if not begun:
            return None
        connection.settimeout(None)
        try:
            told = connection.recv(CODE.size, socket.MSG_WAITALL)
        except OSError:
            told = b""
        return CODE.unpack(told)[0] if len(told) == CODE.size else -signal.SIGKILL


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
