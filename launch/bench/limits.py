"""`bench limits`: how near the engine is to what its hosts allow, and how far ahead of the best one of them.

Every part is a `bench compare` under its own limits of a lab; every bar is a ratio of what one part has found, of the
medians of its rounds. What lies in the folder of results already is not measured again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.base.tables import show
from launch.bench.paper import Point, lab_under
from launch.compare.compare import Contest, compare
from launch.compare.entrants import SINGLE, Kernels
from launch.compare.model import bench_model
from launch.compare.results import of_rounds, quartiles
from launch.compare.stage import BenchHosts, host_count
from launch.compare.suite import Keep, Report, Suite, add_list, add_rounds, at_least, say
from launch.lab.up import require_tools
from solver.base.errors import HeptiError, explained
from solver.base.phrases import counted
from solver.cluster.curves import Floats

HEPTI = "hepti"
ALL, ITS_OWN = "bound", "own bound"  # of all devices, and of those that have a share
SESSION = "session"  # of onnxruntime, on the device that is best alone
LARGE = "bert-large"
Under = Callable[[Point, int | None], BenchHosts]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a ratio is to be: `least` of another one's seconds over ours, or `most` of ours over a bound.

    Parameters
    ----------
    beside
        SINGLE, SESSION, or a bound.
    wire
        In which our numbers travel.
    """

    beside: str
    wire: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class LimitPart:
    """A comparison, and the bars of what it finds."""

    cluster: str
    mbps: float
    bars: Sequence[Bar]
    precision: str = "float32"
    model: str = LARGE
    rows: int = 256

    @property
    def name(self) -> str:
        """As it is asked for."""
        return "-".join([self.cluster, f"{self.mbps:g}", self.model, self.precision])


@dataclass(frozen=True, slots=True)
class Found:
    """A ratio: its median and quartiles over the rounds; None where somebody is absent."""

    part: LimitPart
    bar: Bar
    ratio: tuple[float, float, float] | None

    @property
    def met(self) -> bool:
        """Whether the bar is."""
        if self.ratio is None:
            return False
        median = self.ratio[1]
        return median >= self.bar.least if self.bar.least is not None else median <= (self.bar.most or 0.0)


def _times_single(**least: float) -> list[Bar]:
    return [Bar(SINGLE, wire, least=ratio) for wire, ratio in least.items()]


PARTS = (
    LimitPart("mixed4", 940, [
        Bar(ITS_OWN, "float32", most=1.15), Bar(ALL, "float32", most=1.22), Bar(ALL, "float16", most=1.15),
        *_times_single(float32=1.5), Bar(SESSION, "", least=0.99),
    ]),
    LimitPart("mixed4", 240, _times_single(float32=1.3, float16=1.4, int8=1.5)),
    LimitPart("mixed4", 940, _times_single(int8=1.35), "int8"),
    LimitPart("mixed4", 240, _times_single(int8=1.15), "int8"),
    LimitPart("mixed4", 940, _times_single(float32=1.0), model="minilm-l6", rows=16),
    LimitPart("pi4x4", 940, _times_single(float32=3.3)),
    LimitPart("pi4x4", 240, _times_single(float32=2.4, float16=2.8)),
    LimitPart("pi4x4", 80, _times_single(float16=2.0, int8=2.7)),
    LimitPart("pi4x4", 940, _times_single(int8=2.8), "int8"),
    LimitPart("pi4x4", 240, _times_single(int8=2.0), "int8"),
    LimitPart("pi4x4", 940, _times_single(float32=1.0), model="minilm-l6", rows=16),
    LimitPart("wide8", 940, [Bar(ALL, "float32", most=1.3)]),
)  # fmt: skip
NAMES = {part.name: part for part in PARTS}
OPTIONS = ("layers", "runs", "repeat", "warmup")  # which all parts of one report have in common


def bench_limits(
    parts: Sequence[LimitPart],
    options: argparse.Namespace,
    folder: Path,
    keep: Keep,
    stages: Callable[[str], AbstractContextManager[Under]] = lab_under,
) -> Report:
    """Measure the parts that are not there yet; `keep` gets the report so far after every one."""
    report: Report = {"suite": "limits", **{name: getattr(options, name) for name in OPTIONS}, "parts": {}}
    report["parts"] |= _before(options)
    for cluster in dict.fromkeys(part.cluster for part in parts):
        missing = [part for part in parts if part.cluster == cluster and part.name not in report["parts"]]
        if missing:
            with stages(cluster) as under:
                for part in missing:
                    say(f"{part.name}: {counted(len(part.bars), 'bar')}")
                    report["parts"][part.name] = _compared(part, options, under, folder / part.name)
                    keep(report)
    return report


def _before(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the folder of results has.

    Raises
    ------
    HeptiError
        If it was measured otherwise.
    """
    path = None if options.out is None else options.out / "limits.json"
    if path is None or not path.exists():
        return {}
    with explained(f"cannot go on with {path}", (OSError, ValueError, KeyError, TypeError)):
        report = json.loads(path.read_text())
        for name in OPTIONS:
            if report[name] != getattr(options, name):
                raise HeptiError(f"{path} has --{name} {report[name]}, here it is {getattr(options, name)}")
        parts: dict[str, Any] = report["parts"]
        return parts


def _compared(part: LimitPart, options: argparse.Namespace, under: Under, folder: Path) -> Report:
    folder.mkdir()
    model = bench_model(part.model, options.layers if part.model == LARGE else None)
    beside = {bar.beside for bar in part.bars}
    contest = Contest(
        systems=(HEPTI, SINGLE) if beside & {SINGLE, SESSION} else (HEPTI,),
        kernels=[Kernels("auto", part.precision)],
        wires=tuple(dict.fromkeys(bar.wire for bar in part.bars if bar.wire)),
        runtimes=["onnxruntime"] if SESSION in beside else [],
        rows=part.rows,
        runs=options.runs,
        repeat=options.repeat,
        warmup=options.warmup,
    )
    point = Point("limits", part.cluster, part.model, part.mbps, host_count(part.cluster))
    return compare(under(point, None), model, contest, folder, say)


def ratios(report: Report) -> Iterator[Found]:
    """Yield every bar of the parts that were measured, and what was found."""
    for name, compared in report["parts"].items():
        for bar in NAMES[name].bars:
            found = _ratio(compared, bar)
            yield Found(NAMES[name], bar, None if found is None else quartiles(found))


def _ratio(compared: Report, bar: Bar) -> Floats | None:
    """Return the ratio in every round."""
    rounds, rows = compared["runs"], compared["results"]
    singles = [row for row in rows if row["system"] == SINGLE]
    ours = [row for row in rows if row["system"] == HEPTI and row["wire"] == bar.wire]
    if bar.beside in (ALL, ITS_OWN):
        return of_rounds(ours[0], rounds) / _bound_s(compared, ours[0], bar.beside) if ours else None
    if not singles:
        return None
    single_s = of_rounds(singles[0], rounds)
    if bar.beside == SINGLE:
        return single_s / of_rounds(ours[0], rounds) if ours else None
    device = max(singles[0]["per_rank"], key=lambda rank: float(rank["compute_s"]))["device"]  # rank 0 embeds
    sessions = [row for row in rows if row["system"] == f"{SINGLE}:{device}"]
    return of_rounds(sessions[0], rounds) / single_s if sessions else None


def _bound_s(compared: Report, row: Mapping[str, Any], which: str) -> float:
    """Return the work's seconds at the summed speeds of all devices, or of those with a share."""
    speeds = [device["gflops"] for device in compared["device"]]
    active = [speed for speed, rank in zip(speeds, row["per_rank"], strict=True) if rank["compute_s"] > 0]
    bound_s = float(row["compute_bound_s"])
    return bound_s * sum(speeds) / sum(active) if which == ITS_OWN else bound_s


def print_limits(report: Report) -> None:
    """Print the table of all bars."""
    rows = []
    for found in ratios(report):
        part, bar = found.part, found.bar
        low, median, high = found.ratio or (0.0, 0.0, 0.0)
        model = part.model.removesuffix("-l6") + ("" if part.precision == "float32" else f" {part.precision}")
        rows.append([
            f"{part.cluster} {part.mbps:g}", model, bar.wire or "-", bar.beside,
            f"{median:.2f} ({low:.2f}-{high:.2f})" if found.ratio else "absent",
            (f"≥ {bar.least:g}" if bar.least is not None else f"≤ {bar.most:g}") + (" met" if found.met else ""),
        ])  # fmt: skip
    title = f"{LARGE} of {counted(report['layers'], 'layer')}; {counted(report['runs'], 'round')}: median, quartiles"
    show(title, ["lab, Mbps", "model", "wire", "beside", "ratio", "bar"], rows)
    print(
        f"Beside {SINGLE}, the best device alone: its time over hepti's. Beside a bound, the work at the summed speeds "
        f"of all devices, or of hepti's own: hepti's time over it. Beside a {SESSION} of onnxruntime on the best "
        "device: its time over hepti's there."
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_list(parser, "--parts", NAMES)
    parser.add_argument("--layers", type=int, default=12, metavar="N", help=f"of {LARGE} (default: %(default)s)")
    add_rounds(parser, runs=5, repeat=5, warmup=2)


def _measure(options: argparse.Namespace, files: Path, keep: Keep) -> Report:
    at_least(options, layers=1, runs=1, repeat=1, warmup=0)
    require_tools()
    return bench_limits([NAMES[name] for name in options.parts], options, files, keep)


SUITE = Suite(
    name="limits",
    text="how near hepti is to what the hosts allow, and how far ahead of the best one of them",
    example="""example, as root, which goes on where it was interrupted:
  hepti bench limits --out results
""",
    add_options=_add_options,
    measure=_measure,
    show=print_limits,
    draw=lambda *_: None,
)
