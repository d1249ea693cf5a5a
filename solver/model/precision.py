"""What weights are held in: the bits of a number, and the scales beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """How the matrices of layers are held; vectors, embeddings and heads are float32 in any precision."""

    name: str
    bits: int  # of one number
    group: int = 0  # how many numbers that a product sums over share a scale; 0: all of an output channel
    scale_bytes: int = 0  # of one scale, and of the minimum beside it
    minima: bool = False  # whether a group also has what its level 0 means
    words: Precision | None = None  # what embedding and head are held in, where that is another

    @property
    def of_words(self) -> Precision:
        """What embedding and head are held in."""
        return self.words or self

    @property
    def weight_bytes(self) -> float:
        """Bytes of one number of a large matrix, with its part of a group's scale."""
        return self.bits / 8 + (self.scale_bytes / self.group if self.group else 0)

    def bytes_of(self, shape: tuple[int, ...], summed: int | None) -> int:
        """Return the bytes of a tensor, or of a part of one, as it is held.

        `summed` is the dimension that its product sums over; None for what is float32 in any precision.
        """
        if summed is None or not math.prod(shape):
            return 4 * math.prod(shape)
        group = self.group or shape[summed]
        # A group that is not full takes the room of one that is: kernels want it so.
        groups = math.prod(shape) // shape[summed] * math.ceil(shape[summed] / group)
        return groups * (math.ceil(group * self.bits / 8) + self.scale_bytes)


FLOAT32 = Precision("float32", bits=32)
# The scales of its output channels were measured with all that loading takes, and count there
# (`solver.schedule.encoders.memory.loading`).
INT8 = Precision("int8", bits=8)
PRECISIONS = {precision.name: precision for precision in (FLOAT32, INT8)}
