"""CPU and memory limits of a host as cgroup files and their values, for cgroup v1 and v2; nothing here writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.lab.lab import PREFIX
from solver.base.errors import HeptiError

# The kernel notices a used-up quota at its tick, 4 ms at the usual 250 Hz: shorter periods lose up to 20 % of the speed
# (1.4 ms period at 72 %: 42 instead of 67 GFLOP/s), longer ones make times come out in coarser steps.
SHORTEST_PERIOD_US = 4000
# The kernel refuses less.
SHORTEST_QUOTA_US = 1000
LONGEST_PERIOD_US = 1_000_000
LEAST_CORES = SHORTEST_QUOTA_US / LONGEST_PERIOD_US
# Older kernels know no bursts; the files about swap exist only where it is accounted for.
OPTIONAL_FILES = {"cpu.cfs_burst_us", "cpu.max.burst", "memory.memsw.limit_in_bytes", "memory.swap.max"}


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where this machine mounts the controllers, and in which version."""

    cpu: Path
    memory: Path
    cpu_version: int
    memory_version: int

    @property
    def roots(self) -> tuple[Path, ...]:
        """The hierarchies that a host's processes join: two of v1, one of v2."""
        return (self.cpu,) if self.cpu == self.memory else (self.cpu, self.memory)

    def groups(self, lab: str, host: str = "") -> tuple[Path, ...]:
        """Return the groups of a lab, or of one of its hosts."""
        return tuple(root / f"{PREFIX}.{lab}" / host for root in self.roots)

    def cpu_group(self, lab: str, host: str = "") -> Path:
        """Return the group with the CPU limits."""
        return self.cpu / f"{PREFIX}.{lab}" / host

    def memory_group(self, lab: str, host: str = "") -> Path:
        """Return the group with the memory limits."""
        return self.memory / f"{PREFIX}.{lab}" / host


def find_cgroups(mounts: str) -> Cgroups:
    """Find the controllers in the text of /proc/mounts; those that v1 has mounted are not in v2.

    Raises
    ------
    HeptiError
        If one of the two is mounted nowhere.
    """
    found: dict[str, tuple[Path, int]] = {}
    for line in mounts.splitlines():
        _, place, kind, options, *_ = line.split()
        for controller in ("cpu", "memory"):
            if kind == "cgroup" and controller in options.split(","):
                found[controller] = (Path(place), 1)
            elif kind == "cgroup2":
                found.setdefault(controller, (Path(place), 2))
    if len(found) < 2:
        missing = " and ".join(sorted({"cpu", "memory"} - found.keys()))
        raise HeptiError(f"no cgroup controller for {missing} is mounted: mount -t cgroup2 none /sys/fs/cgroup")
    return Cgroups(found["cpu"][0], found["memory"][0], found["cpu"][1], found["memory"][1])


def quota_us(cores: float) -> tuple[int, int]:
    """Return quota and period: the shortest period in which the quota is long enough for the kernel.

    Examples
    --------
    >>> quota_us(0.26), quota_us(0.1)
    ((1040, 4000), (1000, 10000))
    """
    period = min(max(SHORTEST_PERIOD_US, round(SHORTEST_QUOTA_US / cores)), LONGEST_PERIOD_US)
    return max(SHORTEST_QUOTA_US, round(cores * period)), period


def cpu_files(version: int, cores: float) -> list[tuple[str, str]]:
    """Return the files, in order, that hold a host to so many cores.

    What a host leaves of one period, because another host is on its core at the moment, it may catch up in the next
    (burst): without that, four hosts on two cores got 26 instead of 28 % and 62 instead of 74 %.
    """
    quota, period = quota_us(cores)
    if version == 1:
        # The burst may never exceed the quota, so it is taken back first.
        burst, limits = "cpu.cfs_burst_us", [("cpu.cfs_period_us", str(period)), ("cpu.cfs_quota_us", str(quota))]
        return [(burst, "0"), *limits, (burst, str(quota))]
    return [("cpu.max.burst", "0"), ("cpu.max", f"{quota} {period}"), ("cpu.max.burst", str(quota))]


def weight_file(version: int) -> tuple[str, str]:
    """Return the file that puts a lab before whatever else runs on this machine, and the highest weight.

    A lab has promised its speeds: with the usual weight, two busy neighbours took a 74 % host down to 22 %.
    """
    return ("cpu.shares", "262144") if version == 1 else ("cpu.weight", "10000")


def memory_files(version: int, cap: int) -> list[tuple[str, str]]:
    """Return the files, in order, that hold a host to so many bytes, swap included."""
    if version == 1:
        # The sum with swap may never be below the cap, so it is lifted first.
        sum_with_swap = "memory.memsw.limit_in_bytes"
        return [(sum_with_swap, "-1"), ("memory.limit_in_bytes", str(cap)), (sum_with_swap, str(cap))]
    return [("memory.swap.max", "0"), ("memory.max", str(cap))]


def kills_file(version: int, host: Path, run: str) -> Path:
    """Return the file that counts, as `oom_kill N`, a host's processes killed for breaking the cap.

    v1 counts in the group of the killed process, v2 also in those above it.
    """
    return host / run / "memory.oom_control" if version == 1 else host / "memory.events"


def parse_kills(text: str) -> int:
    """Read that count."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)
