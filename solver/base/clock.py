"""Seconds as a cluster file means them. Nothing else in the packages reads a clock to measure a device or a link.

On boards these are the clock's. A lab that runs its hosts and links at a scale below 1 (`launch.lab`) tells its hosts
so: there a second of the file takes 1 / scale seconds of the clock, and whoever waits sleeps that much longer. This is
time dilation as in DieCast (Gupta et al., NSDI 2008): speeds, bandwidths and latencies keep their proportions.
"""

from __future__ import annotations

import os
import time

# Set on the hosts of a lab by its agent.
SCALE_VARIABLE = "HEPTI_LAB_SCALE"
SCALE = float(os.environ.get(SCALE_VARIABLE, "1"))
# Set there, too: which lab this host is one of, since the hosts of all labs are called alike.
LAB_VARIABLE = "HEPTI_LAB_HOSTS"
LAB = os.environ.get(LAB_VARIABLE, "")


def now() -> float:
    """Return a time in seconds; differences between two are meant."""
    return time.perf_counter() * SCALE


def cpu_now() -> float:
    """Return the seconds of CPU time that this process has used."""
    return time.process_time() * SCALE


def sleep(seconds: float) -> None:
    """Sleep for so many seconds."""
    time.sleep(seconds / SCALE)


def at_scale(scale: float = SCALE) -> str:
    """Return what follows a lab's name, or stands before its seconds, where they are not the clock's."""
    return f" at scale {scale:g}" if scale != 1 else ""
