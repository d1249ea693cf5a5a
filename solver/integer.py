"""The integer program: how many layers of which configuration, under every device's memory.

A configuration is a layer with whole shares: a pair of cuts, and who takes part with how many rows, heads (of whole
KV groups) and tiles. With c over the configurations, i over the devices, t_c the seconds and w_ci the bytes of weights
of a layer, L the layers and M_i the bytes that device i has for them:

    minimise    sum_c t_c n_c + sum_i P_i s_i
    subject to  (C1)  sum_c n_c = L
                (C2)  sum_c w_ci n_c <= M_i + s_i       for every device i
                      n_c >= 0 and whole, s_i >= 0

s_i is what device i lacks; P_i is so high that a plan which fits always wins over one which does not. Where some s_i
stays above zero, nothing fits, and s says how much is missing; P_i is least for the device with the most room, so that
it is missing in one place. The linear relaxation's duals of (C2) are the prices,
in seconds per byte, for which `solver.search` finds further configurations (column generation).

The only module that imports pulp. HiGHS solves; CBC, which PuLP brings along, where HiGHS is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pulp

from solver.curves import Floats

# Seconds per MiB short, for the device with the most room, and how much higher for the others. No MiB of weights more
# can save as much.
P = 10.0
ELSEWHERE = 1.1
MIB = 2**20
TIME_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """The solution.

    Parameters
    ----------
    layers
        n_c: layers of every configuration.
    seconds
        sum_c t_c n_c.
    gap
        By how much the optimum over these configurations can be better, relative; 0 where the optimum is proven.
    short_bytes : [p]
        s_i.
    """

    layers: tuple[int, ...]
    seconds: float
    gap: float
    short_bytes: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Duals of the linear relaxation: seconds per byte of every device, [p]; seconds of one layer more; the optimum."""

    per_byte: Floats
    layer_s: float
    bound_s: float


def best_mix(seconds: Sequence[float], held: Sequence[Floats], room: Floats, layers: int) -> Mix:
    """Choose how many layers of every configuration.

    Parameters
    ----------
    seconds
        t_c.
    held : [p] each
        w_c.
    room : [p]
        M_i, bytes; may be negative where a device has not even what it needs besides.
    layers
        L.
    """
    problem, counts, short = _program(seconds, held, room, layers, whole=True)
    solver = _solver()
    problem.solve(solver)
    found = tuple(round(count.value()) for count in counts)
    total = float(np.dot(seconds, found))
    objective, bound = pulp.value(problem.objective), _bound(problem)
    gap = max(0.0, (objective - bound) / objective) if bound is not None else 0.0
    return Mix(found, total, gap, np.array([missing.value() * MIB for missing in short]))


def prices(seconds: Sequence[float], held: Sequence[Floats], room: Floats, layers: int) -> Prices:
    """Solve the linear relaxation for its duals; arguments as in `best_mix`."""
    problem, _, _ = _program(seconds, held, room, layers, whole=False)
    problem.solve(_solver())
    duals = {name: constraint.pi for name, constraint in problem.constraints.items()}
    per_byte = np.array([max(0.0, -duals[f"C2_memory_{device}"]) / MIB for device in range(room.size)])
    return Prices(per_byte, duals["C1_layers"], float(pulp.value(problem.objective)))


def _program(
    seconds: Sequence[float], held: Sequence[Floats], room: Floats, layers: int, *, whole: bool
) -> tuple[pulp.LpProblem, list[pulp.LpVariable], list[pulp.LpVariable]]:
    """State the program, in MiB: solvers dislike coefficients of 10^9."""
    problem = pulp.LpProblem("layers_of_every_configuration", pulp.LpMinimize)
    category = pulp.LpInteger if whole else pulp.LpContinuous
    counts = [pulp.LpVariable(f"n_{c}", 0, layers, category) for c in range(len(seconds))]
    short = [pulp.LpVariable(f"s_{i}", 0) for i in range(room.size)]
    penalties = np.where(np.arange(room.size) == room.argmax(), P, ELSEWHERE * P)
    problem += pulp.lpDot(seconds, counts) + pulp.lpDot(penalties.tolist(), short)
    problem += pulp.lpSum(counts) == layers, "C1_layers"
    for i in range(room.size):
        used = pulp.LpAffineExpression([(count, weights[i] / MIB) for count, weights in zip(counts, held, strict=True)])
        problem += used <= room[i] / MIB + short[i], f"C2_memory_{i}"
    return problem, counts, short


def _solver() -> pulp.LpSolver:
    highs = pulp.HiGHS(msg=False, timeLimit=TIME_LIMIT_S, gapRel=1e-6)
    return highs if highs.available() else pulp.PULP_CBC_CMD(msg=False, timeLimit=TIME_LIMIT_S, gapRel=1e-6)


def _bound(problem: pulp.LpProblem) -> float | None:
    """Return HiGHS's bound on the objective; CBC's is not handed through by PuLP."""
    model = getattr(problem, "solverModel", None)
    return None if model is None else float(model.getInfo().mip_dual_bound)
