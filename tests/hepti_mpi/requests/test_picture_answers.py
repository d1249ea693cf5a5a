"""What a convolutional network computed becomes labels, boxes or shapes."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from hepti_mpi.requests.answers import NOTHING, Answer
from hepti_mpi.requests.images import Frame
from hepti_mpi.requests.outputs import writing
from hepti_mpi.requests.picture_answers import picture_answer, print_picture_answer
from solver.model.convnet import ConvNet, Node

LABELS = tuple(f"class {number}" for number in range(7))
NUMBERS = np.random.default_rng(0)


def classifier(*ops, labels=LABELS):
    names = ["image", *(f"y{number}" for number in range(len(ops)))]
    nodes = tuple(Node(op, op, (a,), b) for op, a, b in zip(ops, names, names[1:], strict=False))
    shapes = {"image": (3, 8, 8)} | dict.fromkeys(names[1:], (7,))
    return ConvNet("sees", "image", (names[-1],), nodes, shapes, {}, labels=labels, head="scores")


def detector(anchors, classes, rows, columns, height, width):
    shapes = {"image": (3, height, width), "y": (len(anchors) * (5 + classes), rows, columns)}
    nodes = (Node("last", "Conv", ("image",), "y"),)
    return ConvNet("finds", "image", ("y",), nodes, shapes, {}, labels=LABELS[:classes], head="boxes", anchors=anchors)


@pytest.mark.parametrize(
    ("ops", "softmaxed"),
    [
        (("Gemm",), False),
        (("Softmax",), True),
        (("Verbatim:Softmax",), True),
        (("Softmax", "Verbatim:Reshape"), True),
        (("Softmax", "Relu"), False),
        (("Flatten",), False),
    ],
)
def test_scores_are_softmaxed_once(ops, softmaxed):
    net = classifier(*ops)
    scores = np.array([0.1, 0.3, 0.05, 0.02, 0.5, 0.02, 0.01], np.float32)

    entry = picture_answer(net, "cat", 0.5, {net.outputs[0]: scores.reshape(7, 1, 1)})

    total = 1 if softmaxed else sum(math.exp(score) for score in scores)
    expected = scores if softmaxed else [math.exp(score) / total for score in scores]
    assert (entry["id"], entry["seconds"], entry["label"]) == ("cat", 0.5, "class 4")
    assert [one["label"] for one in entry["top5"]] == [f"class {number}" for number in (4, 1, 0, 2, 3)]
    assert [one["score"] for one in entry["top5"]] == pytest.approx([expected[number] for number in (4, 1, 0, 2, 3)])
    assert {"label": entry["label"], "score": entry["score"]} == entry["top5"][0]
    json.dumps(entry)


def test_classes_without_names_are_numbers_and_few_are_all():
    net = classifier("Gemm", labels=())

    entry = picture_answer(net, 1, 0.5, {"y0": np.array([1000, -1000], np.float32)})

    assert entry["top5"] == [{"label": 0, "score": 1.0}, {"label": 1, "score": 0.0}]


def boxes_by_loops(net, output):
    """Decode a YOLOv2 head cell by cell, as darknet does, in float64."""
    _, height, width = net.shapes["image"]
    channels, rows, columns = output.shape
    each = channels // len(net.anchors)
    sigmoid = lambda x: 1 / (1 + math.exp(-x))
    found = []
    for number, (anchor_w, anchor_h) in enumerate(net.anchors):
        for row in range(rows):
            for column in range(columns):
                x, y, w, h, objectness, *classes = output[number * each : (number + 1) * each, row, column].tolist()
                total = sum(math.exp(one) for one in classes)
                best = max(range(len(classes)), key=classes.__getitem__)
                score = sigmoid(objectness) * math.exp(classes[best]) / total
                if score > 0.25:
                    middle_x, middle_y = (column + sigmoid(x)) / columns * width, (row + sigmoid(y)) / rows * height
                    w, h = anchor_w * math.exp(w) / columns * width, anchor_h * math.exp(h) / rows * height
                    box = [middle_x - w / 2, middle_y - h / 2, middle_x + w / 2, middle_y + h / 2]
                    found.append((score, best, box))
    kept = []
    for score, label, box in sorted(found, reverse=True):
        if all(label != other or overlap(box, better) <= 0.45 for _, other, better in kept):
            kept.append((score, label, box))
    return [
        (score, net.labels[label], [min(max(edge, 0), (width, height)[i % 2]) for i, edge in enumerate(box)])
        for score, label, box in kept
    ], len(found)


def overlap(one, other):
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    common = max(across, 0) * max(down, 0)
    area = lambda box: (box[2] - box[0]) * (box[3] - box[1])
    return common / (area(one) + area(other) - common)


@pytest.mark.parametrize(("classes", "rows", "columns"), [(3, 5, 4), (1, 3, 6), (7, 6, 6)])
def test_boxes_are_those_of_a_loop_over_cells(classes, rows, columns):
    net = detector(((2.5, 3.0), (3.5, 2.0)), classes, rows, columns, 32 * rows, 24 * columns)
    output = 1.5 * np.random.default_rng(0).standard_normal((2, 5 + classes, rows, columns), np.float32)
    output[:, 2:4] *= 0.2  # boxes of much the same size, so that many overlap
    output = output.reshape(-1, rows, columns)

    boxes = picture_answer(net, 1, 0.5, {"y": output})["boxes"]

    expected, before = boxes_by_loops(net, output)
    assert 2 < len(expected) < before
    assert [box["label"] for box in boxes] == [label for _, label, _ in expected]
    assert [box["score"] for box in boxes] == pytest.approx([score for score, _, _ in expected], rel=1e-5)
    assert np.allclose([box["box"] for box in boxes], [box for _, _, box in expected], atol=1e-3)
    json.dumps(boxes)


@pytest.mark.filterwarnings("error")
def test_a_network_without_training_finds_boxes_that_are_numbers():
    net = detector(((1.5, 2.0), (3.0, 1.0)), 3, 5, 4, 160, 128)
    output = 1000 * NUMBERS.standard_normal((16, 5, 4), np.float32)

    boxes = picture_answer(net, 1, 0.5, {"y": output})["boxes"]

    assert boxes
    assert np.isfinite([box["box"] for box in boxes]).all()


def test_nothing_may_be_found():
    net = detector(((1.0, 1.0),), 2, 3, 3, 96, 96)

    assert picture_answer(net, 1, 0.5, {"y": np.full((7, 3, 3), -5, np.float32)})["boxes"] == []


def test_a_network_without_a_head_answers_with_shapes():
    shapes = {"image": (3, 8, 8), "a": (4, 2, 2), "b": (5,)}
    nodes = (Node("one", "Conv", ("image",), "a"), Node("two", "Gemm", ("a",), "b"))
    net = ConvNet("computes", "image", ("b", "a"), nodes, shapes, {})

    entry = picture_answer(net, 1, 0.5, {name: np.zeros(shapes[name], np.float32) for name in "ab"})

    assert entry == {"id": 1, "seconds": 0.5, "outputs": {"b": [5], "a": [4, 2, 2]}}


def test_an_npz_has_all_outputs_by_id_and_name(tmp_path):
    outputs = {"y/0": NUMBERS.standard_normal((4, 2), np.float32), "b": np.ones(5, np.float32)}

    with writing(tmp_path / "y.npz") as take:
        for name in ("deep/cat.png", 2):
            take(Answer({"id": name}, NOTHING, outputs=outputs))

    with np.load(tmp_path / "y.npz") as arrays:
        assert arrays.files == ["deep/cat.png/y/0", "deep/cat.png/b", "2/y/0", "2/b"]
        assert np.array_equal(arrays["deep/cat.png/y/0"], outputs["y/0"])


def test_json_lines_have_the_entry(tmp_path):
    with writing(tmp_path / "y.jsonl") as take:
        take(Answer({"id": 1}, NOTHING, outputs={"a": np.ones(5, np.float32)}))

    assert (tmp_path / "y.jsonl").read_text() == '{"id": 1}\n'


@pytest.mark.parametrize(
    ("says", "lines"),
    [
        (
            {"top5": [{"label": "tabby, cat", "score": 0.75}, {"label": 3, "score": 0.125}]},
            ["  0.750  tabby, cat", "  0.125  3"],
        ),
        ({"boxes": []}, ["  nothing found"]),
        (
            {"boxes": [{"label": "dog", "score": 0.5, "box": [0.4, 1.6, 30.0, 1040.0]}]},
            ["              left  top  right  bottom", "  0.500  dog     0    2     30    1040"],
        ),
        ({"outputs": {"b": [5], "a": [4, 2, 2], "c": []}}, ["  b  5", "  a  4, 2, 2", "  c  one number"]),
    ],
)
def test_a_person_reads_what_there_is_below_the_name_of_the_image(says, lines):
    text = io.StringIO()

    print_picture_answer(Console(file=text, markup=False, highlight=False, width=80), {"id": "[a].png"} | says)

    assert [line.rstrip() for line in text.getvalue().splitlines()] == ["[a].png", *lines]


def test_a_long_label_stays_in_its_column():
    text = io.StringIO()
    top = [{"label": "tench, Tinca tinca", "score": 0.75}]

    print_picture_answer(Console(file=text, width=24), {"id": 1, "top5": top})

    assert [line.rstrip() for line in text.getvalue().splitlines()] == ["1", "  0.750  tench, Tinca", "         tinca"]


def test_what_a_terminal_obeys_is_shown_as_python_writes_it():
    """Names of images and of labels are a stranger's."""
    text = io.StringIO()
    top = [{"label": "d\x07og", "score": 0.75}]

    print_picture_answer(Console(file=text, width=40), {"id": "\x1b[31mé.png", "top5": top})

    assert [line.rstrip() for line in text.getvalue().splitlines()] == [r"\x1b[31mé.png", r"  0.750  d\x07og"]


def test_boxes_are_in_the_pixels_of_the_image():
    """The input, 64 wide and 32 high, is the middle of the image, every second pixel across and every fourth down."""
    net = detector(((1.0, 1.0),), 2, 1, 2, 32, 64)
    output = np.full((7, 1, 2), -20, np.float32)
    output[:, 0, 1] = [0, 0, 0, 0, 20, 20, -20]  # all of the cell to the right

    (box,) = picture_answer(net, 1, 0.5, {"y": output}, Frame(140, 150, (10.0, 20.0), (2.0, 4.0)))["boxes"]
    (cut,) = picture_answer(net, 1, 0.5, {"y": output}, Frame(130, 140, (10.0, 20.0), (2.0, 4.0)))["boxes"]

    assert box["box"] == pytest.approx([74, 20, 138, 148])
    assert cut["box"] == pytest.approx([74, 20, 130, 140])
