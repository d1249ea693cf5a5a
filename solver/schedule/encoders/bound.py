"""What no plan of an encoder beats: all that its blocks compute, by every device at its best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from solver.cluster.curves import Floats, Kernel
from solver.model.blocks import Block, Cut
from solver.plan.plan import StreamLayout
from solver.schedule.bound import shared_s
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.steps import ByTiles, Call, Close, GatherKeys, cut_steps
from solver.schedule.encoders.turn_costs import without_keys

# What multiplies matrices; of a grid's tiles everything is added up.
ABLE = {Kernel.PROJECT: (Kernel.PROJECT, Kernel.CONTRACT), Kernel.CONTRACT: (Kernel.CONTRACT,)}


def bound_s(s: Setting) -> float:
    """Return the seconds of a request below which no plan is; what is sent counts nothing."""
    usual, avoiding = list[Floats](), list[Floats]()
    for run in s.spec.runs:
        for block in run.blocks:
            often, (keys, others) = run.layers * run.parts, _calls(block)
            usual += [often * own for own in _parts(s, (*others, *keys))]
            avoiding += [often * own for own in _parts(s, others)]
            avoiding += [often * _without_keys(s, call) for call in keys if call.kernel is Kernel.ATTEND]
    return shared_s(np.array(usual), np.array(avoiding))


def _calls(block: Block) -> tuple[list[Call], list[Call]]:
    """Return the kernels that a block calls: those that rows may do without (`Keys.AVOIDED`), and all others."""
    keys, others = list[Call](), list[Call]()
    for step in cut_steps(block, Cut.ROWS, StreamLayout.ROWS):
        if isinstance(step, GatherKeys):
            keys += step.keys, step.attend
            others.append(step.query)
        elif isinstance(step, ByTiles):
            others += step.calls
        elif isinstance(step, Close):
            others.append(step.call)
    return keys, others


def _parts(s: Setting, calls: Sequence[Call]) -> list[Floats]:
    """Return what calls take on every device at its best, [p] each; products by one kernel may be one call."""
    rows, bank, found, sizes = (1.0, float(s.rows)), s.machine.bank, list[Floats](), Counter[Kernel]()
    for call in calls:
        if call.kernel is Kernel.ATTEND:
            found.append(s.rows**2 * call.size * bank.least_rate(call.kernel, rows, rows, call.head_dim))
        else:
            sizes[call.kernel] += call.size
    for kernel, size in sizes.items():
        if (able := ABLE.get(kernel)) is not None:  # of one column, or of all
            rates = [bank.least_rate(own, rows, (float(s.spec.hidden), float(size))) for own in able]
        else:
            rates = [bank.least_rate(kernel, (1.0, float(s.rows * size)))]
        found.append(s.rows * size * np.min(rates, 0))
    return found


def _without_keys(s: Setting, attend: Call) -> Floats:
    """Return what the contexts of all rows take without K and V on every device at its best, [p]."""
    rows = np.arange(1.0, s.rows + 1)[:, None]
    return np.asarray(s.rows * (without_keys(s.machine.bank, rows, s.rows, attend.size, s.spec.hidden) / rows).min(0))
