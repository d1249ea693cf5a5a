"""Measure a cluster: every device's kernels, its free memory, and the links; the result is a cluster file.

What is measured, and in which units, is what `solver.curves` and `solver.cluster` describe. All ranks measure their
kernels at the same time, as they will compute.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from platform import python_version

import numpy as np

from hepti_mpi import backends, kernels
from hepti_mpi.comm import Group, host_name, library
from hepti_mpi.layers import add
from hepti_mpi.memory import free_bytes
from hepti_mpi.products import Backend
from hepti_mpi.profile_links import measure_links, measure_messages
from solver.cluster import Cluster, Device
from solver.curves import Bank, Curve, Curves, Kernel
from solver.model import ModelSpec

# A kernel runs this long, twice, at every point; and the largest product this long, for the host's share of a core.
WINDOW_S, SHARE_WINDOW_S = 0.004, 0.5
ROWS = (1, 2, 16, 64, 128, 256)
ATTEND_ROWS = (1, 16, 64, 256)
ATTEND_KEYS = (16, 64, 256, 512)
ELEMENTS = (1 << 14, 1 << 20)
FEW_AND_MANY_ROWS = (16, 256)
SPEED_ROWS = 256  # what a device's GFLOP/s are those of


def fingerprint(spec: ModelSpec, group: Group, backend: str, precision: str = "float32") -> str:
    """Return twelve hex digits of all that a profile is for: hosts, cores, versions, kernels, and the layers' shape."""
    computes = (backend, precision)
    hosts = group.on_all(lambda: (host_name(), os.cpu_count(), os.environ.get("OPENBLAS_NUM_THREADS"), computes))
    facts = (hosts, spec.fingerprint, spec.activation, python_version(), np.__version__, library())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def profile(spec: ModelSpec, group: Group, backend: str, precision: str = "float32") -> Cluster:
    """Measure all ranks for one shape of model; every rank calls this and gets the same cluster.

    Returns
    -------
    Cluster
        Devices in rank order, called after their hosts.
    """
    kernels_here = measure_kernels(spec, backends.backend(backend, precision))
    links = measure_links(group)
    curves = Curves(spec.head_dim, {**kernels_here.kernels, Kernel.MESSAGE: measure_messages(group, links)})
    measured = group.on_all(lambda: (host_name(), free_bytes(), curves))
    ranks_on = Counter(host for host, _, _ in measured)
    names = _names([host for host, _, _ in measured])
    devices = tuple(
        Device(name, flop_per_s(own_curves, spec), memory // ranks_on[host], own_link, own_curves)
        for name, (host, memory, own_curves), own_link in zip(names, measured, links.own, strict=True)
    )
    facts = {
        "backend": backend,
        "precision": precision,
        "model": spec.name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": python_version(),
        "numpy": np.__version__,
        "mpi": library(),
        "fingerprint": fingerprint(spec, group, backend, precision),
    }
    return Cluster(devices, links.network, links.exceptions(names), facts)


def measure_kernels(spec: ModelSpec, backend: Backend) -> Curves:
    """Return this device's curves, all but that of messages."""
    H, d, make = spec.hidden, spec.head_dim, backend.product
    widths = sorted({d, 3 * d, H, spec.ffn})
    numbers = np.random.default_rng(0)
    weight = 0.02 * numbers.standard_normal((widths[-1], H), np.float32)
    bias = 0.02 * numbers.standard_normal(max(widths[-1], H), np.float32)
    x = numbers.standard_normal((max(*ROWS, *ATTEND_KEYS), max(H, widths[-1])), np.float32)
    x_rows = np.ascontiguousarray(x[:, :H])

    into = {width: make(weight[:width], bias[:width]) for width in widths}
    out = {width: make(weight[:width], None) for width in widths}
    up = make(weight[: spec.ffn], bias[: spec.ffn], spec.activation)

    def project(rows: int, width: int) -> Callable[[], object]:
        return partial(into[width], x_rows[:rows])

    def contract(rows: int, width: int) -> Callable[[], object]:
        return partial(out[width], np.ascontiguousarray(x[:rows, :width]))

    def activated(rows: int) -> Callable[[], object]:
        return partial(up, x_rows[:rows])

    def attend(rows: int, keys: int) -> Callable[[], object]:
        q, k = x_rows[:rows], x_rows[:keys]
        return lambda: backend.attend(q, k, k, [(slice(0, rows), slice(0, keys))], d)

    def norm(elements: int) -> Callable[[], object]:
        y = x_rows[: elements // H]

        def add_and_normalise() -> None:
            total = add(y, bias[:H], y)
            kernels.layer_norm(total, bias[:H], bias[:H], spec.norm_eps, out=total)

        return add_and_normalise

    flat = numbers.standard_normal(max(ELEMENTS), np.float32)
    other = flat.copy()
    weights = [width * H for width in widths]
    few_and_many = [(rows, spec.ffn) for rows in FEW_AND_MANY_ROWS]
    # The activation may be part of the product before it: what it costs is the difference.
    activation = np.subtract(_least(activated(r) for r, _ in few_and_many), _least(project(*at) for at in few_and_many))
    normed = [rows * H for rows in FEW_AND_MANY_ROWS]
    heads = _least(attend(r, k) for r in ATTEND_ROWS for k in ATTEND_KEYS)
    measured = {
        Kernel.PROJECT: _table(ROWS, weights, _least(project(r, w) for r in ROWS for w in widths)),
        Kernel.CONTRACT: _table(ROWS, weights, _least(contract(r, w) for r in ROWS for w in widths)),
        Kernel.ATTEND: _table(ATTEND_ROWS, ATTEND_KEYS, [seconds / spec.heads for seconds in heads]),
        Kernel.ACTIVATE: _line([r * w for r, w in few_and_many], np.maximum(activation, 1e-9).tolist()),
        Kernel.NORM: _line(normed, _least(norm(n) for n in normed)),
        Kernel.ADD: _line(ELEMENTS, _least(partial(np.add, flat[:n], other[:n], flat[:n]) for n in ELEMENTS)),
    }
    share = _share(contract(max(ROWS), max(widths)))
    return Curves(d, {kernel: _slower(curve, 1 / share) for kernel, curve in measured.items()})


def _slower(curve: Curve, factor: float) -> Curve:
    return replace(curve, seconds=tuple(tuple(factor * value for value in row) for row in curve.seconds))


def flop_per_s(curves: Curves, spec: ModelSpec) -> float:
    """Return the speed of a MatMul of 256 rows by the model's largest weight."""
    weights = spec.hidden * spec.ffn
    seconds = Bank([curves]).seconds(Kernel.CONTRACT, SPEED_ROWS, weights)
    return float(2 * SPEED_ROWS * weights / seconds[0])


def _least(calls: Iterable[Callable[[], object]]) -> list[float]:
    """Return the seconds of each call, the better of two passes: what disturbs a host for a while disturbs one."""
    calls = list(calls)
    return [min(both) for both in zip(*([_seconds(call) for call in calls] for _ in range(2)), strict=True)]


def _seconds(call: Callable[[], object]) -> float:
    """Return the seconds of one call on the clock that this host is measured by."""
    call()
    clock = _clock()
    calls, started = 0, clock()
    while (elapsed := clock() - started) < WINDOW_S:
        call()
        calls += 1
    return elapsed / calls


def _clock() -> Callable[[], float]:
    """Return CPU time for one thread, wall time for several.

    Under a CPU quota the wall time of a few milliseconds says nothing: a call runs at full speed, or stands still until
    the next period. Its CPU time is steady, and `_share` says how much of it the host gets in the long run.
    """
    return time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter


def _share(call: Callable[[], object]) -> float:
    """Return how much of a second of the clock passes in a second on the wall, with the host at work."""
    clock = _clock()
    started, on_wall = clock(), time.perf_counter()
    while time.perf_counter() - on_wall < SHARE_WINDOW_S:
        call()
    return (clock() - started) / (time.perf_counter() - on_wall)


def _table(first: Sequence[int], second: Sequence[int], seconds: Sequence[float]) -> Curve:
    rows = np.reshape(seconds, (len(first), len(second))).tolist()
    return Curve(tuple(map(float, first)), tuple(map(float, second)), tuple(map(tuple, rows)))


def _line(first: Sequence[int], seconds: Sequence[float]) -> Curve:
    return Curve(tuple(map(float, first)), (0.0, 1.0), tuple((value,) * 2 for value in seconds))


def _names(hosts: Sequence[str]) -> list[str]:
    """Call devices after their hosts, numbered where a host has several ranks."""
    several = {host for host, count in Counter(hosts).items() if count > 1}
    return [f"{host}-{rank}" if host in several else host for rank, host in enumerate(hosts)]
