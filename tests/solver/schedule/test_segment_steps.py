"""What a network's plan costs, against sums made by hand: chains of steps, messages, who waits for whom."""

import numpy as np
import pytest

from solver.base.spans import Span
from solver.cluster.cluster import Cluster, Device, Link
from solver.cluster.curves import Curve, Kernel, derived_curves
from solver.cluster.nodes import NodeCurve, NodeSpeeds
from solver.model.convnet import ConvNet, Node
from solver.model.operators import WorkKind, signature
from solver.plan.segments import Segment, SegmentCut, SegmentPlan
from solver.schedule.networks.memory import memory_of
from solver.schedule.networks.segment_steps import net_setting, network_turns, price_segments, weights_of

from dataclasses import replace  # isort: skip

WINDOW = {"kernel_shape": [3, 3], "strides": [1, 1], "dilations": [1, 1], "pads": [1, 1, 1, 1], "group": 1}
NOTHING_S = 1e-12


def chain():
    """Return two convolutions 3 by 3, of 3 to 4 to 4 channels, 8 rows by 5 columns."""
    shapes = {"x": (3, 8, 5), "a": (4, 8, 5), "b": (4, 8, 5)}
    nodes = (Node("one", "Conv", ("x", "v"), "a", WINDOW), Node("two", "Conv", ("a", "w"), "b", WINDOW))
    return ConvNet("chain", "x", ("b",), nodes, shapes, {"v": (4, 3, 3, 3), "w": (4, 4, 3, 3)})


def cluster_of(net, row_s, bandwidth, latency_s):
    """Return devices that take so many seconds for a row of either node, and nothing for calls, copies and messages."""
    free = Curve((0.0, 1.0), (0.0, 1.0), ((NOTHING_S, NOTHING_S), (NOTHING_S, NOTHING_S)))
    kernels = {**derived_curves(1e9).kernels, Kernel.ADD: free, Kernel.MESSAGE: free}
    devices = []
    for number, seconds in enumerate(row_s):
        curves = {signature(net, node): NodeCurve((1.0, 8.0), (seconds, 8 * seconds)) for node in net.nodes}
        nodes = NodeSpeeds(dict.fromkeys(WorkKind, 1e9), 0.0, curves)
        device = Device(f"pi-{number}", 1e9, 1 << 30, curves=replace(derived_curves(1e9), kernels=kernels), nodes=nodes)
        devices.append(device)
    return Cluster(tuple(devices), Link(bandwidth, latency_s))


def copying(cluster, number_s):
    """Return the cluster with devices that copy a number in so many seconds."""
    curve = Curve((0.0, 1e6), (0.0, 1.0), ((NOTHING_S, NOTHING_S), (1e6 * number_s, 1e6 * number_s)))

    def slow(device):
        return replace(device, curves=replace(device.curves, kernels={**device.curves.kernels, Kernel.ADD: curve}))

    return replace(cluster, devices=tuple(map(slow, cluster.devices)))


def plan_of(net, *segments):
    start, parts = 0, []
    for stop, shares, *edges in segments:
        parts.append(Segment(Span(start, stop), SegmentCut.ROWS, shares, *edges))
        start = stop
    return SegmentPlan(tuple(parts), tuple(f"pi-{rank}" for rank in range(len(segments[0][1]))), net.name)


def test_alone_is_the_sum_of_its_nodes():
    net = chain()
    cluster = cluster_of(net, [1e-3], 1e6, 1e-3)

    price = price_segments(net_setting(net, cluster), plan_of(net, (2, (1.0,))))

    assert price.seconds == pytest.approx(16e-3)


def test_two_devices_and_a_halo():
    """The image's five rows go to the second, 75 bytes; a row goes each way between the two; three rows come back."""
    net, bandwidth, latency_s = chain(), 1e5, 2e-3
    cluster = cluster_of(net, [1e-3, 1e-3], bandwidth, latency_s)
    image_s, halo_s, back_s = (latency_s + size / bandwidth for size in (5 * 5 * 3, 4 * 5 * 4, 4 * 4 * 5 * 4))

    price = price_segments(net_setting(net, cluster), plan_of(net, (1, (0.5, 0.5)), (2, (0.5, 0.5))))

    # The second begins later by the image, and goes on when the first's halo has come; then it hands in its rows.
    assert price.seconds == pytest.approx(max(image_s + 4e-3, 4e-3 + halo_s) + 4e-3 + back_s, rel=1e-6)
    sent = sum(step.sent for step in price.steps)
    np.testing.assert_array_equal(sent, [75 + 80, 80 + 320])
    wire_s = [step.times.exchange for step in price.steps]
    np.testing.assert_allclose(wire_s, [[0, image_s], [halo_s, halo_s], [back_s, 0]])
    assert price.compute_s + price.exchange_s + price.idle_s == pytest.approx([price.seconds] * 2)


def test_edges_first_hide_the_halo():
    """The slower network's halo is on its way while the rest is computed."""
    net = chain()
    cluster = cluster_of(net, [1e-3, 1e-3], 4e4, 1e-4)
    s = net_setting(net, cluster)

    late = price_segments(s, plan_of(net, (1, (0.5, 0.5)), (2, (0.5, 0.5)))).seconds
    early = price_segments(s, plan_of(net, (1, (0.5, 0.5), True), (2, (0.5, 0.5)))).seconds

    # The first waits for the second's halo, of 80 bytes: 2 ms and the latency. Of four rows it comes after one.
    assert late - early == pytest.approx(0, abs=2.2e-3)
    assert early <= late


def test_fusing_computes_rows_twice_and_sends_nothing():
    net = chain()
    cluster = cluster_of(net, [1e-3, 1e-3], 1e9, 0.0)

    price = price_segments(net_setting(net, cluster), plan_of(net, (2, (0.5, 0.5))))

    assert price.seconds == pytest.approx(9e-3, rel=1e-3)  # five rows of the first, four of the second
    assert sum(step.sent.sum() for step in price.steps[1:]) == 320


@pytest.mark.parametrize(
    ("kernel", "shares", "copied"),
    [
        (1, (0.5, 0.5), 3 * 4 * 5),  # the second's half of the image, which comes from the first
        (1, (1.0, 0.0), 0),  # the image lies where it is needed
        (3, (0.5, 0.5), 3 * 5 * 5 + 4 * 5 * 5),  # and a row more; then four rows of its own and one that comes
    ],
)
def test_what_lies_where_it_is_needed_is_not_copied(kernel, shares, copied):
    net, number_s = chain(), 1e-5
    window = WINDOW | ({} if kernel == 3 else {"kernel_shape": [1, 1], "pads": [0, 0, 0, 0]})
    net = replace(net, nodes=tuple(replace(node, attributes=window) for node in net.nodes))
    cluster, plan = cluster_of(net, [1e-3, 1e-3], 1e12, 0.0), plan_of(net, (1, shares), (2, shares))

    free, slow = (network_turns(net_setting(net, own), plan) for own in (cluster, copying(cluster, number_s)))

    last = 1 if shares[1] else 0
    more_s = sum((slow[n].computed[0] - free[n].computed[0])[:, last].sum() for n in range(2))
    assert more_s == pytest.approx(number_s * copied, abs=1e-8)


def test_weights_and_memory():
    net = chain()
    plan = plan_of(net, (1, (0.5, 0.5)), (2, (1.0, 0.0)))

    assert weights_of(net, plan) == [4 * (108 + 144), 4 * 108]
    # It needs 5 rows of the image, in bytes, leaves 4; the first needs 8 rows then, leaves 8; the largest node within.
    assert memory_of(net, plan)[1] == 4 * (108 + -(-5 * 15 // 4) + 4 * 20 + 4 * 20)
