"""What stands above tables and pictures: on which cluster, and where a picture is."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from rich.console import Console

from solver.base.phrases import counted, mbps
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec, TextInput
from solver.plan.plan import Wire


def encoder_title(spec: ModelSpec, rows: int) -> str:
    """Return what is planned, in words."""
    of = "token" if isinstance(spec.input, TextInput) else "patch"
    return f"{spec.name}, {counted(spec.layers, 'layer')}, {counted(rows, 'row')} (one a {of})"


def place(options: Namespace) -> str:
    """Return on which cluster, with or without changes, and with what on the wire: "on mixed4 with changes"."""
    what_if = " with changes" * bool(options.set or options.add or options.without)
    sent = f", {options.wire} on the wire" * (options.wire != Wire.FLOAT32)
    return f"on {Path(options.cluster).stem}{what_if}{sent}"


def links(cluster: Cluster) -> str:
    """Return how fast the devices' own links are, after a comma; nothing of a device alone."""
    return f", {mbps(cluster.links_mbps)}" if cluster.links_mbps else ""


def say_drawn(options: Namespace, path: Path) -> None:
    """Say where a picture is; beside JSON on stderr."""
    Console(stderr=options.json, highlight=False, markup=False).print(f"The picture is in {path}.", soft_wrap=True)
