"""Convolutional networks in a comparison: who takes part, what is refused; once on this host."""

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from launch.__main__ import main
from launch.base import shell
from launch.bench import compare_command
from launch.bench.compare_command import draw_pictures, write_numbers
from launch.compare.against import OtherPlanner
from launch.compare.compare import Contest, compare
from launch.compare.entrants import Kernels, RowName
from launch.compare.model import BenchNetwork, bench_network
from launch.compare.networks import SPLITS, beside_best_single, planned_networks
from launch.compare.show import comparison_markdown, heading, main_cells
from launch.compare.stage import BenchHosts
from solver.base.errors import HeptiError
from solver.cluster.cluster import write_cluster
from solver.plan.file import read_plan
from solver.plan.segments import SegmentPlan
from solver.plan.writing import plan_to_json
from solver.show.network_facts import network_bounds, priced_network
from solver.systems.convnets import plan_network
from tests.kit import inside, refusals
from tests.kit.chains import boards
from tests.kit.stages import NET
from tests.kit.stages import PretendedNetworks as Pretended
from tests.launch.compare.test_compare import KEYS
from weights.file.networks import write_network

REFUSED = Path(__file__).parents[1] / "refusals/compare_networks.txt"
KERNELS = Kernels("onnxruntime", "float32")
CONTEST = Contest(
    systems=("hepti", "coedge", "single:"), kernels=(KERNELS,), wires=("float32",), runtimes=(), rows=24, runs=3,
    repeat=2, warmup=1,
)  # fmt: skip


def compared(pretended, folder, **changes):
    network = BenchNetwork(Path("/net.h5"), NET)
    return compare(pretended.stage, network, replace(CONTEST, **changes), folder, lambda line: None)


def test_a_round_runs_every_system_and_every_device(tmp_path):
    pretended = Pretended()
    report = compared(pretended, tmp_path)

    one = ["hepti", "coedge", "single:pi-0", "single:pi-1", "single:pi-2"]
    assert pretended.ran == 3 * one
    assert {ran["--random"] for ran in pretended.asked} == {"1"}
    assert not any("--trace" in ran["words"] for ran in pretended.asked)
    assert report["absent"] == []


def test_the_json_keeps_the_contract(tmp_path):
    """Rows are those of the image; layers there are none, a row says how many segments its plan has."""
    report = compared(Pretended(), tmp_path)

    assert {key: report[key] for key in ("suite", "model", "rows", "layers", "image", "best_single")} == {
        "suite": "compare", "model": "chain", "rows": 24, "layers": None, "image": [3, 24, 24],
        "best_single": "single:pi-2",
    }  # fmt: skip
    assert all(row.keys() >= KEYS for row in report["results"])
    assert {row["system"]: (row["segments"], row["active"]) for row in report["results"]}["single:pi-0"] == (
        1,
        ["pi-0"],
    )
    assert json.loads(json.dumps(report)) == report


def test_bounds_are_the_solvers_and_a_device_alone_has_its_own(tmp_path):
    pretended = Pretended()
    rows = {row["system"]: row for row in compared(pretended, tmp_path)["results"]}

    coedge = plan_network("coedge", NET, pretended.cluster)
    bound = network_bounds(priced_network(NET, pretended.cluster, coedge))
    assert rows["coedge"]["compute_bound_s"] == pytest.approx(bound.compute_s)
    assert rows["coedge"]["exchange_bound_s"] == pytest.approx(bound.exchange_s)
    assert rows["coedge"]["predicted_s"] == pytest.approx(coedge.predicted.seconds)
    alone = [1 / rows[f"single:pi-{number}"]["compute_bound_s"] for number in range(3)]
    assert 1 / sum(alone) == pytest.approx(bound.compute_s)


def test_the_ratio_to_the_best_device_is_of_the_medians_of_every_round():
    """By hand: 3, 2.5 and 1 times as fast in the three rounds."""
    rows = [
        {"system": system, "median_s": seconds[0], "seconds": seconds, "active": [system.removeprefix("single:")]}
        for system, seconds in (
            ("hepti", [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]),
            ("single:pi-1", [0.3, 0.3, 0.5, 0.5, 0.3, 0.3]),
            ("single:pi-0", [9.0, 9.0, 9.0, 9.0, 9.0, 9.0]),
        )
    ]

    found = beside_best_single(rows, 3)

    first, best, _ = found["results"]
    assert found["best_single"] == "single:pi-1"
    assert (first["times_single_low"], first["times_single"], first["times_single_high"]) == (
        pytest.approx((1.75, 2.5, 2.75))
    )  # fmt: skip
    assert (best["times_single_low"], best["times_single_high"]) == (1, 1)
    assert beside_best_single(rows[:1], 3) == {"results": rows[:1], "best_single": None}


def test_devices_alone_run_over_one_wire_and_of_many_only_the_fastest():
    cluster = boards(*range(1, 10))
    clusters = {KERNELS: cluster}

    found, absent = planned_networks(NET, clusters, ("coedge", "single:"), ("float32", "float16"))

    assert not absent
    assert [(who.entry.system, who.entry.wire) for who in found] == [
        ("coedge", "float32"), ("coedge", "float16"), ("single", "float32"),
    ]  # fmt: skip


def test_who_finds_no_plan_or_fails_is_absent_with_the_reason(tmp_path):
    systems = ("hepti", "coedge", "single:pi-9", "single:pi-2")
    report = compared(Pretended(fails=("coedge",)), tmp_path, systems=systems)

    why = {entry["system"]: entry["why"] for entry in report["absent"]}
    assert why["coedge"] == "rank 1 is out of memory"
    assert "there is no device 'pi-9'" in why["single:pi-9"]
    assert {row["system"] for row in report["results"]} == {"hepti", "single:pi-2"}


def test_the_table_says_how_many_times_as_fast_as_the_best_device(tmp_path):
    report = compared(Pretended(), tmp_path)
    columns, rows = main_cells(report)
    text = comparison_markdown(report)

    assert all(len(row) == len(columns) for row in rows)
    assert columns[-1] == "times best device"
    assert {row[0]: row[-1] for row in rows}["coedge"] == "1.50 (1.50-1.50)"
    assert heading(report).startswith("chain, image of 3")
    assert "as fast as single:pi-2" in text
    assert "what the whole network takes every device" in text
    errors = [abs(row["predicted_s"] / row["median_s"] - 1) for row in report["results"]]
    assert f"are {100 * np.mean(errors):.1f} % apart in the mean, {100 * max(errors):.1f} % at most (" in text


def test_without_a_device_alone_there_is_no_ratio(tmp_path):
    report = compared(Pretended(), tmp_path, systems=("hepti", "coedge"))

    assert report["best_single"] is None
    assert "times best device" not in main_cells(report)[0]
    assert "Times best device" not in comparison_markdown(report)


def test_the_folder_holds_the_plans_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    runs, out = tmp_path / "runs", tmp_path / "out"
    runs.mkdir()
    out.mkdir()
    report = compared(Pretended(), runs)
    write_numbers(report, runs, out)
    draw_pictures(report, runs, out)

    names = ("hepti", "coedge", "single-pi-0", "single-pi-1", "single-pi-2")
    assert {path.name for path in out.iterdir()} == {
        "table.md", "results.json", "bars.png", "cluster-onnxruntime-float32.toml",
        *(f"plan-{name}-onnxruntime.json" for name in names),
    }  # fmt: skip
    assert read_plan(out / "plan-coedge-onnxruntime.json", SegmentPlan, NET).system == "coedge"


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """Return what runs the command with the network as its model; nothing real is started."""
    pretended = Pretended()
    monkeypatch.setattr(compare_command, "bench_network", lambda word, layers: BenchNetwork(Path("/net.h5"), NET))
    monkeypatch.setattr(compare_command, "_stage", lambda options: nullcontext(pretended.stage))
    return (lambda *words: inside.run(main, "bench", "compare", *words)), pretended


def test_options_that_make_no_sense_are_one_line(bench, tmp_path):
    _, pretended = bench

    refusals.check(REFUSED, {"python -m launch": main}, tmp_path)
    assert not pretended.ran


@pytest.mark.parametrize(
    ("words", "systems"),
    [
        ((), {*SPLITS, "single:pi-0", "single:pi-1", "single:pi-2"}),
        (("--singles", "none"), {*SPLITS}),
        (("--systems", "coedge"), {"coedge", "single"}),
        (("--systems", "coedge,single:pi-1"), {"coedge", "single:pi-1"}),
        (("--systems", "coedge", "--singles", "none"), {"coedge"}),
    ],
)
def test_who_takes_part_where_systems_are_named_or_not(bench, words, systems):
    """Whoever finds a plan; beside named systems the device that is predicted to be the fastest."""
    run, _ = bench
    done = run("--runs", 1, "--json", *words)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {row["system"] for row in (*report["results"], *report["absent"])} == systems


@pytest.mark.slow("a network of 14 MB is made twice")
def test_a_network_known_by_name_is_made_once_and_kept(tmp_path, monkeypatch, kept):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = bench_network("mobilenetv2", None)
    made = first.path.stat().st_mtime_ns

    assert first.path == tmp_path / "hepti" / "mobilenetv2-random.h5"
    assert first.net.name == "mobilenetv2"
    assert bench_network("mobilenetv2", None).net.fingerprint == first.net.fingerprint
    assert first.path.stat().st_mtime_ns == made
    os.utime(first.path, (0, 0))  # older than what makes it
    assert bench_network("mobilenetv2", None).path.stat().st_mtime_ns > made
    assert bench_network("vit-base", None) is None
    with pytest.raises(HeptiError) as caught:
        bench_network("mobilenetv2", 2)
    kept(caught.value)
    with pytest.raises(HeptiError) as caught:
        bench_network("resnet5", None)
    kept(caught.value)


def test_an_onnx_file_is_converted(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx", reason="the extra `fast` is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [1, size, 8, 8]) for name, size in (("x", 3), ("y", 4)))
    weight = onnx.numpy_helper.from_array(np.ones((4, 3, 1, 1), np.float32), "w")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Conv", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "small.onnx")

    network = bench_network(str(tmp_path / "small.onnx"), None)

    assert network.path.suffix == ".h5"
    assert network.path.is_relative_to(tmp_path / "hepti")
    assert [node.op for node in network.net.nodes] == ["Conv"]


def test_the_other_version_plans_a_network_from_the_same_files(tmp_path, monkeypatch):
    """It is asked by the whole name, without rows; its plan file is run as it stands, in its folder."""
    cluster = Pretended().cluster
    write_cluster(cluster, tmp_path / "c.toml")
    text = plan_to_json(plan_network("single:pi-1", NET, cluster), NET)
    asked = []

    def attempt(program, timeout_s):
        asked.append(program)
        Path(program[program.index("--out") + 1]).write_text(text)
        return 0, "", ""

    monkeypatch.setattr(shell, "attempt", attempt)
    planner = OtherPlanner(
        tmp_path, lambda entry: BenchNetwork(Path("/net.h5"), NET), {KERNELS: tmp_path / "c.toml"}, 24, tmp_path
    )

    who = planner.entrant(RowName("single:pi-1", KERNELS, "float32", version="against"))

    (program,) = asked
    assert "--rows" not in program
    assert program[program.index("--system") + 1] == "single:pi-1"
    assert (who.checkout, who.plan_json, who.devices) == (tmp_path, text, 1)


def test_an_onnx_file_that_is_none_is_refused_in_one_line(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_text("nothing")

    done = inside.run(main, "bench", "compare", "--model", path)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "net.onnx" in done.stderr


@pytest.mark.slow("ranks measure, and run three plans")
def test_a_tiny_network_is_compared_on_this_host(tmp_path, monkeypatch):
    """Really measured, planned and run by two ranks, and by each alone."""
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(shape, np.float32) for name, shape in NET.tensors.items()}
    write_network(tmp_path / "net.h5", NET, tensors, "random")
    monkeypatch.setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")

    def mpirun(program, log):
        command = ["mpirun", "-np", "2", sys.executable, *program[1:]]
        return shell.wait(shell.start_logged(command, shell.environment(), log), 60.0)

    stage = BenchHosts("here", ("one", "other"), mpirun, None)
    contest = replace(CONTEST, systems=("coedge", "single"), runs=1)
    report = compare(stage, bench_network(str(tmp_path / "net.h5"), None), contest, tmp_path, lambda line: None)

    assert [entry["why"] for entry in report["absent"]] == []
    assert {row["system"]: len(row["seconds"]) for row in report["results"]} == {"coedge": 2, "single": 2}
    assert report["best_single"] in {f"single:{device['name']}" for device in report["device"]}
    assert all(row["median_s"] > 0 and row["predicted_s"] > 0 for row in report["results"])
