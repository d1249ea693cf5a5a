"""What `install` wants to know of a board; handed to every Python there, each answers with one JSON object.

Standard library only, and in words that older Pythons know, too: they are told that they are too old.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import pwd
import shutil
import struct
import sys
from pathlib import Path


def sums(path: Path) -> dict[str, str]:
    """Return what a list of sums has: file names and their SHA-256."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return {line.split()[1]: line.split()[0] for line in lines}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            found.update(piece)
    return found.hexdigest()


def look(environment: Path, token: str) -> dict[str, object]:
    """Return what there is; a `token` in the environment says that it is the one from where we are asked."""
    there = next(folder for folder in (environment, *environment.parents) if folder.is_dir())
    foreign = there == environment and any(there.iterdir()) and not (there / "pyvenv.cfg").is_file()
    libc, release = platform.libc_ver()
    # What was installed for another release is not found by this one.
    own = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return {
        "python": sys.executable,
        "version": sys.version_info[:3],
        "venv": importlib.util.find_spec("venv") is not None,
        "machine": platform.machine(),
        "bits": 8 * struct.calcsize("P"),
        "glibc": release if libc == "glibc" else "",
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "shared": (environment / token).exists(),
        "foreign": foreign,
        "folder": str(there),
        "writable": os.access(str(there), os.W_OK),
        "free_bytes": shutil.disk_usage(str(there)).free,
        "installed": sums(environment / "hepti-wheels") if own.is_dir() else {},
        "held": {path.name: digest(path) for path in Path(f"{environment}.wheels").glob("*.whl")},
    }


if __name__ == "__main__":
    print(json.dumps(look(Path(sys.argv[1]), sys.argv[2])))
