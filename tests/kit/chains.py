"""Small chains of layers and boards of which a person can compute what they cost."""

from itertools import pairwise

import numpy as np

from solver.base.spans import Partition
from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.cluster.nodes import NodeSpeeds
from solver.model.convnet import ConvNet, Node
from solver.model.operators import WorkKind


def chain(*layers, size=12, channels=3):
    """Return a network of layers ("conv", channels), ("pool",), ("relu",), ("mean",) or ("gemm", outputs).

    Its image is a square of that size, or of a height and a width.
    """
    height, width = size if isinstance(size, tuple) else (size, size)
    nodes, shapes, tensors, x = [], {"x": (channels, height, width)}, {}, "x"
    for number, (op, *given) in enumerate(layers):
        name, shape = f"{op}{number}", shapes[x]
        tensor = f"{name}/weight"
        if op == "conv":
            tensors[tensor] = (given[0], shape[0], 3, 3)
            node = Node(name, "Conv", (x, tensor), name, window(3, 1, 1) | {"group": 1})
            shape = (given[0], *shape[1:])
        elif op == "pool":
            node = Node(name, "MaxPool", (x,), name, window(2, 2, 0))
            shape = (shape[0], shape[1] // 2, shape[2] // 2)
        elif op == "relu":
            node = Node(name, "Relu", (x,), name)
        elif op == "mean":
            node, shape = Node(name, "GlobalAveragePool", (x,), name), (shape[0], 1, 1)
        elif op == "flatten":
            node, shape = Node(name, "Flatten", (x,), name), (shape[0] * shape[1] * shape[2],)
        else:
            tensors[tensor] = (given[0], shape[0])
            node, shape = Node(name, "Gemm", (x, tensor), name), (given[0],)
        nodes.append(node)
        shapes[name], x = shape, name
    return ConvNet("chain", "x", (x,), tuple(nodes), shapes, tensors)


def window(kernel, stride, pad):
    """Return the attributes of a square window."""
    return {
        "kernel_shape": [kernel, kernel], "strides": [stride, stride], "dilations": [1, 1], "pads": [pad] * 4
    }  # fmt: skip


def boards(*gflops, mbps=100.0, latency_us=100.0, **watts):
    """Return boards of these speeds on one network; products of one row are a twelfth as fast, a call is 4e6 FLOP."""
    devices = []
    for number, speed in enumerate(gflops):
        kinds = dict.fromkeys(WorkKind, speed * 1e9) | {WorkKind.CONNECTED: speed * 1e9 / 12}
        devices.append(Device(f"pi-{number}", speed * 1e9, GIB, nodes=NodeSpeeds(kinds, 4e-3 / speed), **watts))
    return Cluster(tuple(devices), Link(mbps * 1e6 / 8, latency_us / 1e6))


def counts(plan, net, segment):
    """Return how many rows of what a segment leaves first every rank has."""
    part = plan.segments[segment]
    rows = net.shapes[net.live(part.nodes.stop)[0]][1]
    return Partition.of_shares(part.shares, rows).counts


def slab(rows, layers, size):
    """Return the rows before so many 3 × 3 convolutions, and after each, that these rows of the last need."""
    spans = [rows]
    for _ in range(layers if rows[1] > rows[0] else 0):
        start, stop = spans[0]
        spans.insert(0, (max(start - 1, 0), min(stop + 1, size)))
    return spans


def spans(counts):
    """Return consecutive ranges of so many rows."""
    stops = np.cumsum([0, *counts]).tolist()
    return list(pairwise(stops))
