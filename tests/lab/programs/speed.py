"""Every rank multiplies for so many seconds; rank 0 prints, per rank, [host, [[end of window, GFLOP/s], …]] as JSON.

The shape is the lab's own: 256 × 1024 × 1024, float32. Seconds to run and ends of windows are the clock's, speeds are
in the lab's time.
"""

import json
import socket
import sys
import time

import numpy as np
from mpi4py import MPI

from solver.base.clock import SCALE

GFLOP = 2 * 256 * 1024 * 1024 / 1e9
WINDOW_S = 0.25

world = MPI.COMM_WORLD
seconds = float(sys.argv[1])
left, right = np.ones((256, 1024), np.float32), np.ones((1024, 1024), np.float32)
out = left @ right
world.Barrier()
if world.rank == 0:
    print("started", flush=True)
windows, count = [], 0
begin = window = time.time()
while time.time() - begin < seconds:
    np.matmul(left, right, out=out)
    count += 1
    now = time.time()
    if now - window >= WINDOW_S:
        windows.append([now, count * GFLOP / ((now - window) * SCALE)])
        window, count = now, 0
found = world.gather([socket.gethostname(), windows])
if world.rank == 0:
    print(json.dumps(found), flush=True)
