"""TCP connections over loopback."""

import socket
from contextlib import contextmanager


@contextmanager
def connected():
    """Return one end of a TCP connection over loopback, and what sends so many bytes over it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()

    def send(size):
        for _ in range(size >> 14):
            here.sendall(bytes(1 << 14))
            left = 1 << 14
            while left:
                left -= len(there.recv(left))

    with here, there:
        yield (here.getsockname()[:2], here.getpeername()[:2]), send
