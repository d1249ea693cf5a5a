"""The report of a run with a convolutional network, and its table."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from hepti_mpi.comm.group import library
from hepti_mpi.comm.hosts import Place
from hepti_mpi.report.report import FORMAT
from hepti_mpi.requests.answers import Tally
from solver.base import clock
from solver.base.phrases import counted
from solver.base.tables import new_table
from solver.cluster.cluster import MIB
from solver.model.convnet import ConvNet
from solver.model.operators import flop
from solver.plan.segment_file import segments_to_json
from solver.plan.segments import SegmentPlan


def network_report(
    net: ConvNet, plan: SegmentPlan, tally: Tally, ranks: Sequence[dict[str, Any]], places: Sequence[Place],
    options: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """Return the report but for what it was predicted for, and how many images a second there were."""
    every = [value for values in tally.seconds.values() for value in values]
    return {
        "format": FORMAT,
        "model": net.name,
        "mpi": library(),
        "backend": "onnxruntime",
        "precision": "float32",
        "wire": plan.wire,
        "repeat": options.repeat,
        "lab_scale": clock.SCALE,
        "requests": [{"id": name, "seconds": values} for name, values in tally.seconds.items()],
        "requests_answered": tally.count,
        "seconds_median": statistics.median(every) if every else None,
        "predicted_seconds": plan.predicted.seconds if plan.predicted else None,
        "per_rank": [entry | {"host": place.host} for entry, place in zip(ranks, places, strict=True)],
        "plan": json.loads(segments_to_json(net, plan)),
        "replans": [],
    }


def show_network(console: Console, report: Mapping[str, Any], net: ConvNet, plans: Sequence[SegmentPlan]) -> None:
    """Print who computed what share of the work, and how long it took; figures are of the mean image.

    Of plans that run side by side, a rank's is the one in which it has a share.
    """
    images = report["requests_answered"]
    headings = ("rank", "device", "segments", "work", "weights MiB", "compute ms", "wait ms", "sent KiB")
    title = f"who computed what of {net.name}; {'mean of ' * (images > 1)}{counted(images, 'image')}"
    table = new_table(title, *headings, words=2)
    for entry in report["per_rank"]:
        plan = next((plan for plan in plans if entry["rank"] in plan.active), plans[0])
        table.add_row(
            str(entry["rank"]),
            entry["device"],
            *network_shares(net, plan, entry["rank"]),
            f"{entry['weights_bytes'] / MIB:.1f}",
            f"{1e3 * entry['compute_s'] / images:.1f}",
            f"{1e3 * entry['wait_s'] / images:.1f}",
            f"{entry['sent_bytes'] / 1024 / images:.0f}",
        )
    console.print(table)
    line = Text.assemble((f"{1e3 * report['seconds_median']:.1f} ms", "bold"), " an image")
    if images > 1:
        line.append(", the median")
    if report["predicted_seconds"] is not None:
        line.append(f", predicted {1e3 * report['predicted_seconds']:.1f} ms for {report['predicted_for']}")
    if images > 1:
        line.append(f"; {report['requests_per_s']:.2f} images a second")
        # Which is less than the median says: an image is read before, and its answer written behind.
        line.append(" over the whole run, reading and writing included" * (report["predicted_requests_per_s"] is None))
    if report["predicted_requests_per_s"] is not None:
        line.append(f", predicted {report['predicted_requests_per_s']:.2f} for {report['predicted_for']}")
    console.print(line)


def network_shares(net: ConvNet, plan: SegmentPlan, rank: int) -> list[str]:
    """Return in how many segments a rank has a share, and its share of the work."""
    shares = [segment.shares[rank] for segment in plan.segments]
    of_each = (net.nodes[segment.nodes.slice] for segment in plan.segments)
    work = [sum(flop(net, node, net.extent(node.output)) for node in nodes) for nodes in of_each]
    own = sum(share * size for share, size in zip(shares, work, strict=True)) / (sum(work) or 1)
    return [f"{sum(share > 0 for share in shares)} of {len(shares)}", f"{100 * own:.0f} %"]
