"""Clusters that the tests plan for."""

from __future__ import annotations

from collections.abc import Iterable

from solver.cluster.cluster import GIB, PROGRAM_BYTES, Cluster, Device, Link


def pis(*gflops: float, memory_gib: float = 8.0, mbps: float = 940.0, latency_us: float = 200.0) -> Cluster:
    """Return boards of these speeds on one network."""
    devices = tuple(Device(f"pi-{number}", speed * 1e9, round(memory_gib * GIB)) for number, speed in enumerate(gflops))
    return Cluster(devices, Link(mbps * 1e6 / 8, latency_us / 1e6))


def cluster_text(*devices: str, network: str = "bandwidth_mbps = 940", links: str = "") -> str:
    """Return a cluster file of devices, of each the lines below its name; they may be wrong."""
    tables = "".join(f'[[device]]\nname = "pi-{rank}"\n{lines}\n\n' for rank, lines in enumerate(devices))
    return f'format = "hepti-cluster/1"\n{tables}[network]\n{network}\n{links}'


def pair() -> Cluster:
    """Return a slow board and a fast one, neither with much memory: what command lines plan for."""
    return pis(24.6, 70).with_device(0, memory_bytes=round(3.2 * GIB)).with_device(1, memory_bytes=6 * GIB)


def with_free(cluster: Cluster, sizes: Iterable[float]) -> Cluster:
    """Return the cluster whose devices have so many bytes beside the program."""
    for rank, size in enumerate(sizes):
        cluster = cluster.with_device(rank, memory_bytes=PROGRAM_BYTES + round(size))
    return cluster
