"""Several sequences on several stages: each stage computes some of them while the next one computes those before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hepti_mpi.program.program import PassShape, Program
from solver.base.arrays import Array
from solver.base.spans import Span


class InFlight:
    """A rank's part in passes of several sequences, some after the others; as `Program`.

    A stage waits for the one before it, and for nobody else: so as many parts as there are stages are in flight.

    Parameters
    ----------
    shape
        Of all.
    parts
        Which of them go together.
    program
        Makes the program of a part.
    """

    def __init__(self, shape: PassShape, parts: Sequence[Span], program: Callable[[PassShape], Program]) -> None:
        each = shape.chosen // shape.sequences
        self._parts: list[tuple[Span, Program]] = []
        for some in parts:
            part = replace(shape, first=shape.first + some.start, sequences=some.size, chosen=each * some.size)
            self._parts.append((some, program(part)))
        self._each = each
        first = self._parts[0][1]
        self.given = np.zeros((shape.sequences, *first.given.shape[1:]), np.float32)
        self.logits: list[tuple[int, Array]] = [
            (word, np.zeros((shape.chosen, own.shape[1]), np.float32)) for word, own in first.logits
        ]

    def run(self, starts: Sequence[int]) -> None:
        """Compute; `starts` says for each sequence how many tokens are before the new ones."""
        for some, program in self._parts:
            program.given[...] = self.given[some.slice]
            program.run(starts[some.slice])
            for (_, every), (_, own) in zip(self.logits, program.logits, strict=True):
                every[some.scaled(self._each).slice] = own
