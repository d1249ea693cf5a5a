"""Boxes of YOLOv5, v8, v11 and YOLOX: exact beside a decoder that is written as theirs are, box by box in float64."""

import json
import math

import numpy as np
import pytest
from PIL import Image

from hepti_mpi.requests.images import Frame, read_pixels
from hepti_mpi.requests.picture_answers import picture_answer
from solver.base.errors import HeptiError
from solver.model.convnet import ConvNet, Node, Picture
from tests.kit.onnx_nodes import converted, node, random_weights, write

OVERLAPS = {"yolov5": 0.45, "yolov8": 0.7, "yolov11": 0.7, "yolox": 0.45}
MOST = {"yolov5": 1000, "yolov8": 300, "yolov11": 300}
HEIGHT, WIDTH = 160, 256
CELLS = sum((HEIGHT // stride) * (WIDTH // stride) for stride in (8, 16, 32))


def network(head, shape):
    shapes = {"image": (3, HEIGHT, WIDTH), "y": shape}
    return ConvNet("finds", "image", ("y",), (Node("last", "Conv", ("image",), "y"),), shapes, {}, head=head)


def raw(head, boxes, classes, seed):
    """Return what such a network may compute: boxes on a few heaps, so that many overlap, scores around the limit."""
    draw = np.random.default_rng(seed)
    scores = draw.random((boxes, classes)) ** 2
    if head == "yolox":
        return np.concatenate([draw.normal(0, 0.6, (boxes, 2)), draw.normal(1, 0.3, (boxes, 2)),
                               draw.random((boxes, 1)), scores], axis=1).astype(np.float32)  # fmt: skip
    middles = draw.random((12, 2))[draw.integers(0, 12, boxes)] * (WIDTH, HEIGHT) + draw.normal(0, 4, (boxes, 2))
    sizes = 40 * np.exp(draw.normal(0, 0.2, (boxes, 2)))
    if head == "yolov5":
        return np.concatenate([middles, sizes, draw.random((boxes, 1)), scores], axis=1).astype(np.float32)
    return np.concatenate([middles, sizes, scores], axis=1).T.astype(np.float32)


def candidates(head, output):
    """Return (score, class, edges) of every box above 0.25, as the families' own programs decode them."""
    rows = output.astype(np.float64)
    rows = rows.T if head in ("yolov8", "yolov11") else rows
    cells = [
        (column, row, stride)
        for stride in (8, 16, 32)
        for row in range(HEIGHT // stride)
        for column in range(WIDTH // stride)
    ]
    found = []
    for number, values in enumerate(rows.tolist()):
        x, y, w, h = values[:4]
        if head == "yolox":
            column, row, stride = cells[number]
            x, y, w, h = (x + column) * stride, (y + row) * stride, math.exp(w) * stride, math.exp(h) * stride
        scores = values[4:] if head in ("yolov8", "yolov11") else [values[4] * one for one in values[5:]]
        if head == "yolov5" and values[4] <= 0.25:
            continue
        best = max(range(len(scores)), key=scores.__getitem__)
        if scores[best] > 0.25:
            found.append((scores[best], best, [x - w / 2, y - h / 2, x + w / 2, y + h / 2]))
    return found


def suppressed(found, most):
    """Return those that stay: by score, without those of a class that overlap a better one by more."""
    kept = []
    for score, label, box in sorted(found, key=lambda one: -one[0]):
        far = [edge + 7680 * label for edge in box]  # classes far apart, as ultralytics has it
        if all(overlap(far, [edge + 7680 * other for edge in better]) <= most for _, other, better in kept):
            kept.append((score, label, box))
    return kept


def overlap(one, other):
    across, down = (min(one[2 + axis], other[2 + axis]) - max(one[axis], other[axis]) for axis in (0, 1))
    common = max(across, 0) * max(down, 0)
    area = lambda box: (box[2] - box[0]) * (box[3] - box[1])
    return common / (area(one) + area(other) - common)


@pytest.mark.parametrize("classes", [1, 5])
@pytest.mark.parametrize("head", OVERLAPS)
def test_boxes_are_those_of_the_families_own_programs(head, classes):
    output = raw(head, CELLS, classes, seed=classes)
    net = network(head, output.shape)

    boxes = picture_answer(net, 1, 0.5, {"y": output})["boxes"]

    before = candidates(head, output)
    expected = suppressed(before, OVERLAPS[head])[: MOST.get(head)]
    assert 10 < len(expected) < len(before)
    assert [box["label"] for box in boxes] == [label for _, label, _ in expected]
    assert [box["score"] for box in boxes] == pytest.approx([score for score, _, _ in expected], rel=1e-5)
    inside = [[min(max(edge, 0), (WIDTH, HEIGHT)[i % 2]) for i, edge in enumerate(box)] for _, _, box in expected]
    assert np.allclose([box["box"] for box in boxes], inside, atol=1e-2)
    json.dumps(boxes)


@pytest.mark.parametrize("head", OVERLAPS)
def test_nothing_may_be_found(head):
    output = raw(head, CELLS, 3, seed=0)
    (output[4:] if head in ("yolov8", "yolov11") else output[:, 4:])[...] = 0.1

    assert picture_answer(network(head, output.shape), 1, 0.5, {"y": output})["boxes"] == []


@pytest.mark.parametrize("place", ["middle", "corner"])
@pytest.mark.parametrize("size", [(640, 480), (333, 500), (100, 90), (256, 160)])
def test_the_whole_image_is_there_with_grey_around(tmp_path, size, place):
    """As ultralytics places it, boxes are in the image's own pixels again."""
    pixels = np.random.default_rng(0).integers(0, 50, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")

    found, frame = read_pixels(tmp_path / "image.png", (3, HEIGHT, WIDTH), Picture(letterbox=place))

    factor = min(HEIGHT / size[1], WIDTH / size[0])
    across, down = round(size[0] * factor), round(size[1] * factor)
    left, top = (round((WIDTH - across) / 2 - 0.1), round((HEIGHT - down) / 2 - 0.1)) if place == "middle" else (0, 0)
    is_grey = (found == 114).all(axis=0)
    assert not is_grey[top : top + down, left : left + across].any()
    assert is_grey.sum() == HEIGHT * WIDTH - across * down
    edges = np.array([[left + 5, top + 7, left + 20, top + 30]], np.float32)
    expected = [[5 / factor, 7 / factor, 20 / factor, 30 / factor]]
    assert np.allclose(frame.in_image(edges), expected, atol=1e-3)


def test_blue_may_come_first(tmp_path):
    Image.new("RGB", (8, 8), (10, 20, 30)).save(tmp_path / "image.png")

    found, _ = read_pixels(tmp_path / "image.png", (3, 8, 8), Picture(bgr=True))

    assert found[:, 0, 0].tolist() == [30, 20, 10]


def test_how_solid_a_pixel_is_may_be_a_channel(tmp_path):
    Image.new("RGBA", (8, 8), (10, 20, 30, 40)).save(tmp_path / "image.png")

    found, frame = read_pixels(tmp_path / "image.png", (4, 8, 8), Picture())

    assert (found[:, 0, 0].tolist(), frame) == ([10, 20, 30, 40], Frame(8, 8))


class TestConversion:
    def file(self, tmp_path, shape, second=False):
        nodes = [node("GlobalAveragePool", "x", "m"), node("Conv", "m w", "c"), node("Reshape", "c shape", "y")]
        nodes += [node("Relu", "y", "z")] if second else []
        tensors = {"w": random_weights(int(np.prod(shape)), 3, 1, 1), "shape": np.array([1, *shape])}
        return write(tmp_path / "net.onnx", nodes, tensors, (1, 3, 64, 96), outputs="y z" if second else "y")

    @pytest.mark.parametrize(
        ("head", "shape", "picture"),
        [
            ("yolov5", (20, 8), Picture(letterbox="middle")),
            ("yolov8", (7, 20), Picture(letterbox="middle")),
            ("yolov11", (7, 20), Picture(letterbox="middle")),
            ("yolox", (126, 8), Picture(letterbox="corner", bgr=True, scale=1.0)),
        ],
    )
    def test_pictures_are_read_as_the_family_does(self, tmp_path, head, shape, picture):
        net, _ = converted(self.file(tmp_path, shape), head=head)

        assert (net.head, net.picture) == (head, picture)
        assert ConvNet.from_json(net.to_json()).picture == picture

    def test_a_picture_file_says_it_otherwise(self, tmp_path):
        (tmp_path / "picture.json").write_text('{"letterbox": "corner", "channel_order": "bgr"}')

        net, _ = converted(self.file(tmp_path, (7, 20)), head="yolov8", picture=tmp_path / "picture.json")

        assert net.picture == Picture(letterbox="corner", bgr=True)

    @pytest.mark.parametrize(
        ("head", "shape", "second", "words"),
        [
            ("yolov5", (20, 5), False, r"\[20, 5\]"),
            ("yolov8", (4, 20), False, r"\[4, 20\]"),
            ("yolov8", (7, 20), True, "2 outputs"),
            ("yolox", (120, 8), False, "126, here are 120"),
        ],
    )
    def test_results_of_another_kind_are_refused(self, tmp_path, head, shape, second, words):
        with pytest.raises(HeptiError, match=words):
            converted(self.file(tmp_path, shape, second), head=head)

    def test_labels_are_as_many_as_classes(self, tmp_path):
        (tmp_path / "labels.txt").write_text("cat\ndog\n")

        with pytest.raises(HeptiError, match=r"2 labels.* 3 classes"):
            converted(self.file(tmp_path, (7, 20)), head="yolov8", labels=tmp_path / "labels.txt")
