"""Weights that several nodes of a graph have in common are held, and counted, once."""

import numpy as np
import pytest

from solver.base.spans import Span
from solver.model.operators import LARGE_PRODUCT
from solver.schedule.networks.segment_steps import run_bytes, weights_of
from tests.kit.convnets import Builder, emulate, plan_of

WIDTH, STEPS = 12, 5


def unrolled(width=WIDTH):
    """Return a network that multiplies by the same matrix again and again."""
    build = Builder(np.random.default_rng(0), channels=width, height=1, width=1)
    value = build.add("Flatten", ["x"], (width,))
    weight, bias = build.tensor(width, width, scale=width**-0.5), build.tensor(width)
    for _ in range(STEPS):
        value = build.add("Tanh", [build.add("Gemm", [value, weight, bias], (width,))], (width,))
    return build.net([value]), build.tensors


def test_they_count_once():
    net, tensors = unrolled()
    once = sum(array.nbytes for array in tensors.values())

    assert run_bytes(net, Span(0, len(net.nodes))) == once
    assert weights_of(net, plan_of(net, [(len(net.nodes), "rows", (1.0,))], 1)) == [once]


def test_every_segment_has_its_own():
    """Each is a graph of its own, by which ranks may have different parts."""
    net, tensors = unrolled()
    once = sum(array.nbytes for array in tensors.values())

    assert weights_of(net, plan_of(net, [(stop, "rows", (1.0,)) for stop in (5, len(net.nodes))], 1)) == [2 * once]
    halves = weights_of(net, plan_of(net, [(2, "channels", (0.5, 0.5)), (len(net.nodes), "rows", (1.0, 0.0))], 2))
    assert halves == [once // 2 + once, once // 2]


def test_a_graph_reads_them_once(monkeypatch):
    net, tensors = unrolled()
    read = []

    def reader(own):
        return lambda piece: read.append(piece.name) or own[piece.name]

    monkeypatch.setattr("tests.kit.convnets.reader", reader)

    emulate(net, tensors, plan_of(net, [(len(net.nodes), "rows", (1.0,))], 1), np.zeros(net.shapes["x"], np.uint8))

    assert sorted(read) == sorted(tensors)


@pytest.mark.parametrize("width", [2048, 2049])
def test_large_products_have_graphs_of_their_own(width):
    """Several compute one of them, each some columns: then nodes have nothing in common."""
    build = Builder(np.random.default_rng(0), channels=width, height=1, width=1)
    value = build.add("Flatten", ["x"], (width,))
    build.tensors["w"] = np.broadcast_to(np.float32(0), (width, width))
    for _ in range(2):
        value = build.add("Gemm", [value, "w"], (width,))
    net = build.net([value])

    copies = 1 if width * width <= LARGE_PRODUCT else 2
    assert weights_of(net, plan_of(net, [(len(net.nodes), "rows", (1.0,))], 1)) == [4 * copies * width * width]
