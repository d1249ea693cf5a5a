"""The first requests run under several plans in turn, and the fastest measured stays.

Of many plans the one that is predicted to be the fastest is the one that the profile's errors flatter most. Every plan
gives the same answers, so trying costs next to nothing: "measure" in FFTW (Frigo and Johnson, "The Design and
Implementation of FFTW3", Proceedings of the IEEE 93, 2005, section IV).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from solver.base.phrases import counted

ERROR = 0.07  # of a prediction, on average of many measured points: what differs by less than twice that may be faster
MOST = 3  # plans; with `TURNS` the tenth request runs under the best
TURNS = 3  # of every plan, the first of which warms it up
# Tokens that are made by every plan, one after the other: more, since boards that have rested are slower or faster for
# some, and they cost little; what is read for a plan takes longer.
TOKENS = 20


NO_OTHER = "--plan-by measure tries no other plan: none is likely to be faster, or memory holds none"


class PredictedPlan(Protocol):
    """A plan, and what is predicted of it."""

    @property
    def predicted_s(self) -> float:
        """Seconds of a request."""


AnyPlan = TypeVar("AnyPlan", bound=PredictedPlan)


class Turns(Generic[AnyPlan]):
    """Says under which of some plans the next request runs.

    Parameters
    ----------
    plans
        In the order in which they are tried, for requests of one size; one alone is not tried, but runs.
    words
        Says in words what is particular about a plan.
    of
        The size of a request, in words; "" where all have the same.
    tokens
        Whether they are tokens, of which many in a row are made by each plan.
    """

    def __init__(
        self, plans: Sequence[AnyPlan], words: Callable[[AnyPlan], str], of: str = "", *, tokens: bool = False
    ) -> None:
        self.plans, self._words, self._of, self._tokens = tuple(plans), words, of, tokens
        self._ratios: list[list[float]] = [[] for _ in plans]  # of measured to predicted seconds

    @property
    def turns(self) -> int:
        """How many there are of every plan."""
        return TOKENS if self._tokens else TURNS

    @property
    def several(self) -> bool:
        """Whether there is more than one plan."""
        return len(self.plans) > 1

    @property
    def settled(self) -> bool:
        """Whether all plans have had their turns."""
        return not self.several or min(map(len, self._ratios)) >= self.turns

    @property
    def number(self) -> int:
        """Which plan the next request runs under: in turn, and in the end the fastest."""
        turns = [len(ratios) for ratios in self._ratios]
        if not self.settled:
            return (
                next(k for k, own in enumerate(turns) if own < self.turns) if self._tokens else turns.index(min(turns))
            )
        return min(range(len(turns)), key=self._seconds) if self.several else 0

    @property
    def stays(self) -> int:
        """Which plan is the one that runs, as far as is known: the first one, until all have had their turns."""
        return self.number if self.settled else 0

    @property
    def plan(self) -> AnyPlan:
        """That plan, as it is for the requests that all were made for."""
        return self.plans[self.stays]

    def took(self, seconds: float, predicted_s: float) -> None:
        """Take how long the next request took under its plan, and what was predicted."""
        if not self.settled:
            self._ratios[self.number].append(seconds / predicted_s)

    def to_table(self) -> list[dict[str, Any]]:
        """Return the report's entries: what is particular about every plan, its seconds as predicted and measured."""
        return [
            {
                "cuts": self._words(plan),
                "predicted_s": plan.predicted_s,
                "seconds": self._seconds(number) if len(self._ratios[number]) > 1 else None,
                "turns": len(self._ratios[number]),
                "stays": self.settled and number == self.number,
            }
            for number, plan in enumerate(self.plans)
        ]

    @property
    def line(self) -> str:
        """What came of it, as a person reads it."""
        tried = ", ".join(
            f"{entry['cuts']} {_ms(entry['seconds'])} (predicted {_ms(entry['predicted_s'])})"
            for entry in self.to_table()
        )
        if not self.settled:
            stays = f"too few {self._what} to say which is the fastest"
        else:
            first = self.turns * len(self.plans)
            stays = f"{self._words(self.plan)} stays; times of all {self._what} are with the first {first}"
        of, begun = f" for {self._of}" if self._of else "", sum(map(bool, self._ratios))
        some = f"{begun} of " if begun < len(self.plans) else ""
        return f"{some}{counted(len(self.plans), 'plan')} tried in turn, ms{of}: {tried}; {stays}"

    @property
    def _what(self) -> str:
        return "tokens" if self._tokens else "requests"

    def _seconds(self, number: int) -> float:
        """Return what requests took under a plan, of the size that it was made for: the least but for the first.

        What disturbs a request makes it longer, never shorter.
        """
        return min(self._ratios[number][1:]) * self.plans[number].predicted_s


def pays(predicted_s: Sequence[float], read_s: float, requests: int) -> bool:
    """Return whether what the best of some plans may save of so many requests makes up for trying them all.

    Parameters
    ----------
    predicted_s
        Seconds of a request under each, the least first: those that are predicted to be slower run, too.
    read_s
        Of reading the weights of all but the first.
    """
    least_s = predicted_s[0]
    lost_s = read_s + TURNS * sum(seconds - least_s for seconds in predicted_s)
    return (requests - len(predicted_s) * TURNS) * ERROR * least_s > lost_s


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f}"
