"""Whatever a published system plans for a convolutional network is legal, and gives the right result."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.base.errors import InfeasiblePlanError
from solver.cluster.nodes import NodeSpeeds
from solver.model.operators import WorkKind
from solver.plan.plan import Wire
from solver.systems.convnets import SYSTEMS, plan_network
from tests.kit import refused
from tests.kit.chains import boards, chain
from tests.kit.convnets import emulate, plan_of, random_net
from tests.sweeps import count


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

    with pytest.raises(InfeasiblePlanError, match="MiB on pi-"):
        plan_network(system, net, cluster)


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
