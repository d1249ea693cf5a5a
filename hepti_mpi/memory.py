"""Memory that is free for weights and activations, on this host and under its cgroup's cap."""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Return what this host can still give: what the kernel calls available, or the cgroup's cap less its use."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    return min([available, *_left_in_cgroups()])


def _left_in_cgroups() -> list[int]:
    """Return what the caps on this process's cgroup and those above it leave, in cgroup v1 and v2 alike."""
    left = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, names = CGROUPS, ("memory.max", "memory.current")
        if controllers == "memory":
            root, names = CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        folder = root / path.lstrip("/")
        for above in (folder, *folder.parents):
            cap, use = above / names[0], above / names[1]
            if not above.is_relative_to(root) or not cap.is_file():
                break
            text = cap.read_text().strip()
            if text != "max":
                left.append(max(0, int(text) - int(use.read_text()) + _cached(above)))
    return left


def _cached(cgroup: Path) -> int:
    """Return what files lie in a cgroup's page cache, which the kernel gives back when memory is wanted."""
    counts = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
