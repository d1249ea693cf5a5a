"""Networks read from ONNX compute what their files do, and are in the form that plans need."""

import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F
from transformers import (
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

from solver.base.errors import HeptiError
from solver.model.convnet import ConvNet
from solver.model.kinds.operator import REACH
from tests import sweeps
from tests.kit import convnet_reference
from tests.kit.convnets import random_net
from tests.sweeps import pairs
from weights.networks.onnx_graph import read_onnx


def draw_weights(model):
    """He's initialisation, and statistics as after a training: with a library's own, all results are the same zero."""
    draw = torch.Generator().manual_seed(5)
    for part in model.modules():
        if isinstance(part, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.kaiming_normal_(part.weight, nonlinearity="linear", generator=draw)
            if part.bias is not None:
                nn.init.normal_(part.bias, std=0.1, generator=draw)
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.8, 1.2, generator=draw)
            nn.init.uniform_(part.running_var, 0.3, 0.7, generator=draw)
            nn.init.normal_(part.bias, std=0.1, generator=draw)
            nn.init.normal_(part.running_mean, std=0.1, generator=draw)


@pytest.fixture
def export(tmp_path):
    """Export a torch module for images of a shape; return the file."""

    def run(model, shape, opset=17, **options):
        model = model.eval()
        draw_weights(model)
        path = tmp_path / "net.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model, (torch.zeros(1, *shape),), str(path), dynamo=False, opset_version=opset,
                input_names=["image"], output_names=["result"], **options,
            )  # fmt: skip
        return path

    return run


@pytest.fixture
def write(tmp_path):
    """Write nodes of ONNX as a file, their constants by name."""

    def run(nodes, constants=None, shape=(1, 3, 8, 9), outputs=("y",), opset=17, kind=TensorProto.FLOAT):
        graph = helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, kind, None) for name in outputs],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
        )
        path = tmp_path / "net.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
        return path

    return run


def check(path, size=None) -> ConvNet:
    """Compare the canonical network with the file itself."""
    net, tensors = read_onnx(path, size)
    image = np.random.default_rng(3).standard_normal(net.shapes[net.input]).astype(np.float32)

    expected = convnet_reference.run(str(path), image)
    found = convnet_reference.compute(net, tensors, image)

    assert len(expected) == len(found)
    for one, two in zip(expected, found, strict=True):
        assert one.shape == two.shape
        assert 0.01 < np.abs(one).max() < 1e4
        assert np.abs(one - two).max() <= 1e-5 * np.abs(one).max()
    assert net.tensors == {name: tensor.shape for name, tensor in tensors.items()}
    assert ConvNet.from_json(net.to_json()).fingerprint == net.fingerprint
    return net


def operators(net):
    return Counter(node.op for node in net.nodes)


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        return self.model(image).logits


def small_resnet(**changes):
    return Logits(ResNetForImageClassification(ResNetConfig(num_labels=10, **changes)))


class TestPublishedNetworks:
    def test_resnet18(self, export):
        model = small_resnet(layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2])

        net = check(export(model, (3, 65, 71)))

        assert operators(net) == {
            "Conv": 20, "Relu": 17, "Add": 8, "MaxPool": 1, "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1,
        }  # fmt: skip

    @pytest.mark.thorough("another ResNet")
    def test_resnet50(self, export):
        net = check(export(small_resnet(), (3, 64, 64)))

        assert operators(net)["Conv"] == 53

    @pytest.mark.parametrize("padding", [True, False])
    def test_mobilenetv2(self, export, padding):
        model = MobileNetV2ForImageClassification(MobileNetV2Config(tf_padding=padding))

        net = check(export(Logits(model), (3, 64, 65)))

        assert set(operators(net)) == {"Conv", "Clip", "Add", "GlobalAveragePool", "Flatten", "Gemm"}
        assert any(node.attributes.get("pads", [0])[0] == 0 < node.attributes.get("pads", [0] * 4)[2]
                   for node in net.nodes) == padding  # fmt: skip

    def test_googlenet_block(self, export):
        class Inception(nn.Module):
            def __init__(self):
                super().__init__()
                self.one = nn.Conv2d(16, 8, 1)
                self.three = nn.Sequential(nn.Conv2d(16, 6, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, 1, 1))
                self.five = nn.Sequential(nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 5, padding=2))
                self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), nn.Conv2d(16, 8, 1))

            def forward(self, x):
                return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)

        model = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3), nn.MaxPool2d(3, 2, ceil_mode=True), Inception(), nn.ReLU(),
            nn.MaxPool2d(2, 2, ceil_mode=True), nn.AvgPool2d(3, 2, 1, count_include_pad=False),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(32, 10),
        )  # fmt: skip

        net = check(export(model, (3, 33, 37)))

        assert not [op for op in operators(net) if op not in REACH]

    def test_tiny_yolov2(self, export):
        def unit(inputs, outputs):
            return (nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))

        model = nn.Sequential(
            *unit(3, 8), nn.MaxPool2d(2), *unit(8, 16), nn.MaxPool2d(2), *unit(16, 32),
            nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(2, 1), *unit(32, 40), nn.Conv2d(40, 25, 1),
        )  # fmt: skip

        net = check(export(model, (3, 32, 40)))

        assert set(operators(net)) <= {"Conv", "LeakyRelu", "MaxPool", "Pad"}

    @pytest.mark.parametrize("matrices", [True, False])
    def test_squeeze_and_excitation(self, export, matrices):
        """Whether it is written with matrices or with convolutions, rows stay shared after it."""

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Conv2d(3, 8, 3, 1, 1)
                make = nn.Linear if matrices else lambda one, two: nn.Conv2d(one, two, 1)
                self.gate = nn.Sequential(make(8, 2), nn.ReLU(), make(2, 8), nn.Hardsigmoid())
                self.last = nn.Conv2d(8, 4, 3)

            def forward(self, x):
                x = self.body(x)
                means = x.mean((2, 3)) if matrices else F.adaptive_avg_pool2d(x, 1)
                gate = self.gate(means)
                return self.last(x * (gate.view(1, 8, 1, 1).expand_as(x) if matrices else gate))

        net = check(export(Block(), (3, 12, 13)))

        assert operators(net) == {
            "Conv": 4, "GlobalAveragePool": 1, "Relu": 1, "HardSigmoid": 1, "Mul": 1,
        }  # fmt: skip

    def test_yolov8_piece(self, export):
        class Piece(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU())
                self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.SiLU())
                self.out = nn.Conv2d(16 + 24 + 16, 12, 1)

            def forward(self, x):
                x = self.stem(x)
                one, two = x.chunk(2, 1)
                once = F.max_pool2d(two, 5, 1, 2)
                parts = torch.cat([two, once, F.max_pool2d(once, 5, 1, 2)], 1)
                small = F.avg_pool2d(x + torch.cat([one, self.inner(two)], 1), 2)
                return self.out(torch.cat([x, parts, F.interpolate(small, scale_factor=2, mode="nearest")], 1))

        net = check(export(Piece(), (3, 24, 32)))

        assert not [op for op in operators(net) if op not in REACH]
        assert operators(net)["Slice"] == 2
        assert all(node.attributes["exact"] for node in net.nodes if node.op == "Resize")

    def test_yolov8_head(self, export):
        """Boxes of all maps in one list, decoded: rows end there, but it is computed."""

        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)])
                self.boxes, self.scores = (nn.ModuleList([nn.Conv2d(8, c, 1) for _ in range(2)]) for c in (16, 5))
                self.expected = nn.Conv2d(4, 1, 1, bias=False)
                self.anchors = nn.Parameter(torch.rand(1, 2, 80))

            def forward(self, x):
                maps = []
                for body, boxes, scores in zip(self.body, self.boxes, self.scores, strict=True):
                    x = F.silu(body(x))
                    maps.append(torch.cat([boxes(x), scores(x)], 1).view(1, 21, -1))
                boxes, scores = torch.cat(maps, 2).split((16, 5), 1)
                sides = self.expected(boxes.view(1, 4, 4, -1).transpose(2, 1).softmax(1)).view(1, 4, -1)
                low, high = sides.chunk(2, 1)
                low, high = self.anchors - low, self.anchors + high
                return torch.cat([(low + high) / 2, high - low, scores.sigmoid()], 1)

        net = check(export(Head(), (3, 16, 16)))

        assert net.shapes[net.outputs[0]] == (9, 80)
        assert operators(net)["Verbatim:Reshape"] >= 3

    def test_darknet_reorg(self, export):
        """Four reshapes and three transposes are one operator."""

        class Reorg(nn.Module):
            def forward(self, x):
                batch, channels, height, width = x.shape
                x = x.view(batch, channels, height // 2, 2, width // 2, 2).transpose(3, 4).contiguous()
                x = x.view(batch, channels, height // 2 * (width // 2), 4).transpose(2, 3).contiguous()
                x = x.view(batch, channels, 4, height // 2, width // 2).transpose(1, 2).contiguous()
                return x.view(batch, 4 * channels, height // 2, width // 2)

        net = check(export(nn.Sequential(nn.Conv2d(3, 5, 1), Reorg()), (3, 6, 10)))

        assert operators(net) == {"Conv": 1, "SpaceToDepth": 1}

    def test_pixel_shuffle(self, export):
        net = check(export(nn.Sequential(nn.Conv2d(3, 12, 1), nn.PixelShuffle(2)), (3, 6, 10)))

        assert operators(net) == {"Conv": 1, "DepthToSpace": 1}

    def test_segmentation(self, export):
        """Transposed convolutions with and without padding at the end, linear enlargement."""
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ConvTranspose2d(8, 6, 3, 2, 1, output_padding=1), nn.ReLU(),
            nn.ConvTranspose2d(6, 6, 2, 2, groups=2), nn.Upsample(scale_factor=2, mode="bilinear"),
        )  # fmt: skip

        net = check(export(model, (3, 10, 14)))

        assert operators(net) == {"Conv": 1, "ConvTranspose": 2, "Relu": 1, "Resize": 1}
        assert [node.attributes["exact"] for node in net.nodes if node.op == "Resize"] == [False]

    def test_a_batch_of_any_size_is_one(self, export):
        path = export(nn.Conv2d(3, 4, 3), (3, 8, 8), dynamic_axes={"image": {0: "batch"}, "result": {0: "batch"}})

        assert check(path).shapes["result"] == (4, 6, 6)

    def test_any_image_size_needs_one(self, export):
        model = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
        path = export(model, (3, 8, 8), dynamic_axes={"image": {0: "batch", 2: "height", 3: "width"}})

        with pytest.raises(HeptiError, match="--size HxW"):
            read_onnx(path)
        assert check(path, (20, 31)).shapes["image"] == (3, 20, 31)

    def test_a_size_below_zero_is_open(self, write, kept):
        path = write([make("Relu", ["x"])], shape=(-1, 3, -1, 9))

        with pytest.raises(HeptiError) as raised:
            read_onnx(path)
        kept(raised.value)
        assert check(path, (20, 9)).shapes["y"] == (3, 20, 9)

    @pytest.mark.parametrize("channels", [0, -3])
    def test_channels_are_never_open(self, write, channels, kept):
        with pytest.raises(HeptiError) as raised:
            read_onnx(write([make("Relu", ["x"])], shape=(1, channels, 8, 9)))
        kept(raised.value)

    @pytest.mark.parametrize("opset", [9, 11, 13])
    def test_older_opsets(self, export, opset):
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU6(), nn.ZeroPad2d((1, 0, 2, 1)), nn.Upsample(scale_factor=4), nn.Flatten(2)
        )

        net = check(export(model, (3, 6, 7), opset))

        assert {"Clip", "Pad", "Resize", "Verbatim:Reshape"} == set(operators(net)) - {"Conv"}
        assert net.opset == max(opset, 13) if opset >= 13 else 17


def make(op, inputs, output="y", **attributes):
    return helper.make_node(op, inputs, [output], f"the {op}", **attributes)


def numbers(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


class TestOperators:
    """One node at a time, as it is and as it may be used."""

    def test_padding_by_itself(self, write):
        """SAME padding is written out; what is odd is at the end, or at the beginning."""
        for auto, pads in (("SAME_UPPER", [0, 1, 1, 1]), ("SAME_LOWER", [1, 1, 0, 1]), ("VALID", [0, 0, 0, 0])):
            nodes = [make("Conv", ["x", "w"], auto_pad=auto, strides=[2, 2])]
            net = check(write(nodes, {"w": numbers(4, 3, 3, 3)}))
            assert net.nodes[0].attributes["pads"] == pads

    @pytest.mark.parametrize("counted", [0, 1])
    def test_average_of_windows_that_end_behind(self, write, counted):
        nodes = [make("AveragePool", ["x"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1,
                      count_include_pad=counted)]  # fmt: skip
        path = write(nodes, shape=(1, 3, 8, 10))

        if counted:
            with pytest.raises(HeptiError, match="the AveragePool"):
                read_onnx(path)
        else:
            assert "ceil_mode" not in check(path).nodes[0].attributes
            assert check(path).shapes["y"] == (3, 5, 6)

    def test_whole_averages(self, write):
        for node in (
            make("AveragePool", ["x"], kernel_shape=[8, 9]),
            make("ReduceMean", ["x"], axes=[-1, 2]),
            make("GlobalAveragePool", ["x"]),
        ):
            assert operators(check(write([node]))) == {"GlobalAveragePool": 1}
        flat = check(write([make("ReduceMean", ["x"], axes=[2, 3], keepdims=0)]))
        assert operators(flat) == {"GlobalAveragePool": 1, "Flatten": 1}

    def test_padding_in_front(self, write):
        """It goes into a convolution, and into a pool that it cannot win in; onnxruntime's own fusion lets it lose."""
        pad = make("Pad", ["x", "p"], "q")
        constants = {"p": np.array([0, 0, 1, 0, 0, 0, 2, 1]), "w": numbers(4, 3, 3, 3)}
        conv = check(write([pad, make("Conv", ["q", "w"], pads=[1, 1, 1, 1])], constants))
        assert [node.attributes["pads"] for node in conv.nodes] == [[2, 1, 3, 2]]
        del constants["w"]
        pool = make("MaxPool", ["q"], kernel_shape=[3, 3])
        assert operators(check(write([pad, pool], constants))) == {"Pad": 1, "MaxPool": 1}
        relu = [make("Relu", ["x"], "r"), make("Pad", ["r", "p"], "q")]
        assert operators(check(write([*relu, pool], constants))) == {"Relu": 1, "MaxPool": 1}

    def test_largest_of_all(self, write):
        assert check(write([make("GlobalMaxPool", ["x"])])).nodes[0].attributes["kernel_shape"] == [8, 9]

    @pytest.mark.parametrize(
        ("shape", "order"),
        pairs([(), (1,), (9,), (8, 1), (3, 1, 1), (1, 3, 1, 1), (1, 1, 8, 9)], [("x", "c"), ("c", "x")]),
    )
    def test_constants_have_three_dimensions(self, write, shape, order):
        net = check(write([make("Sub", order)], {"c": numbers(*shape)}))

        assert len(net.tensors["c"]) == 3
        assert net.nodes[0].inputs == order

    def test_a_slope_of_every_channel(self, write):
        assert check(write([make("PRelu", ["x", "c"])], {"c": numbers(3, 1, 1)})).nodes[0].op == "PRelu"

    def test_matrices(self, write):
        """Factors and turns are within the tensors."""
        flat = helper.make_node("Flatten", ["x"], ["f"])
        bias = numbers(5)
        for node, weight in (
            (make("Gemm", ["f", "w", "b"], alpha=0.5, beta=2.0), numbers(216, 5)),
            (make("Gemm", ["f", "w", "b"], transB=1), numbers(5, 216)),
            (make("MatMul", ["f", "w"]), numbers(216, 5)),
        ):
            net = check(write([flat, node], {"w": weight, "b": bias} if "b" in node.input else {"w": weight}))
            assert operators(net) == {"Flatten": 1, "Gemm": 1}
            assert net.tensors["w"] == (5, 216)
            assert not net.nodes[1].attributes

    def test_a_matrix_in_two_forms_is_kept_twice(self, write):
        nodes = [make("Flatten", ["x"], "f"), make("MatMul", ["f", "w"], "a"), make("Gemm", ["f", "w"], "b", alpha=2.0),
                 make("Add", ["a", "b"])]  # fmt: skip

        assert len(check(write(nodes, {"w": numbers(216, 7)})).tensors) == 2

    def test_sums_of_many(self, write):
        nodes = [make("Relu", ["x"], "a"), make("Sigmoid", ["x"], "b"), make("Sum", ["a", "b", "x"])]

        assert operators(check(write(nodes))) == {"Relu": 1, "Sigmoid": 1, "Add": 2}

    def test_what_does_nothing_is_left_out(self, write):
        nodes = [make("Identity", ["x"], "a"), make("Dropout", ["a"], "b"), make("Cast", ["b"], "c", to=1),
                 make("AveragePool", ["c"], "e", kernel_shape=[1, 1]),
                 make("Concat", ["e"], "d", axis=1), make("Relu", ["d"])]  # fmt: skip

        assert operators(check(write(nodes))) == {"Relu": 1}

    @pytest.mark.parametrize("size", [1, 3, 5])
    def test_normalisation_across_channels(self, write, size):
        nodes = [make("LRN", ["x"], size=size, alpha=0.7, beta=0.6, bias=1.5)]

        assert operators(check(write(nodes, shape=(1, 7, 4, 5)))) == {"Mul": 1, "Conv": 1, "Pow": 1, "Div": 1}

    def test_an_unfolded_normalisation(self, write):
        constants = {"s": numbers(3), "b": numbers(3), "m": numbers(3), "v": np.abs(numbers(3)) + 1}

        net = check(write([make("BatchNormalization", ["x", "s", "b", "m", "v"])], constants))

        assert net.nodes[0].attributes == {"epsilon": pytest.approx(1e-5)}

    def test_enlargements(self, write):
        """Exact is what takes the pixel above; other factors, corners and cubic ones are kept as they are."""
        scales = np.array([1, 1, 3, 2], np.float32)
        for exact, options in (
            (True, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
            (True, {}),
            (False, {"coordinate_transformation_mode": "asymmetric"}),
            (False, {"mode": "linear"}),
        ):
            node = check(write([make("Resize", ["x", "", "s"], **options)], {"s": scales})).nodes[0]
            assert (node.op, node.attributes["factors"], node.attributes["exact"]) == ("Resize", [3, 2], exact)
        for scales, options in (
            ([1, 1, 1.5, 2], {}),
            ([1, 1, 2, 2], {"coordinate_transformation_mode": "align_corners"}),
            ([1, 1, 2, 2], {"mode": "cubic"}),
            ([1, 1, 0.5, 0.5], {}),
        ):
            path = write([make("Resize", ["x", "", "s"], **options)], {"s": np.array(scales, np.float32)})
            assert check(path).nodes[0].op == "Verbatim:Resize"

    @pytest.mark.parametrize("mode", ["nearest", "linear"])
    @pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
    def test_enlargements_of_old(self, write, mode, op, opset):
        """Pixels lie otherwise since opset 11."""
        path = write([make(op, ["x", "s"], mode=mode)], {"s": np.array([1, 1, 3, 2], np.float32)}, opset=opset)

        assert check(path).nodes[0].attributes["exact"] == (mode == "nearest")

    @pytest.mark.parametrize("cut", [([1], [3], [1]), ([-2], [9], [-3])])
    def test_slices_of_channels(self, write, cut):
        constants = dict(zip("abc", (np.array(part) for part in cut), strict=True))

        assert check(write([make("Slice", ["x", *"abc"])], constants)).nodes[0].attributes == {"start": 1, "stop": 3}

    @pytest.mark.parametrize(
        ("node", "constants"),
        [
            (make("Concat", ["x", "x"], axis=2), {}),
            (make("Slice", ["x", "a", "b", "c"]), {"a": np.array([1]), "b": np.array([3]), "c": np.array([2])}),
            (make("Pad", ["x", "p"], mode="reflect"), {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}),
            (make("Pad", ["x", "p"]), {"p": np.array([0, 1, 0, 0, 0, 0, 0, 0])}),
            (make("Softmax", ["x"], axis=1), {}),
            (make("Transpose", ["x"], perm=[0, 2, 3, 1]), {}),
            (make("Transpose", ["x"], perm=[1, 0, 2, 3]), {}),
            (make("Reshape", ["x", "s"]), {"s": np.array([4, 54])}),
            (make("Gather", ["x", "i"], axis=1), {"i": np.array([2, 0])}),
            (make("Gather", ["x", "i"], axis=1), {"i": np.array(2)}),
            (make("ReduceMax", ["x"], axes=[2]), {}),
            (make("Add", ["x", "c"]), {"c": numbers(2, 3, 1, 1)}),
        ],
    )
    def test_what_passes_no_rows_on_is_kept_as_it_is(self, write, node, constants):
        net = check(write([node], constants))

        (only,) = net.nodes
        assert only.op == f"Verbatim:{node.op_type}"
        assert only.op not in REACH

    def test_a_split_of_rows(self, write):
        nodes = [helper.make_node("Split", ["x"], ["a", "b"], axis=2), make("Concat", ["b", "a"], axis=2)]

        assert operators(check(write(nodes))) == {"Verbatim:Slice": 2, "Verbatim:Concat": 1}

    def test_results_that_are_no_numbers_of_float(self, write):
        """A class of every pixel."""
        assert (
            check(write([make("ArgMax", ["x"], axis=1)], kind=TensorProto.INT64)).nodes[0].attributes["dtype"]
            == "int64"
        )

    def test_an_image_with_its_channels_last_is_turned_by_us(self, write):
        path = write([make("Transpose", ["x"], "t", perm=[0, 3, 1, 2]), make("Relu", ["t"])], shape=(1, 8, 9, 3))

        net, _ = read_onnx(path)

        assert net.shapes[net.input] == (3, 8, 9)
        assert operators(net) == {"Relu": 1}


@given(seed=st.integers(0, 2**32))
@settings(max_examples=sweeps.count(12, 500))
def test_what_is_written_as_onnx_is_read_as_the_same(seed):
    """A random network, written as ONNX and read again, computes the same, and nothing of it is opaque."""
    rng = np.random.default_rng(seed)
    net, tensors = random_net(rng)
    image = rng.standard_normal(net.shapes["x"]).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        onnx.save(convnet_reference.to_onnx(net, tensors), path)
        found, its_tensors = read_onnx(path)

    assert not [node.op for node in found.nodes if node.op not in REACH]
    expected = convnet_reference.compute(net, tensors, image)
    for one, two in zip(expected, convnet_reference.compute(found, its_tensors, image), strict=True):
        assert np.abs(one - two).max() <= 3e-5 * max(np.abs(one).max(), 1)


class TestRefusals:
    """Each one line, which names the place."""

    def refused(self, path, *words):
        with pytest.raises(HeptiError) as raised:
            read_onnx(path)
        text = str(raised.value)
        assert "\n" not in text
        for word in (path.name, *words):
            assert word in text

    @pytest.mark.parametrize("data", [b"", b"no ONNX at all", b"\x08\x07"])
    def test_no_onnx(self, tmp_path, data):
        path = tmp_path / "net.onnx"
        path.write_bytes(data)

        self.refused(path, "no ONNX file")

    def test_cut_short(self, write):
        path = write([make("Conv", ["x", "w"])], {"w": numbers(4, 3, 3, 3)})
        path.write_bytes(path.read_bytes()[:-100])

        self.refused(path)

    def test_a_missing_file_of_weights(self, write):
        path = write([make("Conv", ["x", "w"])], {"w": numbers(64, 3, 3, 3)})
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="beside.bin")
        read_onnx(path)
        (path.parent / "beside.bin").unlink()

        self.refused(path, "beside.bin", "w")

    def test_foreign_operators(self, write):
        self.refused(write([make("FusedConv", ["x"], domain="com.microsoft")]), "the FusedConv", "com.microsoft")
        self.refused(write([make("Convolve", ["x"])]), "the Convolve")

    def test_newer_versions(self, write):
        self.refused(write([make("Relu", ["x"])], opset=99), "99", str(onnx.defs.onnx_opset_version()))

    def test_inputs(self, write):
        path = write([make("Relu", ["x"])])
        model = onnx.load(path)
        model.graph.input.append(helper.make_tensor_value_info("second", TensorProto.FLOAT, [1]))
        onnx.save(model, path)
        self.refused(path, "x, second")
        self.refused(write([make("Relu", ["x"])], shape=(3, 8, 9)), "[1, C, H, W]")
        self.refused(write([make("Relu", ["x"])], shape=(16, 3, 8, 9)), "16")

    def test_numbers_that_are_none(self, write):
        weight = numbers(4, 3, 3, 3)
        weight[1, 2, 0, 0] = np.nan

        self.refused(write([make("Conv", ["x", "w"])], {"w": weight}), "tensor w", "NaN")

    def test_convolutions_over_one_axis(self, write):
        nodes = [make("Reshape", ["x", "s"], "r"), make("Conv", ["r", "w"])]

        self.refused(write(nodes, {"s": np.array([1, 3, 72]), "w": numbers(4, 3, 3)}), "the Conv", "1 axes")

    def test_weights_that_do_not_fit(self, write):
        self.refused(write([make("Conv", ["x", "w"])], {"w": numbers(4, 5, 3, 3)}), "the Conv", "5 channels", "has 3")
        self.refused(write([make("Conv", ["x", "w"])], {"w": numbers(4, 3, 9, 9)}), "the Conv", "makes nothing")

    def test_nothing_is_computed(self, write):
        self.refused(write([make("Identity", ["x"])]), "computes nothing")

    def test_several_outputs(self, write):
        nodes = [helper.make_node("TopK", ["x", "k"], ["y", "z"], "the TopK")]

        self.refused(write(nodes, {"k": np.array([2])}, outputs=("y", "z")), "the TopK")

    def test_shapes_that_are_found_when_it_runs(self, write):
        self.refused(write([make("NonZero", ["x"])], kind=TensorProto.INT64), "the shape of y")
