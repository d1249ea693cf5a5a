"""Clusters that differ from the file's."""

from __future__ import annotations

from solver.cluster.named import find_cluster
from solver.cluster.whatif import changed
from tests.kit import refused
from tests.kit.clusters import pis


def test_every_key_of_a_device_and_of_the_network_can_be_set():
    settings = ("gflops=70", "memory_gib=2", "bandwidth_mbps=94", "jitter_us=300", "rest_us=1500")
    watts = ("compute_watts=6.4", "transmit_watts=1.2")
    network = ("network.bandwidth_mbps=240", "network.latency_us=50")

    found = changed(pis(10, 20), [*(f"pi-1.{setting}" for setting in (*settings, *watts)), *network], [], [])

    device = found.devices[1]
    assert (device.compute_flop_per_s, device.memory_bytes) == (70e9, 2 * 2**30)
    assert (device.bandwidth_bytes_per_s, device.jitter_s, device.rest_s) == (94e6 / 8, 300e-6, 1500e-6)
    assert (device.compute_watts, device.transmit_watts) == (6.4, 1.2)
    assert (found.network.bandwidth_bytes_per_s, found.network.latency_s) == (240e6 / 8, 50e-6)
    assert found.devices[0] == pis(10).devices[0]


def test_what_is_added_can_be_set_and_what_is_taken_away_cannot(kept):
    found = changed(pis(10, 20), ["pi5-1.gflops=60"], ["pi5:2"], ["pi-0"])

    assert [(device.name, device.compute_flop_per_s / 1e9) for device in found.devices] == [
        ("pi-1", 20),
        ("pi5-0", 70),
        ("pi5-1", 60),
    ]
    kept(refused.said(changed, [(pis(10, 20), ["pi-0.gflops=60"], [], ["pi-0"])]))


def test_an_added_board_keeps_its_link_on_a_faster_network_and_has_no_more_than_a_slower_one():
    fast = changed(pis(10), ["network.bandwidth_mbps=2350"], ["pi4"], [])
    slow = changed(pis(10), ["network.bandwidth_mbps=100"], ["pi4"], [])

    assert [fast.bandwidth(rank) * 8 / 1e6 for rank in (0, 1)] == [2350, 940]
    assert [slow.bandwidth(rank) * 8 / 1e6 for rank in (0, 1)] == [100, 100]


def test_boards_that_are_sold_are_a_cluster(kept):
    found = find_cluster("pi4:2,pi5")

    assert found.names == ("pi4-0", "pi4-1", "pi5-0")
    assert [device.compute_flop_per_s / 1e9 for device in found.devices] == [24.6, 24.6, 70]
    assert set(found.links_mbps) == {940}
    assert find_cluster("pi3").names == ("pi3-0",)
    kept(refused.said(find_cluster, ["pi4,pi6", "pi4,,pi5", "pi4:0,pi5", "nowhere"]))
