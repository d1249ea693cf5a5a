"""How numbers travel: float32 as they are, float16 as half of the bytes, int8 as a quarter and a scale for every row.

From stage to stage also 6, 4 or 2 bits: QuantPipe's clipped quantisation (Wang et al., arXiv 2211.04515).

What a rank computed itself it never rounds: only what arrives is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array
from solver.plan.plan import Wire

Message = NDArray[Any]
Cast = Callable[[NDArray[Any], NDArray[Any]], object]  # from, into

HALF_INF, HALF_MINUS_INF = 0x7C00, 0xFC00  # as bits
INT8_LARGEST = 127
SCALE_BYTES = Wire.INT8.scale_bytes
TINY = 1e-30  # the scale of a row of zeros
BOUND_BYTES = Wire.INT2.scale_bytes
# W(3 · 4^bits), W Lambert's function: W(z) e^W(z) = z.
CLIPS = {Wire.INT2: 2.830683, Wire.INT4: 5.02864, Wire.INT6: 7.413126}


class Coding(Protocol):
    """A number format of messages; all arrays are [rows, width]."""

    @property
    def bits(self) -> int:
        """Bits of a number."""

    def encode(self, x: Array) -> Message:
        """Return what is sent for x."""

    def message(self, out: Array) -> Message:
        """Return the place that receives what is sent for an array like `out`."""

    def decode(self, message: Message, out: Array) -> None:
        """Turn what has arrived into numbers."""


class Exact:
    """float32: arrays are sent, and arrive, where they lie."""

    bits = 32

    def encode(self, x: Array) -> Message:  # noqa: D102
        return np.ascontiguousarray(x)

    def message(self, out: Array) -> Message:  # noqa: D102
        return out

    def decode(self, message: Message, out: Array) -> None:  # noqa: D102
        pass


EXACT = Exact()


class Half:
    """float16, rounded to nearest; finite numbers that it has not become the largest that it has, ± 65504.

    Infinite ones and NaN stay so: something is wrong, and shows.

    Parameters
    ----------
    cast
        Copies between float32 and float16. numpy takes 1.3 ms for 512 Ki numbers on one x86 core, onnxruntime 0.04.
    """

    bits = 16

    def __init__(self, cast: Cast = np.copyto) -> None:
        self._cast = cast

    def encode(self, x: Array) -> Message:  # noqa: D102
        half = np.empty(x.shape, np.float16)
        with np.errstate(over="ignore"):
            self._cast(half, x)
        # Infinite and NaN are the largest of all bits, but for the sign. Of 512 Ki numbers two looks at the bits take
        # 0.03 ms, at the least and largest float32 0.05, np.isinf 0.84, and np.clip, which needs none, 0.08.
        if half.view(np.int16).max(initial=0) >= HALF_INF or half.view(np.uint16).max(initial=0) >= HALF_MINUS_INF:
            over = np.isinf(half) & np.isfinite(x)
            half[over] = np.copysign(np.finfo(np.float16).max, x[over])
        return half.view(np.uint8)

    def message(self, out: Array) -> Message:  # noqa: D102
        return np.empty((out.shape[0], 2 * out.shape[1]), np.uint8)

    def decode(self, message: Message, out: Array) -> None:  # noqa: D102
        self._cast(out, message.view(np.float16))


class Scaled:
    """int8, every row times a scale of its own: [int8 × width, float32 scale] a row.

    A row with an infinite number or NaN arrives without a finite one, by its scale; other rows do not feel it.
    """

    bits = 8

    def encode(self, x: Array) -> Message:  # noqa: D102
        scale = np.maximum(x.max(1, keepdims=True), -x.min(1, keepdims=True))
        scale *= 1 / INT8_LARGEST
        np.maximum(scale, TINY, out=scale)
        scaled = x * np.reciprocal(scale)
        message = np.empty((x.shape[0], x.shape[1] + SCALE_BYTES), np.int8)
        np.copyto(message[:, :-SCALE_BYTES], np.rint(scaled, out=scaled), casting="unsafe")
        message[:, -SCALE_BYTES:] = scale.view(np.int8)
        return message

    def message(self, out: Array) -> Message:  # noqa: D102
        return np.empty((out.shape[0], out.shape[1] + SCALE_BYTES), np.int8)

    def decode(self, message: Message, out: Array) -> None:  # noqa: D102
        scale = np.ascontiguousarray(message[:, -SCALE_BYTES:]).view(np.float32)
        np.multiply(message[:, :-SCALE_BYTES], scale, out=out)


class Clipped:
    """Levels of few bits between a row's bounds, packed: [packed levels, float32 least value, float32 step] a row.

    The bounds are mean ± W(3 · 4^bits) sqrt(variance / 2), best for Laplace's distribution (Banner et al., NeurIPS
    2019, as QuantPipe takes it), or the row's least and largest value, whichever errs less. QuantPipe always clips; but
    some columns of hidden states are 14 to 18 times their standard deviation. At 6 bits clipping them errs 3.6 to 4.5
    times as much as not, at 4 bits 1.2, at 2 bits 0.4 to 0.6 times (root mean square after layers 1, 3 and 5 of
    all-MiniLM-L6-v2). The bounds are a row's, not a batch's: batches come in tiles, from several ranks.

    Parameters
    ----------
    wire
        Of 6, 4 or 2 bits.
    """

    def __init__(self, wire: Wire) -> None:
        self.bits, self._row_bytes, self._clip = wire.bits, wire.row_bytes, CLIPS[wire]
        self._together = 8 // math.gcd(8, wire.bits)  # numbers that fill whole bytes

    def encode(self, x: Array) -> Message:  # noqa: D102
        steps = (1 << self.bits) - 1
        low, high = self._bounds(x, steps)
        step = np.maximum((high - low) * (1 / steps), TINY)
        levels = x - low
        levels *= np.reciprocal(step)
        np.clip(np.rint(levels, out=levels), 0, steps, out=levels)
        message = np.empty((x.shape[0], self._row_bytes(x.shape[1])), np.uint8)
        message[:, :-BOUND_BYTES] = self._packed(levels.astype(np.uint8))
        message[:, -BOUND_BYTES:] = np.concatenate([low, step], axis=1).view(np.uint8)
        return message

    def message(self, out: Array) -> Message:  # noqa: D102
        return np.empty((out.shape[0], self._row_bytes(out.shape[1])), np.uint8)

    def decode(self, message: Message, out: Array) -> None:  # noqa: D102
        low, step = np.split(np.ascontiguousarray(message[:, -BOUND_BYTES:]).view(np.float32), 2, axis=1)
        np.multiply(self._unpacked(message[:, :-BOUND_BYTES])[:, : out.shape[1]], step, out=out)
        out += low

    def _bounds(self, x: Array, steps: int) -> tuple[Array, Array]:
        """Return the least and the largest value of every row's levels [rows, 1], by the lesser sum of squared errors.

        Rounding errs by step² / 12 a number, clipping by what it cuts off.
        """
        low, high, mean = (find(1, keepdims=True) for find in (x.min, x.max, x.mean))
        variance = np.maximum(np.einsum("ij,ij->i", x, x)[:, None] / x.shape[1] - mean**2, 0)
        reach = self._clip * np.sqrt(0.5 * variance)
        clipped_low, clipped_high = np.maximum(low, mean - reach), np.minimum(high, mean + reach)
        cut_off = np.clip(x, clipped_low, clipped_high)
        cut_off -= x
        rounding = x.shape[1] / (12 * steps**2)
        errs = rounding * (clipped_high - clipped_low) ** 2 + np.einsum("ij,ij->i", cut_off, cut_off)[:, None]
        clips = errs < rounding * (high - low) ** 2
        return np.where(clips, clipped_low, low), np.where(clips, clipped_high, high)

    def _packed(self, levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pack [rows, width] levels.

        What stands as many columns apart as there are groups shares bytes: slices next to each other, not strides.
        """
        rows, width = levels.shape
        groups = -(-width // self._together)
        if groups * self._together > width:
            levels = np.pad(levels, ((0, 0), (0, groups * self._together - width)))
        packed = np.zeros((rows, self._together * self.bits // 8 * groups), np.uint8)
        for number in range(self._together):
            level = levels[:, number * groups : (number + 1) * groups]
            byte, bit = divmod(number * self.bits, 8)
            packed[:, byte * groups : (byte + 1) * groups] |= level << bit
            if bit + self.bits > 8:
                packed[:, (byte + 1) * groups : (byte + 2) * groups] |= level >> (8 - bit)
        return packed

    def _unpacked(self, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Unpack what `_packed` returned; its padding is at the end."""
        groups = packed.shape[1] * 8 // self.bits // self._together
        levels = np.empty((packed.shape[0], groups * self._together), np.uint8)
        for number in range(self._together):
            byte, bit = divmod(number * self.bits, 8)
            level = packed[:, byte * groups : (byte + 1) * groups] >> bit
            if bit + self.bits > 8:
                level |= packed[:, (byte + 1) * groups : (byte + 2) * groups] << (8 - bit)
            np.bitwise_and(level, (1 << self.bits) - 1, out=levels[:, number * groups : (number + 1) * groups])
        return levels


def coding(wire: Wire, cast: Cast = np.copyto) -> Coding:
    """Return how a wire's numbers are written; `cast` as in `Half`. Not of `adaptive`: `hepti_mpi.comm.adaptive`."""
    if wire is Wire.FLOAT32:
        return EXACT
    if wire in CLIPS:
        return Clipped(wire)
    return Half(cast) if wire is Wire.FLOAT16 else Scaled()
