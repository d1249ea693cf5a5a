"""The offloading figures as data."""

import pytest

from launch.base import plot
from launch.bench.offload import CONDITIONS, best_shares, curve_of, draw_picture
from tests.kit.figures import check_readable, drawn_by


def results(best):
    """Curves with their lowest point at `best` percent, in all three ways."""
    return [
        {
            "figure": "share",
            "system": system,
            "bandwidth_mbps": condition.bandwidth_mbps,
            "cpu": condition.cpu,
            "percent": percent,
            "median_s": 0.1 + abs(percent - best[condition]) / 1e3,
        }
        for condition in CONDITIONS
        for system in ("offload:waits", "offload:overlaps", "offload:tiles")
        for percent in range(100, -1, -10)
    ]


def test_the_published_shares_are_those_of_the_four_conditions():
    assert [condition.published_percent for condition in CONDITIONS] == [90, 50, 70, 30]


def test_the_best_share_of_every_curve_is_found():
    best = dict(zip(CONDITIONS, (80, 40, 70, 30), strict=True))
    found = best_shares(results(best))

    assert [entry["percent"] for entry in found] == [80] * 3 + [40] * 3 + [70] * 3 + [30] * 3
    assert found[0]["local_s"] == pytest.approx(0.18)


def test_curves_rise_by_share():
    curve = curve_of(results(dict.fromkeys(CONDITIONS, 50)), CONDITIONS[1], "waits")

    assert [entry["percent"] for entry in curve] == list(range(0, 101, 10))


def test_both_figures_are_drawn_in_two_rows(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    drawn = drawn_by(monkeypatch, plot)
    by_rows = [
        {
            "figure": "rows",
            "system": "offload:waits",
            "rows": rows,
            "percent": percent,
            "median_s": rows * (100 - percent),
        }
        for percent in (0, 90)
        for rows in (16, 256)
    ]
    report = {
        "suite": "offload",
        "cluster": "paper2",
        "lab_scale": 1,
        "runs": 3,
        "results": results(dict.fromkeys(CONDITIONS, 50)) + by_rows,
    }

    draw_picture(report, tmp_path, tmp_path)

    (figure,) = drawn
    assert [len([*axes.lines]) for axes in figure.axes] == [2, 8, 8, 8]  # with the published lowest points
    assert [line.get_xdata().tolist() for line in figure.axes[0].lines] == [[16, 256]] * 2
    check_readable(figure)
