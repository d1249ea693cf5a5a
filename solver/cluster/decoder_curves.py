"""How long one device takes for the blocks of a language model: measured, or derived from its speed.

A block of one token waits for its weights to be read, one of a prompt's chunk for its products; what a small share
waits for is calls. So a curve is seconds over rows and over bytes of weights. In the cluster file:

    [device.decoder]
    precision = "int4"       # of the weights; other precisions go by the derived speeds
    pass_us = 900
    message_us = 13
    attention = { rows = [1, 2, 4, 8, 64, 256], weights = [1.6e6, 6.5e6], seconds = [[...], [...], ...] }
    mlp = { rows = ..., weights = ..., seconds = ... }
    head = { rows = ..., weights = ..., seconds = ... }
    cached = { float32 = { rows = [1, 64], ns = [...] }, int8 = { rows = [1, 64], ns = [...] } }
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from solver.base.errors import HeptiError, explained
from solver.cluster.curves import Curve, Floats, corners
from solver.cluster.nodes import twelve_digits
from solver.model.kinds.attention import CACHES
from solver.model.kinds.weight import PRECISIONS


class DecoderPart(StrEnum):
    """What a rank computes between two exchanges."""

    ATTENTION = "attention"
    MLP = "mlp"
    HEAD = "head"


ROWS = (1.0, 2.0, 4.0, 8.0, 64.0, 256.0)  # of a token, a few that are verified, a prompt's chunk
# Derived speeds, in FLOP of the declared speed (a MatMul of 256 rows). Weights come from memory at 2.9 to 3.2 GB/s of
# the file's bytes on a Pi 4 (24.6 GFLOP/s) and at 10.3 on a Pi 5 (70), as is published; held int4 is 10/9 of those
# bytes. The rest was measured on one x86 core of 83 to 97 GFLOP/s with onnxruntime's MatMulNBits: what rows cost beside
# one; a block's small nodes and calls; messages of 8 KiB.
BYTES_PER_FLOP = 0.15
ROW_FACTORS: Mapping[str, tuple[float, ...]] = {
    "float32": (1, 1, 1.1, 1.3, 3, 10),  # four bytes are read for the FLOP that int4 does for a half
    "int8": (1, 1.03, 1.35, 1.9, 9.8, 39),
    "int4": (1, 1.01, 1.57, 2.6, 17, 68),
    "int4m": (1, 1.01, 1.57, 2.6, 15, 58),
}
CALL_FLOP = 8e6  # 90 us
MESSAGE_FLOP = 1.2e6  # 13 us
PASS_FLOP = 9e7  # 1 ms
# Of a row, a cached token and a column of query heads. On a Pi 5 distributed-llama reads a float32 cache at 3.8 GB/s
# (published), int8 should come at 8; of many rows, products.
CACHED_ROWS = (1.0, 64.0)
CACHED_FLOP: Mapping[str, tuple[float, float]] = {"float32": (37, 8), "int8": (5, 8)}


@dataclass(frozen=True, slots=True)
class CachedCurve:
    """What attention takes beside its weights, by the rows of a pass.

    Parameters
    ----------
    rows
        Ascending.
    seconds
        Of one row, one token that it sees and one column of its query heads (heads × head_dim); the last for more rows.
    """

    rows: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.seconds) or not self.rows:
            raise HeptiError(f"{len(self.rows)} rows, {len(self.seconds)} times: it needs as many, one at least")
        if not all(before < after for before, after in pairwise(self.rows)) or self.rows[0] <= 0:
            raise HeptiError(f"rows {list(self.rows)} do not ascend from above 0")
        if not all(0 <= value < 1e-3 for value in self.seconds):
            raise HeptiError("a token's time is below 0 s or not below 1e-3 s")

    def at(self, rows: float) -> float:
        """Return the seconds of a row among so many."""
        return float(np.interp(rows, self.rows, self.seconds))


@dataclass(frozen=True, slots=True)
class WeightsCurve:
    """Seconds over bytes of weights; a planner asks for single ones, thousands of times."""

    weights: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, size: float) -> float:
        """Return the seconds of so many bytes, beyond the last along the last slope; of none, none."""
        if size <= 0:
            return 0.0
        cell = min(max(bisect_right(self.weights, size) - 1, 0), len(self.weights) - 2)
        (start, stop), (low, high) = self.weights[cell : cell + 2], self.seconds[cell : cell + 2]
        return max(low + (high - low) * ((size - start) / (stop - start)), 0.0)

    def least_rate(self, least: float, most: float) -> float:
        """Return the least seconds of a byte, of sizes from `least` to `most`; it is at a corner of the curve."""
        sizes: list[float] = corners(np.array(self.weights), least, most).tolist()
        return min(self.at(size) / size for size in sizes)

    def line_below(self, least: float, most: float) -> tuple[float, float]:
        """Return a and b of the line a + b size that is nowhere above it from `least` to `most`.

        Of those through two corners that which is highest in the middle; or that from none on.
        """
        sizes = corners(np.array(self.weights), least, most)
        seconds = np.array([self.at(size) for size in sizes.tolist()])
        lines = [(0.0, self.least_rate(least, most))]
        for (one, before), (other, after) in combinations(zip(sizes, seconds, strict=True), 2):
            slope = (after - before) / (other - one)
            fixed = float((seconds - slope * sizes).min())
            lines += [(fixed, float(slope))] if slope > 0 else []
        return max(lines, key=lambda line: line[0] + line[1] * (least + most) / 2)


@dataclass(frozen=True, slots=True)
class DecoderSpeeds:
    """What one device takes for a language model.

    Parameters
    ----------
    precision
        What the weights were in: float32, int8, int4 or int4m.
    parts
        Of every part a curve of `rows` (1, 2, 4, 8, 64, 256) over `weights`, bytes of numbers and float32 scales: 4,
        1.125 or 0.625 a number; memory holds more (`solver.schedule.decoders.memory`).
        Attention: norm, query, key, value, what is cached, output, with next to nothing in the cache; MLP: norm, gate,
        up, down; both with the sum of what ranks sent before. Head: norm, logits, candidates. Seconds.
    cached
        By what keys and values are kept in, float32 and int8: what every token in the cache costs.
    pass_s
        Seconds that rank 0 needs between two passes: it chooses a token, embeds it, and begins.
    message_s
        CPU seconds of sending or of receiving a message of few KiB.
    """

    precision: str
    parts: Mapping[DecoderPart, Curve]
    cached: Mapping[str, CachedCurve]
    pass_s: float
    message_s: float

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise HeptiError(f"precision is {self.precision!r}, must be one of {', '.join(PRECISIONS)}")
        for known, found, what in (
            (set(DecoderPart), set(self.parts), "part"),
            (set(CACHES), set(self.cached), "cache"),
        ):
            for key in sorted(known ^ found):
                raise HeptiError(f"there is no {what} {key}" if key in known else f"unknown {what} {key}")
        for what, seconds in (("a pass", self.pass_s), ("a message", self.message_s)):
            if not 0 <= seconds < 100:
                raise HeptiError(f"{what} takes {seconds} s, must be at least 0 and below 100")

    def slowed(self, factor: float) -> DecoderSpeeds:
        """Return those of a device that takes `factor` times as long."""
        return replace(
            self,
            parts={part: curve.slowed(factor) for part, curve in self.parts.items()},
            cached={
                name: replace(curve, seconds=tuple(factor * t for t in curve.seconds))
                for name, curve in self.cached.items()
            },
            pass_s=factor * self.pass_s,
            message_s=factor * self.message_s,
        )

    def of_rows(self, part: DecoderPart, rows: float) -> WeightsCurve:
        """Return what so many rows take, over the bytes of weights."""
        curve = self.parts[part]
        table = np.maximum.accumulate(np.maximum.accumulate(np.array(curve.seconds), axis=0), axis=1)
        by_weights = _linear(np.asarray(rows, float), np.array(curve.first), table)
        return WeightsCurve(tuple(map(float, curve.second)), tuple(by_weights.tolist()))

    def seconds(self, part: DecoderPart, rows: float, weights: Any) -> Floats:
        """Return the seconds of shares of so many bytes of weights, [...]; of none, none."""
        at = np.vectorize(self.of_rows(part, rows).at, otypes=[float])
        return np.asarray(at(np.asarray(weights, float)))


def _linear(at: Floats, points: Floats, values: Floats) -> Floats:
    """Return values between the points of the first axis, beyond them along the last slope, [..., *others]."""
    cell = np.clip(np.searchsorted(points, at, side="right") - 1, 0, points.size - 2)
    place = (at - points[cell]) / (points[cell + 1] - points[cell])
    low, high = values[cell], values[cell + 1]
    return np.asarray(low + (high - low) * (place if values.ndim == 1 else np.expand_dims(place, -1)))


@lru_cache(maxsize=64)
def derived_decoder_speeds(flop_per_s: float, precision: str) -> DecoderSpeeds:
    """Return the speeds of a device of which only that of a MatMul is known."""
    weights = (0.0, 2.0**30)
    flop = [[CALL_FLOP + factor * size / BYTES_PER_FLOP for size in weights] for factor in ROW_FACTORS[precision]]
    curve = Curve(ROWS, weights, tuple(tuple(value / flop_per_s for value in row) for row in flop))
    cached = {
        cache: CachedCurve(CACHED_ROWS, tuple(value / flop_per_s for value in values))
        for cache, values in CACHED_FLOP.items()
    }
    return DecoderSpeeds(
        precision, dict.fromkeys(DecoderPart, curve), cached, PASS_FLOP / flop_per_s, MESSAGE_FLOP / flop_per_s
    )


def decoder_from_table(entry: Any) -> DecoderSpeeds:
    """Read what a device takes for language models as the cluster file has it.

    Raises
    ------
    HeptiError
        Naming what is missing, unknown or absurd.
    """
    problem = "decoder: needs precision, pass_us, message_us, attention, mlp, head and cached"
    with explained(problem, (TypeError, ValueError, KeyError, AttributeError)):
        for key in entry:
            if key not in ("precision", "pass_us", "message_us", "cached", *DecoderPart):
                raise HeptiError(f"decoder: unknown key {key!r}")
        parts, cached = {}, {}
        for part in DecoderPart:
            with explained(f"decoder: {part}", HeptiError):
                rows, weights = (tuple(map(float, entry[part][axis])) for axis in ("rows", "weights"))
                parts[part] = Curve(rows, weights, tuple(tuple(map(float, row)) for row in entry[part]["seconds"]))
        for cache, curve in entry["cached"].items():
            with explained(f"decoder: cached {cache}", HeptiError):
                seconds = tuple(float(value) / 1e9 for value in curve["ns"])
                cached[cache] = CachedCurve(tuple(map(float, curve["rows"])), seconds)
        with explained("decoder", HeptiError):
            return DecoderSpeeds(
                str(entry["precision"]), parts, cached, float(entry["pass_us"]) / 1e6, float(entry["message_us"]) / 1e6
            )


def decoder_to_table(speeds: DecoderSpeeds) -> dict[str, Any]:
    """Write speeds so that `decoder_from_table` reads them back, to twelve digits."""
    return {
        "precision": speeds.precision,
        "pass_us": twelve_digits(1e6 * speeds.pass_s),
        "message_us": twelve_digits(1e6 * speeds.message_s),
        **{
            str(part): {
                "rows": list(curve.first),
                "weights": list(curve.second),
                "seconds": [list(row) for row in curve.seconds],
            }
            for part, curve in speeds.parts.items()
        },
        "cached": {
            cache: {"rows": list(curve.rows), "ns": [twelve_digits(1e9 * value) for value in curve.seconds]}
            for cache, curve in speeds.cached.items()
        },
    }
