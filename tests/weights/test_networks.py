"""Weights files of convolutional networks: written, read, shown, made of ONNX files and of random numbers."""

import json
import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.model.convnet import ConvNet, Node, Picture
from solver.model.operators import flop
from tests.kit import convnet_reference
from weights.file.networks import NetworkFile, write_network
from weights.file.store import ENCODER, NETWORK, WeightsFile, stored_kind
from weights.formats import weights_path
from weights.network_report import stretches, tail
from weights.networks_zoo import ZOO, zoo_network

NAMES = ("a", "a/b", ".", "..", "/", "tokenizer", "tensor a", "ä %2F")  # all of them may stand side by side


@pytest.fixture
def network():
    """Return a network whose tensors have odd names, shapes and types."""
    draw = np.random.default_rng(2)
    tensors = {name: draw.standard_normal((5, 3, 1, 2), dtype=np.float32) for name in NAMES}
    tensors |= {"axis": np.array(2), "which": np.array([True, False, True]), "bounds": np.array([2**62, -1])}
    tensors["large"] = draw.standard_normal((700, 1100), dtype=np.float32)
    nodes = tuple(Node(f"n{number}", "Add", ("x", name), f"y{number}") for number, name in enumerate(tensors))
    shapes = {"x": (3, 4, 4), **{node.output: (3, 4, 4) for node in nodes}}
    net = ConvNet(
        "odd", "x", (nodes[-1].output,), nodes, shapes, {name: tensor.shape for name, tensor in tensors.items()},
        picture=Picture((9,), (0.5,) * 3), labels=("one",), anchors=((1.0, 2.0),),
    )  # fmt: skip
    return net, tensors


@pytest.fixture
def network_file(tmp_path, network):
    path = tmp_path / "odd.h5"
    write_network(path, *network, "a test")
    return path


@pytest.fixture
def onnx_file(tmp_path):
    """Write a small classifier of images of any size."""
    draw = np.random.default_rng(1)
    constants = {"w": draw.standard_normal((6, 3, 3, 3)), "m": draw.standard_normal((6, 4))}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
            helper.make_node("GlobalAveragePool", ["c"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("MatMul", ["f", "m"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


class TestFile:
    def test_reads_what_was_written(self, network, network_file):
        net, tensors = network

        with NetworkFile(network_file) as weights:
            assert weights.net.to_json() == net.to_json()
            assert weights.net.fingerprint == net.fingerprint
            assert (weights.source, weights.dtype) == ("a test", "float32")
            for name, tensor in tensors.items():
                found = weights.read(name)
                assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
                assert np.array_equal(found, tensor)

    @pytest.mark.parametrize("span", [Span(0, 0), Span(0, 700), Span(3, 4), Span(65, 699)])
    def test_reads_a_span_of_the_first_axis(self, network, network_file, span):
        with NetworkFile(network_file) as weights:
            assert np.array_equal(weights.read("large", span), network[1]["large"][span.slice])

    def test_a_file_is_of_one_kind(self, network_file, tmp_path, text_spec, random_tensors, write_file):
        other = write_file(text_spec, random_tensors(text_spec))

        kinds = [stored_kind(path) for path in (network_file, other, tmp_path, tmp_path / "none.h5")]
        assert kinds == [NETWORK, ENCODER, "", ""]
        with pytest.raises(HeptiError, match=r"odd\.h5 is a convolutional network"):
            WeightsFile(network_file)
        with pytest.raises(HeptiError, match=r"model\.h5 is an encoder"):
            NetworkFile(other)

    def test_a_changed_byte_is_noticed(self, network, network_file, run_weights):
        data = bytearray(network_file.read_bytes())
        data[data.index(network[1]["a/b"].tobytes())] ^= 1
        network_file.write_bytes(data)

        with NetworkFile(network_file) as weights, pytest.raises(HeptiError, match="tensor a/b is damaged"):
            weights.read("a/b")
        result = run_weights("verify", network_file)
        assert (result.returncode, "tensor a/b is damaged" in result.stderr) == (2, True)

    def test_nothing_is_left_of_a_network_with_nan(self, tmp_path, network, kept):
        net, tensors = network
        tensors["large"][500, 3] = np.nan

        with pytest.raises(HeptiError) as raised:
            write_network(tmp_path / "net.h5", net, tensors, "a test")
        kept(raised.value)
        assert not list(tmp_path.iterdir())


# Published: parameters with those of batch normalisation (for darknet, its statistics, too), and GFLOP.
PUBLISHED = {
    "vgg16": (138_357_544, 30.9), "resnet18": (11_689_512, 3.6), "resnet50": (25_557_032, 8.2),
    "mobilenetv2": (3_504_872, 0.60), "googlenet": (6_624_904, 3.0), "yolov2": (50_983_561, 29.5),
    "tiny-yolov2": (15_867_885, 7.0),
}  # fmt: skip


LARGE = ("vgg16", "yolov2", "resnet50")
ANY_SIZE = [
    pytest.param(name, marks=pytest.mark.thorough("a large one, of the same parts") if name in LARGE else ())
    for name in ZOO
]


class TestZoo:
    @pytest.mark.parametrize("name", ANY_SIZE)
    def test_parameters_and_work_are_as_published(self, name):
        net, tensors = zoo_network(name)
        convolutions = [net.shapes[node.output][0] for node in net.nodes if node.op == "Conv"]
        # A folded normalisation is a bias: scale and shift were two numbers, with the statistics four.
        more = {"vgg16": 0}.get(name, sum(convolutions) * (3 if "yolo" in name else 1))
        more -= 3 * convolutions[-1] if "yolo" in name else 0  # darknet's last one has none
        parameters, work = PUBLISHED[name]

        assert sum(tensor.size for tensor in tensors.values()) + more == parameters
        total = sum(flop(net, node) for node in net.nodes)
        assert total / 1e9 == pytest.approx(work, rel=0.02)

    @pytest.mark.parametrize("name", ANY_SIZE)
    def test_every_result_is_about_one(self, name):
        """Else a wrong halo would be seen nowhere."""
        net, tensors = zoo_network(name, 96)
        draw = np.random.default_rng(0)
        image = draw.random(net.shapes["image"], dtype=np.float32)
        if net.head == "scores":
            image = draw.standard_normal(net.shapes["image"], dtype=np.float32)

        (result,) = convnet_reference.compute(net, tensors, image)

        assert result.shape[1:] == net.shapes[net.outputs[0]]
        assert 0.1 < result.std() < 10

    def test_a_seed_is_a_network(self):
        one, two, other = (zoo_network("tiny-yolov2", 32, seed)[1]["conv3/weight"] for seed in (1, 1, 2))

        assert np.array_equal(one, two)
        assert not np.array_equal(one, other)

    def test_heads(self):
        assert zoo_network("resnet18", 64)[0].picture.resize == (256,)
        net, _ = zoo_network("yolov2", 64)
        assert (net.head, len(net.anchors), net.shapes[net.outputs[0]]) == ("boxes", 5, (425, 2, 2))

    @pytest.mark.parametrize("size", [0, 33, -32, 8192])
    def test_sizes_that_it_cannot_take(self, size):
        with pytest.raises(HeptiError, match=str(size)):
            zoo_network("vgg16", size)


class TestReport:
    def test_stretches_are_the_whole_network(self):
        net, tensors = zoo_network("resnet50", 64)

        found = stretches(net)

        assert len(found) <= 25
        assert [stretch.nodes.start for stretch in found[1:]] == [stretch.nodes.stop for stretch in found[:-1]]
        assert (found[0].nodes.start, found[-1].nodes.stop) == (0, len(net.nodes))
        assert sum(stretch.weights_bytes for stretch in found) == sum(tensor.nbytes for tensor in tensors.values())
        assert found[0].field == (7, 7)
        assert found[-1].field is None

    def test_what_ends_the_row_part(self):
        net, _ = zoo_network("resnet50", 224)
        name, operator, share = tail(net)
        assert (name, operator) == ("flatten", "Flatten")
        assert 0 < share < 0.001
        assert tail(zoo_network("tiny-yolov2", 64)[0]) is None


class TestCommands:
    def test_the_life_of_a_network(self, tmp_path, run_weights):
        path = tmp_path / "net.h5"

        made = run_weights("synthesize", "mobilenetv2", path, "--size", 64, "--seed", 3)
        assert (made.returncode, made.stderr) == (0, "")
        assert "mobilenetv2, 100 nodes" in made.stdout
        shown = run_weights("inspect", path).stdout
        assert "synthesized mobilenetv2, seed 3" in shown
        assert "(Flatten)" in shown
        assert len(shown.splitlines()) < 70
        facts = json.loads(run_weights("inspect", path, "--json").stdout)
        assert facts["parameters"] == sum(math.prod(tensor["shape"]) for tensor in facts["tensors"].values())
        assert facts["model"]["kind"] == "convnet"
        assert facts["row_part_ends"]["operator"] == "Flatten"
        assert sum(stretch["weights_bytes"] for stretch in facts["stretches"]) == 4 * facts["parameters"]
        verified = run_weights("verify", path)
        assert facts["fingerprint"] in verified.stdout

    def test_conversion_with_all_that_onnx_does_not_say(self, tmp_path, onnx_file, run_weights):
        path, labels, picture = (tmp_path / name for name in ("net.h5", "labels.txt", "picture.json"))
        labels.write_text("cat\ndog\nå\nfish\n", "utf-8")
        facts = {"resize_size": 40, "crop_size": [20, 30], "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2]}
        picture.write_text(json.dumps({**facts, "interpolation": "InterpolationMode.BICUBIC"}))

        made = run_weights("convert", onnx_file, path, "--size", "20x30", "--labels", labels, "--picture", picture)

        assert (made.returncode, made.stderr) == (0, "")
        with NetworkFile(path) as weights:
            net = weights.net
        assert net.picture == Picture((40,), (0.4, 0.5, 0.6), (0.2, 0.2, 0.2), "bicubic")
        assert (net.head, net.labels, net.shapes["x"]) == ("scores", ("cat", "dog", "å", "fish"), (3, 20, 30))

    @pytest.mark.parametrize(
        "options",
        [
            (),
            ("--size", "20"),
            ("--size", "8x8", "--dtype", "float16"),
            ("--size", "8x8", "--precision", "int4"),
            ("--size", "8x8", "--head", "boxes"),
            ("--size", "8x8", "--anchors", "1,2,3"),
        ],
    )
    def test_conversion_that_cannot_be(self, tmp_path, onnx_file, run_weights, options, kept):
        result = run_weights("convert", onnx_file, tmp_path / "net.h5", *options)

        assert result.returncode == 2
        kept(result.stderr)
        assert not (tmp_path / "net.h5").exists()

    @pytest.mark.parametrize(
        "text",
        [
            "{",
            '{"crop_size": 7}',
            '{"crop_szie": 8}',
            '{"mean": [1]}',
            '{"interpolation": "area"}',
            '{"resize": "large"}',
            '{"std": [1, NaN, 1]}',
            '{"scale": Infinity}',
        ],
    )
    def test_pictures_that_cannot_be(self, tmp_path, onnx_file, run_weights, text, kept):
        (tmp_path / "picture.json").write_text(text)

        result = run_weights(
            "convert", onnx_file, tmp_path / "net.h5", "--size", "8x8", "--picture", tmp_path / "picture.json"
        )

        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        kept(result.stderr)

    def test_wrong_numbers_of_labels(self, tmp_path, onnx_file, run_weights):
        (tmp_path / "labels").write_text("one\ntwo\n")

        result = run_weights(
            "convert", onnx_file, tmp_path / "net.h5", "--size", "8x8", "--labels", tmp_path / "labels"
        )

        assert "2 labels, the network has 4 scores" in result.stderr

    def test_synthesis_that_cannot_be(self, tmp_path, run_weights):
        for arguments, words in (
            (("resnet34",), "did you mean"),
            (("resnet18", "--layers", 3), "--layers"),
            (("minilm-l6", "--size", 64), "--size"),
        ):
            result = run_weights("synthesize", arguments[0], tmp_path / "net.h5", *arguments[1:])
            assert (result.returncode, words in result.stderr) == (2, True)


def test_an_onnx_file_is_converted_once(tmp_path, onnx_file, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = onnx.load(onnx_file)
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = 16
    onnx.save(model, onnx_file)

    first = weights_path(onnx_file)
    written = first.stat().st_mtime_ns

    assert weights_path(onnx_file) == first
    assert first.stat().st_mtime_ns == written
    assert stored_kind(first) == NETWORK
    assert weights_path(first) == first
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    onnx.save(model, onnx_file)
    assert weights_path(onnx_file) != first
