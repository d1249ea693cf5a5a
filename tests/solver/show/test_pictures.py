"""What pictures of plans show."""

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")

from solver.cluster.named import find_cluster
from solver.model.named import named_model
from solver.schedule.encoders.stages import price_plan
from solver.show import pictures
from solver.show.comparison import Won
from solver.systems import make_plan
from tests.kit.clusters import pis
from tests.kit.figures import check_readable, drawn_by, legend, words

ROWS = 128
TIMES = "\N{MULTIPLICATION SIGN}"


def timeline(monkeypatch, tmp_path, cluster, system="hepti", layers=6):
    """Return the figure, its axes and the price of a plan."""
    drawn = drawn_by(monkeypatch, pictures)
    spec = named_model("bert-base", layers=layers)
    priced = price_plan(spec, cluster, make_plan(system, spec, cluster, ROWS), ROWS)
    steps, seconds = pictures.request_drawn(priced), priced.prediction.seconds
    pictures.plot_timeline(cluster, steps, seconds, tmp_path / "t.svg", "who does what\nand when")
    (figure,) = drawn
    (axes,) = figure.axes
    return figure, axes, priced


def lengths(axes, row):
    """Return the ms of a row by what is done."""
    found = dict.fromkeys(pictures.DONE, 0.0)
    from matplotlib.colors import to_hex

    colours = {style["color"]: name for name, style in pictures.DONE.items()}
    for bar in axes.patches:
        if round(bar.get_y() + bar.get_height() / 2, 6) == row and bar.get_width():
            found[colours[to_hex(bar.get_facecolor())]] += bar.get_width()
    return found


def test_a_timeline_is_as_long_as_what_it_draws_and_says_of_what(monkeypatch, tmp_path):
    """Of six layers that are alike one, which is not the first."""
    figure, axes, priced = timeline(monkeypatch, tmp_path, find_cluster("pi4x4"))

    steps = priced.in_one.steps
    ends_ms = [1e3 * float(step.times.end.max()) for step in steps if step.layers in ("start", "end")]
    one_ms = sum(1e3 * float(step.times.end.max()) for step in steps if step.repeats >= 5)
    assert axes.get_xlim() == pytest.approx((0, sum(ends_ms) + one_ms))
    drawn, every = sum(ends_ms) + one_ms, 1e3 * priced.prediction.seconds
    once_ms = sum(1e3 * float(step.times.end.max()) for step in steps if step.repeats == 1) - sum(ends_ms)
    assert axes.get_xlabel().startswith(f"ms: {drawn:.0f} of the {every:.0f} ")
    assert axes.get_xlabel().endswith(f" {pictures.in_ms(once_ms)} of the first")
    assert any(word.startswith("layers 0-5: ") and word.endswith(f" ms {TIMES} 6") for word in words(figure))
    assert figure.get_suptitle() == "who does what\nand when"
    assert legend(figure) == ["computes", "waits for the wire", "idle"]
    check_readable(figure)


def test_a_timeline_names_blocks(monkeypatch, tmp_path):
    figure, _, _ = timeline(monkeypatch, tmp_path, find_cluster("pi4x4"), "megatron")

    assert {"hand out", "attention: reduce", "mlp: reduce", "hand in"} <= words(figure)


def test_a_timeline_draws_what_every_board_computes_and_how_long_it_waits(monkeypatch, tmp_path):
    figure, axes, priced = timeline(monkeypatch, tmp_path, find_cluster("pi4x4"), "pipeedge")

    assert [label.get_text() for label in axes.get_yticklabels()] == ["pi-0", "pi-1", "pi-2", "pi-3"]
    steps = list(priced.fastest.steps)
    for rank in range(4):
        own_s = sum(step.times.compute[ranks.index(rank)] for ranks, step in steps if rank in ranks)
        own_s += priced.embed_s * (rank == 0)
        assert lengths(axes, rank)["computes"] == pytest.approx(1e3 * own_s)
    assert axes.get_xlim()[1] == pytest.approx(1e3 * priced.prediction.seconds)
    assert axes.get_xlabel() == "ms"
    check_readable(figure)


def test_a_board_without_a_share_is_there_and_idle(monkeypatch, tmp_path):
    figure, axes, _ = timeline(monkeypatch, tmp_path, pis(50, 50, 0.1), "hepti", layers=2)

    assert [label.get_text() for label in axes.get_yticklabels()] == ["pi-0", "pi-1", "pi-2: no share"]
    assert lengths(axes, 2) == {"computes": 0, "waits for the wire": 0, "idle": axes.get_xlim()[1]}
    check_readable(figure)


def test_of_many_boards_those_are_drawn_that_compute_most(monkeypatch, tmp_path):
    figure, axes, _ = timeline(monkeypatch, tmp_path, pis(50, *[0.01] * 8, *[50] * 31), "sequence-weighted")

    assert [label.get_text() for label in axes.get_yticklabels()] == ["pi-0", *(f"pi-{n}" for n in range(9, 40))]
    assert axes.get_xlabel().endswith("32 of 40 boards are drawn")
    check_readable(figure)


def test_names_stand_beside_each_other_where_steps_are_short():
    places = pictures.apart([0.5, 0.5, 0.5, 1.0, 1.0], 0.1)

    assert places == pytest.approx([0.5, 0.6, 0.7, 0.9, 1.0])
    assert pictures.apart([], 0.1) == []


def test_the_map_is_darker_the_faster_the_winner_is_than_a_board_alone(monkeypatch, tmp_path):
    drawn = drawn_by(monkeypatch, pictures)
    found = [
        [Won("hepti", 0.124, 1.5), Won("", 0.0, 0.0)],
        [Won("single:pi-1", np.inf, 1.0), Won("hepti", 0.004, np.inf)],
    ]

    pictures.plot_winners(found, [10, 940], ["half", "all"], tmp_path / "map.svg", "who")

    (figure,) = drawn
    axes, bar = figure.axes
    cells = {text.get_text() for text in axes.texts}
    assert cells == {
        f"hepti\n1.50 {TIMES}\n12 %",
        "nothing fits",
        f"single:pi-1\n1.00 {TIMES}\nno other fits",
        "hepti\nno board alone\na tie",
    }
    shades = axes.images[0].get_array().filled(np.nan)
    assert shades == pytest.approx(np.array([[1.5, np.nan], [1.0, np.nan]]), nan_ok=True)
    assert bar.get_ylabel().startswith("times as fast as ")
    assert {"10", "940", "half", "all", "who"} <= words(figure)
    check_readable(figure)


def test_words_on_the_map_stand_out_from_their_ground(monkeypatch, tmp_path):
    """At least 4.5 to 1, as the web's guidelines ask of text."""
    drawn = drawn_by(monkeypatch, pictures)
    times = np.linspace(1, 3, 21).tolist()

    pictures.plot_winners([[Won("hepti", 0.1, each) for each in times]], times, ["all"], tmp_path / "m.svg", "")

    from matplotlib.colors import to_rgb

    image = drawn[0].axes[0].images[0]
    for each, text in zip(times, drawn[0].axes[0].texts, strict=True):
        ground, ink = (luminance(rgb) for rgb in (image.cmap(image.norm(each))[:3], to_rgb(text.get_color())))
        assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) >= 4.5, each


def luminance(rgb):
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))
