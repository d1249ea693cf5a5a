"""The text of an answer as its tokens come, and when it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from solver.base.errors import HeptiError

if TYPE_CHECKING:  # ranks other than 0, which read the command line, have no tokenizers
    from weights.inputs.tokenize import TextStream


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends an answer.

    Parameters
    ----------
    tokens
        The most tokens that it has.
    eos
        Tokens that end it; none with --ignore-eos.
    stops
        Texts that end it, and do not belong to it.

    Raises
    ------
    HeptiError
        If it may have no token, or a stop string is empty.
    """

    tokens: int
    eos: Collection[int] = ()
    stops: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise HeptiError(f"an answer of {self.tokens} tokens, must be at least 1")
        if "" in self.stops:
            raise HeptiError("a stop string is empty: it would end every answer before it begins")


class AnswerText:
    """The text of one answer, given out as soon as no stop string can begin in it.

    Parameters
    ----------
    stream
        Makes text of its tokens; None, where the model has no tokenizer: the text is empty.
    ending
        What ends it.

    Raises
    ------
    HeptiError
        If there are stop strings and no tokenizer.
    """

    def __init__(self, stream: TextStream | None, ending: Ending) -> None:
        if stream is None and ending.stops:
            raise HeptiError("stop strings need a tokenizer, the weights came without")
        self._stream = stream
        self._ending = ending
        self._held = ""  # may become a stop string
        self.most = ending.tokens
        self.tokens: list[int] = []
        self.text = ""  # given out so far
        self.finish_reason: str | None = None  # "stop" or "length", once it has ended

    def take(self, token: int, *, completes: bool = False) -> str:
        """Take the next token; return the text that it lets out, whole once the answer has ended.

        The token that ends an answer belongs to its tokens, but has no text; one that `completes` it has.
        """
        self.tokens.append(token)
        eos = token in self._ending.eos
        last = eos or completes or len(self.tokens) == self._ending.tokens
        if self._stream is not None:
            self._held += "" if eos else self._stream.step(token)
            self._held += self._stream.rest() if last else ""
        out, stopped = self._let_out(everything=last)
        if last or stopped:
            self.finish_reason = "stop" if eos or completes or stopped else "length"
        self.text += out
        return out

    def _let_out(self, *, everything: bool) -> tuple[str, bool]:
        """Return what stands before a stop string, or cannot become one; and whether there was one."""
        starts = [start for stop in self._ending.stops if (start := self._held.find(stop)) >= 0]
        keep = 0 if everything else max((_begun(self._held, stop) for stop in self._ending.stops), default=0)
        end = min(starts, default=len(self._held) - keep)
        out, self._held = self._held[:end], self._held[end:]
        return out, bool(starts)


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of a text are the beginning of a stop string."""
    return next(size for size in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:size]))
