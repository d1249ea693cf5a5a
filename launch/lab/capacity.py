"""Whether this machine can carry a lab, and at which scale."""

from __future__ import annotations

import math
import os
from dataclasses import replace

from launch.lab.lab import Lab
from launch.lab.limits import LEAST_CORES, REAL_TIME_CORES
from solver.base.errors import HeptiError
from solver.cluster.cluster import GIB

# Of the machine's cores, the share that hosts may have: the rest is for mpirun, the kernel's queues and the launcher.
USABLE = 0.95
# A virtual machine's cores drop from 93 to 60 GFLOP/s for minutes when its neighbours work. A lab that has chosen its
# scale for cores that are a third slower keeps its speeds then.
SLOWEST = 2 / 3
# GFLOP/s of a core that `lab up` is told, and does not measure, when it chooses a scale: so labs can be tried as a slow
# machine would have them.
CORE_VARIABLE = "HEPTI_LAB_CORE_GFLOPS"


class SlowCoresError(HeptiError):
    """The cores of this machine do not carry a lab at its scale; at `fits` they would, now."""

    def __init__(self, text: str, fits: float) -> None:
        super().__init__(text)
        self.fits = fits


def told_core_speed() -> float | None:
    """Return the FLOP a second of a core that `lab up` is told, None where it is told nothing."""
    told = os.environ.get(CORE_VARIABLE)
    if told is None:
        return None
    try:
        gflops = float(told)
    except ValueError:
        gflops = math.nan
    if not 0 < gflops < math.inf:
        raise HeptiError(f"{CORE_VARIABLE} is {told!r}, a number of GFLOP/s above zero is needed: 30, for example")
    return 1e9 * gflops


def core_count() -> int:
    """Return how many cores we may use."""
    return len(os.sched_getaffinity(0))


def usable_cores(real_time: bool) -> float:
    """Return how many of this machine's cores the hosts of a lab may have."""
    return REAL_TIME_CORES if real_time else USABLE * core_count()


def placed(lab: Lab) -> Lab:
    """Give every host a core: the fastest first, each where there is most left."""
    loads = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0.0)
    for host in sorted(lab.hosts, key=lambda host: -host.device_flop_per_s):
        core = min(loads, key=loads.__getitem__)
        loads[core] += host.device_flop_per_s
        lab = lab.with_host(replace(host, core=core))
    return lab


def choose_scale(lab: Lab, core_flop_per_s: float, usable: float) -> float:
    """Return the largest scale, of two digits and at most 1, at which the hosts fit with a margin.

    Parameters
    ----------
    core_flop_per_s
        Of this machine, by its own clock.
    usable
        The cores that the hosts may have.
    """
    speed = sum(host.compute_flop_per_s for host in lab.hosts)
    return with_margin(usable * core_flop_per_s / speed)


def with_margin(fits: float) -> float:
    """Return the largest scale, of two digits and at most 1, for cores a third slower than where `fits` does."""
    fits *= SLOWEST
    if fits >= 1:
        return 1.0
    digit = 10.0 ** (math.floor(math.log10(fits)) - 1)
    return round(math.floor(fits / digit) * digit, 9)


def require_capacity(lab: Lab) -> None:
    """Refuse a lab that asks for more cores than this machine has, or for less of one than the kernel can give.

    Raises
    ------
    SlowCoresError
        For more: at another scale it fits.
    HeptiError
        For less.
    """
    cores, usable = sum(host.cores for host in lab.hosts), usable_cores(lab.real_time)
    if cores > usable:
        speed = sum(host.compute_flop_per_s for host in lab.hosts) / 1e9
        can = usable / cores
        fits = 0.99 * can * lab.scale
        carrier = f"{REAL_TIME_CORES:.0%} of a core" if lab.real_time else f"the {core_count()} cores"
        raise SlowCoresError(
            f"the hosts of lab {lab.name} add up to {speed:.0f} GFLOP/s; at scale {lab.scale:g} {carrier} of this "
            f"machine carry {can * speed:.0f}: bring it up at --scale {fits:.2g} or less",
            fits,
        )
    least = min(lab.hosts, key=lambda host: host.cores)
    if least.cores < LEAST_CORES:
        raise HeptiError(
            f"at scale {lab.scale:g} host {least.name} gets {least.cores:.2%} of a core, the kernel gives "
            f"{LEAST_CORES:.1%} at least: leave out the fastest devices, or this one"
        )


def memory_notes(lab: Lab) -> list[str]:
    """Say so where the hosts' caps exceed this machine's memory: a cap takes none, but what is used has to be there."""
    wanted = sum(host.memory_bytes for host in lab.hosts) / GIB
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    if wanted <= total:
        return []
    return [
        f"the memory caps of the hosts add up to {wanted:.1f} GiB, this machine has {total:.1f}: "
        "what they use together must not exceed that"
    ]
