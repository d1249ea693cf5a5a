"""The next token, chosen among the best candidates of the whole vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array
from solver.base.errors import HeptiError

# What ranks gather of their parts of the vocabulary, instead of 128 k logits.
CANDIDATES = 256


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen.

    Parameters
    ----------
    temperature
        What logits are divided by; 0: always the best.
    top_p
        Only the best tokens that together reach this probability, the one that reaches it among them; 0: the best.
    top_k
        Only so many of the best; 0: all CANDIDATES.
    seed
        Of the random numbers; None: another one every time.

    Raises
    ------
    HeptiError
        If one of them is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise HeptiError(f"temperature is {self.temperature}, must be at least 0")
        if not 0 <= self.top_p <= 1:
            raise HeptiError(f"top_p is {self.top_p}, must be 0 to 1")
        if not 0 <= self.top_k <= CANDIDATES:
            raise HeptiError(f"top_k is {self.top_k}, must be 0 to {CANDIDATES}: 0 is all {CANDIDATES} candidates")
        if self.seed is not None and self.seed < 0:
            raise HeptiError(f"seed is {self.seed}, must be at least 0")

    @property
    def greedy(self) -> bool:
        """Whether always the best token is taken, and one candidate is enough."""
        return self.temperature == 0

    def generator(self) -> np.random.Generator:
        """Return the random numbers of one answer."""
        return np.random.default_rng(self.seed)


def choose(ids: NDArray[np.integer], logits: Array, sampling: Sampling, random: np.random.Generator) -> int:
    """Choose the next token.

    Probabilities are those among the best CANDIDATES, in transformers' order: temperature, top_k, top_p. Candidates may
    come in any order, and more of them than that, so that the answer does not depend on how many ranks they are from;
    of equal logits the smaller id comes first.

    Parameters
    ----------
    ids
        Of candidates [n], at least one: among them the best CANDIDATES of the whole vocabulary, or all of it.
    logits
        Theirs [n].
    random
        Of this answer: `sampling.generator()`; one number is drawn a token, none where it is greedy.
    """
    best = np.lexsort((ids, -logits))[: 1 if sampling.greedy else sampling.top_k or CANDIDATES]
    if sampling.greedy:
        return int(ids[best[0]])
    scores = logits[best].astype(np.float64)
    with np.errstate(over="ignore"):  # a temperature near 0: all but the best become impossible
        shares = np.exp((scores - scores[0]) / sampling.temperature)
    reached = np.cumsum(shares) / shares.sum()
    # At least one: the last that is needed to reach top_p.
    kept = int(np.searchsorted(reached, sampling.top_p)) + 1
    reached = reached[:kept]
    chosen = int(np.searchsorted(reached, random.random() * reached[-1], side="right"))
    return int(ids[best[min(chosen, len(reached) - 1)]])
