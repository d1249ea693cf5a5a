"""ONNX files as they are out there: old ones, other layouts and types, functions, several outputs."""

import numpy as np
import onnx
import pytest
from onnx import helper

from solver.base.errors import HeptiError
from solver.model.operators import VERBATIM
from tests.kit.onnx_nodes import check, converted, node, random_weights, write

CONV = node("Conv", "x w", "a", pads=[1, 1, 1, 1])
WEIGHT = {"w": random_weights(8, 3, 3, 3)}


def verbatim(net):
    return [own.op for own in net.nodes if own.op.startswith(VERBATIM)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 12])
def test_weights_of_old_files_are_inputs_too(path, opset):
    """With a batch normalisation that is folded, and a softmax that was of a matrix then."""
    nodes = [CONV, node("BatchNormalization", "a g b m v", "c"), node("Relu", "c", "d"),
             node("GlobalAveragePool", "d", "e"), node("Dropout", "e", "f"), node("Softmax", "f", "y")]  # fmt: skip
    tensors = {name: random_weights(8, seed=number) for number, name in enumerate("gbm")}
    tensors |= {**WEIGHT, "v": np.abs(random_weights(8)) + np.float32(0.1)}

    net = check(write(path, nodes, tensors, opset=opset, ir=3, listed=True))

    assert (net.head, net.probabilities) == ("scores", True)
    assert not [own.op for own in net.nodes if own.op in ("BatchNormalization", "Verbatim:Shape")]


def test_an_enlargement_before_opset_11_is_of_corners(path):
    nodes = [CONV, node("Upsample", "a s", "y", mode="nearest")]

    net = check(write(path, nodes, {**WEIGHT, "s": np.array([1, 1, 2, 2], np.float32)}, opset=9, ir=3, listed=True))

    assert not verbatim(net)


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 3], "dilations": [2, 2], "pads": [2, 2, 2, 2]},
        {"kernel_shape": [2, 3], "dilations": [4, 1], "pads": [1, 1, 0, 2], "strides": [2, 1]},
    ],
)
def test_pixels_of_an_average_may_lie_apart(path, window, counted):
    nodes = [CONV, node("AveragePool", "a", "p", count_include_pad=counted, **window),
             node("Conv", "p w2", "y", pads=[1, 1, 1, 1])]  # fmt: skip

    net = check(write(path, nodes, {**WEIGHT, "w2": random_weights(4, 8, 3, 3)}, opset=19, ir=9))

    assert not verbatim(net)


@pytest.mark.parametrize(
    ("opset", "op", "width", "attributes"),
    [
        (18, "GroupNormalization", 2, {"num_groups": 2}),
        (21, "GroupNormalization", 8, {"num_groups": 4, "epsilon": 0.1}),
        (21, "GroupNormalization", 8, {"num_groups": 8}),
        (17, "InstanceNormalization", 8, {}),
    ],
)
def test_normalisations_over_rows_are_shared_out(path, opset, op, width, attributes):
    tensors = {**WEIGHT, "g": random_weights(width), "b": random_weights(width, seed=1)}

    net = check(write(path, [CONV, node(op, "a g b", "y", **attributes)], tensors, opset=opset, ir=10))

    assert not verbatim(net)


@pytest.mark.parametrize(
    ("opset", "op", "attributes"),
    [(17, "LayerNormalization", {"axis": -1}), (18, "Mish", {}), (20, "Gelu", {"approximate": "tanh"}),
     (14, "HardSwish", {}), (17, "MeanVarianceNormalization", {}), (17, "Celu", {"alpha": 0.5}),
     (17, "ThresholdedRelu", {"alpha": 0.2}), (24, "Swish", {})],
)  # fmt: skip
def test_functions_of_onnx(path, opset, op, attributes):
    inputs = "a g" if op == "LayerNormalization" else "a"

    check(
        write(
            path, [CONV, node(op, inputs, "y", **attributes)], {**WEIGHT, "g": random_weights(10)}, opset=opset, ir=10
        )
    )


def test_functions_of_a_file(path):
    write(path, [CONV, node("Twice", "a", "b", domain="ours"), node("Relu", "b", "y")], WEIGHT)
    model = onnx.load(path)
    body = [helper.make_node("Add", ["v", "v"], ["o"])]
    model.functions.append(helper.make_function("ours", "Twice", ["v"], ["o"], body, [helper.make_opsetid("", 17)]))
    model.opset_import.append(helper.make_opsetid("ours", 1))
    path.write_bytes(model.SerializeToString())

    assert not verbatim(check(path))


class TestLayouts:
    def test_arithmetic_before_the_image_is_turned(self, path):
        nodes = [node("Sub", "x m", "c"), node("Mul", "c s", "d"), node("Transpose", "d", "e", perm=[0, 3, 1, 2]),
                 node("Conv", "e w", "a"), node("Transpose", "a", "y", perm=[0, 2, 3, 1])]  # fmt: skip
        tensors = {**WEIGHT, "m": np.array([0.1, 0.2, 0.3], np.float32), "s": np.float32(2)}

        net = check(write(path, nodes, tensors, (1, 12, 10, 3)), turned=True)

        assert net.shapes[net.input] == (3, 12, 10)
        assert verbatim(net) == ["Verbatim:Transpose"]  # the last one

    def test_a_graph_that_never_turns_it(self, path):
        nodes = [
            node("Mul", "x s", "a"),
            node("ReduceMean", "a", "b", axes=[1, 2], keepdims=0),
            node("MatMul", "b w", "y"),
        ]
        tensors = {"s": np.array([1, 2, 3], np.float32), "w": random_weights(3, 5)}

        net = check(write(path, nodes, tensors, (1, 12, 10, 3)), turned=True)

        assert net.shapes[net.input] == (3, 12, 10)

    def test_open_sizes(self, path):
        nodes = [node("Transpose", "x", "t", perm=[0, 3, 1, 2]), node("Conv", "t w", "y")]

        net, _ = converted(write(path, nodes, WEIGHT, ("n", "h", "w", 3)), size=(9, 7))

        assert net.shapes == {net.input: (3, 9, 7), "y": (8, 7, 5)}

    @pytest.mark.parametrize("size", [(1, 3, 12, 10), (1, 12, 10, 3)])
    def test_bytes(self, path, size):
        turned = size[3] == 3
        nodes = [node("Cast", "x", "f", to=1), node("Div", "f s", "d")]
        nodes += [node("Transpose", "d", "t", perm=[0, 3, 1, 2])] if turned else [node("Identity", "d", "t")]
        nodes += [node("Conv", "t w", "y")]

        net = check(write(path, nodes, {**WEIGHT, "s": np.float32(255)}, size, kind="uint8"), turned=turned)

        assert (net.picture.scale, net.picture.mean, net.picture.std) == (1, (0, 0, 0), (1, 1, 1))
        assert not verbatim(net)

    def test_bytes_are_not_normalised_on_the_way(self, path, tmp_path):
        (tmp_path / "picture.json").write_text('{"mean": [0.5, 0.5, 0.5]}')
        nodes = [node("Cast", "x", "f", to=1), node("Conv", "f w", "y")]
        write(path, nodes, WEIGHT, kind="uint8")

        with pytest.raises(HeptiError, match="takes bytes"):
            converted(path, picture=tmp_path / "picture.json")

    def test_four_channels(self, path):
        net = check(write(path, [node("Conv", "x w", "y")], {"w": random_weights(8, 4, 3, 3)}, (1, 4, 12, 10)))

        assert net.shapes[net.input] == (4, 12, 10)


def test_several_outputs_of_a_node_may_be_used(path):
    nodes = [
        CONV,
        node("Flatten", "a", "f"),
        node("TopK", "f k", "v i"),
        node("MaxPool", "a", "p q", kernel_shape=[2, 2]),
    ]

    net = check(write(path, nodes, {**WEIGHT, "k": np.array([5])}, outputs="v i:int64 p q:int64"))

    assert len({own.name for own in net.nodes}) == len(net.nodes)


def test_three_axes_without_a_batch_are_no_map(path):
    nodes = [CONV, node("Squeeze", "a z", "b"), node("Relu", "b", "c"), node("Unsqueeze", "c z", "y")]

    check(write(path, nodes, {**WEIGHT, "z": np.array([0])}))


def test_a_number_that_is_computed_spreads_over_all_pixels(path):
    """As a quantised network has its scale; the division is shared out."""
    nodes = [CONV, node("ReduceMax", "a", "m", keepdims=0), node("Div", "a m", "y")]

    net = check(write(path, nodes, WEIGHT))

    assert [own.op for own in net.nodes][-1] == "Div"


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_both_orders_of_space_in_depth(path, mode):
    """The other one, of a newer opset, was taken for the usual one."""
    newest = onnx.defs.get_schema("SpaceToDepth").since_version
    attributes = {"mode": mode} if "mode" in onnx.defs.get_schema("SpaceToDepth").attributes else {}
    if not attributes and mode == "CRD":
        pytest.fail("the installed onnx has no modes of SpaceToDepth")
    write(path, [CONV, node("SpaceToDepth", "a", "y", blocksize=2, **attributes)], WEIGHT, opset=newest, ir=10)

    check(path)


def test_what_folding_makes_of_shared_weights_is_there_once(path):
    """Unrolled steps turn the same matrix, and folding makes a constant of each."""
    count, width = 6, 40
    nodes = [node("Flatten", "x", "f"), node("MatMul", "f first", "h0")]
    for step in range(count):
        nodes += [node("Transpose", "w", f"t{step}", perm=[1, 0]), node("MatMul", f"h{step} t{step}", f"m{step}"),
                  node("Tanh", f"m{step}", f"h{step + 1}")]  # fmt: skip
    nodes[-1] = node("Tanh", f"m{count - 1}", "y")
    tensors = {"first": random_weights(48, width), "w": random_weights(width, width)}

    net = check(write(path, nodes, tensors, (1, 3, 4, 4)))

    assert sum(int(np.prod(shape)) for shape in net.tensors.values()) == 48 * width + width * width


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([CONV, node("Mystery", "a", "y", name="third", domain="ours")], "third is Mystery of domain ours"),
        ([CONV, node("NonZero", "a", "y", name="third")], "third"),
    ],
)
def test_what_cannot_be_run_is_named(path, nodes, words):
    with pytest.raises(HeptiError, match=words):
        converted(write(path, nodes, WEIGHT))
