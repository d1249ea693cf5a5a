"""`mpirun -np N python -m hepti_mpi`: the entry point of every rank."""

from __future__ import annotations

import os
import sys
import traceback

from solver.threads import thread_count  # without numpy, which reads them when it is imported


def limit_threads() -> None:
    """Give each rank its part of the host's cores, before numpy reads how many threads it may start.

    BLAS threads of several ranks on one host would fight for its cores. What a person has set stays; what is no number
    counts as unset.
    """
    on_host = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or os.environ.get("MPI_LOCALNRANKS") or 1)
    threads = max(1, len(os.sched_getaffinity(0)) // on_host)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
        if thread_count(os.environ.get(name, "")) is None:
            os.environ[name] = str(threads)


def main(arguments: list[str]) -> int:
    """Run this rank; return its exit code."""
    from hepti_mpi import comm
    from solver.errors import HeptiError

    group = comm.world()
    try:
        if arguments[:1] == ["profile"]:
            from hepti_mpi import profile_command

            parser, parse, run = profile_command.parser, profile_command.parse, profile_command.run
            words = arguments[1:]
        else:
            from hepti_mpi import cli, job

            parser, parse, run, words = cli.parser, cli.parse, job.run_job, arguments
        if "-h" in words or "--help" in words:
            if group.rank == 0:
                parser().print_help()
            return 0
        # What is installed, and so what an option may be, differs from rank to rank.
        options = group.on_all(lambda: parse(words))[group.rank]
        return run(options, group)
    except comm.SharedError as error:
        # mpirun takes the job's exit code from the rank that fails.
        if group.rank != 0:
            return 0
        if "--debug" in arguments:
            traceback.print_exc()
        print(f"python -m hepti_mpi: {error}", file=sys.stderr, flush=True)
        return 2
    except Exception as error:  # any other rank would wait for this one for ever
        if "--debug" in arguments:
            traceback.print_exc()
        if isinstance(error, HeptiError):
            group.abort(str(error), code=2)
        group.abort(f"{type(error).__name__}: {error}", code=1)


if __name__ == "__main__":
    limit_threads()
    sys.exit(main(sys.argv[1:]))
