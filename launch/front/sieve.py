"""What ranks say, told from what mpirun and ssh say on the same two streams."""

from __future__ import annotations

import re
from collections.abc import Callable

from solver.base.front import BEGUN

OUTPUT, ERRORS = 1, 2
# Open MPI frames what it has to say by lines of 60 or 74 dashes; single lines of errors begin with host and process.
RULE = re.compile(rb"-{60}|-{74}")
SINGLE = re.compile(rb"\[[^\]\s]+:\d+\] .*|Abort is in progress\.\.\.hit ctrl-c again.*")
Out = Callable[[int, bytes], object]


class Sieve:
    """Passes on what ranks say, and puts aside what mpirun and ssh say.

    Until rank 0 says that the job has begun, errors are all put aside, and output is held.

    Parameters
    ----------
    out
        Takes a stream and what ranks say there.
    aside
        Takes what the others say.
    called
        What our own complaints begin with.
    """

    def __init__(self, out: Out, aside: Callable[[bytes], object], called: str) -> None:
        self._out, self._aside = out, aside
        self._own = f"{called}: ".encode()
        self._rest = {OUTPUT: b"", ERRORS: b""}
        self._framed: set[int] = set()  # streams in the midst of a frame
        self._midway = False  # the beginning of the output's line is out already
        self._held: list[bytes] = []
        self.begun = False
        self.complained = False  # one of our own complaints has passed

    def take(self, stream: int, chunk: bytes) -> None:
        """Take what has come."""
        *lines, rest = (self._rest[stream] + chunk).split(b"\n")
        for line in lines:
            self._take_line(stream, line + b"\n")
        self._rest[stream] = rest
        if stream == OUTPUT and self.begun and OUTPUT not in self._framed and rest.strip(b"-"):
            # A text that comes word by word has no line end yet.
            self._out(stream, rest)
            self._rest[stream], self._midway = b"", True

    def end(self) -> None:
        """Take note that nothing more comes."""
        for stream, rest in self._rest.items():
            if rest.strip(b" \0"):  # after the last line of a job that it ends, mpirun writes one of these
                self._take_line(stream, rest)
        for line in self._held:
            self._aside(line)

    def _take_line(self, stream: int, line: bytes) -> None:
        bare = line.rstrip(b"\r\n")
        if stream == OUTPUT and self._midway:
            self._midway = False
            self._out(stream, line)
        elif RULE.fullmatch(bare):
            self._framed ^= {stream}
            self._aside(line)
        elif stream in self._framed or (stream == ERRORS and SINGLE.fullmatch(bare)):
            self._aside(line)
        elif self.begun:
            self.complained |= stream == ERRORS and line.startswith(self._own)
            self._out(stream, line)
        elif stream == OUTPUT:
            self._held.append(line)
        elif bare == BEGUN.encode():
            self.begun = True
            for held in self._held:
                self._out(OUTPUT, held)
            self._held.clear()
        else:
            self._aside(line)
