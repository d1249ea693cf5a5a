"""What a walk says is needed is what changes the result, found by changing every pixel of the image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from solver.base.spans import Span
from solver.model.convnet import ConvNet, MapBox, Node
from solver.model.operators import WorkKind, flop, kind_of, parts_between
from solver.schedule.networks.pieces import walk_back
from tests import sweeps
from tests.kit import convnet_reference
from tests.kit.convnets import out_length, random_net

FEW, MANY = 30, 1500
EXACT = ("Conv", "MaxPool", "AveragePool", "Pad", "Slice", "Concat", "Relu", "GlobalAveragePool", "Add")


def dependence(net, tensors, base, change):
    """Return [pixels of the image, pixels of the first output] bool: which of them changes which."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    model = convnet_reference.to_onnx(net, tensors)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    image = np.full((1, *net.shapes[net.input]), base, np.float32)
    before = session.run([net.outputs[0]], {net.input: image})[0]
    found = []
    for place in range(image.size):
        image.flat[place] += change
        found.append(session.run([net.outputs[0]], {net.input: image})[0] != before)
        image.flat[place] = base
    return np.array(found).reshape(*net.shapes[net.input], *net.shapes[net.outputs[0]])


def hull(mask):
    """Return the smallest box of what is true in [C, H, W]; None where nothing is."""
    places = np.argwhere(mask)
    if not len(places):
        return None
    return MapBox(*(Span(int(low), int(high) + 1) for low, high in zip(places.min(0), places.max(0), strict=True)))


def truly_needed(matrix, box):
    wanted = matrix[(..., *(span.slice for span in box.spans))]
    return hull(wanted.any((3, 4, 5)))


@st.composite
def boxes(draw, shape):
    """Draw a box of a value that is not empty."""
    spans = []
    for length in shape:
        start = draw(st.integers(0, length - 1))
        spans.append(Span(start, draw(st.integers(start + 1, length))))
    return MapBox(*spans)


def windows(draw, op, channels, sides):
    """Draw a convolution or pool; return its attributes, the shape that it makes and that of its weight."""
    kernel, strides, dilations = ([draw(st.integers(1, most)) for _ in range(2)] for most in (4, 3, 2))
    if op == "AveragePool":
        dilations = [1, 1]
    pads = [draw(st.integers(0, kernel[axis % 2] - 1)) for axis in range(4)]  # a pool has no more of it than pixels
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    leaving = []
    for axis, side in enumerate(sides):
        reach, ends = (kernel[axis] - 1) * dilations[axis] + 1, (pads[axis], pads[axis + 2])
        if op == "ConvTranspose":
            leaving.append((side - 1) * strides[axis] + reach - sum(ends))
        else:
            leaving.append(out_length(side, kernel[axis], strides[axis], dilations[axis], *ends))
    assume(min(leaving) > 0)
    if op in ("MaxPool", "AveragePool"):
        return attributes, (channels, *leaving), None
    group, each = draw(st.sampled_from([1, channels])), draw(st.integers(1, 2))
    first = (channels, each) if op == "ConvTranspose" else (group * each, channels // group)
    return {**attributes, "group": group}, (group * each, *leaving), (*first, *kernel)


@st.composite
def single_operators(draw):
    """Draw a network of one operator, all of whose weights are positive: what grows anywhere makes the result grow."""
    op = draw(st.sampled_from([*EXACT, "ConvTranspose", "Resize", "SpaceToDepth", "DepthToSpace"]))
    channels, *sides = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 8)), draw(st.integers(1, 8))
    inputs, attributes, entering, leaving, weight = ["x"], {}, (channels, *sides), (channels, *sides), None
    if op in ("Conv", "ConvTranspose", "MaxPool", "AveragePool"):
        attributes, leaving, weight = windows(draw, op, channels, sides)
    elif op == "Pad":
        pads = [draw(st.integers(0, 2)) for _ in range(4)]
        attributes = {"pads": pads, "value": -1.0}
        leaving = (channels, *(side + pads[axis] + pads[axis + 2] for axis, side in enumerate(sides)))
    elif op == "Slice":
        start = draw(st.integers(0, channels - 1))
        stop = draw(st.integers(start + 1, channels))
        attributes, leaving = {"start": start, "stop": stop}, (stop - start, *sides)
    elif op == "Concat":
        inputs, leaving = ["x", "x"], (2 * channels, *sides)
    elif op == "GlobalAveragePool":
        leaving = (channels, 1, 1)
    elif op == "Add":
        weight = (1, 1, 1)
    elif op == "Resize":
        factors, exact = [draw(st.integers(1, 4)) for _ in range(2)], draw(st.booleans())
        place = "asymmetric" if exact else draw(st.sampled_from(["asymmetric", "half_pixel"]))
        attributes = {
            "factors": factors, "exact": exact, "mode": "nearest" if exact else "linear",
            "coordinate_transformation_mode": place, "nearest_mode": "floor",
        }  # fmt: skip
        leaving = (channels, *(side * factor for side, factor in zip(sides, factors, strict=True)))
    elif op == "SpaceToDepth":
        attributes, entering, leaving = (
            {"blocksize": 2},
            (channels, *(2 * side for side in sides)),
            (4 * channels, *sides),
        )
    elif op == "DepthToSpace":
        attributes = {"blocksize": 2, "mode": draw(st.sampled_from(["DCR", "CRD"]))}
        entering, leaving = (4 * channels, *sides), (channels, *(2 * side for side in sides))
    tensors = {} if weight is None else {"w": np.ones(weight, np.float32)}
    node = Node("n", op, (*inputs, *tensors), "y", attributes)
    shapes = {"x": entering, "y": leaving}
    return ConvNet("one", "x", ("y",), (node,), shapes, {name: array.shape for name, array in tensors.items()}), tensors


@given(data=st.data())
@settings(max_examples=sweeps.count(FEW, MANY))
def test_one_operator_needs_what_changes_it(data):
    """Exactly that, where all channels or one by one are passed on, and nothing is left out by a dilation."""
    net, tensors = data.draw(single_operators())
    matrix = dependence(net, tensors, 0.0, 1.0)
    (node,) = net.nodes
    for _ in range(4):
        wanted = data.draw(boxes(net.shapes["y"]))
        found = walk_back(parts_between(net, Span(0, 1)), {"y": wanted})
        needs, truth = found.needs["x"], truly_needed(matrix, wanted)

        assert found.made[0].made.contains(wanted)
        assert net.extent("y").contains(found.made[0].made)
        assert net.extent("x").contains(needs)
        if truth is not None:
            assert needs.contains(truth)
            if node.op in EXACT and set(node.attributes.get("dilations", [1])) == {1} and found.made[0].made == wanted:
                assert needs == truth


@given(seed=st.integers(0, 2**32))
@settings(max_examples=sweeps.count(FEW // 3, MANY // 3))
def test_a_graph_needs_what_changes_it(seed):
    """All of that, whatever the way from the image to the result; what grows anywhere makes the result grow."""
    rng = np.random.default_rng(seed)
    net, tensors = random_net(rng)
    assume(np.prod(net.shapes["x"]) < 700)
    growing = {"Clip": "Relu", "Sigmoid": "Relu"}  # these end somewhere
    nodes = tuple(
        Node(node.name, "Relu", node.inputs, node.output) if node.op in growing else node for node in net.nodes
    )
    positive = {name: np.abs(tensor) + np.float32(0.1) for name, tensor in tensors.items()}
    net = ConvNet("growing", "x", net.outputs[:1], nodes, net.shapes, net.tensors)
    matrix = dependence(net, positive, 1.0, 1e3).reshape(*net.shapes["x"], *net.extent(net.outputs[0]).shape)
    for _ in range(3):
        spans = []
        for length in net.extent(net.outputs[0]).shape:
            start = int(rng.integers(length))
            spans.append(Span(start, int(rng.integers(start + 1, length + 1))))
        found = walk_back(parts_between(net, Span(0, len(net.nodes))), {net.outputs[0]: MapBox(*spans)})
        truth = truly_needed(matrix, MapBox(*spans))

        assert net.extent("x").contains(found.needs["x"])
        assert truth is None or found.needs["x"].contains(truth)
        for number, reach in found.made.items():
            assert reach.made.contains(found.needs[net.nodes[number].output])


@pytest.mark.parametrize(
    ("op", "left", "attributes", "expected"),
    [("MatMul", "x", {}, 2 * 6 * 20), ("MatMul", "w", {}, 2 * 3 * 20), ("Gemm", "x", {"transA": 1}, 2 * 5 * 20)],
)
def test_a_product_that_is_computed_as_it_is_adds_up_what_its_operands_have_in_common(op, left, attributes, expected):
    """The output has 20 numbers; x is [5, 6], w is [4, 3]; what else goes in changes nothing of the work."""
    node = Node("product", f"Verbatim:{op}", (left, "w"), "y", {"attributes": attributes})
    net = ConvNet("net", "x", ("y",), (node,), {"x": (1, 5, 6), "y": (4, 5)}, {"w": (4, 3)})
    if op == "Gemm":
        net = replace(net, shapes={**net.shapes, "x": (5, 6, 1)})

    assert flop(net, node) == expected
    assert kind_of(net, node) is WorkKind.CONNECTED
