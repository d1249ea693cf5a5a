"""What was decided about a plan that may change, as rank 0 carries it out, and as a person reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from solver.plan import BlockPlan, Plan


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
    """Say whose shares of the first layer change most, attention before MLP."""
    rows, old_layer, new_layer = before.rows, before.layer(0), after.layer(0)
    parts = []
    for name, old, new in (
        ("attention", old_layer.attention, new_layer.attention),
        ("MLP", old_layer.mlp, new_layer.mlp),
    ):
        mine, theirs = _counts(old, rows), _counts(new, rows)
        if mine[0] != theirs[0]:
            parts.append(f"{name} by {theirs[0]} instead of {mine[0]}: {' '.join(map(str, theirs[1]))}")
        elif mine[1] != theirs[1]:
            parts.append(f"{name} {mine[0]} {' '.join(map(str, mine[1]))} → {' '.join(map(str, theirs[1]))}")
    if len(parts) == 2 and parts[0].removeprefix("attention") == parts[1].removeprefix("MLP"):
        return parts[0].removeprefix("attention ")
    return ", ".join(parts) or "other layers"


def _counts(block: BlockPlan, rows: int) -> tuple[str, tuple[int, ...]]:
    if block.inner is not None:
        return ("heads or columns", block.inner.counts)
    partition = block.row_partition(rows)
    assert partition is not None
    return "rows", partition.counts


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"
