"""`bench compare --against PATH`: the code of another checkout beside this one's, in the same rounds.

Of the other checkout only commands and files are used: its `python -m solver` plans from the same weights and cluster
files, its `python -m hepti_mpi` runs the plan file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.base import shell
from launch.compare.checkout import AGAINST, HERE, THIS, in_checkout
from launch.compare.entrants import Absent, Entrant, Kernels, RowName
from launch.compare.model import AnyModel, BenchNetwork
from launch.compare.networks import network_entrant
from launch.compare.results import of_rounds, quartiles
from solver.base.errors import HeptiError
from solver.cluster.cluster import read_cluster
from solver.plan.file import read_plan
from solver.plan.plan import Plan
from solver.plan.segments import SegmentPlan
from solver.schedule.encoders.stages import price_plan
from solver.show.advice import bounds

PLAN_S = 600.0


@dataclass(frozen=True, slots=True)
class OtherPlanner:
    """The planner of another checkout.

    Parameters
    ----------
    folder
        That checkout.
    model_of
        The weights file of an entry.
    profiles
        The cluster file of every kind of kernels.
    rows
        Of a request.
    files
        The folder that plans are written to.
    """

    folder: Path
    model_of: Callable[[RowName], AnyModel]
    profiles: Mapping[Kernels, Path]
    rows: int
    files: Path

    def entrant(self, entry: RowName) -> Entrant:
        """Return who runs what the other checkout plans; bounds are by this version's prices.

        Raises
        ------
        HeptiError
            If it finds no plan, or writes one that this version cannot read.
        """
        model, profile = self.model_of(entry), self.profiles[entry.kernels]
        path = self.files / f"{AGAINST}.plan.json"
        program = [sys.executable, "-m", "solver", "--model", str(model.path), "--cluster", str(profile)]
        if isinstance(model, BenchNetwork):
            program += ["--system", entry.system, "--out", str(path)]
        else:
            program += ["--rows", str(self.rows), "--system", entry.system.partition(":")[0], "--out", str(path)]
        program += [] if entry.wire == "float32" else ["--wire", entry.wire]  # the default of every version
        path.unlink(missing_ok=True)
        code, _, error = shell.attempt(in_checkout(self.folder, program), PLAN_S)
        if code:
            said = error.strip().splitlines() or [f"its planner ended with exit code {code}"]
            raise HeptiError(said[-1].removeprefix("python -m solver: "))
        cluster = read_cluster(profile)
        if isinstance(model, BenchNetwork):
            segments = read_plan(path, SegmentPlan, model.net)
            segments.check(model.net, len(cluster.devices))
            who = network_entrant(entry, model.net, cluster, segments)
            return replace(who, checkout=self.folder, plan_json=path.read_text())
        plan = read_plan(path, Plan)
        plan.check(model.spec, len(cluster.devices))
        bound = bounds(model.spec, cluster, self.rows, price_plan(model.spec, cluster, plan, self.rows))
        predicted_s = None if plan.predicted is None else plan.predicted_s
        text = path.read_text()
        return Entrant(
            entry, predicted_s, bound.compute_s, bound.exchange_s, plan, checkout=self.folder, plan_json=text
        )


def twice(
    entrants: Sequence[Entrant], absent: Sequence[Absent], other: OtherPlanner
) -> tuple[list[Entrant], list[Absent]]:
    """Return every system of this version, and after each the same of the other; and those that have no plan."""
    found: list[Entrant] = []
    missing = [replace(who, entry=replace(who.entry, version=THIS)) for who in absent]
    mine = {who.entry: replace(who, entry=replace(who.entry, version=THIS), checkout=HERE) for who in entrants}
    for entry in (*mine, *(who.entry for who in absent)):
        found += [mine[entry]] if entry in mine else []
        theirs = replace(entry, version=AGAINST)
        try:
            found.append(other.entrant(theirs))
        except HeptiError as error:
            missing.append(Absent(theirs, str(error)))
    return found, missing


def ratios(results: Sequence[Mapping[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Return, for all who came through in both versions, this / against: of the medians of every round, with quartiles.

    Within a round the two ran minutes apart at most, so that a machine that slows down is in both.
    """
    rows = [{key: row.get(key, "") for key in ("system", "backend", "precision", "wire", "version")} for row in results]
    medians = [of_rounds(row, rounds) for row in results]
    found = []
    for row, this in zip(rows, medians, strict=True):
        twin = {**row, "version": AGAINST}
        if row["version"] != THIS or twin not in rows:
            continue
        apart = this / medians[rows.index(twin)]
        low, median, high = quartiles(apart)
        names = {key: value for key, value in row.items() if key != "version"}
        found.append({**names, "ratio": median, "low": low, "high": high, "ratios": apart.tolist()})
    return found
