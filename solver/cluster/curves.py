"""How long one device takes for one kernel: measured curves, or curves derived from a declared speed.

A curve is seconds at the crossings of a grid, linear between them, and beyond them along the last slope. The engine's
kernels are of seven kinds; a profile measures, for every device, each kind on a small grid:

=========== ==================== ========================================================================== ============
kind        arguments            what is timed, float32, with the real kernels                              points
=========== ==================== ========================================================================== ============
project     rows, weights        x [rows, H] times W [weights/H, H] transposed, plus bias: query, key,      5 × 3
                                 value, up. weights = elements of W
contract    rows, weights        x [rows, weights/H] times W [weights/H, H]: attention output, down         5 × 4
attend      rows, keys           one head of width `head_dim`: scores, softmax, context, as run among       5 × 4
                                 many heads (time 8 heads, divide by 8)
activate    elements             what the model's activation adds to a product                              2
norm        elements             bias, residual and layer norm of [rows, H], and what else a block takes    3
                                 beside its products: calls, arrays; elements = rows × H
add         elements             y += x, as summands are reduced                                            3
message     bytes                compute that one side spends on one message: post, copy, complete; not     3
                                 wire
=========== ==================== ========================================================================== ============

The grid: rows 1, 2, 18, 42, 256 (one row is a matrix-vector product, from two rows on numpy packs the weights: that
step is real; up to some 30 rows packed weights wait for the memory, from there on for the arithmetic); weights H × 3d
(one head; for contract 2dH and (H - d)H: onnxruntime takes a tenth longer for H², a power of two), H², H × F; keys 16,
64, 256, 512; norm 18, 66, 256 rows, activation 64, 256; bytes 4 KiB, 64 KiB, 1 MiB. Weights streaming and packing make
the intercept: a proportional model is wrong.

The cluster file carries a curve as two axes named as above and a matrix of seconds, first argument along the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.errors import HeptiError, explained

Floats = NDArray[np.float64]
FromTo = tuple[float, float]  # the least and the most


class Kernel(StrEnum):
    """A kind of operation with a curve of its own."""

    PROJECT = "project"
    CONTRACT = "contract"
    ATTEND = "attend"
    ACTIVATE = "activate"
    NORM = "norm"
    ADD = "add"
    MESSAGE = "message"


ARGUMENTS: Mapping[Kernel, tuple[str, ...]] = {
    Kernel.PROJECT: ("rows", "weights"),
    Kernel.CONTRACT: ("rows", "weights"),
    Kernel.ATTEND: ("rows", "keys"),
    Kernel.ACTIVATE: ("elements",),
    Kernel.NORM: ("elements",),
    Kernel.ADD: ("elements",),
    Kernel.MESSAGE: ("bytes",),
}

# Derived curves count everything in FLOP of the declared speed, which is that of a MatMul of 256 rows. Measured on one
# x86 core of 97 GFLOP/s with the numpy kernels: six weights [1024, 4096] take 14.8 ms at 8 rows, 37.4 at 53, 130.3 at
# 256, a line whose intercept is worth 24 rows (packing the weights anew at every call); 3.4 ms at 1 row (no packing).
SPEED_ROWS = 256
PACK_ROWS = 24
SINGLE_ROW = 7  # what a matrix-vector product costs, in rows
SCORE_FLOP = 180  # scale, softmax: 1.8 ns a score beside the two products' 4 d FLOP
HEAD_FLOP = 1e6  # 10 µs of calls a head
ACTIVATE_FLOP = 280  # 2.8 ns an element
NORM_FLOP = 130  # 1.3 ns
ADD_FLOP = 30  # 0.3 ns, from memory
CALL_FLOP = 5e5  # 5 µs
MESSAGE_FLOP = 2e6  # 20 µs a message
BYTE_FLOP = 14  # 0.15 ms a MiB, the mean of sending and receiving
HEAD_DIM = 64


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of one kernel over one or two arguments.

    Parameters
    ----------
    first, second
        The grid, ascending; `second` is (0, 1), and without influence, for kernels of one argument.
    seconds
        One row for every value of `first`, one column for every value of `second`.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for axis in (self.first, self.second):
            if len(axis) < 2:
                raise HeptiError(f"a curve needs two points or more along each argument, has {len(axis)}")
            if not all(before < after for before, after in pairwise(axis)):
                raise HeptiError(f"the points {list(axis)} do not ascend")
        shape = (len(self.seconds), *{len(row) for row in self.seconds})
        if shape != (len(self.first), len(self.second)):
            found, grid = (" by ".join(map(str, sizes)) for sizes in (shape, (len(self.first), len(self.second))))
            raise HeptiError(f"seconds are {found}, the grid is {grid}")
        if not all(0 < value < 1e6 for row in self.seconds for value in row):
            raise HeptiError("a time is not above 0 s and below 1e6 s")

    def slowed(self, factor: float) -> Curve:
        """Return the curve of a device that takes `factor` times as long."""
        return replace(self, seconds=tuple(tuple(factor * value for value in row) for row in self.seconds))


@dataclass(frozen=True, slots=True)
class Curves:
    """All curves of one device; `head_dim` is the head width that `attend` was measured with."""

    head_dim: int
    kernels: Mapping[Kernel, Curve]

    def slowed(self, factor: float) -> Curves:
        """Return the curves as they would be on a device that takes `factor` times as long."""
        if factor == 1:
            return self

        return replace(self, kernels={kernel: curve.slowed(factor) for kernel, curve in self.kernels.items()})


@lru_cache(maxsize=64)  # a speed that is followed is another after every request
def derived_curves(flop_per_s: float) -> Curves:
    """Return curves for a device of which only the speed is known."""
    rows = (1.0, 2.0, 4096.0)
    speed = flop_per_s * (SPEED_ROWS + PACK_ROWS) / SPEED_ROWS  # of one more row, once the weights are packed
    weights = (0.0, 2.0**24)
    worth = (float(SINGLE_ROW), 2.0 + PACK_ROWS, 4096.0 + PACK_ROWS)
    product = _curve(rows, weights, [[CALL_FLOP + 2 * w * r for w in weights] for r in worth], speed)
    score = 4 * HEAD_DIM + SCORE_FLOP
    return Curves(
        HEAD_DIM,
        {
            Kernel.PROJECT: product,
            Kernel.CONTRACT: product,
            Kernel.ATTEND: _curve(
                (0.0, 4096.0),
                (0.0, 4096.0),
                [[HEAD_FLOP, HEAD_FLOP], [HEAD_FLOP, HEAD_FLOP + score * 4096.0**2]],
                speed,
            ),
            Kernel.ACTIVATE: _line(CALL_FLOP, ACTIVATE_FLOP, speed),
            Kernel.NORM: _line(CALL_FLOP, NORM_FLOP, speed),
            Kernel.ADD: _line(CALL_FLOP, ADD_FLOP, speed),
            Kernel.MESSAGE: _line(MESSAGE_FLOP, BYTE_FLOP, speed),
        },
    )


def _line(fixed: float, slope: float, speed: float) -> Curve:
    reach = 2.0**24
    return _curve((0.0, reach), (0.0, 1.0), [[fixed] * 2, [fixed + slope * reach] * 2], speed)


def _curve(first: Sequence[float], second: Sequence[float], flop: Sequence[Sequence[float]], speed: float) -> Curve:
    return Curve(tuple(first), tuple(second), tuple(tuple(value / speed for value in row) for row in flop))


def curves_from_table(entry: Any) -> Curves:
    """Read the curves of one device as the cluster file has them.

    Raises
    ------
    HeptiError
        Naming the curve that is missing, unknown or not a curve.
    """
    if not isinstance(entry, dict):
        raise HeptiError("curves must be a table")
    for key in {"head_dim", *Kernel} ^ set(entry):
        raise HeptiError(f"curves: {'unknown' if key in entry else 'there is no'} {key}")
    if not isinstance(entry["head_dim"], int) or not entry["head_dim"] > 0:
        raise HeptiError(f"curves: head_dim is {entry['head_dim']!r}, must be a whole number above 0")
    kernels = {}
    for kernel, arguments in ARGUMENTS.items():
        needs = f"needs lists of numbers {' and '.join((*arguments, 'seconds'))}"
        with explained(f"curve {kernel}", HeptiError), explained(needs, (TypeError, ValueError, KeyError)):
            kernels[kernel] = _curve_from_table(entry[kernel], arguments)
    return Curves(entry["head_dim"], kernels)


def curves_to_table(curves: Curves) -> dict[str, Any]:
    """Write curves so that `curves_from_table` reads them back."""
    table: dict[str, Any] = {"head_dim": curves.head_dim}
    for kernel, curve in curves.kernels.items():
        names = ARGUMENTS[kernel]
        axes = dict(zip(names, (list(curve.first), list(curve.second)), strict=False))
        seconds = [list(row) if len(names) == 2 else row[0] for row in curve.seconds]
        table[str(kernel)] = {**axes, "seconds": seconds}
    return table


def _curve_from_table(entry: dict[str, Any], arguments: tuple[str, ...]) -> Curve:
    first = tuple(map(float, entry[arguments[0]]))
    if len(arguments) == 1:
        return Curve(first, (0.0, 1.0), tuple((float(value),) * 2 for value in entry["seconds"]))
    return Curve(
        first, tuple(map(float, entry[arguments[1]])), tuple(tuple(map(float, row)) for row in entry["seconds"])
    )


def corners(grid: Floats, least: float, most: float) -> Floats:
    """Return the points of a grid within an interval, and its ends."""
    return np.unique([least, *grid[(grid > least) & (grid < most)], most])


class Bank:
    """The curves of all devices, evaluated together.

    Parameters
    ----------
    curves
        One per device, in rank order; their grids may differ.
    """

    def __init__(self, curves: Sequence[Curves]) -> None:
        self._head_dims = np.array([device.head_dim for device in curves])
        self._tables = {kernel: _stack([device.kernels[kernel] for device in curves]) for kernel in Kernel}
        self._lines = {kernel: _lines(*table) for kernel, table in self._tables.items()}

    def only(self, devices: NDArray[np.intp]) -> Bank:
        """Return the bank of some of the devices."""
        bank = copy(self)
        bank._head_dims = self._head_dims[devices]
        bank._lines = {kernel: lines[:, devices] for kernel, lines in self._lines.items()}
        return bank

    def seconds(self, kernel: Kernel, first: Any, second: Any = 0.0) -> Floats:
        """Return the seconds of one call on every device, 0 where `first` is 0.

        Parameters
        ----------
        first, second
            The kernel's arguments; they broadcast to [..., p].
        """
        rows, columns, _ = self._tables[kernel]
        lines = self._lines[kernel]
        _, devices, down, across = lines.shape
        first = np.asarray(first, float)
        # Flat indices: searches call this ten thousand times, on a few hundred shares each.
        place = np.arange(devices) * (down * across) + _cell(rows, first) * across
        if len(ARGUMENTS[kernel]) == 1:
            fixed, slope = (part.take(place) for part in lines[:2])
            seconds = fixed + slope * first
        else:
            second = np.asarray(second, float)
            place = place + _cell(columns, second)
            fixed, by_first, by_second, by_both = (part.take(place) for part in lines)
            seconds = fixed + by_first * first + (by_second + by_both * first) * second
        return np.asarray(np.maximum(seconds, 0.0) * (first > 0))

    def attend(self, rows: Any, keys: Any, heads: Any, head_dim: int) -> Floats:
        """Return the seconds of `heads` heads of width `head_dim`."""
        return np.asarray(heads * self._of_width(head_dim) * self.seconds(Kernel.ATTEND, rows, keys))

    def _of_width(self, head_dim: int) -> Floats:
        """Return by what the seconds of a head differ from those of the width that was measured, [p]."""
        # The products are about half of a head's time; the softmax does not depend on the width.
        return np.asarray(0.5 + 0.5 * head_dim / self._head_dims)

    def least_rate(self, kernel: Kernel, first: FromTo, second: FromTo = (1.0, 1.0), head_dim: int = 0) -> Floats:
        """Return the least seconds of a unit of both arguments within intervals on every device, [p].

        The curves are linear within the cells of their grid, along either argument: a rate is least at a corner.
        """
        rows, columns, _ = self._tables[kernel]
        points = [corners(grid, *own) for grid, own in ((rows, first), (columns, second))]
        seconds = self.seconds(kernel, points[0][:, None, None], points[1][:, None])
        rates: Floats = (seconds / np.multiply.outer(*points)[..., None]).min((0, 1))
        return rates * self._of_width(head_dim) if head_dim else rates


def _cell(grid: Floats, at: Floats) -> NDArray[np.intp]:
    """Return the cell of the grid; the first, or the last, beyond it."""
    return grid[1:-1].searchsorted(at, side="right")


def _locate(grid: Floats, at: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return the cell of the grid and the place within it; outside 0 to 1 beyond the grid."""
    cell = _cell(grid, at)
    return cell, (at - grid[cell]) / (grid[cell + 1] - grid[cell])


def _lines(first: Floats, second: Floats, values: Floats) -> Floats:
    """Return a, b, c, d of a + b x + c y + d x y, [4, p, cells, cells], of seconds [p, points, points]."""
    along = np.diff(values, axis=1) / np.diff(first)[:, None]
    start = values[:, :-1] - along * first[:-1, None]
    by_second, by_both = (np.diff(part, axis=2) / np.diff(second) for part in (start, along))
    fixed, by_first = (part[..., :-1] - slope * second[:-1] for part, slope in ((start, by_second), (along, by_both)))
    return np.stack([fixed, by_first, by_second, by_both])


def _stack(curves: Sequence[Curve]) -> tuple[Floats, Floats, Floats]:
    """Bring the devices' grids to their union, which changes no curve, and stack the seconds."""
    # Identical boards share their curve: resample each once.
    unique = {id(curve): curve for curve in curves}
    first = np.unique(np.concatenate([curve.first for curve in unique.values()]))
    second = np.unique(np.concatenate([curve.second for curve in unique.values()]))
    resampled = {key: _resample(curve, first, second) for key, curve in unique.items()}
    return first, second, np.stack([resampled[id(curve)] for curve in curves])


def _resample(curve: Curve, first: Floats, second: Floats) -> Floats:
    seconds = np.array(curve.seconds)
    # More work never takes less time: noise that says otherwise is levelled, and shares can be found by bisection.
    seconds = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
    for axis, (own, union) in enumerate(((curve.first, first), (curve.second, second))):
        if len(own) == union.size:  # they are the same
            continue
        cell, place = _locate(np.array(own), union)
        low, high = np.take(seconds, cell, axis), np.take(seconds, cell + 1, axis)
        place = place[:, None] if axis == 0 else place
        seconds = np.maximum(low * (1 - place) + high * place, 0.0)
    return seconds
