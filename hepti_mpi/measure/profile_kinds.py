"""Devices of a kind: those whose kernels were measured alike get the mean of what was measured.

Points of two profiles of one board lie some percent from each other, and the best of thousands of plans is the one
that such errors flatter most. Four equal boards of a lab, measured in four hours at speeds that differed by 2 to 10 %,
got plans that on equal boards take 0.6 to 5 % longer than the one for the mean, and up to 4 % longer than equal rows:
in a noisy hour 3, 5, 5 and 3 heads were predicted 410 ms and took 456.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hepti_mpi.measure.profile_unrest import STEP_S
from solver.cluster.curves import Curves, Floats, Kernel

ALIKE = (Kernel.PROJECT, Kernel.CONTRACT, Kernel.ATTEND)  # what nearly all of a layer's time goes to
# Half of the ratios of two devices' points lie so near their median. Ranks of one host 0.005 to 0.04, equal boards of a
# lab 0.02, in a noisy hour 0.03 to 0.05: more is another kind of curve.
SCATTER = 0.05
# How far speeds may be apart at most; less where the devices' steps vary less. In a lab they vary by 13 to 25 %.
APART = 0.1


def pooled(curves: Sequence[Curves], unrest: Sequence[tuple[float, float]]) -> list[tuple[Curves, float, float]]:
    """Return every device's curves, jitter and rest, in seconds, [p]: the mean of all devices of its kind."""
    found: dict[int, tuple[Curves, float, float]] = {}
    for kind in kinds(curves, [jitter_s for jitter_s, _ in unrest]):
        jitter_s, rest_s = np.mean([unrest[rank] for rank in kind], axis=0).tolist()
        found |= dict.fromkeys(kind, (_mean([curves[rank] for rank in kind]), jitter_s, rest_s))
    return [found[rank] for rank in range(len(curves))]


def kinds(curves: Sequence[Curves], jitter_s: Sequence[float]) -> list[list[int]]:
    """Return the devices' numbers by kind, the fastest first: every device is like the fastest of its kind.

    Two devices are of a kind if their curves have one shape, and their speeds differ by no more than their steps do
    from one to the next. Those of a board of its own hardly do: there a slower one stays a slower one.
    """
    points = np.array([np.concatenate([_logs(own, kernel) for kernel in ALIKE]) for own in curves])

    def are_alike(rank: int, other: int) -> bool:
        ratios = points[rank] - points[other]
        apart, varies = np.median(ratios), (jitter_s[rank] + jitter_s[other]) / 2 / STEP_S
        return bool(apart <= min(APART, varies) and np.median(np.abs(ratios - apart)) <= SCATTER)

    found: list[list[int]] = []
    for rank in np.argsort(np.median(points - points.mean(axis=0), axis=1), kind="stable").tolist():
        if not (found and are_alike(rank, found[-1][0])):
            found.append([])
        found[-1].append(rank)
    return found


def _mean(curves: Sequence[Curves]) -> Curves:
    """Return the geometric mean of several devices' curves, all on one grid."""
    kernels = {}
    for kernel, curve in curves[0].kernels.items():
        seconds = np.exp(np.mean([_logs(own, kernel) for own in curves], axis=0)).reshape(len(curve.first), -1)
        kernels[kernel] = replace(curve, seconds=tuple(map(tuple, seconds.tolist())))
    return replace(curves[0], kernels=kernels)


def _logs(curves: Curves, kernel: Kernel) -> Floats:
    """Return the logarithms of a kernel's seconds, [points]."""
    logs: Floats = np.log(np.ravel(curves.kernels[kernel].seconds))
    return logs
