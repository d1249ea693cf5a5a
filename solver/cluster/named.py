"""Ready cluster files: named in place of a path."""

from __future__ import annotations

from pathlib import Path

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.cluster.cluster import Cluster, read_cluster

READY = Path(__file__).parent / "ready"


def find_cluster(word: str) -> Cluster:
    """Read a cluster file, or the ready one of that name.

    Raises
    ------
    HeptiError
        If there is neither, or as `read_cluster`.
    """
    path, ready = Path(word), {file.stem: file for file in READY.glob("*.toml")}
    if path.exists():
        return read_cluster(path)
    if word in ready:
        return read_cluster(ready[word])
    raise HeptiError(f"there is no cluster file {word}{did_you_mean(word, sorted(ready))}")
