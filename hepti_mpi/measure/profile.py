"""Measure a cluster: every device's kernels, free memory and unrest, and the links; the result is a cluster file.

What is measured, and in which units, is what `solver.cluster.curves` and `solver.cluster.cluster` describe. All ranks
measure their kernels at the same time, as they will compute.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from platform import python_version

import numpy as np

from hepti_mpi.base.memory import give_back
from hepti_mpi.comm.group import Group, host_name, library
from hepti_mpi.kernels import backends, trial
from hepti_mpi.measure.profile_kernels import STEP_S, measure_kernels, measure_unrest
from hepti_mpi.measure.profile_links import measure_links, measure_messages
from solver.base import clock
from solver.cluster.board import free_bytes
from solver.cluster.cluster import Cluster, Device
from solver.cluster.curves import Bank, Curves, Floats, Kernel
from solver.model.spec import ModelSpec, encoder_blocks

MEASURES = 2  # version of what a profile says: others are measured anew
SPEED_ROWS = 256  # what a device's GFLOP/s are those of
ALIKE = (Kernel.PROJECT, Kernel.CONTRACT, Kernel.ATTEND)  # what nearly all of a layer's time goes to
# Half of the ratios of two devices' points lie so near their median. Ranks of one host 0.005 to 0.04, equal boards of a
# lab 0.02, in a noisy hour 0.03 to 0.05: more is another kind of curve.
SCATTER = 0.05
# How far speeds may be apart at most; less where the devices' steps vary less. In a lab they vary by 13 to 25 %.
APART = 0.1
# By how many times the jitter of two devices the steps of one vary: the standard deviation of Gumbel's distribution.
DEVIATION = math.pi / math.sqrt(6) / math.log(2)


def fingerprint(spec: ModelSpec, group: Group, backend: str, precision: str = "float32") -> str:
    """Return twelve hex digits of all that a profile is for: hosts, cores, versions, kernels, and the layers' shape."""
    layers = (spec.fingerprint, encoder_blocks(spec)[1].activation)
    return measured_under(group, "OPENBLAS_NUM_THREADS", layers, MEASURES, (backend, precision))


def measured_under(group: Group, threads: str, model: Sequence[str], version: int, *computes: Sequence[str]) -> str:
    """Return twelve hex digits of what a profile is kept under: hosts, cores, packages, the lab, and what is given.

    Parameters
    ----------
    threads
        The variable that says how many threads kernels take.
    model
        What it is measured for.
    version
        Of what a profile says.
    computes
        What else this rank computes with.
    """
    allowed = os.environ.get(threads)
    hosts = group.on_all(lambda: (host_name(), os.cpu_count(), allowed, *computes, trial.identity(), clock.LAB))
    facts = (hosts, *model, library(), version)
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
    unrest = measure_unrest(spec.hidden, computes, group)
    curves = Curves(encoder_blocks(spec)[0].head_dim, {**kernels_here.kernels, Kernel.MESSAGE: messages})
    give_back()  # what was measured with, 100 MiB of bert-large, would not count as free
    measured = group.on_all(lambda: (host_name(), free_bytes(), curves, unrest))
    hosts, memories, all_curves, all_unrest = zip(*measured, strict=True)
    ranks_on, names = Counter(hosts), names_of(hosts)
    computing = pooled(all_curves, all_unrest)
    devices = tuple(
        Device(name, flop_per_s(own_curves, spec), memory // ranks_on[host], own_link, own_curves, jitter_s, rest_s)
        for name, host, memory, own_link, (own_curves, jitter_s, rest_s) in zip(
            names, hosts, memories, links.own, computing, strict=True
        )
    )
    computed_by = backends.of_all(group.on_all(lambda: backend))
    facts = profile_facts(spec.name, computed_by, fingerprint(spec, group, backend, precision), precision)
    return Cluster(devices, links.network, links.exceptions(names), facts)


def profile_facts(model: str, backend: str, known_by: str, precision: str = "float32") -> dict[str, str]:
    """Return how a profile came about, as its file says it; `known_by` is its fingerprint."""
    return {
        "backend": backend,
        "precision": precision,
        "model": model,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": python_version(),
        "numpy": np.__version__,
        "mpi": library(),
        "fingerprint": known_by,
        "lab_scale": f"{clock.SCALE:g}",
    }


def pooled(curves: Sequence[Curves], unrest: Sequence[tuple[float, float]]) -> list[tuple[Curves, float, float]]:
    """Return every device's curves, jitter and rest, in seconds, [p]: the mean of all devices of its kind.

    Points of two profiles of one board lie some percent from each other, and the best of thousands of plans is the one
    that such errors flatter most. Four equal boards of a lab, measured in four hours at speeds that differed by 2 to
    10 %, got plans that on equal boards take 0.6 to 5 % longer than the one for the mean, and up to 4 % longer than
    equal rows: in a noisy hour 3, 5, 5 and 3 heads were predicted 410 ms and took 456.
    """
    found: dict[int, tuple[Curves, float, float]] = {}
    points = [np.concatenate([np.ravel(own.kernels[kernel].seconds) for kernel in ALIKE]) for own in curves]
    for kind in kinds(points, [jitter_s for jitter_s, _ in unrest]):
        jitter_s, rest_s = np.mean([unrest[rank] for rank in kind], axis=0).tolist()
        found |= dict.fromkeys(kind, (mean_curves([curves[rank] for rank in kind]), jitter_s, rest_s))
    return [found[rank] for rank in range(len(curves))]


def kinds(seconds: Sequence[Floats], jitter_s: Sequence[float]) -> list[list[int]]:
    """Return the devices' numbers by kind, the fastest first: every device is like the fastest of its kind.

    Two devices are of a kind if their curves have one shape, and their speeds differ by no more than their steps do
    from one to the next. Those of a board of its own hardly do: there a slower one stays a slower one.

    Parameters
    ----------
    seconds
        The points of every device's curves, [points].
    jitter_s
        Of every device.
    """
    points = np.log(seconds)

    def are_alike(rank: int, other: int) -> bool:
        ratios = points[rank] - points[other]
        apart, varies = np.median(ratios), DEVIATION * (jitter_s[rank] + jitter_s[other]) / 2 / STEP_S
        return bool(apart <= min(APART, varies) and np.median(np.abs(ratios - apart)) <= SCATTER)

    found: list[list[int]] = []
    for rank in np.argsort(np.median(points - points.mean(axis=0), axis=1), kind="stable").tolist():
        if not (found and are_alike(rank, found[-1][0])):
            found.append([])
        found[-1].append(rank)
    return found


def mean_curves(curves: Sequence[Curves]) -> Curves:
    """Return the geometric mean of several devices' curves, all on one grid."""
    kernels = {}
    for kernel, curve in curves[0].kernels.items():
        seconds = np.exp(np.log([own.kernels[kernel].seconds for own in curves]).mean(axis=0))
        kernels[kernel] = replace(curve, seconds=tuple(map(tuple, seconds.tolist())))
    return replace(curves[0], kernels=kernels)


def flop_per_s(curves: Curves, spec: ModelSpec) -> float:
    """Return the speed of a MatMul of 256 rows by the model's largest weight."""
    weights = spec.hidden * encoder_blocks(spec)[1].ffn
    seconds = Bank([curves]).seconds(Kernel.CONTRACT, SPEED_ROWS, weights)
    return float(2 * SPEED_ROWS * weights / seconds[0])


def names_of(hosts: Sequence[str]) -> list[str]:
    """Call devices after their hosts, numbered where a host has several ranks."""
    several = {host for host, count in Counter(hosts).items() if count > 1}
    return [f"{host}-{rank}" if host in several else host for rank, host in enumerate(hosts)]
