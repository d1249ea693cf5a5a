"""Any network is measured and planned for, however few rows its maps have, and computes the same by that plan."""

from dataclasses import replace

import numpy as np
import pytest

from hepti_mpi.comm.group import world
from hepti_mpi.measure import profile_network as measured
from hepti_mpi.measure import timing
from hepti_mpi.measure.profile_network import profile_network
from solver.cluster.cluster import Cluster, read_cluster, write_cluster
from solver.cluster.nodes import MOST_ENTERING_S
from solver.model.operators import in_levels
from solver.plan.plan import Wire
from solver.programs.convnets.planner import solve_network
from solver.systems.convnets import SYSTEMS
from tests import sweeps
from tests.kit import convnet_reference
from tests.kit.convnets import Builder, emulate, plan_of, random_net

SLOWER = (1.0, 0.7, 1.4)  # of three boards


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(timing, "LEAST_S", 0.005)
    monkeypatch.setattr(timing, "MOST_S", 0.01)


def three_of(cluster):
    """Return three boards, one as it was measured, and others slower and faster."""
    (own,) = cluster.devices
    devices = (replace(own, name=f"pi-{number}", nodes=own.nodes.slowed(by)) for number, by in enumerate(SLOWER))
    return Cluster(tuple(devices), cluster.network)


def check(net, tensors, tmp_path):
    """Measure, keep what was measured, plan for one board and for three, and compare with one session."""
    cluster = profile_network(net, world())
    write_cluster(cluster, tmp_path / "cluster.toml")
    assert read_cluster(tmp_path / "cluster.toml").fingerprint == cluster.fingerprint
    pixels = np.random.default_rng(1).integers(0, 256, net.shapes[net.input], np.uint8)
    expected = convnet_reference.compute(net, tensors, pixels.astype(np.float32) / np.float32(255))
    for boards in (cluster, three_of(cluster)):
        plan = solve_network(net, boards)
        plan.check(net, len(boards.devices))
        assert 0 < plan.predicted.seconds < 1
        found = emulate(net, tensors, plan, pixels)
        for name, values in zip(net.outputs, expected, strict=True):
            assert np.abs(found[name].reshape(-1) - values.reshape(-1)).max() <= 1e-4 * (np.abs(values).max() + 1e-6)


@pytest.mark.parametrize("seed", sweeps.seeds(8, 300))
def test_random_networks_of_few_rows(seed, tmp_path):
    rng = np.random.default_rng(seed)
    net, tensors = random_net(rng, most=6, verbatim=True, height=int(rng.integers(1, 9)))

    check(in_levels(net), tensors, tmp_path)


def chain(height, *windows, ends=()):
    """Return convolutions of (kernel, stride) one after the other, and what ends them."""
    build = Builder(np.random.default_rng(0), height=height, width=height)
    value = "x"
    for kernel, stride in windows:
        channels, rows, _ = build.shapes[value]
        size = (rows - kernel) // stride + 1
        window = {
            "kernel_shape": [kernel] * 2,
            "strides": [stride] * 2,
            "dilations": [1, 1],
            "pads": [0] * 4,
            "group": 1,
        }
        value = build.add(
            "Conv", [value, build.tensor(6, channels, kernel, kernel, scale=0.2)], (6, size, size), **window
        )
    for op in ends:
        shape = build.shapes[value]
        if op == "Gemm":
            value = build.add(op, [value, build.tensor(4, *shape), build.tensor(4)], (4,))
        else:
            value = build.add(
                op, [value], {"GlobalAveragePool": (6, 1, 1), "Flatten": (int(np.prod(shape)),)}.get(op, shape)
            )
    return build.net([value]), build.tensors


@pytest.mark.parametrize(
    ("height", "windows", "ends"),
    [
        (28, [(5, 2), (5, 2)], ("Relu", "Flatten", "Gemm")),  # maps of 12 and 4 rows, as LeNet's
        (32, [(8, 8)], ("GlobalAveragePool", "Flatten")),  # of 4
        (12, [(3, 1)], ("GlobalAveragePool", "Flatten", "Gemm")),
        (4, [(2, 2)], ("Relu",)),  # of 2
        (5, [(5, 1), (1, 1)], ("Relu", "Flatten", "Gemm")),  # of one pixel
        (1, [(1, 1), (1, 1)], ()),
        (6, [], ("Flatten", "Gemm")),  # no rows are shared out at all
    ],
)
def test_maps_of_few_rows(tmp_path, height, windows, ends):
    check(*chain(height, *windows, ends=ends), tmp_path)


def test_what_a_busy_host_measures_is_read_back(tmp_path, monkeypatch):
    """Of parts of the network that took 10 ms each, since others had the core, and 1 ms together."""
    net, _ = chain(28, (5, 2), (5, 2), ends=("Relu", "Flatten", "Gemm"))
    others = 2 + len(measured.ELEMENTS)
    monkeypatch.setattr(
        measured, "seconds_of",
        lambda calls, _: ([0.01] * (len(calls) - others) + [1e-3] * min(len(calls), others), 1.0),
    )  # fmt: skip

    cluster = profile_network(net, world())

    assert cluster.devices[0].nodes.entering_s == MOST_ENTERING_S
    write_cluster(cluster, tmp_path / "cluster.toml")
    assert read_cluster(tmp_path / "cluster.toml").fingerprint == cluster.fingerprint


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_plans_a_map_of_one_row(system):
    net, tensors = chain(5, (3, 2), (2, 1), ends=("Relu", "Flatten", "Gemm"))
    boards = three_of(profile_network(net, world()))

    plan = SYSTEMS[system](net, boards, Wire.FLOAT32)

    pixels = np.random.default_rng(1).integers(0, 256, net.shapes[net.input], np.uint8)
    expected = emulate(net, tensors, plan_of(net, [(len(net.nodes), "rows", (1.0,))], 1), pixels)
    for name, values in emulate(net, tensors, plan, pixels).items():
        assert np.allclose(values, expected[name], atol=1e-5)
