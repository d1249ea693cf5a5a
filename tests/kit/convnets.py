"""What tests of convolutional networks share: random networks, random plans, and all ranks of a plan in one process."""

import numpy as np

from hepti_mpi.kernels.slab import Slab, part, session, shape_of
from solver.base.spans import Partition, Span
from solver.model.convnet import ConvNet, Node
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on, equal_shares
from solver.schedule.networks.pieces import map_box, pieces_of
from solver.schedule.networks.steps import handed_in, unrolled


def emulate(net, tensors, plan, pixels, *, with_neighbours=True, make=session):
    """Run all ranks of a plan one after the other; what they would send each other is copied. Return the outputs.

    Without neighbours the rows beyond each rank's own are zeros, and the strips of tiles. `make` makes what computes.
    """
    ranks, read = range(len(plan.devices)), reader(tensors)
    whole = net.extent(net.input)
    have = [[{net.input: (whole, pixels)}] if rank == 0 else [] for rank in ranks]
    held = {}
    for shares in unrolled(net, plan):
        slabs = [[Slab(net, piece) for piece in pieces_of(shares, rank)] for rank in ranks]
        for slab in (slab for own in slabs for slab in own):
            slab.bind({graph.key: graph.made(make, read) for graph in slab.graphs})
        strips = {}
        for rank, slab in _givers_first([(rank, slab) for rank, own in enumerate(slabs) for slab in own]):
            for name, (box, place) in slab.needs.items():
                if name not in shares.before:
                    place[...] = strips[name, box] if with_neighbours else 0
                    continue
                fill(net, name, place, box, shares.before[name].partial, have)
                if not (with_neighbours or shares.tiles):
                    mine = Partition.of_shares(shares.segment.shares, net.shapes[name][1])[rank]
                    others = [row for row in range(box.rows.start, box.rows.stop) if not _is_in(row, mine)]
                    place[:, [row - box.rows.start for row in others]] = 0
            slab.run()
            strips |= {(name, box): array for name, (box, array) in slab.leaves.items()}
        have, held = [[slab.leaves for slab in own] for own in slabs], shares.after
    results = {}
    for value, region in handed_in(net, len(ranks)).items():
        box = map_box(region, (0, 0))
        results[value] = np.empty(shape_of(net, value, box), np.float32)
        fill(net, value, results[value], box, held[value].partial, have)
    return results


def _givers_first(slabs):
    """Return slabs in such an order that those which take strips come after those that give them."""
    return sorted(slabs, key=lambda own: any(":" in name for name in own[1].needs))


def _is_in(row, span):
    return span.start <= row < span.stop


def reader(tensors):
    """Return what reads slices of tensors, of a dict."""
    return lambda piece: np.ascontiguousarray(np.atleast_1d(tensors[piece.name])[piece.index])


def fill(net, value, place, wanted, summands, have):
    """Fill a box of a value from the pieces of it, or the summands, that ranks have; every number once."""
    place[...] = 0
    filled = np.zeros(wanted.shape, int)
    for piece in (piece for own in have for piece in own if value in piece):
        box, array = piece[value]
        common = box.intersect(wanted)
        if common.size:
            part(net, value, place, wanted, common)[...] += part(net, value, array, box, common)
            filled[common.within(wanted)] += 1
    assert (filled > 0).all() if summands else (filled == 1).all()


def plan_of(net, segments, ranks):
    """Return a plan of (stop, cut, shares), and whether edges come first, or of tiles the grid, stealing and reuse."""
    starts = [0, *(segment[0] for segment in segments)]
    parts = [
        Segment(Span(start, stop), SegmentCut(cut), tuple(shares), *more)
        for start, (stop, cut, shares, *more) in zip(starts, segments, strict=False)
    ]
    return SegmentPlan(tuple(parts), tuple(f"pi-{rank}" for rank in range(ranks)), net.name)


def random_shares(rng, ranks):
    """Return uneven shares, some of them none."""
    shares = rng.random(ranks) * (rng.random(ranks) < 0.7)
    if not shares.any():
        shares[rng.integers(ranks)] = 1
    return shares / shares.sum()


def random_plan(net, rng, ranks, *, tiles=False):
    """Return a random plan: random segments, cuts and shares; with tiles, half of the segments are cut by them."""
    count = len(net.nodes)
    stops = sorted({*rng.integers(1, count + 1, rng.integers(0, count + 1)).tolist(), count})
    segments, start = [], 0
    for stop in stops:
        cuts = ["rows", "rows", "channels"]
        node = net.nodes[start]
        if tiles and rng.random() < 0.5:
            grid = tuple(int(count) for count in rng.integers(1, 5, 2))
            stealing, reuse = (bool(rng.integers(2)) for _ in range(2))
            segments.append((stop, "tiles", random_shares(rng, ranks), False, grid, stealing, reuse))
            start = stop
            continue
        if stop == start + 1 and node.op in ("Conv", "Gemm") and node.attributes.get("group", 1) == 1:
            cuts.append("input_channels")
        segments.append((stop, rng.choice(cuts), random_shares(rng, ranks), bool(rng.integers(2))))
        start = stop
    return plan_of(net, segments, ranks)


class Builder:
    """Makes a random network, node by node; shapes are computed here, independently of the solver."""

    def __init__(self, rng, channels=3, height=None, width=None):
        self.rng = rng
        self.shapes = {"x": (channels, height or int(rng.integers(5, 20)), width or int(rng.integers(5, 16)))}
        self.nodes, self.tensors, self.values = [], {}, ["x"]

    def add(self, op, inputs, shape, **attributes):
        """Add a node and return its value."""
        output = f"v{len(self.nodes)}"
        self.nodes.append(Node(f"n{len(self.nodes)}", op, tuple(inputs), output, attributes))
        self.shapes[output] = tuple(int(size) for size in shape)
        self.values.append(output)
        return output

    def tensor(self, *shape, scale=1.0):
        """Add random numbers and return their name."""
        name = f"t{len(self.tensors)}"
        self.tensors[name] = (scale * self.rng.standard_normal(shape)).astype(np.float32)
        return name

    def net(self, outputs):
        """Return the network."""
        shapes = {name: array.shape for name, array in self.tensors.items()}
        return ConvNet("random", "x", tuple(outputs), tuple(self.nodes), self.shapes, shapes)


def out_length(length, kernel, stride, dilation, begin, end, *, ceil=False):
    """Return how many pixels a window makes."""
    free = length + begin + end - (kernel - 1) * dilation - 1
    count = -(-free // stride) + 1 if ceil else free // stride + 1
    if ceil and (count - 1) * stride >= length + begin:
        count -= 1
    return count


def random_net(rng, most=9, *, verbatim=False, height=None):
    """Return a random network and its tensors; some nodes may be verbatim, which pass no rows on."""
    build = Builder(rng, height=height)
    count = int(rng.integers(2, most + 1))
    while len(build.nodes) < count:
        maps = [value for value in build.values if len(build.shapes[value]) == 3]
        value = maps[int(rng.integers(max(0, len(maps) - 3), len(maps)))]
        _random_node(build, value, ["verbatim"] if verbatim else [])
    used = {name for node in build.nodes for name in node.inputs}
    outputs = [value for value in build.values if value not in used and value != "x"]
    if rng.random() < 0.4:
        value = build.add("GlobalAveragePool", [outputs[-1]], (build.shapes[outputs[-1]][0], 1, 1))
        if rng.random() < 0.7:
            width = build.shapes[value][0]
            flat = build.add("Flatten", [value], (width,))
            value = build.add("Gemm", [flat, build.tensor(5, width), build.tensor(5)], (5,))
        outputs[-1] = value
    elif rng.random() < 0.3:
        shape = build.shapes[outputs[-1]]
        flat = build.add("Flatten", [outputs[-1]], (int(np.prod(shape)),))
        outputs[-1] = build.add("Gemm", [flat, build.tensor(7, int(np.prod(shape)), scale=0.1), build.tensor(7)], (7,))
    return build.net(outputs), build.tensors


def _random_node(build, value, extra=()):
    rng = build.rng
    C, H, W = build.shapes[value]  # noqa: N806
    op = rng.choice(
        ["conv", "conv", "conv", "depthwise", "grouped", "maxpool", "avgpool", "relu", "clip", "add", "mul", "concat",
         "resize", "linear", "pad", "slice", "s2d", "d2s", "transposed", "se", "bn", "const", *extra]
    )  # fmt: skip
    if op in ("conv", "depthwise", "grouped"):
        groups = 1 if op == "conv" else C if op == "depthwise" else 2 if C % 2 == 0 else 1
        window, shape = _window(rng, H, W)
        outputs = groups * int(rng.integers(1, 4))
        fan = C // groups * window["kernel_shape"][0] * window["kernel_shape"][1]
        weight = build.tensor(outputs, C // groups, *window["kernel_shape"], scale=fan**-0.5)
        build.add("Conv", [value, weight, build.tensor(outputs)], (outputs, *shape), group=groups, **window)
    elif op in ("maxpool", "avgpool"):
        ceil = bool(rng.integers(2)) and op == "maxpool"
        window, shape = _window(rng, H, W, ceil=ceil, pool=True, dilated=op == "maxpool" and not ceil)
        if op == "avgpool":
            window["count_include_pad"] = int(rng.integers(2))
        build.add("MaxPool" if op == "maxpool" else "AveragePool", [value], (C, *shape), **window)
    elif op == "relu":
        build.add("Relu", [value], (C, H, W))
    elif op == "clip":
        build.add("Clip", [value], (C, H, W), min=-0.5, max=1.0)
    elif op in ("add", "mul", "concat"):
        others = [v for v, shape in build.shapes.items() if len(shape) == 3 and shape[1:] == (H, W) and v != "x"]
        if op == "concat" and others:
            some = [others[int(rng.integers(len(others)))] for _ in range(int(rng.integers(1, 3)))]
            build.add("Concat", [value, *some], (C + sum(build.shapes[v][0] for v in some), H, W))
            return
        same = [v for v in others if build.shapes[v][0] == C]
        if same:
            build.add(op.title(), [value, same[int(rng.integers(len(same)))]], (C, H, W))
    elif op == "resize" and H * W <= 150:
        factors = [int(f) for f in rng.integers(1, 4, 2)]
        build.add(
            "Resize", [value], (C, H * factors[0], W * factors[1]), factors=factors, exact=True, mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
    elif op == "linear" and H * W <= 150:
        build.add(
            "Resize", [value], (C, H * 2, W * 2), factors=[2, 2], exact=False, mode="linear",
            coordinate_transformation_mode=str(rng.choice(["half_pixel", "asymmetric"])),
        )  # fmt: skip
    elif op == "pad":
        top, left, bottom, right = (int(p) for p in rng.integers(0, 3, 4))
        build.add("Pad", [value], (C, H + top + bottom, W + left + right), pads=[top, left, bottom, right], value=0.5)
    elif op == "slice" and C > 1:
        start = int(rng.integers(C - 1))
        stop = int(rng.integers(start + 1, C + 1))
        build.add("Slice", [value], (stop - start, H, W), start=start, stop=stop)
    elif op == "s2d" and H % 2 == 0 and W % 2 == 0:
        build.add("SpaceToDepth", [value], (4 * C, H // 2, W // 2), blocksize=2)
    elif op == "d2s" and C % 4 == 0:
        build.add("DepthToSpace", [value], (C // 4, H * 2, W * 2), blocksize=2, mode=str(rng.choice(["DCR", "CRD"])))
    elif op == "transposed" and H * W <= 150:
        stride = int(rng.integers(1, 4))
        kernel = stride + int(rng.integers(0, 3))
        begin, end = int(rng.integers(0, kernel)), int(rng.integers(0, kernel))
        shape = [(length - 1) * stride + kernel - begin - end for length in (H, W)]
        if min(shape) > 0:
            weight = build.tensor(C, 2, kernel, kernel, scale=0.3)
            build.add(
                "ConvTranspose", [value, weight, build.tensor(2)], (2, *shape), kernel_shape=[kernel, kernel],
                strides=[stride, stride], dilations=[1, 1], pads=[begin, begin, end, end], group=1,
            )  # fmt: skip
    elif op == "se":
        pooled = build.add("GlobalAveragePool", [value], (C, 1, 1))
        ones = {"kernel_shape": [1, 1], "strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0], "group": 1}
        gate = build.add("Conv", [pooled, build.tensor(C, C, 1, 1, scale=C**-0.5), build.tensor(C)], (C, 1, 1), **ones)
        gate = build.add("Sigmoid", [gate], (C, 1, 1))
        build.add("Mul", [value, gate], (C, H, W))
    elif op == "bn":
        scale, shift, mean = (build.tensor(C) for _ in range(3))
        variance = build.tensor(C)
        build.tensors[variance] = np.abs(build.tensors[variance]) + np.float32(0.5)
        build.add("BatchNormalization", [value, scale, shift, mean, variance], (C, H, W), epsilon=1e-5)
    elif op == "verbatim" and H > 1:
        _verbatim_node(build, value)
    elif op == "const":
        build.add("Mul", [value, build.tensor(*(C, 1, 1) if rng.integers(2) else (1, 1, 1))], (C, H, W))


def _verbatim_node(build, value):
    """Add what is computed as it is: of all of its input, with its own output of several."""
    C, H, W = build.shapes[value]  # noqa: N806
    facts = {"output": 0, "batch": True, "dtype": "float32"}
    kind = build.rng.integers(3)
    if kind == 0:  # one number, without a batch, that all pixels are multiplied by
        most = build.add("Verbatim:ReduceMax", [value], (), attributes={"keepdims": 0}, **{**facts, "batch": False})
        ones = build.tensor(4)
        build.tensors[ones] = np.ones(4, np.int64)
        spread = build.add("Verbatim:Reshape", [most, ones], (1, 1, 1), attributes={}, **facts)
        build.add("Mul", [value, spread], (C, H, W))
    elif kind == 1:
        build.add("Verbatim:Transpose", [value], (C, W, H), attributes={"perm": [0, 1, 3, 2]}, **facts)
    else:
        sizes = build.tensor(2)
        build.tensors[sizes] = np.array([1, H - 1])
        build.add("Verbatim:Split", [value, sizes], (C, H - 1, W), attributes={"axis": 2}, **{**facts, "output": 1})


def _window(rng, H, W, *, ceil=False, pool=False, dilated=True):
    """Return a random window that fits, and the shape that it makes."""
    while True:
        kernel = [int(k) for k in rng.integers(1, 8, 2)]
        strides = [int(s) for s in rng.integers(1, 4, 2)]
        dilations = [int(d) for d in rng.integers(1, 3, 2)] if dilated else [1, 1]
        top, left, bottom, right = (int(rng.integers(0, kernel[axis % 2])) for axis in range(4))
        shape = [
            out_length(length, kernel[axis], strides[axis], dilations[axis], *ends, ceil=ceil)
            for axis, (length, ends) in enumerate(((H, (top, bottom)), (W, (left, right))))
        ]
        if pool and dilations != [1, 1]:
            top = left = bottom = right = 0
            shape = [out_length(length, kernel[axis], strides[axis], dilations[axis], 0, 0, ceil=ceil)
                     for axis, length in enumerate((H, W))]  # fmt: skip
        if min(shape) > 0:
            return {
                "kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": [top, left, bottom, right],
            }, shape  # fmt: skip


def equal_segments(net, cluster, stops=(), **facts):
    """Return a plan of equal rows on all devices, cut at these nodes; the last segment is on rank 0."""
    ranks = len(cluster.devices)
    starts = [0, *stops]
    segments = [
        Segment(Span(start, stop), SegmentCut.ROWS, equal_shares(range(ranks), ranks))
        for start, stop in zip(starts, stops, strict=False)
    ]
    segments.append(Segment(Span(starts[-1], len(net.nodes)), SegmentCut.ROWS, alone_on(0, ranks)))
    return SegmentPlan(tuple(segments), cluster.names, net.name, net.fingerprint, system="equal", **facts)
