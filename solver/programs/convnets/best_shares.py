"""Shares of one among devices whose stages follow each other: a linear program, for networks' published systems.

The only module that imports cvxpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from solver.cluster.curves import Floats

MS = 1e3  # the program counts milliseconds: solvers dislike numbers far from one


@dataclass(frozen=True, slots=True, eq=False)
class BestShares:
    """Shares of one, [n]; the sum of stages; and by how much the cost falls for each second more that this may be."""

    shares: Floats
    seconds: float
    per_second: float


def best_shares(
    stages: Sequence[tuple[Floats, Floats]], most: Floats, cost: Floats | None = None, limit_s: float | None = None
) -> BestShares | None:
    """Share out one so that stages, each as long as its slowest line, take least: a linear program.

    Minimise sum_k T_k, or cost x where that sum is limit_s at most, subject to T_k >= slopes_k x + fixed_k, sum x = 1
    and 0 <= x <= most. None where nothing fulfils it.

    Parameters
    ----------
    stages
        Slopes [lines, n] and what is fixed [lines], in seconds.
    most, cost : [n]
    """
    x, ends = cp.Variable(most.size), cp.Variable(len(stages))
    slopes, fixed = (np.concatenate(parts) for parts in zip(*stages, strict=True))
    stage = np.repeat(np.arange(len(stages)), [len(lines) for lines, _ in stages])
    constraints = [cp.sum(x) == 1, x >= 0, x <= most, MS * (slopes @ x + fixed) <= ends[stage]]
    if limit_s is not None:
        constraints.append(cp.sum(ends) <= MS * limit_s)
    problem = cp.Problem(cp.Minimize(cp.sum(ends) if cost is None else MS * (cost @ x)), constraints)
    problem.solve(solver=cp.HIGHS)
    if problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
        return None
    shares = np.maximum(x.value, 0.0) / np.maximum(x.value, 0.0).sum()
    seconds = sum(float((lines @ shares + constant).max()) for lines, constant in stages)
    per_second = 0.0 if limit_s is None else float(constraints[-1].dual_value)
    return BestShares(shares, seconds, per_second)
