"""The report of a run with a convolutional network, and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from hepti_mpi.report.tables import engine_line
from solver.base.phrases import counted, ms
from solver.base.tables import new_table
from solver.cluster.cluster import MIB
from solver.model.convnet import ConvNet
from solver.model.operators import flop
from solver.plan.segments import SegmentPlan


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
            ms(entry["compute_s"] / images),
            ms(entry["wait_s"] / images),
            f"{entry['sent_bytes'] / 1024 / images:.0f}",
        )
    console.print(table)
    console.print(engine_line(report["per_rank"], images))
    line = Text.assemble((f"{ms(report['seconds_median'])} ms", "bold"), " an image")
    if images > 1:
        line.append(", the median")
    if report["predicted_seconds"] is not None:
        line.append(f", predicted {ms(report['predicted_seconds'])} ms for {report['predicted_for']}")
    if images > 1:
        line.append(f"; {report['requests_per_s']:.2f} images a second")
        # Which is less than the median says: an image is read before, and its answer written afterwards.
        line.append(" over the whole run, reading and writing included" * (report["predicted_requests_per_s"] is None))
    if report["predicted_requests_per_s"] is not None:
        line.append(f", predicted {report['predicted_requests_per_s']:.2f} for {report['predicted_for']}")
    console.print(line)


def network_shares(net: ConvNet, plan: SegmentPlan, rank: int) -> list[str]:
    """Return in how many segments a rank has a share, and its share of the work."""
    shares = [segment.shares[rank] for segment in plan.segments]
    of_each = (net.nodes[segment.nodes.slice] for segment in plan.segments)
    work = [sum(flop(net, node) for node in nodes) for nodes in of_each]
    own = sum(share * size for share, size in zip(shares, work, strict=True)) / (sum(work) or 1)
    return [f"{sum(share > 0 for share in shares)} of {len(shares)}", f"{100 * own:.0f} %"]
