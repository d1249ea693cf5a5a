"""`bench paper`: what the papers show, measured on our lab, beside the published figures where there are any.

`latency` of all systems over the bandwidth; `throughput` over the number of devices, as DeTransformer's figures have
it; `memory` where all of the model fits on every device, half of it, and a quarter. Hepti's own two figures are
`bench offload`'s. Every point is a `bench compare` under other limits of the lab.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launch.compare.compare import Contest, compare
from launch.compare.model import BenchModel
from launch.compare.stage import BenchHosts, lab_of, stage_of
from launch.lab import up as lab_up
from launch.lab.lab import Lab, lab_name
from solver.base.errors import HeptiError
from solver.model.spec import DEFAULT_ROWS, ModelSpec, TextInput, request_rows
from solver.schedule.encoders.memory import ends_bytes, whole_layer_bytes, work_bytes

FITS = (1.0, 0.5, 0.25)
# A profile says what is free beside the program, which plans count once more: 58 to 60 MiB in the lab.
PROFILED_BYTES = 72 << 20
ROOM = 1.2  # times that share: heads and whole layers do not come out even
MANY = 48  # requests that come at once, where throughput is measured
DIMENSION = {"latency": "mbps", "throughput": "hosts", "memory": "fits"}


@dataclass(frozen=True, slots=True)
class Point:
    """Where systems are compared.

    Parameters
    ----------
    figure, cluster, model
        Which figure it is of, and what runs where.
    mbps
        Of every link.
    hosts
        How many of the cluster's hosts, the first ones, take part.
    fits
        Which part of the layers' weights a host's memory holds; None: as much as the cluster file says.
    """

    figure: str
    cluster: str
    model: str
    mbps: float
    hosts: int
    fits: float | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A published figure: how many times as good a system is as the best of others, at most."""

    system: str
    beside: tuple[str, ...]
    figure: str
    key: str  # of a result; less is better
    published: float
    source: str


CLAIMS = (
    Claim("hepti", ("megatron", "grid2d"), "latency", "median_s", 1 / (1 - 0.307), "30.7 % less, Lee et al. 2024"),
    Claim("galaxy", ("megatron", "sequence"), "latency", "median_s", 2.5, "arXiv 2405.17245"),
    Claim("voltage", ("megatron",), "latency", "bytes_on_wire", 4.0, "ICDCS 2024"),
    Claim("detransformer", ("megatron", "sequence"), "latency", "median_s", 2.81, "4 Raspberry Pi 4, DATE 2024"),
    Claim("pipeedge", ("single",), "throughput", "median_s", 10.59, "16 devices, arXiv 2110.14895"),
)


def points(
    figures: Sequence[str], clusters: Mapping[str, int], models: Mapping[str, ModelSpec], mbps: Sequence[float]
) -> list[Point]:
    """Return what is measured, cluster by cluster; `clusters` have so many hosts.

    Many requests at once are texts: throughput is measured of the models that read them.
    """
    found = []
    for cluster, hosts in clusters.items():
        for model, spec in models.items():
            if "latency" in figures:
                found += [Point("latency", cluster, model, each, hosts) for each in mbps]
            if "throughput" in figures and isinstance(spec.input, TextInput):
                found += [Point("throughput", cluster, model, mbps[0], count) for count in range(1, hosts + 1)]
            if "memory" in figures:
                found += [Point("memory", cluster, model, mbps[0], hosts, fits) for fits in FITS]
    return found


def bench_paper(
    measured: Sequence[Point],
    models: Mapping[str, BenchModel],
    beside: Mapping[str, BenchModel | None],
    contest: Contest,
    folder: Path,
    say: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None],
    stages: Callable[[str], AbstractContextManager[Callable[[Point, int | None], BenchHosts]]] | None = None,
) -> dict[str, Any]:
    """Compare systems at every point and return the report; a point at which nobody comes through is in it, too.

    `beside` are the models with decoupled layers, as in `compare`. A point takes minutes: `keep` gets the report so far
    after every one. `stages` opens a cluster and yields what sets its limits for a point, and a host's
    memory; None: as much as its file says.
    """
    results: list[dict[str, Any]] = []
    absent: list[dict[str, Any]] = []
    report: dict[str, Any] = {
        "suite": "paper",
        "cluster": ",".join(dict.fromkeys(lab_name(point.cluster) for point in measured)),
        "model": ",".join(models),
        "rows": DEFAULT_ROWS,
        "layers": max(model.spec.layers for model in models.values()),
        "models": {name: {"layers": m.spec.layers, "rows": request_rows(m.spec, None)} for name, m in models.items()},
        "runs": contest.runs,
        "repeat": contest.repeat,
        "points": 0,
        "points_asked": len(measured),
    }
    for cluster in dict.fromkeys(point.cluster for point in measured):
        with (stages or lab_under)(cluster) as under:
            for point in (point for point in measured if point.cluster == cluster):
                spec, facts = models[point.model].spec, asdict(point) | {"cluster": lab_name(cluster)}
                say(f"{point.figure}: {point.model} on {cluster}, {DIMENSION[point.figure]} {_place(point):g}")
                own = replace(contest, rows=request_rows(spec, None))
                if point.figure == "throughput":
                    own = replace(own, many=MANY, repeat=1)
                where = folder / f"{len(results) + len(absent):03}"
                where.mkdir()
                memory = None if point.fits is None else memory_that_fits(spec, point.fits)
                try:
                    compared = compare(
                        under(point, memory), models[point.model], own, where, say, beside.get(point.model)
                    )
                except HeptiError as error:
                    absent.append({**facts, "system": "all", "why": str(error)})
                else:
                    # Whatever runs beside stands at its point.
                    facts["lab_scale"] = compared["lab_scale"]
                    results += [without_samples(row) | facts for row in compared["results"]]
                    absent += [row | facts for row in compared["absent"]]
                    report["versions"] = compared["versions"]
                report["points"] += 1
                if results:
                    report |= {"results": results, "absent": absent, "claims": claims(results)}
                    keep(report)
    if not results:
        raise HeptiError(f"nobody came through; {absent[-1]['system']}: {absent[-1]['why']}")
    return report


@contextmanager
def lab_under(cluster: str) -> Iterator[Callable[[Point, int | None], BenchHosts]]:
    """Yield what puts a lab under a point's limits and returns its hosts; a lab that was up gets its own ones back."""
    with lab_of(cluster) as lab:
        now = lab

        def under(point: Point, memory: int | None) -> BenchHosts:
            nonlocal now
            for host in lab.hosts:
                limits = replace(host, bandwidth_bytes_per_s=point.mbps * 1e6 / 8)
                now = lab_up.change(now, limits if memory is None else replace(limits, memory_bytes=memory))
            return stage_of(now, point.hosts)

        try:
            yield under
        finally:
            _restore(now, lab)


def _restore(now: Lab, before: Lab) -> None:
    for host in before.hosts:
        now = lab_up.change(now, host)


def memory_that_fits(spec: ModelSpec, share: float) -> int:
    """Return the memory of a device that holds the program, activations, and a share of the layers with some room."""
    layers = spec.layers * whole_layer_bytes(spec)
    return PROFILED_BYTES + work_bytes(spec, request_rows(spec, None)) + ends_bytes(spec) + round(ROOM * share * layers)


def claims(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every claim with what was found here: the most at any point, and where; none where nobody was beside."""
    found = []
    for claim in CLAIMS:
        own = [row for row in results if (_planner(row), row["figure"]) == (claim.system, claim.figure)]
        ratios = []
        for row in own:
            others = [
                other[claim.key]
                for other in results
                if _at(other) == _at(row) and _planner(other) in claim.beside and other["wire"]
            ]
            if others and row[claim.key]:
                ratios.append((min(others) / row[claim.key], row))
        best = max(ratios, key=lambda pair: pair[0], default=None)
        where = {key: best[1][key] for key in ("cluster", "model", "mbps", "hosts")} if best else None
        found.append({**asdict(claim), "found": best[0] if best else None, "where": where})
    return found


def _place(point: Point) -> float:
    return float(getattr(point, DIMENSION[point.figure]))


def _planner(row: Mapping[str, Any]) -> str:
    return str(row["system"].partition(":")[0])


def _at(row: Mapping[str, Any]) -> list[Any]:
    return [row[key] for key in ("figure", "cluster", "model", "mbps", "hosts", "fits")]


def without_samples(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without what fills pages."""
    return {key: value for key, value in row.items() if key not in ("seconds", "per_rank", "files")}
