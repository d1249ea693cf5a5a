"""Boards and language models whose shares matter: slow to read weights, quick to be called."""

from __future__ import annotations

from solver.cluster.cluster import Cluster, Device, Link
from solver.cluster.curves import Curve
from solver.cluster.decoder_curves import CachedCurve, DecoderPart, DecoderSpeeds

ROWS = (1.0, 2.0, 4.0, 8.0, 64.0, 256.0)
FACTORS = (1.0, 1.0, 1.5, 2.5, 17.0, 68.0)


def speeds(bytes_per_s, call_s=1e-6, cached_s=1e-10, pass_s=1e-3, message_s=1e-5, precision="int4"):
    """Return speeds whose seconds are call_s + factor of the rows × bytes / bytes_per_s."""
    weights = (0.0, 1e8)
    seconds = tuple(tuple(call_s + factor * size / bytes_per_s for size in weights) for factor in FACTORS)
    curve = Curve(ROWS, weights, seconds)
    cached = dict.fromkeys(("float32", "int8"), CachedCurve((1.0,), (cached_s,)))
    return DecoderSpeeds(precision, dict.fromkeys(DecoderPart, curve), cached, pass_s, message_s)


def boards(*bytes_per_s, memory_bytes=2**30, mbps=100.0, latency_s=2e-4, **facts):
    """Return a cluster of boards that read weights at these speeds; `memory_bytes` of all, or one after the other."""
    memory = [memory_bytes] * len(bytes_per_s) if isinstance(memory_bytes, int) else memory_bytes
    devices = tuple(
        Device(f"pi-{number}", 1e10, size, decoder=speeds(speed, **facts))
        for number, (speed, size) in enumerate(zip(bytes_per_s, memory, strict=True))
    )
    return Cluster(devices, Link(mbps * 1e6 / 8, latency_s))
