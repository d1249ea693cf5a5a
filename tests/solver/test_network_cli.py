"""The planning command line where the model is a convolutional network."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from solver.cli import main
from solver.plan.segment_file import read_segments
from tests.kit import inside
from tests.kit.convnet_reference import to_onnx
from tests.kit.convnets import random_net
from weights.file.networks import write_network
from weights.networks_zoo import zoo_network

HERE = ("--cluster", "mixed4")


def solver(*arguments):
    return inside.run(main, *arguments)


@pytest.fixture(scope="module")
def net():
    return zoo_network("resnet18")[0]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert solver("--model", "resnet18", *HERE, "--out", path, "--json").returncode == 0
    return path


def test_a_network_is_planned_by_name(net, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = solver("--model", "resnet18", *HERE)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("resnet18, 49 nodes, 3.6 GFLOP an image of 224×224 on mixed4, 940 Mbps\n")  # noqa: RUF001
    for words in ("conv1", "image", "MFLOP", "ms for an image by hepti", "single:pi-1", "No plan beats"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout


@pytest.mark.parametrize("words", [("--objective", "throughput"), ("--system", "hepti-throughput")])
def test_many_images_are_planned_for(words):
    """Boards that hold the network each answer images of their own, as many as they do alone."""
    done = solver("--model", "resnet18", *HERE, *words)

    assert (done.returncode, done.stderr) == (0, "")
    table = json.loads(solver("--model", "resnet18", *HERE, *words, "--json").stdout)
    assert sorted(replica["devices"] for replica in table["replicas"]) == [[f"pi-{rank}"] for rank in range(4)]
    rates = [replica["images_per_s"] for replica in table["replicas"]]
    assert rates == sorted(rates, reverse=True)
    assert table["images_per_s"] == pytest.approx(sum(rates))
    assert f"{table['images_per_s']:.2f} images a second" in done.stdout


def test_a_network_is_planned_from_its_weights_file(tmp_path):
    net, tensors = zoo_network("tiny-yolov2", size=64)
    write_network(tmp_path / "net.h5", net, tensors, "random")

    done = solver("--model", tmp_path / "net.h5", *HERE, "--system", "single", "--json")

    table = json.loads(done.stdout)
    assert table["model"] == {"name": "tiny-yolov2", "fingerprint": net.fingerprint}
    assert (table["kind"], table["system"]) == ("convnet", "single")


def test_json_and_out_give_the_same_plan_that_fits_the_network(plan, net):
    table = json.loads(solver("--model", "resnet18", *HERE, "--json").stdout)
    written = read_segments(plan, net)

    written.check(net, ranks=4)
    assert table["segments"] == json.loads(plan.read_text())["segments"]
    assert {"hepti", "single:pi-1"} & {other["system"] for other in table["alternatives"]} == {"single:pi-1"}


def test_a_plan_file_costs_what_its_planner_said(plan):
    same = json.loads(solver("--price", plan, *HERE, "--json").stdout)
    slow = json.loads(solver("--price", plan, *HERE, "--json", "--set", "network.bandwidth_mbps=10").stdout)

    assert same["predicted"] == json.loads(plan.read_text())["predicted"]
    assert slow["predicted"]["exchange_s"] > 10 * same["predicted"]["exchange_s"]
    assert slow["segments"] == same["segments"]


def test_a_plan_file_that_lacks_memory_is_priced_with_a_note(plan):
    done = solver("--price", plan, *HERE, "--set", "pi-1.memory_gib=0.17")

    assert done.returncode == 0
    assert "note: " in done.stderr
    assert "MiB more on pi-1 (has 174)" in done.stderr


def test_all_systems_stand_side_by_side():
    table = json.loads(solver("--model", "resnet18", *HERE, "--compare", "--json").stdout)
    out = solver("--model", "resnet18", *HERE, "--compare").stdout

    systems = {entry["system"] for entry in table["systems"]}
    assert {"hepti", "single:pi-0", "single:pi-3"} <= systems
    assert all(system in out for system in systems)


def test_steps_map_and_picture_are_of_a_plan_that_is_there(plan, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    picture = tmp_path / "rows.svg"

    steps = json.loads(solver("--price", plan, *HERE, "--schedule", "pi-1", "--json").stdout)["steps"]
    shown = solver("--price", plan, *HERE, "--map", "--plot", picture)

    assert steps[0]["moves"] == "pixels"
    assert "0 pi-0, 1 pi-1" in shown.stdout
    assert f"The picture is in {picture}.\n" in shown.stdout
    assert "<svg" in picture.read_text()


def test_explained_a_plan_says_what_every_board_does_with_the_time(plan):
    out = solver("--price", plan, *HERE, "--explain").stdout
    table = json.loads(solver("--price", plan, *HERE, "--explain", "--json").stdout)

    assert "where the milliseconds go" in out
    assert "few" in out
    assert all(device["part_s"] >= 0 for device in table["per_device"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "resne18"], "unknown model resne18 (did you mean resnet18?)"),
        (["--model", "quux"], "unknown model quux (known: bert-base, "),
        (["--model", "resnet18", "--rows", "9"], "--rows is about the length of a text: for a convolutional network"),
        (["--model", "resnet18", "--layers", "9"], "--layers is about transformers"),
        (["--model", "resnet18", "--explain", "--compare"], "--explain prints where the time of one plan goes"),
        (["--model", "resnet18", "--explain", "--schedule"], "and no more: leave out --schedule"),
        (
            ["--model", "resnet18", "--explain", "--map"],
            "and no more: leave out --explain",
        ),
        (["--model", "resnet18", "--explain", "--objective", "throughput"], "--explain is about a plan for one"),
        (["--model", "resnet18", "--objective", "throughput", "--system", "modnn"], "modnn is for one image"),
        (
            ["--model", "resnet18", "--objective", "throughput", "--out", "p.json"],
            "--out is about a plan for one",
        ),
        (["--model", "resnet50", "--schedule", "pi-9"], "--schedule: there is no device pi-9"),
        (["--model", "resnet18", "--wire", "int4"], "a network sends float32, float16, int8"),
        (["--model", "resnet18", "--map", "map.svg"], "--map prints who has which rows of a network: leave map.svg"),
        (["--model", "resnet18", "--map", "--json"], "--map prints who has which rows, and no more: leave out --json"),
        (["--model", "resnet18", "--compare", "--out", "p.json"], "--out is for a plan that is made, --compare makes"),
        (["--model", "resnet18", "--compare", "--map"], "--map is for a plan that is made, --compare makes none"),
        (["--price", "PLAN", "--system", "hepti"], "--system is for a plan that is made, --price makes none"),
        (["--price", "PLAN", "--schedule", "pi-9"], "--schedule: there is no device pi-9"),
        (["--price", "PLAN", "--model", "resnet50"], "the plan is for resnet18"),
        (["--price", "PLAN", "--model", "bert-base"], "this is the plan of a convnet, resnet18: here an encoder's"),
        (["--price", "PLAN", "--without", "pi-3"], "is for devices pi-0, pi-1, pi-2, pi-3, the cluster has pi-0"),
        (["--model", "resnet18", "--system", "galaxy"], "'galaxy' is a system of encoders: networks have hepti, sing"),
        (["--model", "resnet18", "--plot", "plan.doc"], "the ending must be .svg or .png or .pdf"),
        (["--model", "resnet18", "--out", "no/such/plan.json"], "there is no folder no/such"),
        (["--model", "bert-base", "--map"], "--map needs a file to draw into: --map FILE.svg"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, complaint, plan):
    done = solver(*(plan if argument == "PLAN" else argument for argument in arguments), *HERE)

    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_plan_of_a_transformer_is_not_priced_for_a_network(tmp_path):
    path = tmp_path / "plan.json"
    assert solver("--model", "bert-base", *HERE, "--system", "single", "--out", path, "--json").returncode == 0

    done = solver("--price", path, "--model", "resnet18", *HERE)

    assert (done.returncode, done.stdout) == (2, "")
    assert "this is the plan of an encoder, bert-base: here a convnet's is needed" in done.stderr


def test_a_network_that_no_name_says_needs_its_file(plan, tmp_path):
    other = tmp_path / "other.json"
    table = json.loads(plan.read_text())
    other.write_text(json.dumps({**table, "model": {"name": "mine"}}))

    done = solver("--price", other, *HERE)

    assert done.returncode == 2
    assert f"{other}: mine is no network known by name: say --model NET.h5" in done.stderr


def test_an_onnx_file_is_planned_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    net, tensors = random_net(np.random.default_rng(3))
    onnx.save(to_onnx(net, tensors), tmp_path / "net.onnx")

    done = solver("--model", tmp_path / "net.onnx", *HERE, "--json")

    assert done.returncode == 0
    assert json.loads(done.stdout)["kind"] == "convnet"


def test_coedge_saves_energy_before_a_deadline(tmp_path):
    """The slow board draws a tenth: with more time it gets more rows."""
    boards = tmp_path / "boards.toml"
    boards.write_text(
        'format = "hepti-cluster/1"\n[network]\nbandwidth_mbps = 940\n'
        + "".join(
            f'[[device]]\nname = "{name}"\ngflops = {speed}\nmemory_gib = 4\ncompute_watts = {watts}\n'
            for name, speed, watts in (("fast", 60, 40), ("slow", 20, 1))
        )
    )
    rows = []
    for deadline in (80, 200):
        done = solver(
            "--model", "resnet18", "--cluster", boards, "--system", "coedge", "--deadline-ms", deadline, "--json"
        )
        assert done.returncode == 0, done.stderr
        table = json.loads(done.stdout)
        assert table["predicted"]["seconds"] < 1.3 * deadline / 1e3
        rows.append(table["per_device"][1]["image_rows"])

    assert rows[0] < rows[1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--deadline-ms", 80], "--deadline-ms is for least energy by --system coedge"),
        (["--system", "coedge", "--deadline-ms", 0], "--deadline-ms is 0, must be above 0"),
        (["--system", "coedge", "--deadline-ms", 80], "needs compute_watts of the devices in the cluster file"),
    ],
)
def test_a_deadline_that_means_nothing(arguments, complaint):
    done = solver("--model", "resnet18", *HERE, *arguments)

    assert done.returncode == 2
    assert complaint in done.stderr
