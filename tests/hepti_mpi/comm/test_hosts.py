"""The line that says where the ranks run, and the two classic mistakes."""

import pytest

from hepti_mpi.comm.hosts import Place, describe, launcher_words, names_hosts, place
from hepti_mpi.comm.hosts import warnings as told


def warnings(places, on_hosts=True):
    return told(places, on_hosts=on_hosts)


def places(*hosts, cores=4, usable=4):
    return [Place(host, cores, usable) for host in hosts]


def test_hosts_stand_in_rank_order_with_their_ranks(kept):
    for hosts in (["pi-0"], ["pi-0", "pi-1", "pi-2"], ["pi-1", "pi-0", "pi-1"]):
        kept(describe(places(*hosts)))


def test_a_rank_a_host_with_all_its_cores_is_no_mistake():
    assert warnings(places("pi-0", "pi-1", "pi-2")) == []
    assert warnings(places("pi-0")) == []


def test_all_ranks_on_one_host(kept):
    (warning,) = warnings(places("pi-0", "pi-0"))

    kept(warning)
    assert "slots=1" in warning
    assert "--map-by ppr:1:node" in warning
    assert not warnings(places("pi-0", "pi-0"), on_hosts=False)  # one machine is to play both


@pytest.mark.parametrize(
    ("line", "named"),
    [("mpirun -np 3 --hostfile pis python", True), ("/opt/mpirun --host=a,b -np 2", True),
     ("mpirun -np 4 python", False), ("/usr/bin/prted --prtemca x 1", True), ("", False)],
)  # fmt: skip
def test_whether_hosts_were_named_stands_in_the_launchers_words(line, named):
    assert names_hosts(line.split()) is named
    assert launcher_words()  # of what runs this test


def test_ranks_bound_to_one_core_are_named_with_their_host(kept):
    (warning,) = warnings([*places("pi-0"), *places("pi-1", usable=1)])

    kept(warning)


def test_a_fair_share_of_a_hosts_cores_is_no_mistake():
    """Two ranks of two cores each on a host of four; but not of one each."""
    fair = places("pi-0", "pi-0", "pi-1", usable=2)[:2] + places("pi-1")

    assert warnings(fair) == []
    (warning,) = warnings([*places("pi-0", "pi-0", usable=1), *places("pi-1")])
    assert "bound to 1 core of 4" in warning


def test_both_mistakes_are_told():
    assert len(warnings(places("pi-0", "pi-0", usable=1))) == 2


def test_this_rank_has_a_place():
    here = place()

    assert here.host
    assert 1 <= here.usable_cores <= here.cores
