"""Ranks that share a host share its memory, and what it lacks is said before anything is loaded."""

import pytest

from hepti_mpi.comm.group import SharedError
from hepti_mpi.measure import room
from solver.cluster.cluster import MIB, PROGRAM_BYTES


@pytest.fixture
def checked(world, monkeypatch):
    """Check what ranks need on hosts beside the program, in MiB, each host with so much free."""

    def check(needs, host=lambda rank: f"pi-{rank}", free=100):
        monkeypatch.setattr(room, "host_name", lambda: host(world.rank))
        monkeypatch.setattr(room, "free_bytes", lambda: free * MIB)
        needed = [needs(rank) and PROGRAM_BYTES + MIB * needs(rank) for rank in range(world.size)]
        room.check_room("tiny", (lambda: needed) if world.rank == 0 else None, world)

    return check


@pytest.mark.sizes
def test_what_is_free_suffices_for_all_but_the_program(checked):
    checked(lambda rank: 100)


@pytest.mark.sizes
def test_the_host_that_lacks_most_is_named_on_all_ranks_with_both_numbers(checked, world, kept):
    last = world.size - 1

    with pytest.raises(SharedError) as caught:
        checked(lambda rank: 101 + rank)

    both = f"needs {101 + last} MiB more on pi-{last}"
    assert both in str(caught.value)
    kept(str(caught.value).replace(both, "needs SO MANY MiB more on pi-LAST"))


@pytest.mark.sizes
def test_needs_of_ranks_on_one_host_add_up(checked, world):
    each = 100 // world.size
    checked(lambda rank: each, host=lambda rank: "vm")

    with pytest.raises(SharedError) as caught:
        checked(lambda rank: each + 1, host=lambda rank: "vm")

    ranks = f" for {world.size} ranks" * (world.size > 1)
    said = f"needs {world.size * (each + 1)} MiB more on vm{ranks}, which has 100 free: "
    assert said in str(caught.value)


@pytest.mark.sizes
def test_a_rank_without_a_part_needs_nothing(checked):
    checked(lambda rank: 0, free=0)
