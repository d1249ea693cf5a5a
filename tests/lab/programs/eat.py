"""The rank named in the first argument takes 64 MiB after 64 MiB, up to 4 GiB; the others wait."""

import sys

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
print("started", flush=True)
if world.rank == int(sys.argv[1]):
    hoard = [np.ones(2**24, np.float32) for _ in range(64)]
world.Barrier()
