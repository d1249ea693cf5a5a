"""What the papers show of convolutional networks, on stages of which nothing is real, and planned."""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.bench import network_papers, paper_command
from launch.bench.network_papers import (
    EDGELD_SYSTEMS,
    assumed_cluster,
    bench_edgeld,
    draw_network_pictures,
    edgeld_cells,
    edgeld_points,
    energy_cells,
    energy_curve,
    print_network_tables,
)
from launch.compare.model import BenchNetwork
from solver.base.errors import HeptiError
from tests.kit import inside
from tests.kit.chains import boards, chain
from tests.kit.stages import NET
from tests.kit.stages import PretendedNetworks as Pretended
from tests.launch.compare.test_networks import CONTEST

SMALL = chain(("conv", 64), ("conv", 64), size=24)


def measured(folder, fails=()):
    limits, kept = [], []

    @contextmanager
    def stages(cluster):
        def under(point, memory):
            limits.append((cluster, point.mbps, point.hosts, memory))
            if (point.mbps, point.hosts) == (100.0, 4):
                raise HeptiError("a host is gone")
            return Pretended({"single": 0.3, "coedge": 0.1}, fails).stage

        yield under

    contest = replace(CONTEST, systems=EDGELD_SYSTEMS, runs=1)
    keep = lambda found: kept.append(json.dumps(found))
    found = bench_edgeld(BenchNetwork(Path("/net.h5"), NET), contest, folder, lambda line: None, keep, stages)
    return found, limits, kept


@pytest.fixture(scope="module")
def all_found(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("edgeld"))


def test_every_point_is_a_comparison_of_splits_with_one_board(all_found):
    found, limits, kept = all_found

    assert limits == [("pi4x4", mbps, hosts, None) for mbps in (1000.0, 100.0) for hosts in (2, 3, 4)]
    assert len(kept) == len(edgeld_points()) == 6
    assert json.loads(kept[-1]) == json.loads(json.dumps(found))
    assert {row["system"] for row in found["results"]} == set(EDGELD_SYSTEMS)
    assert not any("seconds" in row for row in found["results"])
    assert [(row["mbps"], row["hosts"], row["why"]) for row in found["absent"]] == [(100.0, 4, "a host is gone")]


def test_the_table_has_what_was_published_beside_what_was_found(tmp_path):
    found, *_ = measured(tmp_path, fails=("modnn",))
    columns, rows = edgeld_cells(found["results"])

    assert columns == ["system", "Mbps", "2 boards", "3 boards", "4 boards"]
    assert all(len(row) == len(columns) for row in rows)
    coedge = "3.00 (3.00-3.00)"
    assert ["coedge", "1000", coedge, coedge, coedge] in rows
    assert ["coedge", "100", coedge, coedge, "-"] in rows
    assert ["EdgeLD, published", "1000", "1.77", "2.79", "3.57"] in rows
    assert ["MoDNN, by EdgeLD's reading", "1000", "1.53", "1.67", "2.03"] in rows
    assert "single" not in {row[0] for row in rows}
    assert "modnn" not in {row[0] for row in rows}


def test_energy_falls_as_deadlines_come_later():
    """The fast board draws most: it gets less and less, until a second more saves nothing."""
    cluster = boards(0.05, 0.1, 0.2, mbps=80.0).with_device(0, compute_watts=1.0)
    cluster = cluster.with_device(1, compute_watts=2.5).with_device(2, compute_watts=20.0)

    curve = energy_curve(SMALL, "three", cluster)

    first, *others = curve["points"]
    assert first["deadline_s"] is None
    assert first["saved"] == 0
    assert len(others) >= 3
    assert all(point["seconds"] <= point["deadline_s"] + 1e-9 for point in others)
    joules = [point["joules"] for point in curve["points"]]
    assert joules == sorted(joules, reverse=True)
    assert others[-1]["joules_per_s"] == pytest.approx(0, abs=1e-9)
    assert all(point["joules_per_s"] > 0 for point in others[:-1])
    columns, rows = energy_cells(curve)
    assert columns[-3:] == ["pi-0", "pi-1", "pi-2"]
    assert all(len(row) == len(columns) for row in rows)


def test_assumed_devices_declare_what_they_draw():
    assert all(device.compute_watts and device.transmit_watts for device in assumed_cluster().devices)


def test_tables_and_pictures_are_of_what_was_asked_for(all_found, tmp_path, capsys):
    found, *_ = all_found
    energy = [energy_curve(SMALL, "its devices", assumed_cluster())]
    print_network_tables({}, 1, 2)
    assert capsys.readouterr().out == ""
    print_network_tables({"energy": energy}, 1, 2)
    shown = capsys.readouterr().out
    assert "chain by CoEdge on its devices" in shown
    assert "boards" not in shown
    print_network_tables(found, 1, 2)
    assert "1 round of 2 requests" in capsys.readouterr().out
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    draw_network_pictures({**found, "energy": energy}, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["paper-coedge-energy.png", "paper-edgeld.png"]


def test_energy_is_planned_without_a_lab_or_a_transformer(tmp_path, monkeypatch):
    def ran(*_):
        raise AssertionError("something was started")

    for name in ("require_tools", "bench_model", "check_model"):
        monkeypatch.setattr(paper_command, name, ran)
    monkeypatch.setattr(network_papers, "lab_under", ran)
    monkeypatch.setattr(paper_command, "bench_network", lambda word, layers: BenchNetwork(Path("/net.h5"), SMALL))
    done = inside.run(main, "bench", "paper", "--figures", "coedge-energy", "--out", tmp_path / "out", "--json")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["results"] == []
    assert len(report["networks"]["energy"]) == 3
    assert json.loads((tmp_path / "out" / "paper.json").read_text()) == report
