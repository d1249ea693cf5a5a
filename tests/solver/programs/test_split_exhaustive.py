"""The planner against every plan of small networks, by a search of its own (`every_split`)."""

import numpy as np
import pytest

from solver.model.convnet import ConvNet, Node
from solver.model.operators import in_levels
from solver.programs.convnets.every_plan import parts_of_rows
from solver.programs.convnets.planner import solve_network
from solver.schedule.networks.segment_steps import net_setting
from tests.kit.clusters import pis
from tests.solver.programs.every_split import least_seconds
from tests.sweeps import ALL, seeds
from weights.networks_zoo import zoo_network


def instance(seed):
    """Return a random network of up to 8 nodes with work enough to share out, and 2 or 3 devices."""
    rng = np.random.default_rng(seed)
    count, height, width = int(rng.integers(3, 8)), int(rng.integers(4, 8)), int(rng.choice([32, 128]))
    channels = int(rng.choice([64, 128]))
    shapes, tensors, nodes = {"x": (3, height, width)}, {}, []
    values = ["x"]
    for number in range(count):
        value, out = (
            values[-1 if rng.random() < 0.7 else int(rng.integers(max(0, len(values) - 3), len(values)))],
            f"v{number}",
        )
        alike = [other for other in values if other != value and shapes[other] == shapes[value] and value != "x"]
        kind = rng.choice(["conv", "conv", "point", "depth", "add"])
        shape = (channels, *shapes[value][1:])
        if kind == "add" and alike:
            nodes.append(Node(out, "Add", (value, alike[-1]), out))
        else:
            kernel, group = (1 if kind == "point" else 3), (channels if kind == "depth" and value != "x" else 1)
            pad = kernel // 2
            window = {
                "kernel_shape": [kernel] * 2, "strides": [1, 1], "dilations": [1, 1], "pads": [pad] * 4, "group": group,
            }  # fmt: skip
            tensors[f"w{number}"] = (channels, shapes[value][0] // group, kernel, kernel)
            nodes.append(Node(out, "Conv", (value, f"w{number}"), out, window))
        shapes[out] = shape
        values.append(out)
    if rng.random() < 0.5:
        shapes["pooled"] = (channels, 1, 1)
        nodes.append(Node("pooled", "GlobalAveragePool", (values[-1],), "pooled"))
        values.append("pooled")
    used = {name for node in nodes for name in node.inputs}
    outputs = tuple(value for value in values[1:] if value not in used)
    net = in_levels(ConvNet(f"net-{seed}", "x", outputs, tuple(nodes), shapes, tensors))
    devices = int(rng.integers(2, 4))
    speeds = rng.choice([5.0, 10.0, 24.6], devices) * rng.uniform(0.9, 1.1, devices)
    return net, pis(*speeds, mbps=rng.choice([80, 240, 940]), latency_us=rng.choice([50, 200]))


@pytest.mark.parametrize(
    "seed", [1, 4, 102, 112, 123, 143, *(5, 7, 105, 106, 108, 113, 119, 138, 146) * ALL, *seeds(0, 30)]
)
def test_no_plan_of_a_small_network_is_faster(seed):
    net, cluster = instance(seed)

    plan = solve_network(net, cluster)

    assert plan.predicted is not None
    best = least_seconds(net_setting(net, cluster), plan.predicted.seconds)
    assert plan.predicted.seconds <= (1 + 1e-6) * best


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenetv2"])
def test_of_a_real_network_not_all_plans_are_tried_however_few_boards_there_are(name):
    net, _ = zoo_network(name)

    assert [parts_of_rows(net_setting(net, pis(*[25] * devices))) for devices in (2, 3, 4)] == [0, 0, 0]
    assert parts_of_rows(net_setting(*instance(1))) > 1
