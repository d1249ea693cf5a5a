"""What a rank lacks of a model, whatever it is made into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from solver.base.arrays import Numbers
from solver.plan.holdings import TensorSlice


@dataclass(frozen=True, slots=True, eq=False)
class Lacking:
    """Arrays, the slices of tensors that fill them, and what is done when they are filled.

    `make` may take the places out, so that arrays are freed one by one.
    """

    places: Sequence[tuple[TensorSlice, Numbers]]
    make: Callable[[], object]

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays."""
        return sum(out.nbytes for _, out in self.places)
