"""`python -m launch bench paper …`: what a person types, and a table and a picture of every figure, and the claims."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.base.plot import PlottedCurve, draw
from launch.base.tables import show
from launch.base.titles import heading
from launch.bench.network_papers import (
    EDGELD,
    EDGELD_NETWORK,
    EDGELD_SYSTEMS,
    ENERGY,
    ENERGY_NETWORKS,
    NETWORK_FIGURES,
    assumed_cluster,
    bench_edgeld,
    draw_network_pictures,
    energy_curve,
    print_network_tables,
)
from launch.bench.paper import DIMENSION, MANY, bench_paper, points
from launch.compare.compare import Contest
from launch.compare.entrants import Kernels
from launch.compare.model import BenchNetwork, bench_model, bench_network, check_model, decoupled_model
from launch.compare.suite import Keep, Report, Suite, add_list, add_rounds, at_least, say
from launch.lab.up import require_tools
from solver.base.phrases import counted
from solver.cluster.cluster import Cluster
from solver.cluster.named import find_cluster
from solver.systems import DECOUPLED, PLANNERS

# Without spaces: a table begins a line at each.
NAMES = {"mbps": "Mbps", "hosts": "devices", "fits": "of\u00a0the\u00a0layers"}
UNITS = {"latency": "ms a request", "throughput": "requests/s", "memory": "ms a request"}


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_list(parser, "--figures", (*DIMENSION, *NETWORK_FIGURES))
    for option, default in (("--clusters", "pi4x4,mixed4"), ("--models", "bert-large,vit-large")):
        parser.add_argument(option, default=default, metavar="A,B,…", help="(default: %(default)s)")
    parser.add_argument(
        "--mbps", type=bandwidths, default="940,500,240,120", metavar="A,B,…", help="(default: %(default)s)"
    )
    add_list(parser, "--systems", PLANNERS)
    parser.add_argument("--layers", type=int, metavar="N", help="another layer count")
    add_rounds(parser, runs=3, repeat=3, warmup=1)


def _measure(options: argparse.Namespace, files: Path, keep: Keep) -> Report:
    at_least(options, runs=1, repeat=1, warmup=0)
    clusters = {name: find_cluster(name) for name in options.clusters.split(",")}
    figures = [name for name in options.figures if name in DIMENSION]
    for name in options.models.split(",") if figures else ():
        check_model(name, options.layers)
    if options.figures != (ENERGY,):  # which is planned only
        require_tools()
    report = _transformers(options, figures, clusters, files, keep) if figures else _nothing(options)
    if len(figures) < len(options.figures):
        report["networks"] = {}
        _networks(options, clusters, files, lambda found: keep({**report, "networks": found}), report["networks"])
    return report


def _nothing(options: argparse.Namespace) -> Report:
    """Return a report without any figure of transformers."""
    return {"suite": "paper", "runs": options.runs, "repeat": options.repeat, "results": [], "absent": []}


def _networks(
    options: argparse.Namespace, clusters: Mapping[str, Cluster], files: Path, keep: Keep, found: dict[str, Any]
) -> None:
    """Add the figures of networks that were asked for to what was found."""
    if ENERGY in options.figures:
        declared = {name: each for name, each in clusters.items() if any(own.compute_watts for own in each.devices)}
        for name, cluster in (declared or {"its devices as assumed": assumed_cluster()}).items():
            curves = [energy_curve(_network(word).net, name, cluster) for word in ENERGY_NETWORKS]
            found["energy"] = found.get("energy", []) + curves
        keep(found)
    if EDGELD in options.figures:
        kernels = [Kernels("auto", "float32")]
        contest = Contest(EDGELD_SYSTEMS, kernels, ["float32"], [], 0, options.runs, options.repeat, options.warmup)
        so_far = dict(found)
        found |= bench_edgeld(_network(EDGELD_NETWORK), contest, files, say, lambda rows: keep({**so_far, **rows}))


def _network(word: str) -> BenchNetwork:
    network = bench_network(word, None)
    assert network is not None
    return network


def _transformers(
    options: argparse.Namespace, figures: Sequence[str], clusters: Mapping[str, Cluster], files: Path, keep: Keep
) -> Report:
    models = {name: bench_model(name, options.layers) for name in options.models.split(",")}
    beside = {name: decoupled_model(name, options.layers) for name in models if DECOUPLED in options.systems}
    kernels = [Kernels("auto", "float32")]
    contest = Contest(options.systems, kernels, ["float32"], [], 0, options.runs, options.repeat, options.warmup)
    hosts = {name: len(cluster.devices) for name, cluster in clusters.items()}
    measured = points(figures, hosts, {name: model.spec for name, model in models.items()}, options.mbps)
    return bench_paper(measured, models, beside, contest, files, say, keep)


def bandwidths(words: str) -> list[float]:
    """Return numbers with commas between.

    Raises
    ------
    argparse.ArgumentTypeError
        If one is none, or not above zero.
    """
    try:
        found = [float(word) for word in words.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < each < 1e6 for each in found):
        raise argparse.ArgumentTypeError(f"{words!r} must be numbers above 0 with commas between")
    return found


def print_tables(report: Report) -> None:
    """Print every figure, and the published figures beside what was found."""
    for figure in DIMENSION:
        for title, columns, rows in cells(report, figure):
            show(title, columns, rows)
    if "claims" in report:
        title = f"times as good as the best of those beside it, the most at any of {counted(report['points'], 'point')}"
        show(title, *claim_cells(report))
    print_network_tables(report.get("networks", {}), report["runs"], report["repeat"])


def cells(report: Mapping[str, Any], figure: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield a table for every cluster and model of a figure: systems by rows, what varies by columns."""
    rows = [row for row in report["results"] if row["figure"] == figure]
    key = DIMENSION[figure]
    for cluster, model in dict.fromkeys((row["cluster"], row["model"]) for row in rows):
        own = [row for row in rows if (row["cluster"], row["model"]) == (cluster, model)]
        places = sorted({row[key] for row in own}, reverse=key != "hosts")
        table = [
            [name, *(_value(own, name, key, place, figure) for place in places)]
            for name in dict.fromkeys(map(_name, own))
        ]
        title = f"{figure}: {_of(report, own)}; {_rounds(report, figure)}: {UNITS[figure]}"
        yield title, ["system", *(f"{place:g} {NAMES[key]}" for place in places)], table


def claim_cells(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the published figures beside what was found."""
    rows = [
        [
            claim["system"], ", ".join(claim["beside"]), claim["key"], f"{claim['published']:.2f}",
            f"{claim['found']:.2f}" if claim["found"] else "-", _where(claim["where"]), claim["source"],
        ]
        for claim in report["claims"]
    ]  # fmt: skip
    return ["system", "beside", "of", "published", "most here", "where", "source"], rows


def _where(point: Mapping[str, Any] | None) -> str:
    if point is None:
        return "-"
    return f"{point['model']} on {counted(point['hosts'], 'device')} of {point['cluster']}, {point['mbps']:g} Mbps"


def draw_pictures(report: Report, _: Path, out: Path) -> None:
    """Draw a picture of every figure that was measured."""
    for figure, key in DIMENSION.items():
        rows = [row for row in report["results"] if row["figure"] == figure]
        panels = []
        for cluster, model in dict.fromkeys((row["cluster"], row["model"]) for row in rows):
            own = [row for row in rows if (row["cluster"], row["model"]) == (cluster, model)]
            curves = []
            for name in dict.fromkeys(map(_name, own)):
                line = sorted((row[key], _shown(row)) for row in own if _name(row) == name)
                curves.append(PlottedCurve(name, [x for x, _ in line], [y for _, y in line]))
            panels.append((_of(report, own).replace(" on ", "\non "), NAMES[key], curves))
        if panels:
            draw(f"{figure}: medians of {_rounds(report, figure)}", panels, UNITS[figure], out / f"paper-{figure}.png")
    draw_network_pictures(report.get("networks", {}), out)


def _of(report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the results of one model on one cluster are of; the links where they are the same at all points."""
    row = rows[0]
    mbps = [] if row["figure"] == "latency" else [row["mbps"]]
    facts = {key: row[key] for key in ("model", "cluster", "lab_scale")}
    return heading({**report["models"][row["model"]], **facts, "mbps": mbps})


def _rounds(report: Mapping[str, Any], figure: str) -> str:
    asked = f"{MANY} requests at once" if figure == "throughput" else counted(report["repeat"], "request")
    return f"{counted(report['runs'], 'round')} of {asked}"


def _name(row: Mapping[str, Any]) -> str:
    """Return what a curve is called; runtimes of others by their kernels."""
    kernels = "" if row["wire"] else f" {row['backend']} {row['precision']}"
    return f"{row['system']}{kernels}" + (f" over {row['wire']}" if row["wire"] not in ("", "float32") else "")


def _shown(row: Mapping[str, Any]) -> float:
    median_s = float(row["median_s"])
    return 1 / median_s if row["figure"] == "throughput" else 1e3 * median_s


def _value(rows: Sequence[Mapping[str, Any]], name: str, key: str, place: float, figure: str) -> str:
    found = [_shown(row) for row in rows if _name(row) == name and row[key] == place]
    return f"{found[0]:.{2 if figure == 'throughput' else 0}f}" if found else "-"


SUITE = Suite(
    name="paper",
    text="latency, throughput and memory of all systems, beside published figures",
    example="""examples, as root:
  hepti bench paper --figures latency --layers 4 --out results
  hepti bench paper --figures edgeld --runs 5 --out results
""",
    add_options=_add_options,
    measure=_measure,
    show=print_tables,
    draw=draw_pictures,
)
