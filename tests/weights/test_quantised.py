"""Quantised networks compute the very levels of onnxruntime: made by its own tools, and operator by operator."""

import logging
import warnings

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from solver.base.errors import HeptiError
from solver.model.operators import VERBATIM
from tests import sweeps
from tests.kit.onnx_nodes import (
    by_onnxruntime,
    by_ranks,
    check,
    converted,
    node,
    pixels_for,
    random_weights,
    write,
)
from weights.formats import weights_path

TYPES = {"u8u8": (QuantType.QUInt8, QuantType.QUInt8), "u8s8": (QuantType.QUInt8, QuantType.QInt8),
         "s8s8": (QuantType.QInt8, QuantType.QInt8)}  # fmt: skip
SHAPES = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "b2": (8,), "w3": (8, 1, 3, 3), "w4": (12, 16, 1, 1),
          "b4": (12,), "w5": (10, 12), "b5": (10,), "w6": (10, 7)}  # fmt: skip
NODES = [
    node("Conv", "x w1 b1", "a", name="c1", pads=[1, 1, 1, 1]), node("Relu", "a", "r"),
    node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
    node("Conv", "p w2 b2", "c", name="c2", pads=[1, 1, 1, 1]), node("Add", "c p", "s"), node("LeakyRelu", "s", "l"),
    node("Conv", "l w3", "d", name="c3", pads=[1, 1, 1, 1], group=8), node("Concat", "d p", "t", axis=1),
    node("Conv", "t w4 b4", "e", name="c4", strides=[2, 2]), node("Relu", "e", "f"),
    node("GlobalAveragePool", "f", "g"), node("Flatten", "g", "h"),
    node("Gemm", "h w5 b5", "i", name="fc", transB=1), node("MatMul", "i w6", "y", name="mm"),
]  # fmt: skip


class Pictures(CalibrationDataReader):
    """Random pictures, by which ranges are found."""

    def __init__(self, seed):
        draw = np.random.default_rng(seed)
        self._left = iter([{"x": draw.random((1, 3, 20, 18), np.float32)} for _ in range(3)])

    def get_next(self):
        return next(self._left, None)


@pytest.fixture
def whole(tmp_path):
    """Write a network before it is quantised."""
    logging.disable(logging.WARNING)
    yield lambda seed: write(
        tmp_path / "whole.onnx",
        NODES,
        {name: random_weights(*shape, seed=seed) for name, shape in SHAPES.items()},
        (1, 3, 20, 18),
    )
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("each", ["tensor", "channel"])
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_networks_that_onnxruntime_quantises(whole, tmp_path, form, types, each):
    activations, weights = TYPES[types]
    for seed in range(sweeps.count(1, 12)):
        path = tmp_path / "net.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantize_static(
                str(whole(seed)), str(path), Pictures(seed), quant_format=form, per_channel=each == "channel",
                activation_type=activations, weight_type=weights,
            )  # fmt: skip

        net, tensors = converted(path)

        assert not [own.op for own in net.nodes if own.op.startswith(VERBATIM)]
        assert "it is quantised" in net.notes[0]
        pixels = pixels_for(net, seed)
        expected = by_onnxruntime(path, pixels, optimised=True)[0].ravel()
        step = np.abs(np.diff(np.unique(expected))).min()
        for found in by_ranks(net, tensors, pixels):
            assert np.abs(found[0].ravel() - expected).max() < step / 100


def test_ranges_that_are_found_while_it_runs(whole, tmp_path):
    path = tmp_path / "net.onnx"
    quantize_dynamic(str(whole(0)), str(path), weight_type=QuantType.QUInt8)
    operators = {own.op_type for own in onnx.load(path).graph.node}
    assert {"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"} <= operators

    check(path, off=1e-6)


def levels(array, scale, kind=np.int8):
    limits = np.iinfo(kind)
    return np.clip(np.round(array / scale), limits.min, limits.max).astype(kind)


LEVELS = {"xs": np.float32(1 / 255), "xz": np.uint8(0), "ys": np.float32(0.03), "yz": np.uint8(120),
          "as": np.float32(0.02), "az": np.uint8(7)}  # fmt: skip
QUANTISED = node("QuantizeLinear", "x xs xz", "q")


class TestOperators:
    @pytest.mark.parametrize("axis", [None, 0])
    def test_a_convolution_between_levels(self, tmp_path, axis):
        """As all others; weights of all kinds of zero points, one scale or one a channel."""
        scale = np.float32(0.01) if axis is None else np.linspace(0.005, 0.02, 8, dtype=np.float32)
        weight = levels(random_weights(8, 3, 3, 3), 0.01, np.uint8 if axis is None else np.int8)
        tensors = {
            **LEVELS,
            "w": weight,
            "ws": scale,
            "wz": np.zeros(scale.shape, weight.dtype),
            "b": np.arange(8, dtype=np.int32),
        }
        nodes = [QUANTISED, node("QLinearConv", "q xs xz w ws wz ys yz b", "c", pads=[1, 0, 2, 1]),
                 node("DequantizeLinear", "c ys yz", "y")]  # fmt: skip

        net = check(write(tmp_path / "net.onnx", nodes, tensors), off=1e-6)

        assert not [own.op for own in net.nodes if own.op.startswith(VERBATIM)]

    def test_levels_are_put_elsewhere_with_constants_of_levels(self, tmp_path):
        """What passes levels on is float32 from there on, and so are the constants beside it."""
        nodes = [QUANTISED, node("Pad", "q pads five", "p"), node("Concat", "p more", "c", axis=1),
                 node("MaxPool", "c", "m", kernel_shape=[2, 2]), node("DequantizeLinear", "m as az", "y")]  # fmt: skip
        tensors = {**LEVELS, "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "five": np.uint8(5),
                   "more": np.arange(14 * 12, dtype=np.uint8).reshape(1, 1, 14, 12)}  # fmt: skip

        check(write(tmp_path / "net.onnx", nodes, tensors), off=1e-6)

    @pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
    def test_pairs_of_levels(self, tmp_path, op):
        nodes = [QUANTISED, node(op, "q xs xz q as az ys yz", "c", domain="com.microsoft"),
                 node("DequantizeLinear", "c ys yz", "y")]  # fmt: skip

        check(write(tmp_path / "net.onnx", nodes, LEVELS), off=1e-6)

    @pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu"])
    def test_levels_of_one(self, tmp_path, op):
        nodes = [QUANTISED, node(op, "q as yz ys az", "c", domain="com.microsoft"),
                 node("DequantizeLinear", "c ys az", "y")]  # fmt: skip

        check(write(tmp_path / "net.onnx", nodes, LEVELS), off=1e-6)

    @pytest.mark.parametrize(
        ("op", "attributes", "same"),
        [("QLinearAveragePool", {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}, 0.99),
         ("QLinearGlobalAveragePool", {}, 0.99), ("QLinearSoftmax", {"axis": 1, "opset": 13}, 0.8)],
    )  # fmt: skip
    def test_levels_of_several(self, tmp_path, op, attributes, same):
        """To within a level: means may be half way between two, and a softmax is of tables there."""
        nodes = [QUANTISED, node(op, "q as yz ys az", "c", domain="com.microsoft", **attributes),
                 node("DequantizeLinear", "c ys az", "y")]  # fmt: skip
        path = write(tmp_path / "net.onnx", nodes, {**LEVELS, "as": np.float32(0.0213)})

        net, tensors = converted(path)
        pixels = pixels_for(net)

        expected = by_onnxruntime(path, pixels)[0].ravel()
        for found in by_ranks(net, tensors, pixels):
            apart = np.abs(found[0].ravel() - expected) / LEVELS["ys"]
            assert apart.max() < 1.01
            assert (apart < 0.01).mean() > same

    def test_levels_beside_each_other(self, tmp_path):
        nodes = [QUANTISED, node("QLinearConcat", "ys yz q xs xz q as az", "c", domain="com.microsoft", axis=1),
                 node("DequantizeLinear", "c ys yz", "y")]  # fmt: skip

        check(write(tmp_path / "net.onnx", nodes, LEVELS), off=1e-6)

    @pytest.mark.parametrize(
        ("op", "inputs", "attributes"),
        [
            ("QGemm", "f xs xz w ws wz b ys yz", {"transB": 1}),
            ("QGemm", "f xs xz w ws wz b", {"transB": 1, "alpha": 0.5}),
            ("MatMulIntegerToFloat", "f t xs ws xz wz bias", {}),
            ("DynamicQuantizeMatMul", "g t ws wz bias", {}),
        ],
    )
    def test_products_of_onnxruntime(self, tmp_path, op, inputs, attributes):
        weight = levels(random_weights(6, 360), 0.01)
        tensors = {**LEVELS, "w": weight, "t": np.ascontiguousarray(weight.T), "ws": np.float32(0.01), "wz": np.int8(3),
                   "b": np.arange(6, dtype=np.int32), "bias": np.linspace(-1, 1, 6, dtype=np.float32)}  # fmt: skip
        to_levels = inputs.endswith("yz")
        nodes = [QUANTISED, node("Flatten", "q", "f"), node("Flatten", "x", "g"),
                 node(op, inputs, "c", domain="com.microsoft", **attributes),
                 node("DequantizeLinear", "c ys yz", "y") if to_levels else node("Identity", "c", "y")]  # fmt: skip

        check(write(tmp_path / "net.onnx", nodes, tensors), off=2e-6)

    def test_a_convolution_with_its_activation(self, tmp_path):
        nodes = [node("FusedConv", "x w", "y", domain="com.microsoft", activation="LeakyRelu", activation_params=[0.2])]

        net = check(write(tmp_path / "net.onnx", nodes, {"w": random_weights(4, 3, 3, 3)}))

        assert [own.op for own in net.nodes] == ["Conv", "LeakyRelu"]

    def test_levels_of_sixteen_bits(self, tmp_path):
        nodes = [node("QuantizeLinear", "x fine middle", "q"), node("DequantizeLinear", "q fine middle", "y")]
        tensors = {"fine": np.float32(1e-4), "middle": np.uint16(300)}

        check(write(tmp_path / "net.onnx", nodes, tensors, opset=21, ir=10), off=1e-7)

    def test_constants_in_blocks(self, tmp_path):
        weight = levels(random_weights(8, 3, 3, 3), 0.01)
        scale = np.linspace(0.005, 0.02, 4 * 3 * 9, dtype=np.float32).reshape(4, 3, 3, 3)
        nodes = [node("DequantizeLinear", "w s", "d", axis=0, block_size=2), node("Conv", "x d", "y")]

        check(write(tmp_path / "net.onnx", nodes, {"w": weight, "s": scale}, opset=21, ir=10))

    def test_an_output_of_levels(self, tmp_path):
        path = write(tmp_path / "net.onnx", [QUANTISED, node("Relu", "x", "r"), node("QuantizeLinear", "r ys yz", "y")],
                     LEVELS, outputs="y:uint8")  # fmt: skip

        check(path, off=0)

    @pytest.mark.parametrize("axis", [0, 1, 3])
    def test_weights_that_are_not_between_levels_become_numbers(self, tmp_path, axis):
        weight = levels(random_weights(8, 3, 3, 3), 0.01)
        scale = np.linspace(0.005, 0.02, weight.shape[axis], dtype=np.float32)
        nodes = [node("DequantizeLinear", "w s", "d", axis=axis), node("Conv", "x d", "y")]

        net = check(write(tmp_path / "net.onnx", nodes, {"w": weight, "s": scale}))

        assert [own.op for own in net.nodes] == ["Conv"]


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (
            [QUANTISED, node("QLinearConv", "q xs xz q as az ys yz", "y", name="third")],
            "third is QLinearConv.*q is computed",
        ),
        ([node("QGemm2", "x", "y", name="third", domain="com.microsoft")], "third is QGemm2 of domain com.microsoft"),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path, nodes, words):
    with pytest.raises(HeptiError, match=words):
        converted(write(tmp_path / "net.onnx", nodes, LEVELS, outputs="y:uint8"))


def test_sums_beyond_the_whole_numbers_of_float32_are_said(tmp_path):
    weight = np.full((4, 3000, 1, 1), 127, np.int8)
    tensors = {**LEVELS, "w": weight, "ws": np.float32(1), "wz": np.int8(0)}
    nodes = [
        QUANTISED,
        node("QLinearConv", "q xs xz w ws wz ys yz", "c", name="wide"),
        node("DequantizeLinear", "c ys yz", "y"),
    ]

    net, _ = converted(write(tmp_path / "net.onnx", nodes, tensors, (1, 3000, 2, 2)))

    assert "wide may pass 2^24" in net.notes[0]


def test_it_is_said_where_a_file_is_run_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write(tmp_path / "net.onnx", [QUANTISED, node("DequantizeLinear", "q xs xz", "y")], LEVELS)
    said = []

    weights_path(path, say=said.append)

    assert "it is quantised" in said[0]
