"""CPU and memory limits of a host as cgroup files and their values, for cgroup v1 and v2; nothing here writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.lab.lab import PREFIX, Lab
from solver.base.errors import HeptiError

LONGEST_PERIOD_US = 1_000_000
LEAST_CORES = 0.001
# Older kernels know no bursts; the files about swap exist only where it is accounted for.
OPTIONAL_FILES = {"cpu.cfs_burst_us", "cpu.max.burst", "memory.memsw.limit_in_bytes", "memory.swap.max"}


@dataclass(frozen=True, slots=True)
class Brake:
    """A way to hold a host to a share of a core: it runs for a quota, and stands still for the rest of a period."""

    shortest_quota_us: int
    shortest_period_us: int
    look_s: float  # how often a ticker makes the kernel look at what is used up
    left: float  # of a core's speed, what is left when it is cut in such pieces: a first guess

    def quota_us(self, cores: float) -> tuple[int, int]:
        """Return quota and period: the shortest period in which the quota is long enough.

        Examples
        --------
        >>> FAIR.quota_us(0.26), FAIR.quota_us(0.1), REAL_TIME.quota_us(0.1), REAL_TIME.quota_us(0.04)
        ((1040, 4000), (1000, 10000), (205, 2047), (200, 5000))
        """
        period = min(max(self.shortest_period_us, round(self.shortest_quota_us / cores)), LONGEST_PERIOD_US)
        return max(self.shortest_quota_us, round(cores * period)), period


# Quotas of ordinary processes. The kernel refuses less than 1 ms; with a ticker it notices a used-up quota within 1 ms.
# Shorter periods lost up to 20 % of the speed (1.4 ms at 72 %: 42 instead of 67 GFLOP/s).
FAIR = Brake(shortest_quota_us=1000, shortest_period_us=4000, look_s=1e-3, left=0.98)
# Shares of the real-time class, which cgroups of v1 have where the kernel is built so: it takes any quota. Of a core of
# 245 GFLOP/s four hosts with a tenth each got 220 to 228, one alone 232 to 244; in pieces of half the size 195 and 210,
# since each finds the core's cache full of the others' numbers, and a look takes 11 µs. A period that divides the
# kernel's tick of 4 ms would always meet it at the same place: processes of one host then take turns never, or always.
REAL_TIME = Brake(shortest_quota_us=200, shortest_period_us=2047, look_s=2e-4, left=0.9)
# What the hosts of a lab may have of the real-time class. The kernel adds the shares of all groups up, whichever core
# they are on, and leaves 0.95 of every core to them and to the ticker.
REAL_TIME_CORES = 0.85
# A lab that sleeps has lent its share to another; a group with processes must keep something.
ASLEEP_CORES = 0.001
REAL_TIME_PERIOD = "cpu.rt_period_us"  # the file of a group
# How many milliseconds a process of the real-time class keeps the others of its host waiting: with 4 it is 35 where a
# host has a tenth of a core, since the kernel counts only what the host computes; with the usual 100 it is 630.
ROUND_ROBIN = Path("/proc/sys/kernel/sched_rr_timeslice_ms")
SHORT_TURN, USUAL_TURN = "4", "0"


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

    @property
    def real_time_left(self) -> float:
        """What no group has of the real-time class, in cores; 0 where groups cannot have shares of it.

        In v2 they cannot; nor where v1 has CPU and memory in one hierarchy, since a run's own group would need a share.
        """
        if self.cpu_version == 2 or self.cpu == self.memory or not (self.cpu / "cpu.rt_runtime_us").exists():
            return 0.0
        return real_time_share(self.cpu) - sum(map(real_time_share, self.cpu.glob("*/")))


def real_time_share(group: Path) -> float:
    """Return what a group has of the real-time class, in cores."""
    runtime, period = (int((group / f"cpu.rt_{name}_us").read_text()) for name in ("runtime", "period"))
    return runtime / period


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


def brake_of(lab: Lab) -> Brake:
    """Return what holds a lab's hosts to their shares of a core."""
    return REAL_TIME if lab.real_time else FAIR


def cpu_files(version: int, cores: float) -> list[tuple[str, str]]:
    """Return the files, in order, that hold a host's ordinary processes to so many cores.

    What a host leaves of one period, because another host is on its core at the moment, it may catch up in the next
    (burst): without that, four hosts on two cores got 26 instead of 28 % and 62 instead of 74 %.
    """
    quota, period = FAIR.quota_us(cores)
    if version == 1:
        # The burst may never exceed the quota, so it is taken back first.
        burst, limits = "cpu.cfs_burst_us", [("cpu.cfs_period_us", str(period)), ("cpu.cfs_quota_us", str(quota))]
        return [(burst, "0"), *limits, (burst, str(quota))]
    return [("cpu.max.burst", "0"), ("cpu.max", f"{quota} {period}"), ("cpu.max.burst", str(quota))]


def real_time_files(cores: float, before_us: int) -> list[tuple[str, str]]:
    """Return the files, in order, that give a group so much of the real-time class in place of what it has.

    Between the two writes the longer period, of `before_us` and the new one, is in force. So the share is never above
    both the old and the new one, which its own group may not give, nor below both, which groups below it may have.
    """
    quota, period = REAL_TIME.quota_us(cores)
    files = [(REAL_TIME_PERIOD, str(period)), ("cpu.rt_runtime_us", str(quota))]
    return files if period >= before_us else files[::-1]


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
