"""What the papers show, on stages of which nothing is real: which points there are, and what comes of them."""

import json
from argparse import ArgumentTypeError
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from launch.base import plot
from launch.bench.paper import FITS, MANY, PROFILED_BYTES, ROOM, Point, bench_paper, claims, memory_that_fits, points
from launch.bench.paper_command import bandwidths, cells, claim_cells, draw_pictures
from launch.compare.model import BenchModel
from solver.base.errors import HeptiError
from solver.model.named import decoupled, named_model
from solver.schedule.encoders.memory import weights_room, whole_layer_bytes
from tests.kit.clusters import pis
from tests.kit.figures import check_readable, drawn_by, legend
from tests.kit.stages import Pretended
from tests.launch.compare.test_compare import CONTEST

BERT, VIT = named_model("bert-base", 2), named_model("vit-base", 2)
MODELS = {"bert-base": BenchModel(Path("/bert.h5"), BERT), "vit-base": BenchModel(Path("/vit.h5"), VIT)}
BESIDE = {"bert-base": BenchModel(Path("/decoupled.h5"), decoupled(BERT))}


class ManyAtOnce(Pretended):
    """The same hosts, which say how many requests they answer a second."""

    def mpirun(self, program, log):
        code = super().mpirun(program, log)
        if "--report" in program:
            path = Path(program[program.index("--report") + 1])
            path.write_text(json.dumps(json.loads(path.read_text()) | {"requests_per_s": 4.0}))
        if "--input" in program:
            lines = Path(program[program.index("--input") + 1]).read_text().splitlines()
            assert len(lines) == MANY
            assert {len(json.loads(line)["tokens"]) for line in lines} == {256}
            assert program[program.index("--repeat") + 1] == "1"  # they are many
        return code


def run(measured, folder, keep=lambda report: None, systems=("hepti", "megatron", "pipeedge", "single"), **changes):
    limits = []

    @contextmanager
    def stages(cluster):
        def under(point, spec):
            limits.append((cluster, point.mbps, point.fits))
            return ManyAtOnce(**changes).stage

        yield under

    contest = replace(CONTEST, systems=systems, runtimes=(), runs=1)
    return bench_paper(measured, MODELS, BESIDE, contest, folder, lambda line: None, keep, stages), limits


def test_the_points_are_those_of_the_papers():
    """Bandwidths for both models; devices for the one that reads texts; memory for both."""
    found = points(["latency", "throughput", "memory"], {"pi4x4": 4}, {"b": BERT, "v": VIT}, [940, 120])

    latency = [(point.model, point.mbps) for point in found if point.figure == "latency"]
    assert latency == [("b", 940), ("b", 120), ("v", 940), ("v", 120)]
    assert [(point.model, point.hosts) for point in found if point.figure == "throughput"] == [
        ("b", count) for count in (1, 2, 3, 4)
    ]
    assert [(point.model, point.fits) for point in found if point.figure == "memory"] == [
        (model, fits) for model in "bv" for fits in FITS
    ]


@pytest.mark.parametrize("share", FITS)
def test_the_memory_holds_that_share_of_the_layers(share):
    """Rank 0, which has embeddings and heads; norms of all layers come off."""
    device = replace(pis(10).devices[0], memory_bytes=memory_that_fits(BERT, share) - PROFILED_BYTES)
    room = weights_room(BERT, replace(pis(10), devices=(device,)), 256)

    layers = BERT.layers * whole_layer_bytes(BERT)
    assert room[0] == pytest.approx(ROOM * share * layers, abs=BERT.layers * 6 * 4 * BERT.hidden + 1)


def test_every_point_is_a_comparison_under_its_limits(tmp_path, kept):
    measured = [
        Point("latency", "odd", "bert-base", 240, 3),
        Point("throughput", "odd", "bert-base", 940, 3),
        Point("memory", "odd", "vit-base", 940, 3, 0.5),
    ]
    told = []
    report, limits = run(measured, tmp_path, keep=lambda report: told.append(json.dumps(report)))

    figures = [{row["figure"] for row in json.loads(so_far)["results"]} for so_far in told]
    assert figures == [{"latency"}, {"latency", "throughput"}, {"latency", "throughput", "memory"}]
    assert [json.loads(so_far)["points"] for so_far in told] == [1, 2, 3]
    assert {json.loads(so_far)["points_asked"] for so_far in told} == {3}
    assert json.loads(told[-1]) == json.loads(json.dumps(report))
    assert limits == [("odd", 240, None), ("odd", 940, None), ("odd", 940, 0.5)]
    assert {(row["figure"], row["model"], row["mbps"]) for row in report["results"]} == {
        ("latency", "bert-base", 240), ("throughput", "bert-base", 940), ("memory", "vit-base", 940),
    }  # fmt: skip
    assert {row["median_s"] for row in report["results"] if row["figure"] == "throughput"} == {0.25}
    json.dumps(report)
    titles = [title for figure in ("latency", "throughput", "memory") for title, _, _ in cells(report, figure)]
    kept("\n".join(titles))
    _, columns, rows = next(cells(report, "throughput"))
    assert columns == ["system", "3 devices"]
    assert ["pipeedge", "4.00"] in rows
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    draw_pictures(report, tmp_path, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        f"paper-{figure}.png" for figure in ("latency", "memory", "throughput")
    ]


def test_the_decoupled_model_stands_beside_the_one_that_it_is_made_of(tmp_path):
    """In the same table, under its own name; its published ratio is looked for at the same points."""
    measured = [Point("latency", "odd", "bert-base", 940, 3)]

    report, _ = run(measured, tmp_path, systems=("detransformer", "megatron"))

    ((_, _, rows),) = cells(report, "latency")
    assert {row[0] for row in rows} == {"detransformer:bert-base-decoupled", "megatron"}
    seconds = {row["system"].partition(":")[0]: row["median_s"] for row in report["results"]}
    (claim,) = (claim for claim in report["claims"] if claim["system"] == "detransformer")
    assert claim["found"] == pytest.approx(seconds["megatron"] / seconds["detransformer"])


def test_a_point_at_which_nobody_comes_through_is_said(tmp_path):
    measured = [Point("latency", "odd", "bert-base", 240, 3)]

    with pytest.raises(HeptiError, match="nobody came through; all: "):
        run(measured, tmp_path, fails=("float32", "auto", None))


def test_a_system_has_one_colour_in_all_panels(tmp_path, monkeypatch):
    """And one entry beside them, whatever its place among a panel's systems."""
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    drawn = drawn_by(monkeypatch, plot)
    one, other, third = (plot.PlottedCurve(name, [1, 2], [3, 4]) for name in ("one", "other", "third"))

    plot.draw("both", [("left", "x", [one, other]), ("right", "x", [third, other, one])], "ms", tmp_path / "p.png")

    (figure,) = drawn
    left, right = ([line.get_color() for line in axes.lines] for axes in figure.axes)
    assert left == [right[2], right[1]]
    assert len({*left, *right}) == 3
    assert figure.get_suptitle() == "both"
    assert legend(figure) == ["one", "other", "third"]
    check_readable(figure)


def test_of_boards_there_are_no_halves(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    drawn = drawn_by(monkeypatch, plot)
    boards, ms = plot.PlottedCurve("one", [1, 2], [3, 4]), plot.PlottedCurve("one", [1.5, 2], [3, 4])

    plot.draw("both", [("left", "boards", [boards]), ("right", "ms", [ms])], "ms", tmp_path / "p.png")

    left, right = drawn[0].axes
    assert all(tick.is_integer() for tick in left.get_xticks())
    assert not all(tick.is_integer() for tick in right.get_xticks())


def test_many_curves_differ_by_more_than_their_colour(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    drawn = drawn_by(monkeypatch, plot)
    curves = [plot.PlottedCurve(f"system {number}", [1, 2], [number, 4]) for number in range(16)]

    plot.draw("all", [("left", "x", curves)], "ms", tmp_path / "p.png")

    (figure,) = drawn
    lines = figure.axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 16
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 16
    check_readable(figure)


def test_a_claim_stands_beside_the_most_that_was_found():
    """By hand: hepti 1.5 times as fast as the best of the others at 120 Mbps, 1.2 times at 940; galaxy did not run."""
    at = {"figure": "latency", "cluster": "c", "model": "m", "hosts": 4, "fits": None, "wire": "float32"}
    seconds = {("hepti", 940): 1.0, ("hepti", 120): 2.0, ("megatron", 940): 1.2, ("megatron", 120): 3.0}
    rows = [
        at | {"system": system, "mbps": mbps, "median_s": value, "bytes_on_wire": 1}
        for (system, mbps), value in seconds.items()
    ]

    found = {claim["system"]: claim for claim in claims(rows)}

    assert found["hepti"]["found"] == pytest.approx(1.5)
    assert found["hepti"]["where"] == {"cluster": "c", "model": "m", "mbps": 120, "hosts": 4}
    assert found["hepti"]["published"] == pytest.approx(1.443, abs=1e-3)
    assert found["galaxy"]["found"] is None
    columns, table = claim_cells({"claims": claims(rows)})
    assert len(columns) == len(table[0])
    assert table[0][:2] == ["hepti", "megatron, grid2d"]
    assert table[0][columns.index("where")].split()[:5] == ["m", "on", "4", "devices", "of"]


def test_bandwidths_are_numbers_above_zero(kept):
    assert bandwidths("940,120.5") == [940, 120.5]
    for words in ("", "fast", "940,-1", "0", "940,"):
        with pytest.raises(ArgumentTypeError) as caught:
            bandwidths(words)
        kept(caught.value)
