"""Random convolutional networks, cut at random over one to eight ranks, equal one session of the whole network."""

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hepti_mpi.base.memory import freed_at_once
from hepti_mpi.kernels import slab
from hepti_mpi.kernels.slab import Shared, Slab
from solver.model.convnet import ConvNet, Node, Picture
from solver.schedule.networks import memory
from solver.schedule.networks.pieces import pieces_of, tile_pieces
from solver.schedule.networks.steps import unrolled
from tests.kit.chains import chain
from tests.kit.convnet_reference import to_onnx
from tests.kit.convnets import Builder, emulate, plan_of, random_net, random_plan
from tests.sweeps import count, seeds


def whole_session(net, tensors, pixels):
    """Return the outputs of the whole network in one session, of pixels / 255."""
    session = onnxruntime.InferenceSession(to_onnx(net, tensors).SerializeToString())
    found = session.run(list(net.outputs), {net.input: pixels[None].astype(np.float32) / np.float32(255)})
    return dict(zip(net.outputs, (array[0] for array in found), strict=True))


def assert_equal(outputs, whole):
    """Errors of each output are at most 1e-5 of its largest number."""
    for value, array in whole.items():
        np.testing.assert_allclose(outputs[value], array, rtol=0, atol=1e-5 * max(np.abs(array).max(), 1e-6))


@pytest.mark.slow("4000 networks in make test-all")
@pytest.mark.timeout(1200)
@settings(max_examples=count(60, 4000), deadline=None)
@given(seed=st.integers(0, 2**32), ranks=st.integers(1, 8))
def test_random_networks(seed, ranks):
    rng = np.random.default_rng(seed)
    net, tensors = random_net(rng, verbatim=seed % 3 == 0)
    pixels = rng.integers(0, 256, net.shapes["x"], dtype=np.uint8)

    outputs = emulate(net, tensors, random_plan(net, rng, ranks), pixels)

    assert_equal(outputs, whole_session(net, tensors, pixels))


def test_pixels_are_scaled_then_shifted_then_divided():
    picture = Picture(mean=(0.5, 0.25, 0.125), std=(0.5, 2.0, 4.0), scale=1 / 128)
    build = Builder(np.random.default_rng(0), height=5, width=4)
    net = replace(build.net([build.add("Relu", ["x"], (3, 5, 4))]), picture=picture)
    pixels = build.rng.integers(0, 256, (3, 5, 4), np.uint8)

    (found,) = emulate(net, {}, plan_of(net, [(1, "rows", [1.0])], 1), pixels).values()

    mean, std = (np.array(of)[:, None, None] for of in (picture.mean, picture.std))
    assert np.allclose(found, np.maximum((pixels / 128 - mean) / std, 0), atol=1e-6)


@pytest.mark.slow("2000 networks in make test-all")
@pytest.mark.timeout(1200)
@settings(max_examples=count(40, 2000), deadline=None)
@given(seed=st.integers(0, 2**32), ranks=st.integers(1, 5))
def test_random_networks_by_tiles(seed, ranks):
    rng = np.random.default_rng(seed)
    net, tensors = random_net(rng)
    pixels = rng.integers(0, 256, net.shapes["x"], dtype=np.uint8)

    outputs = emulate(net, tensors, random_plan(net, rng, ranks, tiles=True), pixels)

    assert_equal(outputs, whole_session(net, tensors, pixels))


@pytest.mark.parametrize("seed", seeds(12, 60))
def test_products_that_several_sessions_compute(seed, monkeypatch):
    monkeypatch.setattr(memory, "LARGE_PRODUCT", 24)
    rng = np.random.default_rng(seed)
    net, tensors = products(rng) if seed % 3 else random_net(rng)
    pixels = rng.integers(0, 256, net.shapes["x"], dtype=np.uint8)

    outputs = emulate(net, tensors, random_plan(net, rng, 1 + seed % 5), pixels)

    assert_equal(outputs, whole_session(net, tensors, pixels))


def products(rng):
    """Return a network of products one after the other, one of which is an output, too, and its tensors."""
    build = Builder(rng)
    count = int(np.prod(build.shapes["x"]))
    value = build.add("Flatten", ["x"], (count,))
    outputs = []
    for width in rng.integers(1, 30, 3).tolist():
        weight = build.tensor(width, count, scale=count**-0.5)
        outputs.append(build.add("Gemm", [value, weight, build.tensor(width)], (width,)))
        value, count = build.add("Relu", [outputs[-1]], (width,)), width
    return build.net([outputs[int(rng.integers(2))], value]), build.tensors


def test_a_large_product_takes_little_more_memory_while_it_is_made():
    """Of 128 MiB: as read, as the session has them, and as they are laid out, they would be 384."""
    # In a process of its own: this one's free memory, and other tests' threads, have a say, too.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        more = process.submit(made_large).result()

    assert 128 << 20 <= more <= 192 << 20


def made_large():
    """Make a product of 128 MiB; return how much more memory that took at most."""
    net = chain(("flatten",), ("gemm", 2048), size=64, channels=4)
    (shares,) = unrolled(net, plan_of(net, [(2, "channels", [1.0])], 1))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, with what there is
    before = peak_bytes()

    with freed_at_once():
        made = Slab(net, *pieces_of(shares, 0))
        made.bind({graph.key: graph.made(slab.session, read_anew) for graph in made.graphs})

    assert made.leaves.keys() == {"gemm1"}
    return peak_bytes() - before


def read_anew(piece):
    """Return a slice of any tensor, as a new array."""
    return np.ones(piece.shape, np.float32)


def peak_bytes():
    """Return the most that this process had in memory."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def test_tiles_of_one_shape_within_the_image_share_a_session():
    """Of 5 × 5 tiles of 8 × 8 pixels corners and edges pad otherwise: nine graphs, of the same weights."""
    net = chain(("conv", 4), ("relu",), ("conv", 4), size=40)
    plan = plan_of(net, [(3, "tiles", [1.0], False, (5, 5))], 1)
    (shares,) = unrolled(net, plan)
    shared = Shared(in_place=True)

    graphs = [graph for tile in tile_pieces(shares) for graph in Slab(net, tile, shared).graphs]

    assert len({graph.key for graph in graphs}) == 9
    assert {piece for graph in graphs for piece in graph.slices} == {*graphs[0].slices}


@pytest.mark.parametrize("grid", [(2, 2), (3, 3), (2, 3)])
def test_zeros_in_the_place_of_neighbours_strips_would_be_seen(grid):
    """The comparison with random networks by tiles can fail."""
    rng = np.random.default_rng(0)
    net = chain(("conv", 4), ("relu",), ("pool",), ("conv", 4), ("relu",), ("conv", 2), size=20)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in net.tensors.items()}
    pixels = rng.integers(1, 256, net.shapes["x"], dtype=np.uint8)
    plan = plan_of(net, [(6, "tiles", [0.5, 0.5], False, grid, False, True)], 2)
    whole = whole_session(net, tensors, pixels)

    assert_equal(emulate(net, tensors, plan, pixels), whole)
    with pytest.raises(AssertionError):
        assert_equal(emulate(net, tensors, plan, pixels, with_neighbours=False), whole)


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_zeros_in_the_place_of_neighbours_rows_would_be_seen(seed):
    """The comparison above can fail."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    window = {"kernel_shape": [3, 3], "strides": [1, 1], "dilations": [1, 1], "pads": [1, 1, 1, 1], "group": 1}
    nodes = (Node("conv", "Conv", ("x", "w"), "y", window),)
    net = ConvNet("one", "x", ("y",), nodes, {"x": (3, 8, 8), "y": (4, 8, 8)}, {"w": weight.shape})
    pixels = rng.integers(1, 256, (3, 8, 8), dtype=np.uint8)
    plan = plan_of(net, [(1, "rows", [0.5, 0.5])], 2)
    whole = whole_session(net, {"w": weight}, pixels)

    assert_equal(emulate(net, {"w": weight}, plan, pixels), whole)
    with pytest.raises(AssertionError):
        assert_equal(emulate(net, {"w": weight}, plan, pixels, with_neighbours=False), whole)
