"""`Weight`: a tensor of a model, and what is stored for it in each precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from solver.model.precision import FLOAT32, Precision

BLOCK = 32  # numbers along the summed axis of a matrix that share a scale
# What matrices are held in: a scale for every 32 numbers that a product sums over, stored as float16, held as float32;
# symmetric but those with a minimum.
PRECISIONS: Mapping[str, Precision] = {
    "float32": FLOAT32,
    "int8": Precision("int8", bits=8, group=BLOCK, scale_bytes=4),
    "int4": Precision("int4", bits=4, group=BLOCK, scale_bytes=4),
    # A minimum for every scale: numbers of Q4_1, and words of Q8_0 beside them, as they are.
    "int4m": Precision(
        "int4m", bits=4, group=BLOCK, scale_bytes=8, minima=True,
        words=Precision("int8m", bits=8, group=BLOCK, scale_bytes=8, minima=True),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of a model.

    Parameters
    ----------
    shape
        As it lies, where it is float32.
    summed
        The axis that its product sums over, 0 or 1; None: it is no product's matrix, and float32 in any precision.
    words
        Whether it is the embedding or the head, which may be held in another precision than the layers.
    """

    shape: tuple[int, ...]
    summed: int | None = None
    words: bool = False

    def held_in(self, precision: Precision) -> Precision:
        """Return what it is held in under a model's precision."""
        return FLOAT32 if self.summed is None else precision.of_words if self.words else precision

    def stored(self, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what is stored for it, by what follows its name.

        In blocks, b = ceil(summed / 32): of [out, in] "" is [out, b, bytes] uint8 and "/scale" [out, b] float16; of
        [in, out] "" is [b, out, bytes] and "/scale" [b, out]. `bytes` are a block's numbers in order: 32 int8 with
        zero at 128, or 16 of two int4 each, the first in the low bits, with zero at 8. Where a precision has minima,
        "/scale" is [..., 2], scale and minimum: a number is scale · level + minimum, of int4 from level 0 on, of int8
        from 128 on.
        """
        own = self.held_in(precision)
        if self.summed is None or own is FLOAT32:
            return {"": self.shape}
        shape = list(self.shape)
        shape[self.summed] = -(-shape[self.summed] // BLOCK)
        return {"": (*shape, BLOCK * own.bits // 8), "/scale": (*shape, 2) if own.minima else tuple(shape)}
