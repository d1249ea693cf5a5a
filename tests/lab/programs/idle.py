"""All ranks meet every 20 ms until they are ended; rank 0 prints a line a second."""

import time

from mpi4py import MPI

world = MPI.COMM_WORLD
told = 0.0
while True:
    world.Barrier()
    if world.rank == 0 and time.time() - told > 0.5:
        told = time.time()
        print("meeting", flush=True)
    time.sleep(0.02)
