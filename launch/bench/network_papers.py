"""`bench paper` for convolutional networks: EdgeLD's table, measured in a lab, and CoEdge's energy, planned.

`edgeld`: VGG-16 on two to four equal boards over two networks: how many times as fast as one board, each ratio within
one run. Hepti and CoEdge exchange rows with their neighbours, EdgeLD and MoDNN send all to rank 0 and back. Published
are Xue et al., "EdgeLD", HPCC 2020, table I, and MoDNN by its reading (section IV-D).

`coedge-energy`: the joules of an image that CoEdge's program finds before later and later deadlines. Its own devices
were Raspberry Pis 3, a Jetson TX2 and a PC; what these compute and draw is assumed here (`DEVICES`), unless a cluster
file that is named declares watts. It published 25.5 to 66.9 % less than what was usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launch.base.plot import PlottedCurve, draw
from launch.base.tables import show, tell
from launch.bench.paper import Point, lab_under, without_samples
from launch.compare.compare import Contest, compare
from launch.compare.entrants import SINGLE
from launch.compare.model import BenchNetwork
from launch.compare.show import times_single
from launch.compare.stage import BenchHosts
from solver.base.clock import at_scale
from solver.base.errors import HeptiError
from solver.base.phrases import counted
from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.model.convnet import ConvNet
from solver.plan.plan import Wire
from solver.schedule.networks.segment_steps import net_setting
from solver.systems.convnets.coedge import Sharing, coedge_sharing

EDGELD, ENERGY = "edgeld", "coedge-energy"
NETWORK_FIGURES = (EDGELD, ENERGY)
EDGELD_NETWORK, BOARDS = "vgg16", "pi4x4"
EDGELD_MBPS, EDGELD_HOSTS = (1000.0, 100.0), (2, 3, 4)
EDGELD_SYSTEMS = ("hepti", "coedge", "edgeld", "modnn", SINGLE)
ENERGY_NETWORKS = ("vgg16", "resnet18", "mobilenetv2")
LATER = (1.02, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0)  # deadlines, times the least latency
PUBLISHED_SAVING = (0.255, 0.669)

Stages = Callable[[str], AbstractContextManager[Callable[[Point, int | None], BenchHosts]]]


@dataclass(frozen=True, slots=True)
class PublishedSpeedup:
    """How many times as fast as one board a system was on `EDGELD_HOSTS` boards."""

    who: str
    mbps: float
    times: tuple[float, float, float]


PUBLISHED = (
    PublishedSpeedup("EdgeLD, published", 1000.0, (1.77, 2.79, 3.57)),
    PublishedSpeedup("EdgeLD, published", 100.0, (1.75, 2.58, 3.19)),
    PublishedSpeedup("MoDNN, by EdgeLD's reading", 1000.0, (1.53, 1.67, 2.03)),
)
# Sustained GFLOP/s of float32 convolutions, and watts while computing and while sending: orders of magnitude.
DEVICES = (
    *((f"pi3-{number}", 5.0, 4.0, 1.0) for number in range(4)),
    ("tx2", 30.0, 10.0, 1.5),
    ("pc", 150.0, 65.0, 2.0),
)
DEVICES_MBPS = 100.0


def assumed_cluster() -> Cluster:
    """Return CoEdge's devices as they are assumed here."""
    devices = [
        Device(name, gflops * 1e9, GIB, compute_watts=compute, transmit_watts=transmit)
        for name, gflops, compute, transmit in DEVICES
    ]
    return Cluster(tuple(devices), Link(DEVICES_MBPS * 1e6 / 8, 300e-6))


def edgeld_points() -> list[Point]:
    """Return what is measured."""
    return [
        Point(EDGELD, BOARDS, EDGELD_NETWORK, mbps, hosts) for mbps in EDGELD_MBPS for hosts in EDGELD_HOSTS
    ]  # fmt: skip


def bench_edgeld(
    network: BenchNetwork,
    contest: Contest,
    folder: Path,
    say: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None],
    stages: Stages | None = None,
) -> dict[str, Any]:
    """Compare the systems at every point; `keep` gets what there is after each, as `bench_paper`."""
    found: dict[str, Any] = {"results": [], "absent": []}
    with (stages or lab_under)(BOARDS) as under:
        for number, point in enumerate(edgeld_points()):
            facts = asdict(point)
            say(f"{EDGELD}: {point.model} on {point.hosts} boards of {BOARDS}, {point.mbps:g} Mbps")
            where = folder / f"{EDGELD}-{number:03}"
            where.mkdir()
            try:
                compared = compare(under(point, None), network, contest, where, say)
            except HeptiError as error:
                found["absent"].append(facts | {"system": "all", "why": str(error)})
            else:
                facts["lab_scale"] = compared["lab_scale"]
                found["results"] += [without_samples(row) | facts for row in compared["results"]]
                found["absent"] += [row | facts for row in compared["absent"]]
            keep(found)
    return found


def energy_curve(net: ConvNet, name: str, cluster: Cluster) -> dict[str, Any]:
    """Return what CoEdge plans for least latency, and for least energy before later and later deadlines.

    The last deadline is the first at which a second more saves nothing.

    Raises
    ------
    HeptiError
        If there is no plan at all.
    """
    s = net_setting(net, cluster)
    fastest = coedge_sharing(s, cluster, Wire.FLOAT32)
    points, missed_s = [_planned(fastest, None, fastest)], []
    for times in LATER:
        deadline_s = times * fastest.seconds
        try:
            sharing = coedge_sharing(s, cluster, Wire.FLOAT32, deadline_s)
        except HeptiError:  # who has too few rows is left out, and the others are too slow
            missed_s.append(deadline_s)
            continue
        points.append(_planned(sharing, deadline_s, fastest))
        if sharing.joules_per_s < 1e-9:
            break
    facts = {"cluster": name, "model": net.name, "devices": list(cluster.names)}
    return {**facts, "points": points, "missed_s": missed_s}


def _planned(sharing: Sharing, deadline_s: float | None, fastest: Sharing) -> dict[str, Any]:
    return {
        "deadline_s": deadline_s,
        "seconds": sharing.seconds,
        "joules": sharing.joules,
        "joules_per_s": sharing.joules_per_s,
        "saved": 1 - sharing.joules / fastest.joules,
        "shares": sharing.shares.tolist(),
    }


def print_network_tables(found: Mapping[str, Any], runs: int, repeat: int) -> None:
    """Print EdgeLD's table and the curves of energy, those that were asked for."""
    if found.get("results"):
        scale = at_scale(found["results"][0]["lab_scale"])
        rounds = f"{counted(runs, 'round')} of {counted(repeat, 'request')}"
        title = f"{EDGELD_NETWORK} on boards of {BOARDS}{scale}; {rounds}: times as fast as one board (quartiles)"
        show(title, *edgeld_cells(found["results"]))
    for curve in found.get("energy", ()):
        title = f"{curve['model']} by CoEdge on {curve['cluster']}: joules an image as planned, shares of the rows in %"
        show(title, *energy_cells(curve))
        if curve["missed_s"]:
            tell(f"No plan before {', '.join(f'{1e3 * missed_s:.0f}' for missed_s in curve['missed_s'])} ms.")
    if found.get("energy"):
        less, more = (f"{100 * part:.1f}" for part in PUBLISHED_SAVING)
        tell(f"Published: {less} to {more} % less energy than what was usual; here beside the least latency.")


def edgeld_cells(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the table: systems by rows, numbers of boards by columns; below those of a network what was published."""
    rows = []
    for mbps in EDGELD_MBPS:
        own = [row for row in results if row["mbps"] == mbps and row["system"] != SINGLE]
        for system in (name for name in EDGELD_SYSTEMS if any(row["system"] == name for row in own)):
            at = {row["hosts"]: row for row in own if row["system"] == system}
            rows.append([system, f"{mbps:g}", *(_times(at.get(hosts)) for hosts in EDGELD_HOSTS)])
        for published in PUBLISHED:
            if published.mbps == mbps:
                rows.append([published.who, f"{mbps:g}", *(f"{times:.2f}" for times in published.times)])
    return ["system", "Mbps", *(f"{hosts} boards" for hosts in EDGELD_HOSTS)], rows


def _times(row: Mapping[str, Any] | None) -> str:
    return "-" if row is None or "times_single" not in row else times_single(row)


def energy_cells(curve: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the table of a curve; the first line has no deadline, and least latency."""
    rows = [
        [
            "-" if point["deadline_s"] is None else f"{1e3 * point['deadline_s']:.0f}",
            f"{1e3 * point['seconds']:.0f}",
            f"{point['joules']:.2f}",
            f"{100 * point['saved']:.1f}",
            "-" if point["deadline_s"] is None else f"{point['joules_per_s']:.2f}",
            *(f"{100 * share:.0f}" for share in point["shares"]),
        ]
        for point in curve["points"]
    ]
    return ["deadline ms", "takes ms", "J", "saved %", "J/s later", *curve["devices"]], rows


def draw_network_pictures(found: Mapping[str, Any], out: Path) -> None:
    """Draw speed over boards, and energy over latency, those that were asked for."""
    if found.get("results"):
        title = f"{EDGELD_NETWORK} on boards of {BOARDS}"
        panels = [(f"{mbps:g} Mbps", "boards", list(_speedups(found["results"], mbps))) for mbps in EDGELD_MBPS]
        draw(title, panels, "times as fast as one board", out / f"paper-{EDGELD}.png")
    if found.get("energy"):
        panels = []
        for curve in found["energy"]:
            x = [1e3 * point["seconds"] for point in curve["points"]]
            label = f"coedge on {curve['cluster']}"
            panels.append((curve["model"], "ms an image", [PlottedCurve(label, x, _joules(curve))]))
        draw("least energy before a deadline, as planned", panels, "J an image", out / f"paper-{ENERGY}.png")


def _speedups(results: Sequence[Mapping[str, Any]], mbps: float) -> Iterator[PlottedCurve]:
    for system in EDGELD_SYSTEMS[:-1]:
        own = {
            row["hosts"]: row["times_single"]
            for row in results
            if (row["system"], row["mbps"]) == (system, mbps) and "times_single" in row
        }
        if own:
            yield PlottedCurve(system, [1, *sorted(own)], [1.0, *(own[hosts] for hosts in sorted(own))])
    for published in PUBLISHED:
        if published.mbps == mbps:
            yield PlottedCurve(published.who, [1, *EDGELD_HOSTS], [1.0, *published.times])


def _joules(curve: Mapping[str, Any]) -> list[float]:
    return [float(point["joules"]) for point in curve["points"]]
