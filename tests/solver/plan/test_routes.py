"""Every receiver gets every tile once, whatever the route."""

from hypothesis import given
from hypothesis import strategies as st

from solver.plan.routes import Route, of_owner, sources


@given(st.sampled_from(Route), st.integers(1, 8), st.data())
def test_every_receiver_is_reached_from_the_owner(route, ranks, data):
    owner = data.draw(st.integers(0, ranks - 1))
    receivers = [rank for rank in range(ranks) if rank != owner and data.draw(st.booleans())]
    came_from = sources(route, owner, data.draw(st.integers(0, 20)), receivers, ranks)

    assert set(came_from) == set(receivers)
    for rank in receivers:
        steps = 0
        while rank != owner:
            rank, steps = came_from[rank], steps + 1
        assert steps <= {Route.DIRECT: 1, Route.RING: len(receivers), Route.RELAY: 2}[route]


@given(st.integers(3, 8), st.integers(0, 7))
def test_relayed_tiles_leave_their_owner_once_and_by_turns(ranks, owner):
    owner %= ranks
    receivers = [rank for rank in range(ranks) if rank != owner]
    firsts = []
    for tile in range(ranks - 1):
        came_from = sources(Route.RELAY, owner, tile, receivers, ranks)
        firsts += [rank for rank in receivers if came_from[rank] == owner]

    assert sorted(firsts) == receivers


def test_only_blocks_above_the_mean_are_relayed():
    assert [of_owner(Route.RELAY, [139, 49, 0, 20], owner) for owner in range(4)] == [
        Route.RELAY, Route.DIRECT, Route.DIRECT, Route.DIRECT,
    ]  # fmt: skip
    assert of_owner(Route.RELAY, [64, 64], 0) is Route.DIRECT
    assert of_owner(Route.RING, [1, 9], 0) is Route.RING
