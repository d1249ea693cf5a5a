"""Small convolutional networks, images, and boards for them."""

from dataclasses import replace

import numpy as np
from PIL import Image

from hepti_mpi.requests.pictures import PictureReader
from tests.kit.convnets import Builder, emulate, plan_of
from weights.file.networks import write_network

LABELS = ("ant", "bee", "cow", "dog", "elk", "fox", "gnu")
SIZE = 14


def classifier():
    """Return a network with labels, of convolutions, a pool, a global pool and a product; and its tensors."""
    build = Builder(np.random.default_rng(5), height=SIZE, width=SIZE)
    value = "x"
    for inputs, outputs in ((3, 8), (8, 6)):
        window = {"kernel_shape": [3, 3], "strides": [1, 1], "dilations": [1, 1], "pads": [1, 1, 1, 1], "group": 1}
        weight = build.tensor(outputs, inputs, 3, 3, scale=(9 * inputs) ** -0.5)
        value = build.add("Conv", [value, weight, build.tensor(outputs)], (outputs, SIZE, SIZE), **window)
        value = build.add("Relu", [value], (outputs, SIZE, SIZE))
    value = build.add("GlobalAveragePool", [value], (6, 1, 1))
    value = build.add("Flatten", [value], (6,))
    value = build.add("Gemm", [value, build.tensor(7, 6), build.tensor(7)], (7,))
    return replace(build.net([value]), name="sees", labels=LABELS, head="scores"), build.tensors


def write_classifier(path):
    """Write the weights file of the classifier."""
    write_network(path, *classifier(), "made for a test")


def write_photos(folder):
    """Write a folder with three images, one below another folder, and something that is none."""
    numbers = np.random.default_rng(6)
    (folder / "deep").mkdir(parents=True)
    for name, shape in (("a.png", (20, 30)), ("b.jpg", (SIZE, SIZE)), ("deep/c.png", (40, 9))):
        Image.fromarray(numbers.integers(0, 256, (*shape, 3), np.uint8)).save(folder / name)
    (folder / "bad.png").write_text("no image")


def write_boards(path, count):
    """Write the cluster file of so many unequal boards, of which none is best alone: their work is not for nothing."""
    devices = "".join(
        f'[[device]]\nname = "pi-{rank}"\ngflops = {0.001 * (1 + rank % 3)}\nmemory_gib = 4\n' for rank in range(count)
    )
    path.write_text(
        f'format = "hepti-cluster/1"\n{devices}[network]\nbandwidth_mbps = 9000\nlatency_us = 1\n', encoding="utf-8"
    )


def expected(path):
    """Return what the classifier makes of an image: the scores before they are softmaxed [7]."""
    net, tensors = classifier()
    (request,) = PictureReader(net, print).file(path)
    whole = plan_of(net, [(len(net.nodes), "rows", [1.0])], 1)
    (scores,) = emulate(net, tensors, whole, request.pixels).values()
    return scores


def check_answer(answer, path):
    """Compare an answer with what the classifier makes of the image."""
    scores = np.exp(expected(path))
    scores /= scores.sum()
    order = np.argsort(-scores)[:5]
    assert answer["seconds"] > 0
    assert [one["label"] for one in answer["top5"]] == [LABELS[number] for number in order]
    np.testing.assert_allclose([one["score"] for one in answer["top5"]], scores[order], rtol=0, atol=1e-5)
    assert {name: answer[name] for name in ("label", "score")} == answer["top5"][0]
