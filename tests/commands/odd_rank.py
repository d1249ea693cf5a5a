"""`mpirun … python -m tests.commands.odd_rank ODDITY …`: the main job, with something odd about rank 1.

`fails`: its third request is its last. `no-file`: its host has no copy of the weights file.
"""

import sys
from pathlib import Path

from hepti_mpi import __main__
from hepti_mpi.comm.mpi import MPI, start
from hepti_mpi.engine.encoder import StageShare
from hepti_mpi.engine.load import open_source
from hepti_mpi.session import job

run, calls = StageShare.run, []


def fail_later(*arguments):
    calls.append(arguments)
    if len(calls) == 3:
        raise FloatingPointError("one bit has fallen over")
    return run(*arguments)


oddity = sys.argv[1]
start()
if MPI.COMM_WORLD.rank == 1 and oddity == "fails":
    StageShare.run = fail_later
if MPI.COMM_WORLD.rank == 1 and oddity == "no-file":
    job.open_source = lambda opened, _, *model: open_source(opened, Path("/none"), *model)
sys.exit(__main__.main(sys.argv[2:]))
