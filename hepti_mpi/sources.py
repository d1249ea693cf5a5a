"""Sources: they give an engine the batches to run. It asks them again after every step, and they may have none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hepti_mpi.requests.inputs import Request

Batches = Sequence[Sequence[Request]]


def in_turn(turns: Iterable[Batches], idle: Callable[[], bool]) -> Iterator[Batches]:
    """Give batches that run together, as a pass over a file or a line, when those before them are answered."""
    for batches in turns:
        yield batches
        while not idle():
            yield ()
