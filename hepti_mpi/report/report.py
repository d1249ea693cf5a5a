"""The report: plan, times, and what every rank did."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hepti_mpi.comm.group import library
from hepti_mpi.comm.hosts import Place
from hepti_mpi.kernels.backends import of_all
from hepti_mpi.requests.answers import Tally
from solver.base import clock
from solver.cluster.cluster import Cluster
from solver.model.precision import FLOAT32
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, Wire
from solver.schedule.encoders.stages import predict_plan, price_plan

FORMAT = "hepti-report/1"
SHOWN = 20  # decisions about a plan that lives in a status, which may be asked for every second


def job_report(
    model: str, plan: Mapping[str, Any], wire: Wire, tally: Tally, ranks: Sequence[dict[str, Any]],
    places: Sequence[Place], options: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """Return the report but for what was predicted; `plan` is its file's table."""
    seconds = tally.seconds
    every = [value for values in seconds.values() for value in values]
    return {
        "format": FORMAT,
        "model": model,
        "mpi": library(),
        "backend": of_all([entry["backend"] for entry in ranks]),
        "precision": options.precision or FLOAT32.name,
        "wire": wire,
        "repeat": options.repeat,
        "lab_scale": clock.SCALE,
        "requests": [{"id": name, "seconds": values} for name, values in seconds.items()],
        "requests_answered": tally.count,
        "seconds_median": statistics.median(every) if every else None,
        "per_rank": [entry | {"host": place.host} for entry, place in zip(ranks, places, strict=True)],
        "plan": plan,
    }


def job_status(
    model: str,
    plan: Mapping[str, Any],
    tally: Tally,
    meters: Mapping[int, Mapping[str, float]],
    replans: Sequence[Any],
    replanned: int,
) -> dict[str, Any]:
    """Return what a job that serves says of itself.

    Parameters
    ----------
    plan
        As the table of its file.
    meters
        Of the ranks that have told what they did.
    replans
        All decisions that are kept.
    replanned
        How many decisions have changed the plan.
    """
    ranks = [{"rank": rank, "device": device} for rank, device in enumerate(plan["devices"])]
    for rank, meter in meters.items():
        ranks[rank] |= meter
    return {
        "model": model,
        "plan": plan,
        "requests": tally.count,
        "tokens": tally.tokens,
        "ranks": ranks,
        "replans": [*replans][-SHOWN:],
        "replanned": replanned,
    }


def prediction(
    spec: ModelSpec, cluster: Cluster | None, plan: Plan, rows: Sequence[int], plan_of: Callable[[int], Plan]
) -> dict[str, Any]:
    """Return what was predicted for the median request, to hold its seconds against.

    Parameters
    ----------
    cluster
        None: nothing is known but what the plan says of the rows that it was made for.
    rows
        Of the batch of every request that counts. More rows take longer, so that the median of their seconds is that of
        the median rows; of an even number, the mean of the two in the middle, here as there.
    plan_of
        The plan under which batches of so many rows run.
    """
    if cluster is None:
        return {"predicted_rows": plan.rows, "predicted_seconds": plan.predicted.seconds if plan.predicted else None}
    middle = [statistics.median_low(rows), statistics.median_high(rows)] if rows else [plan.rows] * 2
    seconds = [predict_plan(spec, cluster, plan_of(number), number).seconds for number in middle]
    return {"predicted_rows": statistics.fmean(middle), "predicted_seconds": statistics.fmean(seconds)}


def predicted_rate(
    spec: ModelSpec,
    cluster: Cluster | None,
    plan: Plan,
    batches: Sequence[Sequence[int]],
    plan_of: Callable[[int], Plan],
) -> float | None:
    """Return how many requests a second were predicted of one pass over the input; None where nothing is known.

    The first batch takes what a batch alone takes; after it results come as fast as batches that never run out. Both
    are of the mean rows: seconds grow about linearly with these, so that the sum is that of the batches as they are.

    Parameters
    ----------
    cluster, plan_of
        As `prediction` has them.
    batches
        The rows of every request, batch by batch; none where nobody knows beforehand what is asked.
    """
    if cluster is None or not batches:
        return None
    rows = round(sum(map(sum, batches)) / len(batches))
    priced = price_plan(spec, cluster, plan_of(rows), rows)
    pass_s = priced.prediction.seconds + (len(batches) - 1) / priced.requests_per_s
    return sum(map(len, batches)) / pass_s
