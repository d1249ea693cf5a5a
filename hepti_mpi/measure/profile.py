"""Measure a cluster: every device's kernels, free memory and unrest, and the links; the result is a cluster file.

What is measured, and in which units, is what `solver.cluster.curves` and `solver.cluster.cluster` describe. All ranks
measure their kernels at the same time, as they will compute.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from platform import python_version

import numpy as np

from hepti_mpi.base.memory import free_bytes, give_back
from hepti_mpi.comm.group import Group, host_name, library
from hepti_mpi.kernels import backends, trial
from hepti_mpi.measure.profile_kernels import measure_kernels
from hepti_mpi.measure.profile_kinds import pooled
from hepti_mpi.measure.profile_links import measure_links, measure_messages
from hepti_mpi.measure.profile_unrest import measure_unrest
from solver.base import clock
from solver.cluster.cluster import Cluster, Device
from solver.cluster.curves import Bank, Curves, Kernel
from solver.model.spec import ModelSpec

SPEED_ROWS = 256  # what a device's GFLOP/s are those of


def fingerprint(spec: ModelSpec, group: Group, backend: str, precision: str = "float32") -> str:
    """Return twelve hex digits of all that a profile is for: hosts, cores, versions, kernels, and the layers' shape."""
    computes = (backend, precision)
    threads = os.environ.get("OPENBLAS_NUM_THREADS")
    hosts = group.on_all(lambda: (host_name(), os.cpu_count(), threads, computes, trial.identity()))
    facts = (hosts, spec.fingerprint, spec.activation, library())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def profile(spec: ModelSpec, group: Group, backend: str, precision: str = "float32") -> Cluster:
    """Measure all ranks for one shape of model; every rank calls this and gets the same cluster.

    Returns
    -------
    Cluster
        Devices in rank order, called after their hosts.
    """
    computes = backends.backend(backend, precision)
    kernels_here, pace = measure_kernels(spec, computes, group)
    links = measure_links(group)
    messages = measure_messages(group, links, pace)
    unrest = measure_unrest(spec, computes, group)
    curves = Curves(spec.head_dim, {**kernels_here.kernels, Kernel.MESSAGE: messages})
    give_back()  # what was measured with, 100 MiB of bert-large, would not count as free
    measured = group.on_all(lambda: (host_name(), free_bytes(), curves, unrest))
    hosts, memories, all_curves, all_unrest = zip(*measured, strict=True)
    ranks_on, names = Counter(hosts), _names(hosts)
    computing = pooled(all_curves, all_unrest)
    devices = tuple(
        Device(name, flop_per_s(own_curves, spec), memory // ranks_on[host], own_link, own_curves, jitter_s, rest_s)
        for name, host, memory, own_link, (own_curves, jitter_s, rest_s) in zip(
            names, hosts, memories, links.own, computing, strict=True
        )
    )
    facts = {
        "backend": backends.of_all(group.on_all(lambda: backend)),
        "precision": precision,
        "model": spec.name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": python_version(),
        "numpy": np.__version__,
        "mpi": library(),
        "fingerprint": fingerprint(spec, group, backend, precision),
        "lab_scale": f"{clock.SCALE:g}",
    }
    return Cluster(devices, links.network, links.exceptions(names), facts)


def flop_per_s(curves: Curves, spec: ModelSpec) -> float:
    """Return the speed of a MatMul of 256 rows by the model's largest weight."""
    weights = spec.hidden * spec.ffn
    seconds = Bank([curves]).seconds(Kernel.CONTRACT, SPEED_ROWS, weights)
    return float(2 * SPEED_ROWS * weights / seconds[0])


def _names(hosts: Sequence[str]) -> list[str]:
    """Call devices after their hosts, numbered where a host has several ranks."""
    several = {host for host, count in Counter(hosts).items() if count > 1}
    return [f"{host}-{rank}" if host in several else host for rank, host in enumerate(hosts)]
