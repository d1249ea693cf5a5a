"""Clusters that differ from the file's: other speeds, devices more and devices less, without editing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.cluster.cluster import Cluster, Device, Link, quantities

# Boards as sold, with what they sustain in float32 MatMuls on all cores and what is left of their memory. Assumptions
# for planning a purchase; a board at hand is measured by `profile`.
BOARDS: Mapping[str, Mapping[str, float]] = {
    "pi3": {"gflops": 10, "memory_gib": 0.6, "bandwidth_mbps": 300},
    "pi4": {"gflops": 24.6, "memory_gib": 3.2, "bandwidth_mbps": 940},
    "pi5": {"gflops": 70, "memory_gib": 7, "bandwidth_mbps": 940},
    "minipc": {"gflops": 150, "memory_gib": 14, "bandwidth_mbps": 2350},
}
SWITCH = Link(940e6 / 8, 200e-6)  # gigabit Ethernet, as TCP has it
MOST_ADDED = 4096
NETWORK_KEYS = ("bandwidth_mbps", "latency_us")
DEVICE_KEYS = ("gflops", "memory_gib", "bandwidth_mbps", "jitter_us", "rest_us", "compute_watts", "transmit_watts")


def changed(cluster: Cluster, settings: Sequence[str], added: Sequence[str], without: Sequence[str]) -> Cluster:
    """Return the cluster with the network set, devices added, taken away, and set, in this order.

    Parameters
    ----------
    settings
        DEVICE.KEY=VALUE or network.KEY=VALUE, keys as in the cluster file; added devices can be set, too.
    added
        BOARD or BOARD:COUNT; a board of the list above, or one like a device of the cluster.
    without
        Names of devices.

    Raises
    ------
    HeptiError
        If a device, board or key is not there, or a value is absurd.
    """
    # What an added board's own link is, depends on the network's.
    network = [setting for setting in settings if setting.startswith("network.")]
    for setting in network:
        cluster = _set(cluster, setting)
    for board in added:
        cluster = _add(cluster, board, f"--add {board}", cluster.names)
    for name in without:
        cluster = _remove(cluster, name)
    for setting in (setting for setting in settings if setting not in network):
        cluster = _set(cluster, setting)
    return cluster


def cluster_of_boards(boards: Sequence[str]) -> Cluster:
    """Return boards as they are sold, on one switch: "pi4" or "pi4:3" each, rank 0 the first.

    Raises
    ------
    HeptiError
        If there is no such board.
    """
    cluster = Cluster((), SWITCH)
    for board in boards:
        cluster = _add(cluster, board.strip(), f"--cluster {','.join(boards)}")
    return cluster


def _set(cluster: Cluster, setting: str) -> Cluster:
    where, _, value = setting.partition("=")
    name, _, key = where.rpartition(".")
    keys = NETWORK_KEYS if name == "network" else DEVICE_KEYS
    if not value or not name:
        examples = "such as pi-2.gflops=70 or network.bandwidth_mbps=240"
        raise HeptiError(f"--set {setting}: write DEVICE.KEY=VALUE, {examples}")
    rank = None if name == "network" else _rank(cluster, name, f"--set {setting}")
    if key not in keys:
        raise HeptiError(f"--set {setting}: there is no key {key!r}{did_you_mean(key, keys)}")
    try:
        fields = quantities({key: float(value)}, f"--set {name}")
    except ValueError as error:
        raise HeptiError(f"--set {setting}: {value!r} is not a number") from error
    if rank is None:
        return replace(cluster, network=replace(cluster.network, **fields))
    device = cluster.devices[rank]
    if key == "gflops" and device.curves is not None:
        fields["curves"] = device.curves.slowed(device.compute_flop_per_s / fields["compute_flop_per_s"])
    return cluster.with_device(rank, **fields)


def _add(cluster: Cluster, board: str, option: str, alike: Sequence[str] = ()) -> Cluster:
    """Add boards of the list, or such as are like a device of the cluster."""
    kind, _, count = board.partition(":")
    if count and not (count.isdecimal() and 1 <= int(count) <= MOST_ADDED):
        raise HeptiError(f"{option}: the count of {kind} must be a whole number from 1 to {MOST_ADDED}")
    if kind in BOARDS:
        fields = quantities(BOARDS[kind], kind)
        if fields["bandwidth_bytes_per_s"] >= cluster.network.bandwidth_bytes_per_s:
            del fields["bandwidth_bytes_per_s"]
        model = Device(kind, **fields)
    elif kind in alike:
        model = cluster.devices[cluster.names.index(kind)]
    else:
        raise HeptiError(f"{option}: there is no board {kind!r}{did_you_mean(kind, (*BOARDS, *alike))}")
    taken, devices, number = set(cluster.names), list(cluster.devices), 0
    for _ in range(int(count or 1)):
        while (name := f"{kind}-{number}") in taken:
            number += 1
        taken.add(name)
        devices.append(replace(model, name=name))
    return replace(cluster, devices=tuple(devices))


def _remove(cluster: Cluster, name: str) -> Cluster:
    _rank(cluster, name, f"--without {name}")
    if len(cluster.devices) == 1:
        raise HeptiError(f"--without {name}: it is the last device")
    devices = tuple(device for device in cluster.devices if device.name != name)
    links = {pair: link for pair, link in cluster.links.items() if name not in pair}
    return replace(cluster, devices=devices, links=links)


def _rank(cluster: Cluster, name: str, option: str) -> int:
    if name not in cluster.names:
        raise HeptiError(f"{option}: there is no device {name!r}{did_you_mean(name, cluster.names)}")
    return cluster.names.index(name)
