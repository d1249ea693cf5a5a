"""So many ranks as a machine can play: refused in one line with both numbers where it cannot."""

import pytest

from launch.doctor import room
from launch.front.places import split
from launch.program import HostCluster
from solver.cluster.cluster import MIB
from tests.kit.complaints import complaint


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Let this machine have two cores and 1000 MiB free."""
    monkeypatch.setattr(room.os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(room, "free_bytes", lambda: 1000 * MIB)


@pytest.mark.parametrize("ranks", [1, 2, 6])
def test_a_try_out_may_have_more_ranks_than_cores(ranks):
    assert split(["--np", str(ranks)])[0].ranks == ranks


@pytest.mark.parametrize(
    "ranks",
    [
        64,
        7,
    ],
)
def test_what_this_machine_cannot_play_is_refused(ranks, kept):
    kept(complaint(split, ["--np", str(ranks)]))
    kept(complaint(lambda: HostCluster(ranks=ranks)))


def test_boards_have_cores_of_their_own():
    assert split(["--hosts", "pi-0,pi-1", "--np", "64"])[0].ranks == 64
    assert HostCluster(["pi-0"], ranks=64).ranks == 64
