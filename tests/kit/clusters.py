"""Clusters that the tests plan for."""

from __future__ import annotations

from solver.cluster.cluster import GIB, Cluster, Device, Link


def pis(*gflops: float, memory_gib: float = 8.0, mbps: float = 940.0) -> Cluster:
    """Return boards of these speeds on one network."""
    devices = tuple(Device(f"pi-{number}", speed * 1e9, round(memory_gib * GIB)) for number, speed in enumerate(gflops))
    return Cluster(devices, Link(mbps * 1e6 / 8, 200e-6))
