"""Routes: how a block of rows comes from its owner to all who want it.

Sent directly, the block of the owner of the largest share leaves it p - 1 times over one link, which is then what all
wait for. In a ring everybody passes it on to the next; by relay every tile goes to one receiver first, another one for
every tile, and that one sends it to the rest, so that the owner's link carries its block once (van de Geijn's
scatter and all-gather: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Route(StrEnum):
    """How a block travels."""

    DIRECT = "direct"  # from its owner to everybody
    RING = "ring"  # from each to the next
    RELAY = "relay"  # blocks above the mean: from the owner to one receiver, which sends it to the rest


def of_owner(route: Route, blocks: Sequence[int], owner: int) -> Route:
    """Return the route of one owner's block: only a block above the mean of all that are not empty is relayed."""
    owners = sum(block > 0 for block in blocks)
    return Route.DIRECT if route is Route.RELAY and blocks[owner] * owners <= sum(blocks) else route


def sources(route: Route, owner: int, tile: int, receivers: Sequence[int], ranks: int) -> dict[int, int]:
    """Return from whom every receiver gets a tile.

    Parameters
    ----------
    route
        That of the tile's owner (`of_owner`).
    owner, tile
        Whose tile, and its number among the owner's.
    receivers
        Ranks that want it, without the owner.
    ranks
        How many ranks there are, p.
    """
    order = sorted(receivers, key=lambda rank: (rank - owner) % ranks)
    if route is Route.RING:
        return dict(zip(order, [owner, *order], strict=False))
    if route is Route.RELAY and order:
        first = order[tile % len(order)]
        return {rank: owner if rank == first else first for rank in order}
    return dict.fromkeys(order, owner)
