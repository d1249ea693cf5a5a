"""Get the weights that a rank lacks: from its own file, or from rank 0 where it has none.

Whatever the model: `Lacking` says which arrays slices of tensors fill, and what becomes of them. A start is a change of
plan from nothing: `WeightsSource.complete` runs to the end, before the first request, what else runs between requests,
a piece at a time.

A rank without the file tells rank 0 which slices it wants next, and gets them in bounded pieces, of which few are on
their way at a time. All that travels has the tag of weights: what is asked for to rank 0, pieces from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from hepti_mpi.base.lacking import Lacking
from hepti_mpi.base.memory import freed_at_once
from hepti_mpi.comm.group import Group
from solver.base import clock
from solver.base.arrays import Numbers
from solver.base.errors import HeptiError
from solver.plan.holdings import TensorSlice

# A piece of work: what is read, or sent to a rank without the file, at a time.
STREAM_BYTES = 4 << 20
UNDERWAY = 2  # pieces that rank 0 lets be on their way

Value = TypeVar("Value")
Done = Callable[[int], object]  # hears of bytes that are got or sent


class ModelFile(Protocol):
    """A weights file that is open; as `weights.file.store.TensorFile`."""

    fingerprint: str

    @property
    def odd_types(self) -> Mapping[str, np.dtype[np.generic]]:
        """What tensors are read as that the model does not say."""

    def type_of(self, name: str) -> np.dtype[np.generic]:
        """Return what a tensor is read as."""

    def read_pieces(self, piece: TensorSlice, bytes_limit: int, out: Numbers | None = None) -> Iterator[Numbers]:
        """Yield a slice in bounded pieces; they lie in `out`, or are new arrays."""

    def close(self) -> None:
        """Close it."""


class WeightsSource:
    """Where a rank's weights come from: its own file, or rank 0, which reads for all `without_file`.

    Parameters
    ----------
    group
        All ranks; where some have no file, making this is a step of all of them.
    file
        This rank's; None: it has none.
    without_file
        The ranks that have none.

    Attributes
    ----------
    got_bytes
        What this rank has got so far.
    """

    def __init__(self, group: Group, file: ModelFile | None, without_file: Sequence[int] = ()) -> None:
        self.group, self.file, self.without_file = group, file, without_file
        self.got_bytes = 0
        self._number = 0  # of what is got: what is said of another was given up
        self._done: Done = lambda size: None
        self._odd_types: Mapping[str, np.dtype[np.generic]] = {}
        if without_file:
            self._odd_types = group.from_root((lambda: file.odd_types) if file and group.rank == 0 else None)

    def type_of(self, name: str) -> np.dtype[np.generic]:
        """Return what a tensor is read as, where the model does not say it."""
        return self.file.type_of(name) if self.file else self._odd_types.get(name, np.dtype(np.float32))

    def close(self) -> None:
        """Close the file, since this rank will need nothing more."""
        if self.file is not None:
            self.file.close()

    def complete(self, lacking: Iterable[Lacking | None], bar: AbstractContextManager[Done] | None = None) -> None:
        """Do at once all that `get` does, the next thing read, or asked for, while something is made of the one before.

        Parameters
        ----------
        bar
            Gives what is called with the bytes of what this rank has got or sent.

        Raises
        ------
        SharedError
            If a rank's file is damaged; where ranks wait for rank 0, or it for them, the job ends.
        """
        quiet = self._done

        def run() -> None:
            try:
                with freed_at_once(), bar or nullcontext(quiet) as self._done:
                    for worked in self.get(lacking, ahead=True):
                        if not worked:
                            self.group.pause()
            except HeptiError as error:
                if self.without_file and self.group.rank in (0, *self.without_file):
                    self.group.abort(str(error), code=2)
                self._say(None)
                raise
            finally:
                self._done = quiet

        self.group.on_all(run)

    def get(self, lacking: Iterable[Lacking | None], *, ahead: bool = False) -> Iterator[bool]:
        """Get what is lacking, and on rank 0 send others what they lack, in bounded pieces of work; all ranks do so.

        Yield whether there was something to do. It ends when this rank has got all; on rank 0 when all ranks have.

        Parameters
        ----------
        lacking
            In order; None: there is no room for the next one yet.
        ahead
            Whether the next one is read, by a thread, or asked for while something is made of the one before.
        """
        self._number += 1
        return self._both(self._get(lacking, ahead=ahead))

    def _both(self, own: Iterator[bool]) -> Iterator[bool]:
        for sent in self._serve():  # what others wait for comes first
            yield sent or next(own, False)
        yield from own

    def _get(self, lacking: Iterable[Lacking | None], *, ahead: bool) -> Iterator[bool]:
        begun: Iterable[tuple[Lacking | None, Iterable[bool]]] = ((own, self._filling(own)) for own in lacking)
        if ahead:
            begun = _one_ahead(begun) if self.file is None else _ahead(partial(_filled, *own) for own in begun)
        for own, filling in begun:
            yield from filling
            if own is not None:
                size = own.nbytes
                own.make()
                self.got_bytes += size
                self._done(size)
            yield own is not None
            del own, filling  # or the arrays would be held while the next but one is read
        self._say(None)

    def _filling(self, lacking: Lacking | None) -> Iterable[bool]:
        """Return what fills arrays, a bounded part at a time; ask for it where the file is not here."""
        places = lacking.places if lacking else ()
        if self.file is not None:
            file = self.file
            return (True for piece, out in places for _ in file.read_pieces(piece, STREAM_BYTES, out))
        if places:
            self._say([piece for piece, _ in places])
        return (here for _, out in places for here in self.group.weights.fill(out))

    def _say(self, slices: Sequence[TensorSlice] | None) -> None:
        """Tell rank 0 which slices it has to send next; None: this rank has all."""
        self.group.weights.send((self._number, slices), [0])

    def _serve(self) -> Iterator[bool]:
        """Send others what they ask for, until all have all; on rank 0, elsewhere nothing."""
        mail, left = self.group.weights, (self.group.size - 1) * (self.group.rank == 0)
        while left:
            if (found := mail.poll()) is None:
                yield False
                continue
            peer, (number, slices) = found
            left -= number == self._number and slices is None
            for block in self._read(slices or ()):
                while mail.leaving() > UNDERWAY:
                    yield False
                mail.send(block.reshape(-1).view(np.uint8), [peer])
                self._done(block.nbytes)
                yield True
        while mail.leaving():  # the last pieces leave while MPI is called
            yield False

    def _read(self, slices: Iterable[TensorSlice]) -> Iterator[Numbers]:
        assert self.file is not None
        return chain.from_iterable(self.file.read_pieces(piece, STREAM_BYTES) for piece in slices)


class Preparation:
    """What ranks do between requests for a plan to come: get what they lack, a piece at a time.

    Attributes
    ----------
    ready
        Whether this rank has all; on rank 0, whether all ranks have.
    """

    def __init__(self, source: WeightsSource) -> None:
        self._source, self._budget_s, self.ready = source, 0.0, True
        self._work: Iterator[bool] = iter(())

    def begin(self, lacking: Iterable[Lacking | None], budget_s: float = 0.0) -> None:
        """Begin, each request waiting for so long at most; what is still lacking from before is given up."""
        self._work, self._budget_s, self.ready = self._source.get(lacking), budget_s, False

    def step(self) -> bool:
        """Do a bounded piece; return whether there was any."""
        worked = next(self._work, None)
        self.ready = worked is None
        return bool(worked)

    def work(self) -> None:
        """Do a piece, and others for as long as a request may wait: for other ranks, too."""
        until = clock.now() + self._budget_s
        worked = self.step()
        while not self.ready and clock.now() < until:
            if not worked:
                self._source.group.pause()
            worked = self.step()


def open_source(opened: Callable[[Path], ModelFile], path: Path, fingerprint: str, group: Group) -> WeightsSource:
    """Return where this rank's weights come from; a step of all ranks.

    Parameters
    ----------
    opened
        Opens a file of the model's kind.
    path, fingerprint
        The file, and what rank 0's says.

    Raises
    ------
    SharedError
        If a rank's file is damaged, or another than rank 0's.
    """
    file: ModelFile | None = None

    def open_own() -> bool:
        nonlocal file
        if not path.is_file():
            return False
        file = opened(path)
        if file.fingerprint != fingerprint:
            raise HeptiError(
                f"{path} differs from rank 0's: fingerprint {file.fingerprint[:12]} against {fingerprint[:12]}; "
                f"copy rank 0's file, or remove this one and rank 0 will send the share"
            )
        return True

    without_file = [rank for rank, has in enumerate(group.on_all(open_own)) if not has]
    return WeightsSource(group, file, without_file)


def _filled(lacking: Lacking | None, filling: Iterable[bool]) -> tuple[Lacking | None, Iterable[bool]]:
    """Fill arrays; nothing is left to do."""
    for _ in filling:
        pass
    return lacking, ()


def _one_ahead(values: Iterable[Value]) -> Iterator[Value]:
    """Yield values, each when the next one is there."""
    pending: list[Value] = []
    for value in values:
        yield from pending
        pending = [value]
    yield from pending


def _ahead(steps: Iterable[Callable[[], Value]]) -> Iterator[Value]:
    """Yield what the steps return, each run by a thread while the former's result is used."""
    with ThreadPoolExecutor(1) as thread:
        pending: Future[Value] | None = None
        for step in steps:
            following = thread.submit(step)
            if pending is not None:
                yield pending.result()
            pending = following
        if pending is not None:
            yield pending.result()
