"""The planning command line where the model is a convolutional network."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from solver.cli import main
from solver.cluster.cluster import write_cluster
from tests.kit import inside, planned_once
from tests.kit.clusters import pis
from tests.kit.convnet_reference import to_onnx
from tests.kit.convnets import random_net
from weights.file.networks import write_network
from weights.networks_zoo import zoo_network

HERE = ("--cluster", "mixed4")


def solver(*arguments):
    return inside.run(main, *arguments)


@pytest.fixture(scope="module", autouse=True)
def _planned_once():
    with planned_once.shared():
        yield


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert solver("--model", "resnet18", *HERE, "--out", path, "--json").returncode == 0
    return path


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
    assert (table["stages"][0]["runs"][0]["nodes"][0], table["system"]) == (0, "single")


def test_steps_map_and_picture_are_of_a_plan_that_is_there(plan, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    picture = tmp_path / "rows.svg"

    steps = json.loads(solver("--price", plan, *HERE, "--schedule", "pi-1", "--json").stdout)["steps"]
    shown = solver("--price", plan, *HERE, "--map", "--plot", picture)

    assert steps[0]["moves"] == "pixels"
    assert "0 pi-0, 1 pi-1" in shown.stdout
    assert f"The picture is in {picture}.\n" in shown.stdout
    assert "<svg" in picture.read_text()


def test_shares_that_come_to_nothing_are_told(tmp_path):
    runs = [{"nodes": [0, 49], "cut": "rows", "rows": [2, 1, 0, 0]}]
    table = {"format": "hepti-plan/2", "model": {"name": "resnet18"}, "devices": [f"pi-{rank}" for rank in range(4)]}
    (tmp_path / "plan.json").write_text(json.dumps(table | {"stages": [{"runs": runs}]}))

    done = solver("--price", tmp_path / "plan.json", *HERE)

    assert done.stderr == f"note: {tmp_path}/plan.json: nodes [0, 49], cut rows: 1 row for 2 devices: pi-1 gets none\n"


def test_explained_a_plan_says_what_every_board_does_with_the_time(plan):
    out = solver("--price", plan, *HERE, "--explain").stdout
    table = json.loads(solver("--price", plan, *HERE, "--explain", "--json").stdout)

    assert "where the milliseconds go" in out
    assert "few" in out
    assert all(device["part_s"] >= 0 for device in table["per_device"])


def test_an_onnx_file_is_planned_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    net, tensors = random_net(np.random.default_rng(3))
    onnx.save(to_onnx(net, tensors), tmp_path / "net.onnx")

    done = solver("--model", tmp_path / "net.onnx", *HERE, "--json")

    assert done.returncode == 0
    assert json.loads(done.stdout)["stages"][0]["runs"][0]["nodes"][0] == 0


def test_coedge_saves_energy_before_a_deadline(tmp_path):
    """The slow board draws a tenth: with more time it gets more rows."""
    boards = tmp_path / "boards.toml"
    write_cluster(pis(60, 20).with_device(0, compute_watts=40).with_device(1, compute_watts=1), boards)
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


@pytest.mark.parametrize("words", [["--objective", "throughput"], ["--system", "hepti-throughput"]])
def test_a_picture_of_a_networks_plan_for_throughput_is_refused_at_once(words, tmp_path, monkeypatch):
    """Nothing is planned: the planner may not even be called."""
    monkeypatch.setattr("solver.network_cli.solve_replicas", None)
    picture = tmp_path / "plan.svg"

    done = solver("--model", "resnet50", *HERE, *words, "--plot", picture)

    assert (done.returncode, done.stdout) == (2, "")
    assert "--plot" in done.stderr
    assert not picture.exists()
