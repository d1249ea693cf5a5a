"""What no plan beats: a lower bound of the seconds of an answer, whatever is cut how and whoever takes part.

Of t_ki, the seconds that device i would take for all of a part k at the best rate that its curves have, and any weights
λ_i >= 0 that add up to one: the slowest device takes at least the weighted mean of all, and every unit of every part
has to be computed by somebody, so

    T  >=  sum_i λ_i C_i  >=  sum_k min_i λ_i t_ki

the dual of the linear program that shares all parts out as if nothing were sent. λ is in proportion to the devices'
speeds for all parts together, the optimum where devices differ by a factor.
"""

from __future__ import annotations

from solver.cluster.curves import Floats


def shared_s(parts: Floats, *others: Floats) -> float:
    """Return the seconds below which no plan is.

    Parameters
    ----------
    parts : [k, p]
        Seconds that every device takes for all of a part, at its best.
    others
        Other ways to compute the same, [k', p] each; plans may mix them.
    """
    every = parts.sum(0)
    if not every.all():  # somebody takes no time
        return 0.0
    weights = 1 / every / (1 / every).sum()
    return min(float((way * weights).min(1).sum()) for way in (parts, *others))
