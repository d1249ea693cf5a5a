"""Random small instances: models of a few heads and tiles on unlike devices, with skewed links and unsteady curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.cluster.cluster import Cluster, Device, Link
from solver.cluster.curves import Curve, Curves, Kernel, derived_curves
from solver.model.spec import ModelSpec, TextInput, encoder


def small_model(rng: np.random.Generator, layers: int, most_heads: int = 5) -> ModelSpec:
    """Return a model of one or two tiles of output columns, few heads, two to four tiles of F."""
    heads, head_dim = int(rng.integers(2, most_heads + 1)), int(rng.choice([8, 16]))
    text = TextInput(vocab=100, positions=64, max_rows=64)
    return encoder("small", heads * head_dim, 64 * int(rng.integers(2, 5)), heads, layers, input=text)


def unlike_cluster(rng: np.random.Generator, devices: int) -> Cluster:
    """Return devices of speeds that differ up to three hundredfold; some with bent curves, some links narrow."""
    found = []
    for number in range(devices):
        speed = float(10 ** rng.uniform(8, 10.5))
        curves = bent(derived_curves(speed), rng) if rng.random() < 0.5 else None
        own = float(10 ** rng.uniform(5.5, 8)) if rng.random() < 0.3 else None
        other = np.random.default_rng(round(speed))  # leaves all else of an instance as its seed says
        jitter_s = float(10 ** other.uniform(-5, -3)) if other.random() < 0.5 else 0.0
        rest_s = float(10 ** other.uniform(-5, -3)) if other.random() < 0.5 else 0.0
        found.append(Device(f"d{number}", speed, 2**30, own, curves, jitter_s, rest_s))
    network = Link(float(10 ** rng.uniform(5.5, 8.5)), float(10 ** rng.uniform(-5, -3.5)))
    narrow = {frozenset(("d0", "d1")): Link(float(10 ** rng.uniform(5, 7)), 1e-3)} if rng.random() < 0.4 else {}
    return Cluster(tuple(found), network, narrow)


def sharing_cluster(rng: np.random.Generator, devices: int) -> Cluster:
    """Return devices of like speeds whose calls, messages and links cost so little that small models may be shared.

    `unlike_cluster` leaves all of a small model to one device, unless memory forbids it.
    """
    base, found = float(10 ** rng.uniform(7.5, 9)), []
    unsteady = rng.random() < 0.5
    for number in range(devices):
        speed = base * float(10 ** rng.uniform(-0.6, 0.6))
        curves = light(derived_curves(speed), float(10 ** rng.uniform(-3, -1)))
        if unsteady and rng.random() < 0.7:
            curves = bent(curves, rng)
        own = base / float(10 ** rng.uniform(0.5, 2.5)) if rng.random() < 0.3 else None
        found.append(Device(f"d{number}", speed, 2**30, own, curves))
    network = Link(base / float(10 ** rng.uniform(0, 2)), float(10 ** rng.uniform(-6, -4.5)))
    slow = Link(base / float(10 ** rng.uniform(1, 3)), 1e-4)
    return Cluster(tuple(found), network, {frozenset(("d0", "d1")): slow} if rng.random() < 0.3 else {})


def light(curves: Curves, part: float) -> Curves:
    """Return curves of which the least work takes so small a part of what it took."""

    def lighter(curve: Curve) -> Curve:
        off = (1 - part) * curve.seconds[0][0]
        return replace(curve, seconds=tuple(tuple(value - off for value in row) for row in curve.seconds))

    return replace(curves, kernels={kernel: lighter(curve) for kernel, curve in curves.kernels.items()})


def bent(curves: Curves, rng: np.random.Generator) -> Curves:
    """Return curves whose slope changes along the way, up or down."""

    def bend(curve: Curve) -> Curve:
        first = (curve.first[0], *sorted(rng.uniform(2.5, 8, 2)), curve.first[-1])
        table = np.array(
            [[np.interp(at, curve.first, column) for column in zip(*curve.seconds, strict=True)] for at in first]
        )
        steps = np.diff(table, axis=0) * rng.uniform(0.3, 3, (len(first) - 1, 1))
        seconds = np.concatenate([table[:1], table[:1] + np.cumsum(steps, axis=0)])
        return Curve(tuple(map(float, first)), curve.second, tuple(tuple(map(float, row)) for row in seconds))

    kernels = {
        kernel: bend(curve) if kernel in (Kernel.PROJECT, Kernel.CONTRACT, Kernel.ATTEND) else curve
        for kernel, curve in curves.kernels.items()
    }
    return replace(curves, kernels=kernels)
