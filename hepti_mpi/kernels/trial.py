"""Whether onnxruntime can compute on this board: tried once, in a process of its own, and kept in the user's cache.

A wheel may take a rank down. 1.21.0 had instructions that a Raspberry Pi 4 lacks; 1.28 to 1.31 follow a null pointer at
import where /proc/cpuinfo does not say which ARM core it is. Such a signal cannot be caught in the process itself.

    python -m hepti_mpi.kernels.trial

says as JSON what `--backend auto` takes here, and why: `launch doctor` asks it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from solver.base.cache import cache_folder
from solver.base.clock import SCALE

PACKAGES = ("onnxruntime", "onnx")
MISSING = "onnxruntime and onnx are not installed"
# An emulated board whose core others use takes 40 s.
TIME_S = 120
# What a rank has from its mpirun: a child that had it, too, could be taken for a rank.
OF_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_", "HYDRA_", "HYDI_")
# Lines of /proc/cpuinfo that say which instructions there are, on x86 and on ARM.
OF_PROCESSOR = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant", "CPU revision")
# Somebody ended the trial: that says nothing of the wheel.
ENDED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)


def known() -> str | None:
    """Return what keeps onnxruntime from computing here, "" if nothing does, None if it has not been tried yet."""
    if any(find_spec(name) is None for name in PACKAGES):
        return MISSING
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads(_path().read_text())["trouble"])
    return None


def tried() -> str:
    """Let onnxruntime compute in a process of its own; return, and keep, what is wrong with it, "" if nothing is."""
    command = [sys.executable, "-P", "-m", "hepti_mpi.kernels.trial_graphs"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_MPI)}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            encoding="utf-8", errors="replace", timeout=TIME_S / SCALE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{_wheel()} did not end its trial within {TIME_S} s"
    except OSError as error:
        return f"{_wheel()} could not be tried: {error}"
    trouble = _trouble(done.returncode, done.stderr)
    if done.returncode not in ENDED:
        _keep(trouble)
    return trouble


def identity() -> str:
    """Return twelve hex digits of all that a trial depends on: the packages, Python, numpy, and the processor."""
    # A package is known by its first file: to ask for the version takes 40 ms, on a Pi 200.
    files = [Path(spec.origin) for name in PACKAGES if (spec := find_spec(name)) and spec.origin]
    packages = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    facts = (packages, platform.python_version(), np.__version__, platform.machine(), _processor())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def main() -> int:
    """Print what `--backend auto` takes here."""
    trouble = known()
    if trouble is None:
        trouble = tried()
    why = trouble or "it computes what numpy does"
    print(json.dumps({"backend": "numpy" if trouble else "onnxruntime", "why": why, "missing": trouble == MISSING}))
    return 0


def _trouble(code: int, errors: str) -> str:
    if code == 0:
        return ""
    if code < 0:
        return f"{_wheel()} dies of {signal.Signals(-code).name}"
    return f"{_wheel()} fails: {errors.strip().splitlines()[-1] if errors.strip() else f'exit code {code}'}"


def _wheel() -> str:
    from importlib import metadata  # 40 ms, which only trouble takes

    with suppress(metadata.PackageNotFoundError):
        return f"onnxruntime {metadata.version('onnxruntime')}"
    return "onnxruntime"


def _processor() -> list[str]:
    with suppress(OSError):
        lines = set(Path("/proc/cpuinfo").read_text().splitlines())
        return sorted(line for line in lines if line.startswith(OF_PROCESSOR))
    return []


def _path() -> Path:
    return cache_folder() / f"onnxruntime-{identity()}.json"


def _keep(trouble: str) -> None:
    path = _path()
    new = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # without it the next start tries again
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({"trouble": trouble}))
        new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
