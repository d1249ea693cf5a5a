"""Prompt lookup: tokens that followed the same words before are tried together, and kept as far as they are right.

A pass over one token and k proposed ones gives 1 to k + 1 tokens: the model's own, as without (greedy). It costs more
than a pass over one, by a curve that was measured. So `Lookup` proposes as many as promise the most tokens a second,
by how often proposals were right so far; and a purse bounds what it may lose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

# The longest run that is looked for, as in the first prompt lookup (apoorvumang/prompt-lookup-decoding); how far the
# tokens before it match, too, is counted where it was found.
LONGEST_RUN = 3
# How sure a proposal is depends on how far the tokens before it match: classes of matches by their least length.
MATCHES = (1, 2, 3, 6, 12)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may come next.

    Parameters
    ----------
    tokens
        None: nothing was found, or it does not pay.
    match
        How many tokens before them are the same as the last ones, at most MATCHES[-1].
    """

    tokens: tuple[int, ...] = ()
    match: int = 0


class History:
    """The tokens of a sequence, and where its runs of one to LONGEST_RUN tokens occurred last."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens: list[int] = []
        self._behind: list[dict[tuple[int, ...], int]] = [{} for _ in range(LONGEST_RUN)]
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        known = self.tokens
        for token in tokens:
            # Runs that end at the token before: the last run of all is no earlier occurrence of itself.
            size = len(known)
            for run, behind in enumerate(self._behind[:size], start=1):
                behind[tuple(known[size - run :])] = size
            known.append(token)

    def propose(self, longest: int) -> Proposal:
        """Return up to `longest` tokens that followed the last run of three, two or one where it occurred before."""
        known, size = self.tokens, len(self.tokens)
        for run in range(min(LONGEST_RUN, size), 0, -1):
            start = self._behind[run - 1].get(tuple(known[size - run :]))
            if start is not None:
                match = run
                while match < min(start, MATCHES[-1]) and known[start - match - 1] == known[size - match - 1]:
                    match += 1
                return Proposal(tuple(known[start : start + longest]), match)
        return Proposal()


@dataclass(slots=True)
class _Share:
    """How often something was right: old observations fade, and the first ones are weighed against a guess."""

    guess: float
    weight: float
    right: float = field(default=0.0, init=False)
    tried: float = field(default=0.0, init=False)

    KEPT = 63 / 64  # of earlier observations, at each one

    @property
    def value(self) -> float:
        return (self.right + self.guess * self.weight) / (self.tried + self.weight)

    def observe(self, right: bool) -> None:
        self.right = self.right * self.KEPT + right
        self.tried = self.tried * self.KEPT + 1


class Lookup:
    """Decides how many tokens are proposed.

    Of k proposed tokens the first is right with a probability p, every further one, if those before it are, with q; p
    and q are followed for each class of matches. Expected tokens of a pass: 1 + p + p q + … + p q^(k-1). Where none
    pays, as few as can pay at all are tried, as far as the purse has it.

    The purse holds the seconds that may still be lost. Every token adds `SHARE` of what it takes alone, a pass that
    gave too few takes what it lost, and none is made that could take more than there is: whatever the text, by its
    curve a lookup is slower than none by SHARE at most, and what it begins with. Gains fill the purse, too, up to what
    two of the dearest passes may lose.

    Parameters
    ----------
    seconds
        Of a pass over 1 row and over more, as measured; between them along a line.
    """

    SHARE = 0.01
    BEGIN = 32  # tokens whose share the purse begins with

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self._shares = [(_Share(0.5, 1.0), _Share(0.8, 2.0)) for _ in MATCHES]
        self.measured(seconds)
        self._purse = self.BEGIN * self.SHARE * self._seconds[0]

    def measured(self, seconds: Mapping[int, float]) -> None:
        """Take another curve of costs: another plan, or a longer context."""
        rows = sorted(seconds)
        curve = np.interp(np.arange(1, rows[-1] + 1), rows, [seconds[row] for row in rows])
        self._seconds: Sequence[float] = curve.tolist()

    def propose(self, history: History) -> Proposal:
        """Propose tokens after a sequence, or none."""
        found = history.propose(len(self._seconds) - 1)
        if not found.tokens:
            return found
        sizes = [size for size in range(1, len(found.tokens) + 1) if self._extra(size) <= self._purse]
        size = self._best(found.match, sizes) or self._least(sizes)
        return Proposal(found.tokens[:size], found.match)

    def learn(self, proposal: Proposal, right: int) -> None:
        """Take in how many of the proposed tokens the model said, too; of a pass without proposals as well."""
        tried = len(proposal.tokens)
        once = self._seconds[0]
        gain = (1 + right) * once - self._seconds[tried]
        most = 2 * max(self._extra(size) for size in range(len(self._seconds)))
        self._purse = min(self._purse + gain + self.SHARE * once * (1 + right), most)
        first, further = self._of(proposal.match)
        for number in range(min(right + 1, tried)):
            (further if number else first).observe(number < right)

    def _best(self, match: int, sizes: Iterable[int]) -> int:
        """Return how many tokens promise the most tokens a second; 0: none."""
        first, further = (share.value for share in self._of(match))
        rates = {0: 1 / self._seconds[0]}
        for size in sizes:
            expected = 1 + first * sum(further**number for number in range(size))
            rates[size] = expected / self._seconds[size]
        return max(rates, key=rates.__getitem__)

    def _least(self, sizes: Iterable[int]) -> int:
        """Return how few tokens can pay at all, if they are right; 0: none."""
        return next((size for size in sizes if (1 + size) * self._seconds[0] > self._seconds[size]), 0)

    def _extra(self, size: int) -> float:
        """Return the seconds that a pass takes longer for proposals."""
        return max(self._seconds[size] - self._seconds[0], 0.0)

    def _of(self, match: int) -> tuple[_Share, _Share]:
        return self._shares[max((number for number, least in enumerate(MATCHES) if match >= least), default=0)]
