"""Clusters by name, in place of a path: ready files, and boards as they are sold."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.cluster.cluster import Cluster, read_cluster
from solver.cluster.whatif import BOARDS, changed, cluster_of_boards

READY = Path(__file__).parent / "ready"


def find_cluster(word: str) -> Cluster:
    """Read a cluster file, or the ready one of that name, or take boards as they are sold: "pi4,pi4,pi5".

    Raises
    ------
    HeptiError
        If there is none of them, or as `read_cluster`.
    """
    path, ready = Path(word), ready_names()
    if path.exists():
        return read_cluster(path)
    if word in ready:
        return read_cluster(READY / f"{word}.toml")
    boards = word.split(",")
    if len(boards) > 1 or word.partition(":")[0] in BOARDS:
        return cluster_of_boards(boards)
    hint = did_you_mean(word, ready)
    raise HeptiError(f"there is no cluster file {word}{hint}; name boards as in pi4,pi4,pi5, or see docs/files.md")


def asked_cluster(options: Namespace) -> Cluster:
    """Return the cluster that a command line asks to plan for: `--cluster`, as `--set`, `--add`, `--without` change it.

    Raises
    ------
    HeptiError
        If there is none, or no device of it is the one of `--schedule`.
    """
    cluster = changed(find_cluster(options.cluster), options.set, options.add, options.without)
    if (device := options.schedule) and device not in cluster.names:
        raise HeptiError(f"--schedule: there is no device {device}{did_you_mean(device, cluster.names)}")
    return cluster


def ready_names() -> list[str]:
    """Return the names of the ready files."""
    return sorted(file.stem for file in READY.glob("*.toml"))
