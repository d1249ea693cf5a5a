"""Solves in a process of their own: no request waits for them, also where rank 0 is slow."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import connection, get_context, parent_process

from solver.cluster.cluster import Cluster
from solver.live.first_plan import plan_to_begin_with
from solver.model.spec import ModelSpec
from solver.plan.plan import Wire
from solver.programs.planner import Solution, solve

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


@contextmanager
def own_process() -> Iterator[Executor]:
    """Give what runs functions in one other process, which ends with this one, whatever ends it."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin) as pool:
        pool.submit(os.getpid)  # it imports the solvers now
        yield pool


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
