"""Solves in a process of their own: no request waits for them, also where rank 0 is slow."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import connection, get_context, parent_process
from typing import Any, TypeVar

from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.live.first_plan import plan_to_begin_with
from solver.model.spec import ModelSpec
from solver.plan.plan import Wire
from solver.programs.planner import Solution, solve

Found = TypeVar("Found")

NICE = 10  # behind what rank 0 computes


def solved_again(spec: ModelSpec, cluster: Cluster, rows: int, before: Solution | None, wire: Wire) -> Solution:
    """Solve again, from a former solution if any; return what runs: maybe by rows, where weights have to move.

    Raises
    ------
    InfeasiblePlanError
        If no plan fits.
    """
    solution = solve(spec, cluster, rows, before, wire)
    plan, _ = plan_to_begin_with(spec, cluster, solution.plan)
    return replace(solution, plan=plan)


class PlanningProcess(Executor):
    """Runs functions in one other process, one after the other, which ends with this one, whatever ends it.

    A pipe is all that is between them: of the semaphores of `ProcessPoolExecutor` five files in /dev/shm stayed after
    every rank 0 that was killed.

    Attributes
    ----------
    process
        The other process.
    """

    def __init__(self) -> None:
        context = get_context("spawn")
        self._way, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other,))
        self.process.start()
        other.close()
        self._thread = ThreadPoolExecutor(1)

    def submit(self, function: Callable[..., Found], /, *arguments: Any, **named: Any) -> Future[Found]:
        """Return what the function will have found."""
        return self._thread.submit(self._ask, partial(function, *arguments, **named))

    def __exit__(self, *error: object) -> None:
        """End the process at once: what it seeks is given up."""
        self.process.kill()
        self.shutdown(cancel_futures=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the process, once it has done what was submitted."""
        self._thread.shutdown(wait, cancel_futures=cancel_futures)
        self._way.close()
        if wait:
            self.process.join()

    def _ask(self, function: Callable[[], Found]) -> Found:
        try:
            self._way.send(function)
            found, error = self._way.recv()
        except (EOFError, OSError) as gone:
            raise HeptiError("the process that plans has ended, for lack of memory? Or say --replan off") from gone
        if error is not None:
            raise error
        answer: Found = found
        return answer


def _work(way: connection.Connection) -> None:
    """Run what comes, until nothing more can come."""
    _begin()
    with suppress(EOFError):
        while True:
            function, found, error = way.recv(), None, None
            try:
                found = function()
            except Exception as why:
                error = why
            way.send((found, error))


def _begin() -> None:
    """Be a process that nobody has to end: neither a person's Ctrl-C, nor a rank that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(0)
