"""What libraries are told of this machine: threads that a person allows, no telemetry, what int8 does to it.

And what installs those that are missing: Hepti is on no index, so by its name nothing can be installed.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

NAME = "hepti"
_CHECKOUT = Path(__file__).resolve().parents[2]


def thread_count(text: str) -> int | None:
    """Return the first number of an OpenMP list: "4,2" is 4 threads, and 2 in a region within them.

    None where it is not a whole number above 0: OpenMP takes no notice of such a setting.
    """
    first = text.partition(",")[0].strip()
    # Not isdigit: "²" is a digit, but int() refuses it.
    return int(first) or None if first.isdecimal() else None


def omp_threads() -> int | None:
    """Return what OMP_NUM_THREADS allows; None where it allows anything."""
    return thread_count(os.environ.get("OMP_NUM_THREADS", ""))


def send_no_telemetry() -> None:
    """Let onnxruntime be silent, which must be asked before it is imported.

    From 1.32 on its wheels for Linux keep a database in the user's cache, and a thread that sends what is computed
    (microsoft/onnxruntime#27379).
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@cache
def int8_overflows() -> bool:
    """Return whether sums of int8 products pass through int16 here: on x86 without instructions for dot products.

    Weights as uint8 help, but make a product 2.2 times as slow where there are such instructions.
    """
    cpu = Path("/proc/cpuinfo")
    return platform.machine() in ("x86_64", "AMD64") and not (cpu.is_file() and "vnni" in cpu.read_text())


def install(extra: str) -> str:
    """Return the command: of the checkout that this code lies in, or else of the packages themselves."""
    if (_CHECKOUT / "pyproject.toml").is_file():
        place = "." if Path.cwd() == _CHECKOUT else str(_CHECKOUT)
        return f"pip install -e '{place}[{extra}]'"
    return f"pip install {' '.join(packages(extra))}"


def packages(extra: str) -> list[str]:
    """Return the packages of an extra of the installed Hepti, each as a shell takes it."""
    from importlib import metadata  # takes long, and is needed where something is missing

    marked = (line.partition(";") for line in metadata.requires(NAME) or ())
    return [f"'{package.strip()}'" for package, _, marker in marked if f'"{extra}"' in marker.replace("'", '"')]
