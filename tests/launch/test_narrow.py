"""In 80 columns the tables of the doctor, the lab and the benchmarks are readable: each is kept as it is."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from launch.bench import network_papers, offload, paper_command, shift_command
from launch.bench.paper import Point
from launch.compare.show import print_comparison
from launch.doctor import command as doctor_command
from launch.doctor.findings import HostAnswer, examine
from launch.lab import command as lab_command
from launch.lab.lab import plan_lab
from solver.cluster.named import find_cluster
from tests.kit import narrow, stages
from tests.kit.chains import chain
from tests.launch.bench import test_network_papers, test_offload, test_paper
from tests.launch.compare import test_compare, test_networks
from tests.launch.doctor.test_doctor import WORKS, answer

LONG = "raspberrypi-kitchen"
OF = {"model": "bert-large", "layers": 4, "rows": 256, "cluster": "mixed4", "lab_scale": 0.5, "mbps": [940.2, 240.0]}
STRATEGIES = ("static-equal", "static-proportional", "static-hepti", "live-hepti", "oracle")


def check(name, capsys):
    narrow.check(Path(__file__).with_suffix(".txt"), name, capsys.readouterr().out)


@pytest.fixture(autouse=True)
def in_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(narrow.WIDTH))


def test_hosts_with_long_names_and_what_the_doctor_finds(capsys):
    wlan = {"name": "wlan0", "running": True, "address": "192.168.178.1", "prefix": 24}
    hosts = [
        replace(answer("pi-0"), host=f"{LONG}-0.local", kernels=WORKS),
        replace(answer("pi-1", python="3.9.2", more_interfaces=[wlan]), host=f"{LONG}-1.local", kernels=WORKS),
        HostAnswer(f"{LONG}-2.local", False, error="Connection timed out"),
    ]

    doctor_command.show_findings("hosts of pis", hosts, examine(hosts))

    check("doctor", capsys)


def test_a_lab(capsys, monkeypatch):
    lab = plan_lab("mixed4", find_cluster("mixed4"))
    hosts = [replace(host, core_flop_per_s=92e9) for host in lab.hosts]
    lab = replace(lab, hosts=(replace(hosts[0], cpu=0.25), replace(hosts[1], connected=False), *hosts[2:]))
    monkeypatch.setattr(lab_command, "load_lab", lambda name: lab)
    monkeypatch.setattr(lab_command.lab_up, "usage", lambda _: [{"processes": 3, "memory_used_gib": 0.25}] * 4)

    lab_command._status(Namespace(lab="mixed4", json=False))

    check("lab status", capsys)


def test_a_comparison_and_one_of_networks(capsys, tmp_path):
    (tmp_path / "a").mkdir()
    print_comparison(test_compare.compared(stages.Pretended(fails=("torch",)), tmp_path / "a")[0])
    check("bench compare", capsys)
    (tmp_path / "b").mkdir()
    print_comparison(test_networks.compared(stages.PretendedNetworks(), tmp_path / "b"))
    check("bench compare, network", capsys)


def test_strategies(capsys):
    results = [
        {"system": name, "latency_s": [0.3] * 5, "total_s": 1.5 + number / 10, "replans": [{"taken": True}] * number}
        for number, name in enumerate(STRATEGIES)
    ]
    phases = [{"name": "calm", "requests": 4}, {"name": "competitor", "requests": 1}]

    shift_command.print_tables({**OF, "results": results, "phases": phases})

    check("bench shift", capsys)


def test_figures_of_papers(capsys, tmp_path):
    places = [(mbps, hosts) for mbps in (940, 240) for hosts in (2, 3)]
    measured = [Point("latency", "odd", "bert-base", mbps, hosts) for mbps, hosts in places]
    report, _ = test_paper.run(measured, tmp_path)

    paper_command.print_tables({**report, "runs": 1, "repeat": 2})

    check("bench paper", capsys)


def test_figures_of_networks(capsys, tmp_path):
    found, *_ = test_network_papers.measured(tmp_path)
    small = chain(("conv", 64), ("conv", 64), size=24)
    curve = network_papers.energy_curve(small, "its devices", network_papers.assumed_cluster())

    network_papers.print_network_tables({**found, "energy": [curve]}, 1, 2)

    check("bench paper, networks", capsys)


def test_offloading(capsys):
    found = test_offload.results(dict.fromkeys(offload.CONDITIONS, 50))
    report = {"cluster": "paper2", "lab_scale": 1, "runs": 3, "results": found, "best": offload.best_shares(found)}

    offload.print_tables(report)

    check("bench offload", capsys)
