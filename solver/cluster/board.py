"""What a board says of itself: its memory, caps and heat. Standard library only, and little of it.

Ranks and commands import it; to boards it goes as text before a program of ours that needs it (`launch/base/sent.py`).
What this kernel does not tell, or a group without a cap, is left out.
"""

# An agent on a slow board waits for what is imported: pathlib and typing take longer than all that it does.
# ruff: noqa: PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GROUPS = "/sys/fs/cgroup"
THERMAL = "/sys/class/thermal"
FIRMWARE = "/sys/devices/platform/soc/soc:firmware/get_throttled"
# Files of a group, by the version of cgroups: its cap, its use; and what of its statistics the kernel would give back.
FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
SECOND = ("memory.max", "memory.current", "inactive_file")


def contents(path: str) -> bytes:
    """Return a file's bytes; none where it is gone, as a process's is that has ended, or was never there."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def text(path: str) -> str:
    """Return a file's text; none where there is no file."""
    return contents(path).decode(errors="replace")


def table(path: str) -> dict[str, str]:
    """Return the lines of a name and a number."""
    lines = (line.split() for line in text(path).splitlines())
    return {words[0]: words[1] for words in lines if len(words) > 1}


def names(folder: str) -> list[str]:
    """Return what is in a folder; nothing where there is none."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def groups(controller: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield this process's cgroup and all above it, which in a container may be the first one only, and their files."""
    for line in text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = os.path.join(GROUPS, controllers).rstrip("/")
        folder = os.path.join(root, path.lstrip("/")).rstrip("/")
        while len(folder) >= len(root):
            yield folder, FIRST if controllers else SECOND
            folder = os.path.dirname(folder)


def capped() -> list[tuple[str, Sequence[str]]]:
    """Return those of them that count memory."""
    return [(group, files) for group, files in groups("memory") if contents(os.path.join(group, files[0]))]


def memory(caps: Sequence[tuple[str, Sequence[str]]]) -> tuple[int, int]:
    """Return how many bytes are free, and how many there are, under these groups' caps.

    The kernel gives back the files in the page cache when memory is wanted.
    """
    host = table("/proc/meminfo")
    free, total = int(host["MemAvailable:"]) * 1024, int(host["MemTotal:"]) * 1024
    for group, (cap, use, cached) in caps:
        limit = text(os.path.join(group, cap)).strip()
        if limit.isdigit():
            files = int(table(os.path.join(group, "memory.stat")).get(cached, 0))
            used = int(text(os.path.join(group, use)) or 0)
            free, total = min(free, max(0, int(limit) - used + files)), min(total, int(limit))
    return free, total


def free_bytes() -> int:
    """Return what this host can still give: what the kernel calls available, or a cgroup's cap less its use."""
    return memory(capped())[0]


def temperature() -> float | None:
    """Return the hottest sensor in °C; None: there is none."""
    zones = [text(f"{THERMAL}/{name}/temp").strip() for name in names(THERMAL) if name.startswith("thermal_zone")]
    return max((int(zone) / 1000 for zone in zones if zone.lstrip("-").isdigit()), default=None)


def throttled() -> int | None:
    """Return the word of a Raspberry Pi's firmware on under-voltage and throttling; None: not a Pi.

    Its lower bits are of this moment. vcgencmd is for kernels without the file, and too much for every second.
    """
    word = text(FIRMWARE).strip()
    if not word and any(os.access(os.path.join(folder, "vcgencmd"), os.X_OK) for folder in os.get_exec_path()):
        with os.popen("vcgencmd get_throttled 2>/dev/null") as answer:
            word = answer.read().strip().partition("=")[2]
    try:
        return int(word, 16)
    except ValueError:
        return None
