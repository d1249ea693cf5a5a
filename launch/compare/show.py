"""A comparison for people: the tables of the terminal and the same in markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launch.base.tables import markdown, show, tell
from launch.base.titles import heading, rounds
from solver.cluster.cluster import MIB

Cells = tuple[list[str], list[list[str]]]


def print_comparison(report: dict[str, Any]) -> None:
    """Print all tables."""
    for title, (columns, rows) in _tables(report):
        show(title, columns, rows)
    tell(_footnote(report))


def comparison_markdown(report: dict[str, Any]) -> str:
    """Return all tables in markdown."""
    parts = [f"**{title}**\n\n{markdown(*cells)}" for title, cells in _tables(report)]
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    return "\n".join([*parts, _footnote(report), "", f"Versions: {versions}.", ""])


def main_cells(report: dict[str, Any]) -> Cells:
    """Return the table of all entrants, fastest first."""
    columns = ["system", "kernels", "devices", "ms", "quartiles", "predicted", "compute bound", "exchange bound"]
    columns += ["to bound", "to best", "MiB sent"]
    beside_single = report.get("best_single") is not None
    if beside_single:
        columns.append("times best device")
    rows = [
        [
            row["system"],
            variant(row),
            str(row["devices"]),
            _ms(row["median_s"]),
            f"{_ms(row['low_s'])}-{_ms(row['high_s'])}",
            _ms(row["predicted_s"]),
            _ms(row["compute_bound_s"]),
            _ms(row["exchange_bound_s"]),
            f"{row['median_s'] / row['compute_bound_s']:.2f}" if row["compute_bound_s"] else "-",
            f"{row['ratio_to_best']:.2f}",
            f"{row['bytes_on_wire'] / MIB:.1f}",
            *([times_single(row)] if beside_single else []),
        ]
        for row in report["results"]
    ]
    return columns, rows


def times_single(row: Mapping[str, Any]) -> str:
    """Return how many times as fast as the best device alone a network's row is, and the quartiles."""
    return f"{row['times_single']:.2f} ({row['times_single_low']:.2f}-{row['times_single_high']:.2f})"


def rank_cells(report: dict[str, Any]) -> Cells:
    """Return what every device of every split computes and waits, in ms a request."""
    splits = [row for row in report["results"] if row["per_rank"]]
    names = [entry["device"] for entry in splits[0]["per_rank"]] if splits else []
    rows = [
        [
            row["system"],
            variant(row),
            *(f"{_ms(rank['compute_s'])} + {_ms(rank['wait_s'])}" for rank in row["per_rank"]),
        ]
        for row in splits
    ]
    return ["system", "kernels", *names], rows


def ratio_cells(report: dict[str, Any]) -> Cells:
    """Return the table of two checkouts: how long this one takes of the other's time."""
    rows = [
        [row["system"], variant(row), f"{row['ratio']:.3f}", f"{row['low']:.3f}-{row['high']:.3f}"]
        for row in report["ratios"]
    ]
    return ["system", "kernels", "ratio", "quartiles"], rows


def _tables(report: dict[str, Any]) -> list[tuple[str, Cells]]:
    of = heading(report)
    tables = [(f"{of}; {rounds(report)}: ms a request", main_cells(report))]
    ranks = rank_cells(report)
    if ranks[1]:
        tables.append((f"{of}; every device: compute + wait, ms a request", ranks))
    if report["absent"]:
        rows = [[entry["system"], variant(entry), entry["why"]] for entry in report["absent"]]
        tables.append((f"{of}; not in the table", (["system", "kernels", "why"], rows)))
    if report.get("ratios"):
        tables.append((f"{of}; {rounds(report)}: this / against, below 1 where this is faster", ratio_cells(report)))
    return tables


def _footnote(report: dict[str, Any]) -> str:
    if "image" in report:
        whole = ", ".join(f"{entry['name']} {_ms(entry['whole_s'])}" for entry in report["device"])
        bound = f"what the whole network takes every device ({whole} ms), as summed speeds; of a device alone its own"
        single = report["best_single"]
        best = "" if single is None else f" Times best device: as fast as {single}, of the medians of every round."
        best += _predicted(report["results"])
    else:
        devices = ", ".join(f"{entry['name']} {entry['gflops']:.1f}" for entry in report["device"])
        bound, best = f"the work over the summed speeds (GFLOP/s: {devices})", ""
    versions = "".join(f"{version}: {folder}. " for version, folder in report.get("checkouts", {}).items())
    return (
        f"{versions}Medians and quartiles of {rounds(report)}, interleaved. "
        f"Compute bound: {bound}. "
        f"Exchange bound: the plan's bytes at the devices' bandwidth. To best: of the same precision.{best}"
    )


def _predicted(results: Sequence[Mapping[str, Any]]) -> str:
    """Return how far predictions are from medians, of the measured."""
    apart = [(abs(row["predicted_s"] / row["median_s"] - 1), row["system"]) for row in results if row["predicted_s"]]
    if not apart:
        return ""
    most, who = max(apart)
    mean = sum(part for part, _ in apart) / len(apart)
    return f" Predicted and measured are {100 * mean:.1f} % apart in the mean, {100 * most:.1f} % at most ({who})."


def variant(row: Mapping[str, Any]) -> str:
    """Return what tells entrants of one system apart: kernels, and wire, where they are not float32; whose code."""
    precision = "" if row["precision"] == "float32" else f" {row['precision']}"
    wire = "" if row["wire"] in ("", "float32") else f" over {row['wire']}"
    version = f" {row['version']}" if row.get("version") else ""
    return f"{row['backend']}{precision}{wire}{version}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.1f}"
