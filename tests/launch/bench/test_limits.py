"""How near we are to limits, on hosts of which nothing is real: what is measured, what a bar is, and going on."""

import argparse
import json
from contextlib import contextmanager

import pytest

from launch.bench import limits
from launch.bench.limits import ALL, ITS_OWN, SESSION, Bar, LimitPart, bench_limits, print_limits, ratios
from launch.compare.entrants import SINGLE
from solver.base.errors import HeptiError
from solver.cluster.named import find_cluster
from tests.kit.stages import Pretended


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Return what measures parts, and tells how often what was started."""

    def measure(*parts, out=None, runs=2, **changes):
        pretended = Pretended(**changes)
        kept = []

        @contextmanager
        def stages(cluster):
            yield lambda point, memory: pretended.stage

        monkeypatch.setattr(limits, "NAMES", {part.name: part for part in parts})
        options = argparse.Namespace(layers=2, runs=runs, repeat=2, warmup=1, out=out)
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        report = bench_limits(parts, options, folder, lambda report: kept.append(json.dumps(report)), stages)
        if out is not None and kept:
            (out / "limits.json").write_text(kept[-1])
        return report, pretended.ran

    return measure


def part(*bars, cluster="mixed4", **facts):
    return LimitPart(cluster, 940, bars, **facts)


def test_the_parts_are_of_clusters_that_there_are():
    assert len({each.name for each in limits.PARTS}) == len(limits.PARTS)
    for each in limits.PARTS:
        find_cluster(each.cluster)
        assert all((bar.least is None) != (bar.most is None) for bar in each.bars)


def test_a_ratio_is_of_medians_of_rounds(measure):
    """Every program that is started takes a tenth of a second more than the last, onnxruntime 0.06 s everywhere."""
    bars = (Bar(SINGLE, "float32", least=1.5), Bar(SESSION, "", least=0.99), Bar(ALL, "float32", most=9.0))
    report, ran = measure(part(*bars))
    for row in report["parts"][part(*bars).name]["results"]:
        if row["system"] == SINGLE:
            for rank, compute_s in zip(row["per_rank"], (0.01, 1.0, 0.0), strict=True):
                rank["compute_s"] = compute_s
    single, session, bound = ratios(report)

    assert [word for word in ran if word in ("hepti", "single")] == ["hepti", "single"] * 2
    row = next(row for row in report["parts"][part(*bars).name]["results"] if row["system"] == "hepti")
    first, _, second, _ = row["seconds"]
    one, two = first + 0.005, second + 0.005
    assert single.ratio[1] == pytest.approx(((one + 0.1) / one + (two + 0.1) / two) / 2)
    assert session.ratio[1] == pytest.approx((0.06 / (one + 0.1) + 0.06 / (two + 0.1)) / 2)
    assert bound.ratio[1] == pytest.approx((one + two) / 2 / row["compute_bound_s"])
    assert [found.met for found in (single, session)] == [single.ratio[1] >= 1.5, False]


def test_its_own_bound_is_that_of_devices_with_a_share(measure):
    report, _ = measure(part(Bar(ITS_OWN, "float32", most=1.0), Bar(ALL, "float32", most=1.0)))
    (compared,) = report["parts"].values()
    compared["results"][0]["per_rank"][2]["compute_s"] = 0.0
    own, whole = ratios(report)

    speeds = [device["gflops"] for device in compared["device"]]
    assert whole.ratio[1] / own.ratio[1] == pytest.approx(sum(speeds) / sum(speeds[:2]))


def test_who_is_absent_meets_no_bar(measure, capsys):
    report, _ = measure(part(Bar(SINGLE, "float32", least=0.0)), fails=("single",))
    (found,) = ratios(report)

    assert found.ratio is None
    assert not found.met
    print_limits(report)
    assert "absent" in capsys.readouterr().out


def test_a_part_that_is_there_is_not_measured_again(measure, tmp_path, kept):
    first, second = part(Bar(ALL, "float32", most=1.2)), part(Bar(ALL, "float32", most=1.3), precision="int8")
    out = tmp_path / "out"
    out.mkdir()
    report, _ = measure(first, out=out)
    again, ran = measure(first, second, out=out)

    assert again["parts"][first.name] == json.loads(json.dumps(report["parts"][first.name]))
    assert len(ran) == 2
    assert [found.part.name for found in ratios(again)] == [first.name, second.name]
    with pytest.raises(HeptiError) as caught:
        measure(first, out=out, runs=3)
    kept(caught.value)
    (out / "limits.json").write_text("{")
    with pytest.raises(HeptiError, match="cannot go on with"):
        measure(first, out=out)


def test_the_table_fits_a_terminal(measure, capsys):
    report, _ = measure(part(Bar(ALL, "float16", most=1.15), Bar(SINGLE, "float16", least=1.5)))
    print_limits(report)
    lines = capsys.readouterr().out.splitlines()

    assert max(len(line) for line in lines if "│" in line) <= 80
    assert any("≤ 1.15" in line for line in lines)
