"""`mpirun -np N python -m hepti_mpi`: the entry point of every rank."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from solver.base import stopping

if TYPE_CHECKING:
    from hepti_mpi.comm.group import Group
    from solver.base.command import Parser

    Parse = Callable[[list[str]], Namespace]
    Run = Callable[[Namespace, Group], int]

from solver.base.environment import thread_count  # without numpy, which reads them when it is imported
from solver.base.front import BEGUN, JOB_OF, program

# Another rank has gone, and says itself why, or mpirun does, which then ends this one: only where it does not, this
# one speaks.
GONE_S = 3.0


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


def load() -> stopping.Main:
    """Import what the command asked for needs."""
    _command(sys.argv[1:])
    if sys.argv[1:2] not in (["profile"], ["generate"]):
        with suppress(ModuleNotFoundError):  # `main` says it in one line
            from hepti_mpi.session import encoder, leader  # noqa: F401
    return main


def main(arguments: Sequence[str]) -> int:
    """Run this rank; return its exit code."""
    from hepti_mpi.comm import group as comm
    from hepti_mpi.comm import reserve
    from solver.base.errors import HeptiError

    group = comm.world()
    if group.rank == 0 and JOB_OF in os.environ:
        print(BEGUN, file=sys.stderr, flush=True)
    try:
        if list(arguments) == [reserve.RESERVE]:
            arguments = reserve.told(group)
        parser, parse, run, words = _command(arguments)
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
        print(f"{program('python -m hepti_mpi')}: {error}", file=sys.stderr, flush=True)
        return 2
    except ConnectionError as error:
        time.sleep(GONE_S)
        group.abort(str(error), code=1)
    except ModuleNotFoundError as error:
        group.abort(f"{error}: hepti install gives the first board what rank 0 needs, with --full all", code=2)
    except Exception as error:  # any other rank would wait for this one for ever
        if "--debug" in arguments:
            traceback.print_exc()
        if isinstance(error, HeptiError):
            group.abort(str(error), code=2)
        group.abort(stopping.unwritten(error) or f"{type(error).__name__}: {error}", code=1)


def _command(arguments: Sequence[str]) -> tuple[Callable[[], Parser], Parse, Run, list[str]]:
    """Return the parser of the job that is asked for, what reads its words, what runs it, and its words."""
    if arguments[:1] == ["profile"]:
        from hepti_mpi.measure import profile_command

        return profile_command.parser, profile_command.parse, profile_command.run, list(arguments[1:])
    from hepti_mpi.session import cli, job

    if arguments[:1] == ["rerank"]:
        return cli.rerank_parser, cli.parse_rerank, job.run_job, list(arguments[1:])
    if arguments[:1] == ["generate"]:
        return cli.generate_parser, cli.parse_generate, job.run_job, list(arguments[1:])
    return cli.parser, cli.parse, job.run_job, list(arguments)


def begin() -> NoReturn:
    """Be a rank, from its first moment to its exit."""
    limit_threads()
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK")  # None: no mpirun started this process
    if rank in (None, "0"):
        stopping.run("python -m hepti_mpi", load, silent=rank is not None)
    # The other ranks write nothing that would have to be cleaned up, and mpirun says which of them a signal has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    begin()
