"""Whether another plan is worth changing to; and what was decided, as rank 0 carries it out, and a person reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from solver.model.blocks import Cut
from solver.plan.plan import BlockPlan, Plan

# Of what a request takes, for which a plan changes. In the lab a device that a competitor had left kept 9 of 28 rows
# where it was 6 %: for 5.8.
LEAST_SAVED = 0.03


def is_worth(before_s: float, after_s: float, times: float, moving_s: float, least: float = LEAST_SAVED) -> bool:
    """Return whether another plan saves enough of a request, and more in all that follow than moving to it takes.

    Parameters
    ----------
    before_s, after_s
        Seconds of a request under the plan that runs, and under the other.
    times
        How many requests are expected to follow under the other.
    moving_s
        Seconds for which requests wait while ranks get what they lack.
    least
        What is enough, as a part.
    """
    saved_s = before_s - after_s
    return saved_s > 0 and saved_s >= least * before_s and saved_s * times > moving_s


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What to do after a change.

    Parameters
    ----------
    plan
        What was found; it is to run if `taken`.
    why, shares
        What changed, and whose shares become what, in words.
    before_s, after_s
        Seconds of a request under the plan so far, and under the other.
    cost_s
        Seconds for which requests wait until ranks have the weights that they lack.
    frees
        Ranks that are short of memory: they keep no weights that they do not need.
    spare
        Whose weights are got besides.
    """

    plan: Plan
    taken: bool
    why: str
    shares: str
    before_s: float
    after_s: float
    cost_s: float
    frees: tuple[int, ...] = ()
    spare: Plan | None = None

    @property
    def line(self) -> str:
        """The decision as a person reads it."""
        saves = f"saves {_ms(self.before_s - self.after_s)} of {_ms(self.before_s)} ms per request"
        costs = f"costs {_ms(self.cost_s)} ms"
        if self.taken:
            return f"{self.why}: {self.shares}; {saves}, {costs}"
        return f"{self.why}: the plan stays; another {saves}, {costs}"

    def to_table(self, number: int, seconds: float) -> dict[str, Any]:
        """Return the report's entry; `number` requests and `seconds` had passed."""
        return {
            "after_requests": number,
            "after_seconds": seconds,
            "why": self.why,
            "line": self.line,
            "taken": self.taken,
            "gain_s": self.before_s - self.after_s,
            "request_s": self.before_s,
            "cost_s": self.cost_s,
            "shares": self.shares,
        }


def shares(before: Plan, after: Plan) -> str:
    """Say whose shares of the first layer change, block by block; once where all change alike."""
    rows, parts = before.rows, []
    blocks = list(zip(before.layer(0), after.layer(0), strict=True))
    for old, new in blocks:
        (unit, counts), (other, others) = _counts(old, rows), _counts(new, rows)
        if unit != other:
            parts.append((old.block, f"by {other} instead of {unit}: {others}"))
        elif counts != others:
            parts.append((old.block, f"{unit} {counts} → {others}"))
    if len(parts) == len(blocks) and len({change for _, change in parts}) == 1:
        return parts[0][1]
    return ", ".join(f"{name} {change}" for name, change in parts) or "other layers"


def _counts(block: BlockPlan, rows: int) -> tuple[str, str]:
    """Return what a block is cut by, and how many of them every rank has."""
    unit = "rows" if block.cut is Cut.ROWS else "heads or columns"
    return unit, " ".join(map(str, block.shared(rows).counts))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"
