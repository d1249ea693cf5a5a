"""What nodes of a convolutional network take: measured points, kinds of work, and their place in the cluster file."""

from dataclasses import replace

import numpy as np
import pytest

from solver.cluster.cluster import Cluster, Device, Link, read_cluster, write_cluster
from solver.cluster.nodes import (
    NodeCurve,
    NodeSpeeds,
    derived_speeds,
    mean_speeds,
    speeds_from_table,
    speeds_to_table,
)
from solver.model.convnet import ConvNet, Node
from solver.model.operators import WorkKind, flop, kind_of, signature
from solver.schedule.networks.segment_steps import net_setting, plan_seconds
from tests.kit import refused
from tests.kit.chains import chain
from tests.kit.convnets import plan_of

WINDOW = {"kernel_shape": [3, 3], "strides": [1, 1], "dilations": [1, 1], "pads": [1, 1, 1, 1]}


def conv(group):
    """Return a network of one convolution of 8 channels, 10 rows by 6 columns."""
    shapes = {"x": (8, 10, 6), "y": (8, 10, 6)}
    nodes = (Node("conv", "Conv", ("x", "w"), "y", {**WINDOW, "group": group}),)
    return ConvNet("one", "x", ("y",), nodes, shapes, {"w": (8, 8 // group, 3, 3)})


def facts(net):
    """Return what a table of the convolution's seconds depends on."""
    (node,) = net.nodes
    return signature(net, node), kind_of(net, node), flop(net, node), 10


def speeds_of(net, rows, seconds):
    curves = {signature(net, net.nodes[0]): NodeCurve(rows, seconds)}
    return NodeSpeeds(dict.fromkeys(WorkKind, 1e9), 1e-4, curves, entering_s=3e-9)


def test_seconds_lie_on_lines_between_what_was_measured():
    net = conv(1)

    table = speeds_of(net, (2.0, 4.0, 8.0), (3e-3, 5e-3, 9e-3)).table(*facts(net))

    np.testing.assert_allclose(table, [0, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 7e-3, 8e-3, 9e-3, 10e-3, 11e-3])


def test_more_rows_never_take_less():
    net = conv(1)

    table = speeds_of(net, (2.0, 4.0, 8.0), (3e-3, 2e-3, 9e-3)).table(*facts(net))

    assert (np.diff(table) >= 0).all()


@pytest.mark.parametrize(("group", "work", "slower"), [(1, 2 * 8 * 9 * 480, 1 / 1.4), (8, 2 * 9 * 480, 6 / 1.4)])
def test_what_was_not_measured_goes_by_flop_and_kind(group, work, slower):
    """8 × 10 × 6 outputs of 9 inputs in each of the channels that one needs, at 1.4 times the speed of a MatMul.

    Depthwise at a sixth of that; and a slab of one row takes as long as 1.7 of all 10.7.
    """
    net = conv(group)

    table = derived_speeds(1e9).table(*facts(net))

    assert table[[0, 1, -1]] == pytest.approx(slower * work / 1e9 * np.array([0, 1.7 / (table.size - 0.3), 1]))


def test_a_cluster_file_keeps_them(tmp_path):
    net = conv(1)
    measured = speeds_of(net, (2.0, 4.0), (3e-3, 5e-3))
    cluster = Cluster((Device("a", 1e9, 1 << 30, nodes=measured), Device("b", 1e9, 1 << 30)), Link(1e7, 1e-4))

    write_cluster(cluster, tmp_path / "cluster.toml")
    found = read_cluster(tmp_path / "cluster.toml")

    assert found.devices[0].nodes == measured
    assert found.devices[1].nodes is None


def test_no_curve_is_refused(kept):
    cases = [
        ((1.0,), (1.0, 2.0)),
        ((2.0, 2.0), (1.0, 1.0)),
        ((1.0,), (-1.0,)),
    ]

    kept(refused.said(NodeCurve, cases))


def test_a_missing_kind_is_named(tmp_path, kept):
    path = tmp_path / "cluster.toml"
    write_cluster(Cluster((Device("a", 1e9, 1 << 30, nodes=derived_speeds(1e9)),), Link(1e7, 1e-4)), path)
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("depthwise")))

    kept(refused.said(read_cluster, [path]))


def test_the_mean_of_two_devices():
    net = conv(1)
    one, other = (speeds_of(net, (2.0, 4.0), seconds) for seconds in ((1e-3, 2e-3), (3e-3, 4e-3)))

    mean = mean_speeds([one, other])

    assert mean.curves[signature(net, net.nodes[0])].seconds == pytest.approx((2e-3, 3e-3))


def test_what_enters_a_graph_is_slowed_like_all_else():
    one, other = speeds_of(conv(1), (2.0,), (0.2,)), derived_speeds(1e9)

    assert one.slowed(2.0).entering_s == pytest.approx(6e-9)
    assert other.entering_s == pytest.approx(1e-7)


def test_every_graph_pays_for_what_enters_it():
    """The image of 300 pixels, and as many numbers between the two."""
    chained = chain(("relu",), ("relu",), size=10, channels=3)
    speeds = NodeSpeeds(dict.fromkeys(WorkKind, 1e9), 1e-4, entering_s=1e-6)
    cluster = Cluster((Device("pi-0", 1e9, 1 << 30, nodes=speeds),), Link(1e9, 0.0))
    free = Cluster((Device("pi-0", 1e9, 1 << 30, nodes=replace(speeds, entering_s=0.0)),), Link(1e9, 0.0))
    plan = plan_of(chained, [(1, "rows", [1.0]), (2, "rows", [1.0])], 1)

    more_s = plan_seconds(net_setting(chained, cluster), plan) - plan_seconds(net_setting(chained, free), plan)

    assert more_s == pytest.approx(2 * 300 * 1e-6)


def test_an_absurd_price_is_refused(kept):
    cases = [
        -1.0,
        1e4,
    ]

    kept(
        refused.said(
            lambda wrong: speeds_from_table(speeds_to_table(derived_speeds(1e9)) | {"entering_ns": wrong}), cases
        )
    )
