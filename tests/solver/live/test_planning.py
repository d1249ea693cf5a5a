"""Solves in another process: the same plans, while requests run; and a process that never stays behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.live.planning import PlanningProcess, solved_again
from solver.live.replan import AGAIN
from solver.model.named import named_model
from solver.plan.plan import Wire
from solver.programs.planner import solve
from tests.kit.at_once import Held
from tests.kit.clusters import pis
from tests.kit.processes import has_ended
from tests.solver.live.test_replan import LEAST_HORIZON, Simulation

SPEC = named_model("bert-base")

PARENT = """
import time
from solver.live.planning import PlanningProcess

with PlanningProcess() as pool:
    print(pool.process.pid, flush=True)
    time.sleep(60)
"""


def test_another_process_finds_the_same_plan_and_says_the_same_of_memory():
    cluster, small = pis(24.6, 70, 24.6), pis(24.6, 70, 24.6, memory_gib=0.2)
    solution = solve(SPEC, cluster, 128)
    slower = pis(24.6, 20, 24.6)
    with PlanningProcess() as pool:
        found = pool.submit(solved_again, SPEC, slower, 128, solution, Wire.FLOAT32)
        refused = pool.submit(solved_again, SPEC, small, 128, solution, Wire.FLOAT32)

        assert found.result().plan == solved_again(SPEC, slower, 128, solution, Wire.FLOAT32).plan
        with pytest.raises(InfeasiblePlanError, match="MiB short"):
            refused.result()


def test_what_is_still_sought_at_the_end_is_given_up():
    started = time.monotonic()
    with PlanningProcess() as pool:
        found = pool.submit(time.sleep, 60)

    with pytest.raises(HeptiError, match="process that plans has ended"):
        found.result()
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_ends_with_who_began_it_and_leaves_nothing_in_memory(ending):
    before = {*Path("/dev/shm").glob("sem.mp-*")}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        parent.send_signal(ending)
        parent.wait()
        assert not {*Path("/dev/shm").glob("sem.mp-*")} - before
        until = time.monotonic() + 30
        while not has_ended(child) and time.monotonic() < until:
            time.sleep(0.05)

    assert has_ended(child)


def test_requests_run_while_a_plan_is_sought():
    simulation = Simulation(pis(24.6, 60, 24.6, 24.6), solves=(held := Held()))
    for _ in range(AGAIN):
        simulation.request([1, 1, 1, 1], noise=0)
    for _ in range(3 * LEAST_HORIZON):
        simulation.request([1, 0.4, 1, 1], noise=0)
    assert len(held.waiting) == 1
    before = list(simulation.decisions)
    assert not any(decision.line.startswith("all as it was") for decision in before)

    held.finish()
    simulation.request([1, 0.4, 1, 1], noise=0)

    (decision,) = simulation.decisions[len(before) :]
    assert decision.line.startswith("all as it was for 20 ")
