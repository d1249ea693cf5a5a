"""A weights file on every board: in the board's cache by its SHA-256, and a link to it at the path that it has here.

So it goes through the network once, whatever it is called; a transfer that was cut off goes on where it was.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from solver.base.errors import HeptiError, explained
from solver.base.hub import MAKE_ONE
from solver.base.progress import progress

HDF5 = b"\x89HDF"  # what every weights file begins with
PIECE = 1 << 20
# What a board says of the file: it is in the cache, so many bytes of it are, or there is another one in its place.
HELD, PART, OTHER = "held", "part", "other"


@dataclass(frozen=True, slots=True)
class PushedModel:
    """A weights file of this machine, its size and SHA-256."""

    path: Path
    size: int
    digest: str

    @property
    def look_script(self) -> str:
        """What prints one of the three words, and after `part` the bytes that are there."""
        path = shlex.quote(str(self.path))
        return (
            f"{self._cached}; if [ -f {path} ] && [ ! -L {path} ]; then "
            f'[ "$(sha256sum < {path})" = "{self.digest}  -" ] && echo {HELD} || echo {OTHER}; '
            f'elif [ -f "$file" ]; then {self._link} && echo {HELD}; '
            f'else echo {PART} "$(stat -c %s "$file.part" 2>/dev/null || echo 0)"; fi'
        )

    @property
    def receive_script(self) -> str:
        """What appends standard input to the part that is there, and takes it where it is whole and right."""
        return (
            f'{self._cached}; mkdir -p "$(dirname "$file")" && cat >> "$file.part" && '
            f'if [ "$(sha256sum < "$file.part")" = "{self.digest}  -" ]; then mv "$file.part" "$file" && {self._link}; '
            'else rm "$file.part"; echo "what came of the weights file is not what was sent: try again" >&2; exit 1; fi'
        )

    @property
    def _cached(self) -> str:
        return f'file="${{XDG_CACHE_HOME:-$HOME/.cache}}/hepti/weights/{self.digest}.h5"'

    @property
    def _link(self) -> str:
        path = shlex.quote(str(self.path))
        return f'mkdir -p {shlex.quote(str(self.path.parent))} && ln -sfn "$file" {path}'

    def rest(self, begin: int, carried: Callable[[int], object]) -> Iterator[bytes]:
        """Yield the file from a byte on."""
        with self.path.open("rb") as file:
            file.seek(begin)
            while piece := file.read(PIECE):
                yield piece
                carried(len(piece))


def read_model(path: Path) -> PushedModel:
    """Return a weights file to be pushed.

    Raises
    ------
    HeptiError
        If it cannot be read, or is none.
    """
    if not path.exists():
        raise HeptiError(f"no weights file {path}: {MAKE_ONE}")
    digest = hashlib.sha256()
    with explained(f"cannot read {path}", OSError), path.open("rb") as file:
        if file.read(len(HDF5)) != HDF5:
            raise HeptiError(f"{path} is no weights file: {MAKE_ONE}")
        file.seek(0)
        size = path.stat().st_size
        with progress(f"reading {path.name}", size) as done:
            while piece := file.read(PIECE):
                digest.update(piece)
                done(len(piece))
    return PushedModel(path.absolute(), size, digest.hexdigest())
