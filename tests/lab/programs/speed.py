"""Every rank multiplies for so many seconds; rank 0 prints, per rank, [host, [[end of window, GFLOP/s], …]] as JSON.

The product is the lab's own: 256 × 1024 × 1024, float32. Seconds to run and ends of windows are the clock's, speeds are
in the lab's time.
"""

import json
import socket
import sys
import time

from mpi4py import MPI

from launch.lab.measure import FLOP
from launch.lab.probe import product
from solver.base.clock import SCALE

WINDOW_S = 1.0

world = MPI.COMM_WORLD
seconds = float(sys.argv[1])
multiply = product()
multiply()
world.Barrier()
if world.rank == 0:
    print("started", flush=True)
windows, count = [], 0
begin = window = time.time()
while time.time() - begin < seconds:
    multiply()
    count += 1
    now = time.time()
    if now - window >= WINDOW_S:
        windows.append([now, count * FLOP / 1e9 / ((now - window) * SCALE)])
        window, count = now, 0
found = world.gather([socket.gethostname(), windows])
if world.rank == 0:
    print(json.dumps(found), flush=True)
