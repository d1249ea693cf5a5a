"""What a person sees: answers, shares and times as tables."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from hepti_mpi.base.launcher import straight_to
from hepti_mpi.requests.inputs import Request
from solver.base.phrases import counted, excerpt, ms, printable
from solver.base.tables import new_console, new_table
from solver.cluster.cluster import MIB, Cluster
from solver.model.blocks import Cut
from solver.model.sublayers import LEGEND
from solver.plan.plan import BlockPlan, Plan

TEXT_SHOWN = 70  # characters of a request; a file of answers has its id
LABELS_SHOWN = 3  # of a request, the likeliest; a file has five


def terminal(stderr: bool) -> Console:
    """Return the person's terminal, or a plain file where there is none.

    mpirun gives every rank a pseudo-terminal or a pipe of its own: what counts is where mpirun itself writes.
    """
    number = 2 if stderr else 1
    started_by_mpi = "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ
    where = straight_to(number) if started_by_mpi else number
    width, file = 0, None
    if where is not None and os.isatty(where):
        width = _told_width() or os.get_terminal_size(where).columns
        # Bars, which have no line end; tables on standard output stay in order with what mpirun forwards.
        file = os.fdopen(where, "w", encoding="utf-8") if started_by_mpi and stderr else None
    # No markup, no emoji: brackets and colons in a person's texts stay what they are.
    return new_console(
        stderr=stderr, file=file, highlight=False, markup=False, emoji=False, force_terminal=width > 0,
        width=width or None,
    )  # fmt: skip


def _told_width() -> int:
    """Return the width that COLUMNS tells; 0 where it tells none."""
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isdigit() else 0


def show_answers(console: Console, requests: Sequence[Request], answers: Sequence[dict[str, Any]]) -> None:
    """Print which text is nearest to which, or every request's label."""
    names = [_name(request) for request in requests]
    if "label" in answers[0]:
        table = new_table("labels", "request", "label", "score", words=2)
        for name, entry in zip(names, answers, strict=True):
            for place, one in enumerate(entry["top5"][:LABELS_SHOWN]):
                table.add_row("" if place else name, printable(str(one["label"])), f"{one['score']:.3f}")
    elif len(answers) > 1:
        table = new_table("nearest to each other", "request", "nearest", "cosine", words=2)
        for name, (nearest, cosine) in zip(names, _nearest(answers), strict=True):
            table.add_row(name, names[nearest], f"{cosine:.3f}")
    else:
        table = new_table("embedding", "request", "width", "first values")
        vector = answers[0]["embedding"]
        table.add_row(names[0], str(len(vector)), ", ".join(f"{value:.4f}" for value in vector[:4]) + ", …")
    console.print(table)


def show_ranking(console: Console, requests: Sequence[Request], ranked: Sequence[Mapping[str, Any]]) -> None:
    """Print documents, the best first."""
    names = {str(request.id): _name(request) for request in requests}
    table = new_table("ranking", "place", "score", "document", words=3)
    for place, entry in enumerate(ranked, start=1):
        table.add_row(str(place), f"{entry['score']:.4f}", names[str(entry["id"])])
    console.print(table)


def _name(request: Request) -> str:
    """Return a request by its id, as in files, and how its text begins; that the model read not all of it is said."""
    name = printable(f"[{request.id}] {excerpt(request.text, TEXT_SHOWN)}" if request.text else str(request.id))
    return f"{name} (cut at {counted(request.rows, 'token')})" if request.truncated else name


def show_ranks(console: Console, report: Mapping[str, Any], plan: Plan, *, queued: bool) -> None:
    """Print who computed what share, and how long it took; figures are of one pass over the input.

    Where batches `queued` for stages or replicas, what one of them waited says nothing of the prediction: it is how
    many a second that compares.
    """
    runs = ("mean of " if report["repeat"] > 1 else "") + counted(report["repeat"], "run")
    layers = counted(plan.stages[-1].span.stop, "layer")
    shared = ["MLP" if block.block == "mlp" else block.block for block in plan.layer(0)]
    shared = shared if plan.in_one else ["layers", *shared]
    headings = ("rank", "device", *shared, "weights MiB", "compute ms", "wait ms", "sent KiB")
    table = new_table(f"who computed what of {plan.model_name}, {layers}; {runs}", *headings, words=2)
    for entry in report["per_rank"]:
        table.add_row(
            str(entry["rank"]),
            entry["device"],
            *shares(plan, entry["rank"]),
            f"{entry['weights_bytes'] / MIB:.1f}",
            ms(entry["compute_s"] / report["repeat"]),
            ms(entry["wait_s"] / report["repeat"]),
            f"{entry['sent_bytes'] / 1024 / report['repeat']:.0f}",
        )
    console.print(table)
    if not all(stage.is_whole for stage in plan.stages):
        console.print(LEGEND)
    console.print(engine_line(report["per_rank"], report["repeat"]))
    console.print(_rate(report) if queued else _latency(report, plan))


def engine_line(ranks: Sequence[Mapping[str, Any]], often: int) -> str:
    """Return what the engine itself takes each time: of what the rank with the most computes, all but its kernels."""
    own_s, device = max((entry["compute_s"] - entry["kernel_s"], entry["device"]) for entry in ranks)
    return f"engine: {ms(own_s / often)} ms of compute at most, on {device}; all else is kernels"


def _latency(report: Mapping[str, Any], plan: Plan) -> Text:
    line = Text.assemble((f"{ms(report['seconds_median'])} ms", "bold"), " from request to answer")
    if report["predicted_seconds"] is not None:
        at = f"{report['predicted_rows']:g} row{'s' * (report['predicted_rows'] != 1)}"
        line.append(f", predicted {ms(report['predicted_seconds'])} ms at {at} for {report['predicted_for']}")
    if not plan.in_one:
        line.append(f"; {report['requests_per_s']:.2f} requests a second")
    return line


def _rate(report: Mapping[str, Any]) -> Text:
    line = Text.assemble((f"{report['requests_per_s']:.2f} requests a second", "bold"))
    if report["predicted_requests_per_s"] is not None:
        line.append(f", predicted {report['predicted_requests_per_s']:.2f} for {report['predicted_for']}")
    line.append(f"; {ms(report['seconds_median'])} ms from request to answer, the wait for others included")
    return line


def by_bits(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return how many batches went from stage to stage, by the bits of their numbers."""
    total = sum((Counter(entry["batches_by_bits"]) for entry in ranks), Counter[str]())
    return ", ".join(f"{total[bits]} with {bits} bits" for bits in sorted(total, key=int, reverse=True))


def show_cluster(console: Console, cluster: Cluster) -> None:
    """Print what was measured."""
    of = cluster.profile
    decoder = cluster.devices[0].decoder
    precision = of["precision"] if decoder is None else decoder.precision
    title = f"what was measured for {of['model']} with {of['backend']} in {precision}"
    table = new_table(title, "device", "GFLOP/s", "free GiB", "own link Mbps")
    for rank, device in enumerate(cluster.devices):
        own = f"{cluster.bandwidth(rank) * 8 / 1e6:.0f}" if len(cluster.devices) > 1 else "-"
        table.add_row(device.name, f"{device.compute_flop_per_s / 1e9:.1f}", f"{device.memory_bytes / 2**30:.1f}", own)
    console.print(table)
    for pair, link in cluster.links.items():
        speed, latency = link.bandwidth_bytes_per_s * 8 / 1e6, link.latency_s * 1e6
        console.print(f"between {' and '.join(sorted(pair))}: {speed:.0f} Mbps, {latency:.0f} µs")


def shares(plan: Plan, rank: int) -> list[str]:
    """Return a rank's layers, where not all have all, and its shares of the first of them."""
    place = plan.place(rank)
    if place is None:
        return ["none", *("-" for _ in plan.layer(0))]
    stage, within = place
    _, first = stage.layers[0]
    blocks = [_share(block, within) for block in first]
    return blocks if plan.in_one else [stage.label, *blocks]


def _share(block: BlockPlan, rank: int) -> str:
    if block.inner is not None:
        unit = "head" if block.block == "attention" else "column"
        return counted(block.inner[rank].size, "sub-block" if block.cut is Cut.SUB_BLOCKS else unit)
    assert block.rows is not None
    return f"{100 * block.rows[rank]:.0f} % of rows"


def _nearest(answers: Sequence[dict[str, Any]]) -> list[tuple[int, float]]:
    vectors = np.array([entry["embedding"] for entry in answers])
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -2)
    return [(int(np.argmax(row)), float(row.max())) for row in cosines]
