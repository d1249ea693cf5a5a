"""A comparison on a stage of which nothing is real: who takes part, what counts, what the JSON and the tables say."""

import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from launch.__main__ import main
from launch.base.tables import markdown
from launch.bench import compare_command
from launch.bench.compare_command import draw_pictures, write_numbers
from launch.compare import plot as compare_plot
from launch.compare.compare import Contest, compare
from launch.compare.entrants import Kernels
from launch.compare.model import BenchModel
from launch.compare.results import ranked
from launch.compare.show import comparison_markdown, main_cells, print_comparison, rank_cells, variant
from launch.compare.suite import add_list
from solver.base.command import Parser
from solver.base.errors import HeptiError
from solver.model.named import decoupled, named_model
from tests.kit.figures import check_readable, drawn_by, legend
from tests.kit.stages import SPEEDS, Pretended

SPEC = named_model("bert-base", 2)
KEYS = {
    "system", "backend", "precision", "wire", "devices", "median_s", "low_s", "high_s",
    "predicted_s", "compute_bound_s", "exchange_bound_s", "bytes_on_wire",
}  # fmt: skip
CONTEST = Contest(
    systems=("hepti", "megatron"), kernels=(Kernels("auto", "float32"),), wires=("float32",),
    runtimes=("torch", "onnxruntime", "onnxruntime-int8"), rows=64, runs=3, repeat=2, warmup=1,
)  # fmt: skip


def compared(pretended, folder, beside=None, **changes):
    said = []
    report = compare(
        pretended.stage, BenchModel(Path("/model.h5"), SPEC), replace(CONTEST, **changes), folder, said.append, beside
    )
    return report, said


def test_a_round_runs_everybody_once(tmp_path):
    pretended = Pretended()
    _, said = compared(pretended, tmp_path)
    one = ["hepti", "megatron"]
    one += [f"1 {kernels}" for kernels in ("torch float32", "onnxruntime float32", "onnxruntime int8")]

    assert pretended.ran == 3 * one
    assert said[0] == "measuring the hosts with auto float32"
    assert said[1].startswith("5 to be started 3 times")
    assert said[2].startswith("round 1 of 3: hepti")


def test_the_json_keeps_the_contract(tmp_path):
    report, _ = compared(Pretended(), tmp_path)

    assert {key: report[key] for key in ("suite", "cluster", "model", "rows", "layers")} == {
        "suite": "compare", "cluster": "pretended", "model": "bert-base", "rows": 64, "layers": 2,
    }  # fmt: skip
    assert report["versions"]["numpy"] == np.__version__
    assert report["absent"] == []
    assert all(row.keys() >= KEYS for row in report["results"])
    assert {row["system"] for row in report["results"]} == {"hepti", "megatron", "single:pi-1"}
    assert json.loads(json.dumps(report)) == report


def test_quartiles_are_over_all_requests_of_all_rounds(tmp_path):
    report, _ = compared(Pretended(), tmp_path, systems=("megatron",), runtimes=())
    (row,) = report["results"]

    assert sorted(row["seconds"]) == pytest.approx([0.1, 0.11, 0.2, 0.21, 0.3, 0.31])
    assert (row["low_s"], row["median_s"], row["high_s"]) == pytest.approx((0.1325, 0.205, 0.2775))
    assert row["bytes_on_wire"] == 3 * 3000 / 2
    assert [rank["compute_s"] for rank in row["per_rank"]] == pytest.approx([0.1, 0.1, 0.1])
    assert [rank["wait_s"] for rank in row["per_rank"]] == pytest.approx([0, 0.01, 0.02])
    assert row["devices"] == 3


def test_what_one_device_is_predicted_to_take_needs_its_kernels_measured(tmp_path):
    report, _ = compared(Pretended(), tmp_path)
    fastest = {variant(row): row for row in report["results"] if row["system"] == "single:pi-1"}
    split = next(row for row in report["results"] if row["system"] == "hepti")

    assert fastest["onnxruntime"]["predicted_s"] > fastest["onnxruntime"]["compute_bound_s"]
    assert fastest["torch"]["predicted_s"] is None
    assert fastest["torch"]["compute_bound_s"] == pytest.approx(split["compute_bound_s"] * sum(SPEEDS) / SPEEDS[1])
    assert fastest["onnxruntime int8"]["compute_bound_s"] is None
    assert fastest["torch"]["bytes_on_wire"] == fastest["torch"]["exchange_bound_s"] == 0


def test_who_fails_is_absent_with_the_reason_and_the_others_go_on(tmp_path, kept):
    pretended = Pretended(fails=("megatron", "torch"))
    report, _ = compared(pretended, tmp_path)

    kept("\n".join(f"{entry['system']}: {entry['why']}" for entry in report["absent"]))
    assert len(report["results"]) == 3
    assert pretended.ran.count("megatron") == 1


def test_who_lacks_memory_is_absent(tmp_path):
    report, _ = compared(Pretended(memory_gib=0.2), tmp_path, systems=("single", "megatron"))

    assert [entry["system"] for entry in report["absent"]] == ["single", "megatron"]
    assert "MiB short" in report["absent"][0]["why"]


def test_kernels_that_do_not_run_are_absent(tmp_path):
    report, _ = compared(
        Pretended(fails=("int8",)), tmp_path, kernels=(Kernels("auto", "float32"), Kernels("auto", "int8"))
    )

    assert [(entry["system"], entry["precision"]) for entry in report["absent"]] == [
        ("hepti", "int8"),
        ("megatron", "int8"),
    ]
    assert report["absent"][0]["why"] == "unrecognized arguments: --precision"


def test_another_model_is_marked_and_beats_nobody(tmp_path):
    """The row of decoupled layers is named by its model, run with that model's file, and compared with no other."""
    pretended = Pretended()
    beside = BenchModel(Path("/decoupled.h5"), decoupled(SPEC))
    ran = []
    plain_run = pretended.mpirun
    pretended.mpirun = lambda program, log: (ran.append(dict(pairwise(program))["--model"]), plain_run(program, log))[1]

    report, _ = compared(pretended, tmp_path, beside, systems=("detransformer", "megatron"), runtimes=())
    unmarked, _ = compared(Pretended(), tmp_path, systems=("detransformer", "megatron"), runtimes=())

    first, second = report["results"]
    assert (first["system"], first["model"]) == ("detransformer:bert-base-decoupled", "bert-base-decoupled")
    assert "model" not in second
    assert (first["ratio_to_best"], second["ratio_to_best"]) == (1.0, 1.0)
    assert set(ran) == {"/model.h5", "/decoupled.h5"}
    assert [entry["system"] for entry in unmarked["absent"]] == ["detransformer"]
    assert "bert-base has no decoupled layers" in unmarked["absent"][0]["why"]


def test_where_nobody_comes_through_the_reason_is_said(tmp_path, kept):
    with pytest.raises(HeptiError) as caught:
        compared(Pretended(fails=("megatron",)), tmp_path, systems=("megatron",), runtimes=())
    kept(caught.value)


def test_an_interrupted_comparison_keeps_the_rounds_that_are_done(tmp_path, monkeypatch):
    """As `bench paper` keeps its points: the table and the JSON say how many rounds they are of."""
    pretended, out = Pretended(), tmp_path / "out"
    plain_run = pretended.mpirun

    def interrupted(program, log):
        if pretended.ran.count("megatron") == 2:  # hepti comes first
            raise KeyboardInterrupt
        return plain_run(program, log)

    pretended.mpirun = interrupted
    monkeypatch.setattr(compare_command, "_stage", lambda options: nullcontext(pretended.stage))
    monkeypatch.setattr(compare_command, "bench_model", lambda word, layers: BenchModel(Path("/model.h5"), SPEC))
    words = ["--systems", "hepti,megatron", "--singles", "none", "--rows", "64", "--runs", "5", "--out", str(out)]

    with pytest.raises(KeyboardInterrupt):
        main(["bench", "compare", *words])

    report = json.loads((out / "results.json").read_text())
    assert (report["runs"], report["runs_asked"]) == (2, 5)
    assert {row["system"]: len(row["seconds"]) for row in report["results"]} == {"hepti": 4, "megatron": 4}
    title, *_, end = (out / "table.md").read_text().partition("Medians and quartiles of 2 of 5 rounds of 5 requests")
    assert "2 of 5 rounds" in title
    assert end
    assert (out / "cluster-auto-float32.toml").exists()


def test_the_ratio_is_to_the_best_of_the_same_precision():
    rows = [
        {"precision": precision, "median_s": seconds}
        for precision, seconds in (("float32", 0.3), ("int8", 0.1), ("float32", 0.2))
    ]

    assert [(row["median_s"], row["ratio_to_best"]) for row in ranked(rows)] == [
        (0.1, 1.0),
        (0.2, 1.0),
        (0.3, pytest.approx(1.5)),
    ]


def test_the_tables_hold_everybody(tmp_path, capsys):
    report, _ = compared(Pretended(fails=("torch",)), tmp_path)
    columns, rows = main_cells(report)
    print_comparison(report)
    shown = capsys.readouterr().out

    assert all(len(row) == len(columns) for row in rows)
    assert len(rows) == len(report["results"])
    assert rank_cells(report)[0] == ["system", "kernels", "pi-0", "pi-1", "pi-2"]
    title = "bert-base, 2 layers, 64 rows on pretended, 940 Mbps; 3 rounds of 2 requests: ms a request"
    assert title in " ".join(shown.split())
    assert "torch is not installed" in shown
    assert all(row["system"] in shown for row in report["results"])


def test_a_row_is_called_by_what_is_unusual():
    row = {"backend": "onnxruntime", "precision": "int8", "wire": "float16"}

    assert variant(row) == "onnxruntime int8 over float16"
    assert variant({**row, "precision": "float32", "wire": "float32"}) == "onnxruntime"


def test_markdown_aligns_numbers_to_the_right():
    assert markdown(["system", "ms"], [["hepti", "5"]]).splitlines()[1] == "| --- | ---: |"


def test_the_folder_holds_table_json_profile_traces_and_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    runs, out = tmp_path / "runs", tmp_path / "out"
    runs.mkdir()
    out.mkdir()
    report, _ = compared(Pretended(), runs)
    write_numbers(report, runs, out)
    draw_pictures(report, runs, out)

    assert {path.name for path in out.iterdir()} == {
        "table.md", "results.json", "bars.png", "cluster-auto-float32.toml",
        "trace-hepti-onnxruntime.json", "timeline-hepti-onnxruntime.png",
        "trace-megatron-onnxruntime.json", "timeline-megatron-onnxruntime.png",
    }  # fmt: skip
    assert json.loads((out / "results.json").read_text()) == report
    assert (out / "table.md").read_text() == comparison_markdown(report)
    assert "| hepti | onnxruntime | " in (out / "table.md").read_text()
    assert png_size(out / "bars.png") == (1350, int(150 * (1.5 + 0.27 * 5 + 0.1 * 3)))
    assert png_size(out / "timeline-hepti-onnxruntime.png") == (1800, 360)


def test_every_bar_has_the_bound_of_its_own_kernels(tmp_path, monkeypatch):
    """Int8 has another one than float32, and a device alone another one than all together."""
    pytest.importorskip("matplotlib")
    rows = [
        {"system": system, "backend": "numpy", "precision": precision, "wire": "", "per_rank": split, "median_s": 0.5,
         "low_s": 0.4, "high_s": 0.6, "compute_bound_s": bound_s}
        for system, split, bounds_s in (
            ("hepti", [{}], {"float32": 0.2, "int8": 0.1}),
            ("single:pi-1", [], {"float32": 0.4, "int8": 0.2, "int4": None}),
        )
        for precision, bound_s in bounds_s.items()
    ]  # fmt: skip
    of = {
        "model": "m",
        "layers": 1,
        "rows": 8,
        "cluster": "c",
        "lab_scale": 1,
        "mbps": [],
        "runs": 2,
        "runs_asked": 5,
        "repeat": 1,
    }
    drawn = drawn_by(monkeypatch, compare_plot)

    compare_plot.plot_bars({**of, "results": rows}, tmp_path / "bars.png")

    (axes,) = drawn[0].axes
    lines = [segment for collection in axes.collections for segment in collection.get_segments()]
    bars = [bar for bar in axes.patches if bar.get_width()]
    found = {}
    for (x, low), (_, high) in (line for line in lines if line[0][0] == line[1][0]):  # whiskers lie
        (place,) = (place for place, bar in enumerate(bars) if low < bar.get_y() + bar.get_height() / 2 < high)
        found[place] = x
    assert found == pytest.approx({0: 200, 1: 100, 2: 400, 3: 200})
    assert drawn[0].get_suptitle().endswith("of 1 request")
    check_readable(drawn[0])


@pytest.mark.parametrize("scale", [1, 1e-3])
def test_every_row_has_its_bar_with_all_of_its_whiskers_and_two_digits(scale, tmp_path, monkeypatch):
    """Also a device alone that is much slower."""
    pytest.importorskip("matplotlib")
    ms = {"hepti": 300, "megatron": 470, "single:pi-1": 4000}
    rows = [
        {"system": system, "backend": "numpy", "precision": "float32", "wire": "", "per_rank": [{}] * (system < "s"),
         "median_s": median, "low_s": 0.9 * median, "high_s": 1.5 * median, "compute_bound_s": None}
        for system, median in ((system, scale * each / 1e3) for system, each in ms.items())
    ]  # fmt: skip
    of = {"model": "m", "layers": 1, "rows": 8, "cluster": "c", "lab_scale": 1, "mbps": []}
    drawn = drawn_by(monkeypatch, compare_plot)

    compare_plot.plot_bars({**of, "runs": 2, "runs_asked": 2, "repeat": 1, "results": rows}, tmp_path / "bars.png")

    (figure,) = drawn
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches if bar.get_width()] == pytest.approx([scale * ms[s] for s in ms])
    whiskers = [path.vertices for line in axes.collections for path in line.get_paths() if len(path.vertices)]
    assert max(x for path in whiskers for x, _ in path) == pytest.approx(scale * 6000)
    assert axes.get_xlim()[1] > scale * 6000
    assert [label.get_text() for label in axes.get_yticklabels()] == [*ms]
    numbers = [text.get_text() for text in axes.texts]
    assert numbers == (["300", "470", "4000"] if scale == 1 else ["0.3", "0.47", "4"])
    check_readable(figure)


def test_of_many_layers_those_are_numbered_that_have_room(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    events = [{"ph": "M", "name": "thread_name", "tid": 0, "args": {"name": "pi-0"}}] + [
        {"ph": "X", "name": f"{block} {layer}", "tid": 0, "ts": 1e3 * (2 * layer + place), "dur": 900}
        for layer in range(48)
        for place, block in enumerate(("attention", "mlp"))
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    drawn = drawn_by(monkeypatch, compare_plot)

    compare_plot.plot_trace(tmp_path / "trace.json", tmp_path / "t.png", "hepti: the last request")

    (figure,) = drawn
    check_readable(figure)
    numbers = [int(text.get_text().removeprefix("layer ")) for text in figure.axes[0].texts]
    assert numbers == list(range(0, 48, 3))
    assert legend(figure) == ["attention", "mlp", "outside the layers", "wait"]


def png_size(path):
    """Return the width and height that a PNG's header names."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def test_lists_on_the_command_line(kept):
    parser = Parser()
    add_list(parser, "--systems", ("hepti", "rows"))

    assert parser.parse_args([]).systems == ("hepti", "rows")
    assert parser.parse_args(["--systems", "rows, hepti,rows"]).systems == ("rows", "hepti")
    with pytest.raises(HeptiError) as caught:
        parser.parse_args(["--systems", "hept"])
    kept(caught.value)
    with pytest.raises(HeptiError) as caught:
        parser.parse_args(["--systems", " ,"])
    kept(caught.value)
