"""Hosts exchange with their neighbours, by plain sockets; rank 0 prints what each saw as JSON.

traffic.py stream SECONDS     all send to the next host: [[end of window, Mbps received], …] per rank
traffic.py cost MIB           rank 0 sends to rank 1: CPU milliseconds per MiB, per rank
traffic.py pause BYTES        rank 0 sends after a pause, rank 1 answers with a byte: milliseconds, 15 times

Seconds to run and ends of windows are the clock's; what is measured is in the lab's time.
"""

import json
import socket
import sys
import threading
import time

from mpi4py import MPI

from solver.base import clock

world = MPI.COMM_WORLD
what, amount = sys.argv[1], float(sys.argv[2])
listener = socket.create_server(("", 5400))
addresses = world.allgather(socket.gethostbyname(socket.gethostname()))
block = bytearray(2**20)


def connect(peer):
    return socket.create_connection((addresses[peer], 5400))


def stream():
    ahead, windows = (world.rank + 1) % world.size, []
    stop = time.time() + amount

    def send():
        with connect(ahead) as out:
            while time.time() < stop:
                out.sendall(block[: 2**17])

    sender = threading.Thread(target=send)
    sender.start()
    incoming, _ = listener.accept()
    window, received = time.time(), 0
    while count := incoming.recv_into(block):
        received += count
        now = time.time()
        if now - window >= 0.25:
            windows.append([now, received * 8 / 1e6 / ((now - window) * clock.SCALE)])
            window, received = now, 0
    sender.join()
    return windows


def cost():
    began = clock.cpu_now()
    if world.rank == 0:
        with connect(1) as out:
            for _ in range(int(amount)):
                out.sendall(block)
    elif world.rank == 1:
        incoming, _ = listener.accept()
        # How often a receiver wakes up is its own affair: here, when there is something to do.
        incoming.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2**18)
        while incoming.recv_into(block):
            pass
    return (clock.cpu_now() - began) * 1e3 / amount


def pause():
    size, times = int(amount), []
    if world.rank == 0:
        with connect(1) as out:
            for _ in range(15):
                clock.sleep(0.1)
                began = clock.now()
                out.sendall(block[:size])
                out.recv(1)
                times.append((clock.now() - began) * 1e3)
    elif world.rank == 1:
        incoming, _ = listener.accept()
        while True:
            left = size
            while left:
                count = incoming.recv_into(block, left)
                if not count:
                    return times
                left -= count
            incoming.sendall(b"x")
    return times


world.Barrier()
if world.rank == 0:
    print("started", flush=True)
found = world.gather({"stream": stream, "cost": cost, "pause": pause}[what]())
if world.rank == 0:
    print(json.dumps(found), flush=True)
