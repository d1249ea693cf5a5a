"""What the doctor wants to know of a host; sent to its Python on standard input, answers with one JSON object.

Standard library only, and `solver.cluster.board`, sent with it: it must run where what it reports on is broken.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import socket
import struct
import sys
from importlib import metadata, util
from pathlib import Path

from solver.cluster.board import free_bytes, temperature, throttled

PACKAGES = ("numpy", "mpi4py", "h5py")
OWN = ("solver", "weights", "hepti_mpi", "launch")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# linux/sockios.h and linux/if.h
SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFNETMASK = 0x8913, 0x8915, 0x891B
IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40


def versions() -> dict[str, str | None]:
    """Return the versions of the packages that Hepti needs; None: not there."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    try:
        found["hepti"] = metadata.version("hepti")
    except metadata.PackageNotFoundError:
        found["hepti"] = "source tree" if util.find_spec("hepti_mpi") else None
    return found


def code() -> str | None:
    """Return eight hex digits of all that Hepti's packages say in Python, under any version; None: not there."""
    digest = hashlib.sha256()
    for package in OWN:
        spec = util.find_spec(package)
        if spec is None or spec.origin is None:
            return None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(root)}".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def interfaces() -> list[dict[str, object]]:
    """Return the IPv4 interfaces that are up, but for the loopback: name, carrier, address, prefix length."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:

        def ask(request: int, name: str) -> bytes:
            return fcntl.ioctl(any_socket, request, struct.pack("16s16x", name.encode()))

        for _, name in socket.if_nameindex():
            (flags,) = struct.unpack_from("H", ask(SIOCGIFFLAGS, name), 16)
            if not flags & IFF_UP or flags & IFF_LOOPBACK:
                continue
            try:
                address = ask(SIOCGIFADDR, name)[20:24]
                mask = ask(SIOCGIFNETMASK, name)[20:24]
            except OSError:
                continue  # without an IPv4 address MPI does not use it
            found.append(
                {
                    "name": name,
                    "running": bool(flags & IFF_RUNNING),
                    "address": socket.inet_ntoa(address),
                    "prefix": bin(int.from_bytes(mask, "big")).count("1"),
                }
            )
    return found


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "executable": sys.executable,
                "machine": platform.machine(),
                "packages": versions(),
                "code": code(),
                "cores": os.cpu_count(),
                "usable_cores": len(os.sched_getaffinity(0)),
                "lab_scale": float(os.environ.get("HEPTI_LAB_SCALE", "1")),
                "threads": {name: os.environ[name] for name in THREADS if name in os.environ},
                "free_bytes": free_bytes(),
                "interfaces": interfaces(),
                "temperature_c": temperature(),
                "throttled": throttled(),
            }
        )
    )
