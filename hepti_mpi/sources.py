"""Sources: they give an engine the batches to run. It asks them again after every step, and they may have none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hepti_mpi.requests.inputs import Request, batches_of

Batches = Sequence[Sequence[Request]]


def in_turn(
    turns: Iterable[Batches], idle: Callable[[], bool], look: Callable[[], object] = lambda: None
) -> Iterator[Batches]:
    """Give batches that run together, as a pass over a file, when those before them are answered.

    `look` is called between steps meanwhile.
    """
    for batches in turns:
        yield batches
        while not idle():
            look()
            yield ()


def together(
    asked: Iterable[Request], is_there: Callable[[], bool], left_out: Callable[[Request], bool]
) -> Iterator[list[Request]]:
    """Yield requests in order, together up to BATCH_ROWS rows, but none waits for one that is not there yet.

    Parameters
    ----------
    asked
        The requests; it may wait for the next one.
    is_there
        Whether it would not, the end included.
    left_out
        Whether a request is not to be computed; asked as the last thing.
    """
    for batch in batches_of(asked, is_there):
        if wanted := [request for request in batch if not left_out(request)]:
            yield wanted
