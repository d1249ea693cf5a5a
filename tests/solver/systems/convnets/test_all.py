"""Whatever a published system plans for a convolutional network is legal, and gives the right result."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import PROGRAM_BYTES
from solver.cluster.nodes import NodeSpeeds
from solver.model.operators import WorkKind
from solver.plan.plan import Wire
from solver.schedule.networks.memory import lacking, memory_of
from solver.systems.convnets import SYSTEMS, plan_network
from tests.kit import refused
from tests.kit.chains import boards, chain
from tests.kit.clusters import pis
from tests.kit.convnets import emulate, plan_of, random_net
from tests.sweeps import count, seeds
from weights.networks_zoo import zoo_network


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=count(6, 200), deadline=None)
@given(seed=st.integers(0, 2**32), speeds=st.lists(st.sampled_from([2e4, 5e5, 1e6, 4e6]), min_size=1, max_size=5))
def test_any_network_comes_out_right(system, seed, speeds):
    """Nearly all of several boards are used: compute is slow beside the network, and a call takes no time."""
    rng = np.random.default_rng(seed)
    net, tensors = random_net(rng)
    pixels = rng.integers(0, 256, net.shapes["x"], dtype=np.uint8)
    cluster = boards(*[1.0] * len(speeds), mbps=1000.0, latency_us=10.0)
    for rank, speed in enumerate(speeds):
        cluster = cluster.with_device(rank, nodes=NodeSpeeds(dict.fromkeys(WorkKind, speed), 0.0))

    plan = plan_network(system, net, cluster)

    plan.check(net, len(speeds))
    assert (plan.system, plan.devices) == (system, cluster.names)
    assert plan.predicted.seconds > 0
    whole = emulate(net, tensors, plan_of(net, [(len(net.nodes), "rows", [1.0])], 1), pixels)
    for value, found in emulate(net, tensors, plan, pixels).items():
        np.testing.assert_allclose(found, whole[value], rtol=0, atol=1e-5 * max(np.abs(whole[value]).max(), 1e-6))


@pytest.mark.parametrize("system", SYSTEMS)
def test_too_little_memory_is_refused_by_name(system):
    net = chain(("conv", 8), ("flatten",), ("gemm", 50_000))
    cluster = boards(1.0, 1.0)
    cluster = cluster.with_device(0, memory_bytes=2**28).with_device(1, memory_bytes=2**28)

    with pytest.raises(InfeasiblePlanError, match="MiB more on pi-"):
        plan_network(system, net, cluster)


@pytest.mark.slow("plans by all systems")
@pytest.mark.parametrize("seed", seeds(2, 30))
def test_where_no_board_holds_a_network_it_is_shared_out_and_hepti_is_never_behind(seed):
    """Of published systems only that which shares out channels fits at all; all are held against it."""
    rng = np.random.default_rng(seed)
    net, _ = zoo_network(str(rng.choice(["resnet18", "vgg16"])))
    count = int(rng.integers(2, 4))
    cluster = pis(*rng.choice([10, 25, 60], count), mbps=float(rng.choice([100, 300, 940])), memory_gib=8)
    needed = max(memory_of(net, plan_network("single", net, cluster)))
    for rank, part in enumerate(rng.uniform(1.3, 2.0, count) / count):
        cluster = cluster.with_device(rank, memory_bytes=PROGRAM_BYTES + int(min(part, 0.95) * needed))

    plan = plan_network("hepti", net, cluster)

    assert not lacking(net, cluster, plan)
    assert len(plan.active) > 1
    for system in SYSTEMS:
        with suppress(InfeasiblePlanError):
            assert plan.predicted_s <= 1.001 * plan_network(system, net, cluster).predicted_s


def test_a_system_that_is_misspelt_is_named(kept):
    kept(refused.said(plan_network, [("modn", chain(("conv", 2)), boards(1.0))]))


def test_single_takes_the_device_that_has_the_result_first():
    """Rank 1 computes twice as fast; the image to it takes a second on a slow link."""
    net = chain(("conv", 64), ("conv", 64), size=24)

    assert plan_network("single", net, boards(1.0, 2.0, mbps=1000.0)).segments[0].active == (1,)
    assert plan_network("single", net, boards(1.0, 2.0, mbps=0.01)).segments[0].active == (0,)


def test_a_device_named_has_all(kept):
    plan = plan_network("single:pi-1", chain(("conv", 2)), boards(1.0, 2.0, 3.0), Wire.FLOAT16)

    assert (plan.system, plan.wire, plan.segments[0].active) == ("single:pi-1", Wire.FLOAT16, (1,))
    kept(refused.said(plan_network, [("single:pi-3", chain(("conv", 2)), boards(1.0))]))
