"""The integer program: how many layers of which configuration, under every device's memory.

A configuration is a layer with whole shares: a cut of every block, and who takes part with how many rows, heads and
tiles. With c over the configurations, i over the devices, t_c the seconds and w_ci the bytes of weights
of a layer, L the layers and M_i the bytes that device i has for them:

    minimise    sum_c t_c n_c + sum_i P_i s_i
    subject to  (C1)  sum_c n_c = L
                (C2)  sum_c w_ci n_c <= M_i + s_i       for every device i
                      n_c >= 0 and whole, s_i >= 0

s_i is what device i lacks; P_i is so high that a plan which fits always wins over one which does not. Where some s_i
stays above zero, nothing fits, and s says how much is missing; P_i is least for the device with the most room, so that
it is missing in one place. The linear relaxation's duals of (C2) are the prices,
in seconds per byte, for which `solver.programs.search` finds further configurations (column generation).

The only module that imports pulp. HiGHS solves; CBC, which PuLP brings along, where HiGHS is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pulp

from solver.cluster.curves import Floats

# What it costs to lack a whole layer's bytes, in times of the slowest plan; and how much more that is anywhere but on
# the device with the most room. A thousandth of a layer short costs ten plans: no plan is worth that.
LACK = 1e4
ELSEWHERE = 1.1
TIME_LIMIT_S = 5.0
GAP = 1e-6  # relative


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
    """The linear relaxation: its layers of every configuration, and its optimum.

    Its duals: seconds per byte of every device, [p], and seconds of one layer more.
    """

    per_byte: Floats
    layer_s: float
    bound_s: float
    layers: tuple[float, ...]


def best_mix(seconds: Sequence[float], held: Sequence[Floats], room: Floats, layers: int, gap: float = GAP) -> Mix:
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
    gap
        How far from the best is good enough, relative.
    """
    program = _Program(seconds, held, room, layers, whole=True)
    problem = program.problem
    problem.solve(_solver(gap))
    found = tuple(round(count.value()) for count in program.counts)
    total = float(np.dot(seconds, found))
    objective, bound = pulp.value(problem.objective), _bound(problem)
    gap = max(0.0, (objective - bound) / objective) if bound is not None else 0.0
    short = program.by_device([missing.value() for missing in program.short]) * program.unit_bytes
    return Mix(found, total, gap, short)


def prices(seconds: Sequence[float], held: Sequence[Floats], room: Floats, layers: int) -> Prices:
    """Solve the linear relaxation for its duals; arguments as in `best_mix`."""
    program = _Program(seconds, held, room, layers, whole=False)
    program.problem.solve(_solver())
    per_byte = program.by_device([max(0.0, -limit.pi) for limit in program.memory]) / program.unit_bytes
    chosen = tuple(float(count.value()) for count in program.counts)
    return Prices(per_byte, program.all_layers.pi, float(pulp.value(program.problem.objective)), chosen)


def least_windows(seconds: Sequence[float], holds: Sequence[int], layers: int) -> list[int]:
    """Choose w_m, the layers of every device of a ring: least sum_m t_m w_m, sum_m w_m = L, 1 <= w_m <= what m holds.

    Parameters
    ----------
    seconds, holds
        t_m, and the most layers of every device; they hold L or more between them, and are L or fewer.
    layers
        L.
    """
    problem = pulp.LpProblem("windows_of_the_ring", pulp.LpMinimize)
    windows = [problem.add_variable(f"w_{m}", 1, most, pulp.LpInteger) for m, most in enumerate(holds)]
    problem += pulp.lpDot([value / max(seconds) for value in seconds], windows)
    problem += pulp.lpSum(windows) == layers, "all_layers"
    problem.solve(_solver())
    return [round(window.value()) for window in windows]


class Way(StrEnum):
    """What devices share out of a layer with many weights."""

    OUTPUTS = "outputs"  # LOP: output channels
    INPUTS = "inputs"  # LIP: input channels, summands
    FIRST, SECOND = "first", "second"  # FUSE: output channels of a layer, as input channels of the next


def least_traffic(
    inputs: Sequence[int], outputs: Sequence[int], summands: Sequence[int], adds: Sequence[bool], devices: int
) -> list[Way]:
    """Choose the way of every layer that sends least, by the program of `solver.systems.convnets.deeperthings`.

    Parameters
    ----------
    inputs, outputs, summands
        Of every layer: M, K as it leaves the layer, and K as it is added up.
    adds
        Whether a layer can be cut by input channels.
    devices
        N.
    """
    problem, n = pulp.LpProblem("ways_of_late_layers", pulp.LpMinimize), devices
    layers = range(len(inputs))
    o, i, f, s = ([problem.add_variable(f"{way}_{layer}", 0, 1, pulp.LpInteger) for layer in layers] for way in Way)
    z = [problem.add_variable(f"has_own_{layer}", 0, 1) for layer in layers]
    unit = max(*inputs, *outputs, *summands, 1)
    sent = [
        (n - 1) * (inputs[k] * (o[k] + f[k]) + summands[k] * (i[k] + s[k]))
        + (n - 1) / n * (outputs[k] * o[k] + inputs[k] * (i[k] - z[k]))
        for k in layers
    ]
    problem += pulp.lpSum(sent) * (1 / unit)
    for k in layers:
        problem += o[k] + i[k] + f[k] + s[k] == 1, f"C1_one_way_{k}"
        problem += s[k] == (f[k - 1] if k else 0), f"C2_second_{k}"
        problem += z[k] <= (o[k - 1] if k else 0), f"C3_own_{k}"
        problem += z[k] <= o[k] + f[k], f"C4_own_{k}"
        if not adds[k]:
            problem += i[k] + s[k] == 0, f"C5_adds_{k}"
    problem += f[-1] == 0, "C6_no_first_behind_all"
    problem.solve(_solver())
    return [
        next(way for way, chosen in zip(Way, ways, strict=True) if round(chosen.value()))
        for ways in zip(o, i, f, s, strict=True)
    ]


class _Program:
    """The program; bytes count as parts of the largest layer, since solvers dislike coefficients far from one."""

    def __init__(
        self, seconds: Sequence[float], held: Sequence[Floats], room: Floats, layers: int, *, whole: bool
    ) -> None:
        self.problem = problem = pulp.LpProblem("layers_of_every_configuration", pulp.LpMinimize)
        category = pulp.LpInteger if whole else pulp.LpContinuous
        self.unit_bytes = unit = max(float(weights.sum()) for weights in held)
        self.counts = [problem.add_variable(f"n_{c}", 0, layers, category) for c in range(len(seconds))]
        # Where the largest shares in all layers have room, memory limits nothing: 1024 constraints take a second.
        self._devices, self._limited = room.size, np.flatnonzero(layers * np.max(held, axis=0) > room)
        self.short = [problem.add_variable(f"s_{i}", 0) for i in self._limited]
        penalty = LACK * layers * max(seconds)
        penalties = np.where(np.arange(room.size) == room.argmax(), penalty, ELSEWHERE * penalty)
        problem += pulp.lpDot(seconds, self.counts) + pulp.lpDot(penalties[self._limited].tolist(), self.short)
        self.all_layers = pulp.lpSum(self.counts) == layers
        problem += self.all_layers, "C1_layers"
        self.memory = []
        for i, missing in zip(self._limited, self.short, strict=True):
            used = pulp.lpDot([weights[i] / unit for weights in held], self.counts)
            self.memory.append(used - missing <= room[i] / unit)
            problem += self.memory[-1], f"C2_memory_{i}"

    def by_device(self, values: Sequence[float]) -> Floats:
        """Return values of the devices whose memory limits as values of all, [p], zero for the others."""
        every = np.zeros(self._devices)
        every[self._limited] = values
        return every


def _solver(gap: float = GAP) -> pulp.LpSolver:
    highs = pulp.HiGHS(msg=False, timeLimit=TIME_LIMIT_S, gapRel=gap)
    return highs if highs.available() else pulp.PULP_CBC_CMD(msg=False, timeLimit=TIME_LIMIT_S, gapRel=gap)


def _bound(problem: pulp.LpProblem) -> float | None:
    """Return HiGHS's bound on the objective; CBC's is not handed through by PuLP."""
    model = getattr(problem, "solverModel", None)
    return None if model is None else float(model.getInfo().mip_dual_bound)
