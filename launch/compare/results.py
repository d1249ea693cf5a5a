"""What a comparison found, as data: the rows of its JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from launch.base.json_output import printed
from launch.compare.entrants import Entrant
from solver.base.errors import explained
from solver.cluster.curves import Floats
from solver.plan.segments import SegmentPlan


@dataclass(slots=True)
class Samples:
    """What all runs of one entrant gave: seconds of every timed request; of every run, means a request and rank."""

    seconds: list[float] = field(default_factory=list)
    per_rank: list[list[dict[str, float]]] = field(default_factory=list)
    bytes_on_wire: int = 0
    devices: tuple[str, ...] = ()

    def add_report(self, path: Path, many: bool = False) -> list[float]:
        """Add the report of a run of `hepti_mpi`; return its seconds: of every request, or of many one on average.

        Raises
        ------
        HeptiError
            If there is none, or it is not one.
        """
        with explained(f"no usable report at {path}", (OSError, ValueError, KeyError, TypeError)):
            report = json.loads(path.read_text())
            seconds = [value for request in report["requests"] for value in request["seconds"]]
            ranks = [
                {key: entry[key] / len(seconds) for key in ("compute_s", "wait_s", "sent_bytes")}
                for entry in report["per_rank"]
            ]
            if many:
                seconds = [1 / report["requests_per_s"]]
        self.seconds += seconds
        self.per_rank.append(ranks)
        self.bytes_on_wire = round(sum(rank["sent_bytes"] for rank in ranks))
        self.devices = tuple(entry["device"] for entry in report["per_rank"])
        return seconds

    def add_alone(self, output: str) -> list[float]:
        """Add what `launch.single` printed; return its seconds."""
        seconds: list[float] = printed(output, "launch.single")["seconds"]
        self.seconds += seconds
        return seconds


def result(entrant: Entrant, samples: Samples) -> dict[str, Any]:
    """Return one row: quartiles over all requests, medians over the runs' means for every rank."""
    low_s, median_s, high_s = quartiles(samples.seconds)
    return {
        **entrant.entry.facts,
        "devices": entrant.devices,
        **(_of_network(entrant.plan) if isinstance(entrant.plan, SegmentPlan) else {}),
        "median_s": median_s,
        "low_s": low_s,
        "high_s": high_s,
        "predicted_s": entrant.predicted_s,
        "compute_bound_s": entrant.compute_bound_s,
        "exchange_bound_s": entrant.exchange_bound_s,
        "bytes_on_wire": samples.bytes_on_wire,
        "per_rank": [
            {
                "device": device,
                "compute_s": statistics.median(run[rank]["compute_s"] for run in samples.per_rank),
                "wait_s": statistics.median(run[rank]["wait_s"] for run in samples.per_rank),
            }
            for rank, device in enumerate(samples.devices)
        ],
        "seconds": samples.seconds,
    }


def quartiles(values: Sequence[float] | Floats) -> tuple[float, float, float]:
    """Return quartile, median, quartile."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, median, high


def of_rounds(row: Mapping[str, Any], rounds: int) -> Floats:
    """Return the median seconds of a result in every round, [rounds]."""
    return np.median(np.reshape(row["seconds"], (rounds, -1)), axis=1)


def _of_network(plan: SegmentPlan) -> dict[str, Any]:
    """Return how many segments a plan has, and the names of the devices with a share."""
    return {"segments": len(plan.segments), "active": [plan.devices[rank] for rank in plan.active]}


def ranked(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, fastest first, each with its ratio to the best of its precision that runs the same model."""
    best_s: dict[tuple[str, str], float] = {}
    for row in results:
        best_s[_peers(row)] = min(row["median_s"], best_s.get(_peers(row), row["median_s"]))
    rows = [{**row, "ratio_to_best": row["median_s"] / best_s[_peers(row)]} for row in results]
    return sorted(rows, key=lambda row: float(row["median_s"]))


def _peers(row: dict[str, Any]) -> tuple[str, str]:
    return row["precision"], row.get("model", "")
