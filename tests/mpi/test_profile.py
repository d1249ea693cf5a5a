"""A profile describes every rank, fits the planner, and survives its file."""

from hepti_mpi import profile as measure
from hepti_mpi.memory import free_bytes
from hepti_mpi.products import NUMPY
from solver.cluster import read_cluster, write_cluster
from solver.curves import Kernel
from solver.model import ModelSpec, TextInput
from solver.systems import make_plan

SPEC = ModelSpec("small", hidden=64, ffn=256, heads=4, layers=2, input=TextInput(50, 128, 128))


def test_a_profile_describes_every_rank(world, monkeypatch, tmp_path):
    """Names, speeds, memory, links and all curves; the same on all ranks."""
    monkeypatch.setattr(measure, "WINDOW_S", 0.001)

    cluster = measure.profile(SPEC, world, "numpy")

    assert len(set(cluster.names)) == world.size
    assert len(set(world.on_all(lambda: cluster.fingerprint))) == 1
    assert all(0 < device.memory_bytes <= 2 * free_bytes() for device in cluster.devices)
    assert all(device.curves is not None and set(device.curves.kernels) == set(Kernel) for device in cluster.devices)
    assert cluster.network.bandwidth_bytes_per_s > 1e6
    path = tmp_path / "cluster.toml"
    write_cluster(cluster, path)
    assert read_cluster(path).fingerprint == cluster.fingerprint
    plan = make_plan("rows", SPEC, cluster, 32)
    plan.check(SPEC, world.size)
    assert plan.predicted.seconds > 0


def test_more_work_takes_longer(world, monkeypatch):
    """The curve of a product grows with the rows and with the weights."""
    monkeypatch.setattr(measure, "WINDOW_S", 0.01)

    seconds = measure.measure_kernels(SPEC, NUMPY).kernels[Kernel.PROJECT].seconds

    assert 0 < seconds[1][-1] < seconds[-1][-1]  # 2 and 256 rows
    assert 0 < seconds[-1][0] < seconds[-1][-1]  # one head's weights and the MLP's


def test_a_profile_is_for_these_hosts_and_this_shape(world):
    """Another shape of layer, or another backend, has another fingerprint."""
    wide = ModelSpec("wide", hidden=128, ffn=256, heads=4, layers=2, input=SPEC.input)

    found = [measure.fingerprint(SPEC, world, "numpy") for _ in range(2)]

    assert found[0] == found[1]
    assert found[0] != measure.fingerprint(wide, world, "numpy")
    assert found[0] != measure.fingerprint(SPEC, world, "onnxruntime")
