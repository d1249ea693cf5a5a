"""What is a probability already is seen in whatever nodes it is written, and is not made one again."""

import numpy as np
import pytest

from hepti_mpi.requests.picture_answers import picture_answer
from tests.kit.onnx_nodes import by_onnxruntime, by_ranks, converted, node, pixels_for, random_weights, write

BODY = [
    node("Conv", "x w", "a"),
    node("GlobalAveragePool", "a", "m"),
    node("Flatten", "m", "f"),
    node("Gemm", "f v", "l"),
]
TENSORS = {
    "w": 3 * random_weights(6, 3, 3, 3), "v": 3 * random_weights(6, 5), "one": np.float32(1), "half": np.float32(0.5),
    "axis": np.array([1]), "map": np.array([1, 5, 1, 1]), "tiny": np.float32(1e-9), "s": np.float32(1 / 256),
    "z": np.uint8(0), "ten": np.float32(10),
}  # fmt: skip
PROBABILITIES = {
    "softmax": [node("Softmax", "l", "y")],
    "its logarithm and back": [node("LogSoftmax", "l", "b"), node("Exp", "b", "y")],
    "sigmoid": [node("Sigmoid", "l", "y")],
    "hard sigmoid": [node("HardSigmoid", "l", "y")],
    "exponentials of their sum": [
        node("Exp", "l", "e"), node("ReduceSum", "e axis", "t"), node("Div", "e t", "y")
    ],
    "less the largest": [
        node("ReduceMax", "l", "h", axes=[1]), node("Sub", "l h", "d"), node("Exp", "d", "e"),
        node("ReduceSum", "e axis", "t"), node("Add", "t tiny", "u"), node("Div", "e u", "y"),
    ],
    "times the inverse": [
        node("Exp", "l", "e"), node("ReduceSum", "e axis", "t"), node("Reciprocal", "t", "r"), node("Mul", "e r", "y")
    ],
    "less the logarithm of the sum": [
        node("ReduceLogSumExp", "l", "t", axes=[1]), node("Sub", "l t", "d"), node("Exp", "d", "y")
    ],
    "less the logarithm in three": [
        node("Exp", "l", "e"), node("ReduceSum", "e axis", "t"), node("Log", "t", "g"), node("Sub", "l g", "d"),
        node("Exp", "d", "y"),
    ],
    "sigmoid in four": [
        node("Neg", "l", "n"), node("Exp", "n", "e"), node("Add", "e one", "t"), node("Div", "one t", "y")
    ],
    "sigmoid by tanh": [
        node("Mul", "l half", "h"), node("Tanh", "h", "t"), node("Add", "t one", "u"), node("Mul", "u half", "y")
    ],
    "softmax that is quantised": [
        node("Softmax", "l", "b"), node("QuantizeLinear", "b s z", "q"), node("DequantizeLinear", "q s z", "y")
    ],
    "softmax in another shape": [
        node("Softmax", "l", "b"), node("Reshape", "b map", "c"), node("Identity", "c", "d"), node("Squeeze", "d", "e"),
        node("Unsqueeze", "e zero", "y"),
    ],
    "the mean of two": [
        node("Softmax", "l", "b"), node("Neg", "l", "n"), node("Softmax", "n", "c"), node("Add", "b c", "t"),
        node("Mul", "t half", "y"),
    ],
}  # fmt: skip
SCORES = {
    "scores": [node("Identity", "l", "y")],
    "logarithms": [node("LogSoftmax", "l", "y")],
    "no less than 0": [node("Relu", "l", "y")],
    "scores that are quantised": [
        node("QuantizeLinear", "l s z", "q"), node("DequantizeLinear", "q s z", "y")
    ],
    "percents": [node("Softmax", "l", "b"), node("Mul", "b ten", "y")],
    "between -1 and 1": [node("Tanh", "l", "y")],
}  # fmt: skip


def answered(tmp_path, nodes):
    path = write(tmp_path / "net.onnx", BODY + nodes, {**TENSORS, "zero": np.array([0])})
    net, tensors = converted(path)
    pixels = pixels_for(net)
    computed = by_ranks(net, tensors, pixels)[0]
    entry = picture_answer(net, 1, 0.1, dict(zip(net.outputs, computed, strict=True)))
    return net, entry, by_onnxruntime(path, pixels)[0].ravel()


@pytest.mark.parametrize("written", PROBABILITIES)
def test_probabilities_stay_as_they_are(tmp_path, written):
    net, entry, expected = answered(tmp_path, PROBABILITIES[written])

    assert net.head == "scores"
    assert [one["score"] for one in entry["top5"]] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)


@pytest.mark.parametrize("written", SCORES)
def test_scores_become_probabilities(tmp_path, written):
    _, entry, expected = answered(tmp_path, SCORES[written])

    weights = np.exp(expected.astype(np.float64))
    assert [one["score"] for one in entry["top5"]] == pytest.approx(
        sorted(weights / weights.sum(), reverse=True), abs=1e-5
    )


def test_a_map_of_one_pixel_is_scores(tmp_path):
    """As SqueezeNet ends."""
    net, _ = converted(write(tmp_path / "net.onnx", [*BODY[:2], node("Softmax", "m", "y", axis=1)], TENSORS))

    assert (net.shapes[net.outputs[0]], net.head) == ((6, 1, 1), "scores")
