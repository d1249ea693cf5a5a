"""What the picture of a network's plan shows."""

import pytest

pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")

from solver.cluster.named import find_cluster
from solver.show import network_pictures
from solver.show.network_facts import priced_network
from tests.kit.clusters import pis
from tests.kit.convnets import equal_segments
from tests.kit.figures import check_readable, drawn_by, legend
from weights.networks_zoo import zoo_network


@pytest.fixture(scope="module")
def net():
    return zoo_network("resnet18", size=64)[0]


def picture(monkeypatch, tmp_path, net, cluster, stops):
    drawn = drawn_by(monkeypatch, network_pictures)
    priced = priced_network(net, cluster, equal_segments(net, cluster, stops))
    network_pictures.plot_segments(priced, tmp_path / "rows.svg", "who has which rows")
    (figure,) = drawn
    check_readable(figure)
    (axes,) = figure.axes
    return figure, axes, priced


@pytest.mark.parametrize("stops", [(), (11, 25), tuple(range(1, 40))])
def test_every_segment_says_what_it_is_and_takes_where_there_is_room(stops, net, monkeypatch, tmp_path):
    figure, axes, priced = picture(monkeypatch, tmp_path, net, find_cluster("mixed4"), stops)

    assert figure.get_suptitle() == "who has which rows"
    assert axes.get_xlim() == (-0.5, len(stops) + 0.5)
    names = [label.get_text() for label in axes.get_xticklabels()]
    if len(stops) < network_pictures.MOST_NAMED:
        assert names[0].startswith("conv1\n")
        compute_ms = 1e3 * float(priced.steps[0].times.compute.max())
        assert f"\n{compute_ms:.1f} + " in names[0]
        assert not any("-0." in name for name in names)
    else:
        assert axes.get_xlabel() == "segment"


def test_every_boards_rows_are_a_bar_from_its_first_row_on(net, monkeypatch, tmp_path):
    """Four equal shares of the first segment, the last one whole on rank 0."""
    figure, axes, _ = picture(monkeypatch, tmp_path, net, find_cluster("mixed4"), (11,))

    own = [bar for bar in axes.patches if bar.get_height() and bar.get_alpha() is None]
    assert [(bar.get_y(), bar.get_height()) for bar in own] == [(number / 4, 1 / 4) for number in range(4)] + [(0, 1)]
    assert len({bar.get_facecolor() for bar in own}) == 4
    assert legend(figure) == ["pi-0", "pi-1", "pi-2", "pi-3", "needs of what was before"]


def test_boards_without_a_share_are_named(net, monkeypatch, tmp_path):
    figure, _, _ = picture(monkeypatch, tmp_path, net, pis(10, 20, 30), ())

    assert legend(figure) == ["pi-0", "no share: pi-1, pi-2", "needs of what was before"]


def test_of_many_boards_the_picture_says_how_many_it_draws(net, monkeypatch, tmp_path):
    _, axes, _ = picture(monkeypatch, tmp_path, net, pis(*[10] * 40), (1,))

    assert axes.get_xlabel().endswith("32 of 40 boards are drawn")
