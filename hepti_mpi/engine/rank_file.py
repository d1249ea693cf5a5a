"""Where a rank's share of a model comes from: its own file, or rank 0, which sends what it asks for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hepti_mpi.base.memory import freed_at_once
from hepti_mpi.comm.group import Group
from hepti_mpi.engine.load import differs
from solver.base.errors import HeptiError

Made = TypeVar("Made")
Done = Callable[[int], object]


class ModelFile(Protocol):
    """A weights file that is open."""

    fingerprint: str

    def close(self) -> None:
        """Close it."""


class RankFile:
    """Reads tensors, from this rank's file or rank 0's.

    Parameters
    ----------
    opened
        Opens a file of the model's kind.
    path, fingerprint
        The file, and what rank 0's says.
    group
        All ranks; making this is a step of all of them.

    Attributes
    ----------
    without_file
        The ranks that have none.

    Raises
    ------
    SharedError
        If a rank's file is damaged, or another than rank 0's.
    """

    def __init__(self, opened: Callable[[Path], ModelFile], path: Path, fingerprint: str, group: Group) -> None:
        self._group = group
        self._file: ModelFile | None = None
        self._done: Done = lambda size: None

        def open_own() -> bool:
            if not path.is_file():
                return False
            self._file = opened(path)
            if self._file.fingerprint != fingerprint:
                raise differs(path, self._file.fingerprint, fingerprint)
            return True

        self.without_file = [rank for rank, has in enumerate(group.on_all(open_own)) if not has]

    def load(self, make: Callable[[], Made], bar: AbstractContextManager[Done] | None = None) -> Made:
        """Return what `make` makes of what it reads; a step of all ranks.

        `bar` gives what is called with the bytes of what this rank's file has given, for others too.

        Raises
        ------
        SharedError
            If a rank's file is damaged; where ranks wait for their shares, and would not hear of it, the job ends.
        """
        made: list[Made] = []

        def load_own() -> None:
            try:
                with freed_at_once(), bar or nullcontext(lambda size: None) as self._done:
                    self._build(lambda: made.append(make()))
            except HeptiError as error:
                if self.without_file:
                    self._group.abort(str(error), code=2)
                raise

        self._group.on_all(load_own)
        return made[0]

    def _build(self, build: Callable[[], None]) -> None:
        """Build what reads: first where there is a file, then where rank 0 has to send."""
        group = self._group
        if self._file is not None:
            build()
        if group.rank in self.without_file:
            build()
            group.reports.send(None, [0])
        elif group.rank == 0:
            self._serve()
        if self._file is not None:
            self._file.close()

    def read(self, *which: Any) -> Any:
        """Return what the file's `read` does of these arguments."""
        return self._ask("read", which)

    def read_blocks(self, *which: Any) -> Any:
        """Return what the file's `read_blocks` does of these arguments."""
        return self._ask("read_blocks", which)

    def _ask(self, how: str, which: tuple[Any, ...]) -> Any:
        if self._file is not None:
            found = getattr(self._file, how)(*which)
            self._done(sum(part.nbytes for part in (found if isinstance(found, tuple) else (found,))))
            return found
        self._group.reports.send((self._group.rank, how, which), [0])
        return self._group.weights.take()[0]

    def _serve(self) -> None:
        """Send what is asked for, until nobody needs more."""
        left = len(self.without_file)
        while left:
            asked = self._group.reports.take()
            if asked is None:
                left -= 1
                continue
            peer, how, which = asked
            self._group.weights.send((self._ask(how, which),), [peer])
