"""A profile for a convolutional network: the same on all ranks, of every node, and good to plan for."""

import numpy as np
import pytest

from hepti_mpi.kernels.backends import of_all
from hepti_mpi.measure import timing
from hepti_mpi.measure.profile_network import network_fingerprint, profile_network
from solver.cluster.cluster import read_cluster, write_cluster
from solver.model.operators import in_levels, row_part, signature
from solver.programs.convnets.planner import solve_network
from tests.kit.convnets import random_net


@pytest.mark.parametrize("elsewhere", ["onnxruntime", "numpy"])
def test_a_network_is_profiled_and_planned(elsewhere, world, tmp_path, monkeypatch):
    """Each rank by its own backend; rank 0 by onnxruntime."""
    monkeypatch.setattr(timing, "LEAST_S", 0.002)
    monkeypatch.setattr(timing, "MOST_S", 0.01)
    net = in_levels(random_net(np.random.default_rng(5), most=12)[0])
    names = ["onnxruntime", *[elsewhere] * (world.size - 1)]

    cluster = profile_network(net, world, names[world.rank])

    assert cluster.profile["backend"] == of_all(names)
    assert len(set(world.on_all(lambda: cluster.fingerprint))) == 1
    for device in cluster.devices:
        assert device.nodes is not None
        measured = {signature(net, node) for node in net.nodes[: row_part(net)]}
        assert measured <= set(device.nodes.curves)
        assert device.nodes.session_s > 0
    path = tmp_path / "cluster.toml"
    write_cluster(cluster, path)
    assert read_cluster(path).fingerprint == cluster.fingerprint
    plan = solve_network(net, cluster)
    plan.check(net, world.size)
    assert plan.predicted is not None
    assert plan.predicted.seconds > 0


def test_a_profile_is_kept_by_network_and_backend(world):
    networks = [random_net(np.random.default_rng(seed))[0] for seed in (5, 6)]
    found = [network_fingerprint(net, world) for net in networks]
    found.append(network_fingerprint(networks[0], world, "numpy"))

    assert len(set(found)) == 3
    assert found[0] == network_fingerprint(networks[0], world)
