"""What a rank computes of a segment of a network as one graph: from the boxes that it needs to those that it leaves.

Every node computes just the box that is needed of it (`solver.schedule.networks.pieces`): a window that reaches beyond
the image is padded there, and nowhere else, since what lies beyond a rank's own rows came from the others. Where
several nodes need different boxes of a value, the largest is computed, and each takes its own. What neighbours have
computed of a tile's values comes in as strips: the rest of such a box is computed, and all are put together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from hepti_mpi.kernels.ort import make_session
from solver.base.arrays import Numbers
from solver.base.spans import Span
from solver.model.convnet import ConvNet, MapBox, Node, Picture
from solver.model.kinds.operator import BROADCAST, POOLS, windows
from solver.model.operators import GLOBAL_POOLS, VERBATIM
from solver.plan.holdings import TensorSlice
from solver.schedule.networks.memory import coming_into, graphs_of
from solver.schedule.networks.pieces import Piece, Reach, Strip, Walk

SMALL = 1 << 16  # numbers; larger tensors are not copied into the graph
SMALL_IN_PLACE = 1 << 10  # where many graphs have the same
Placed = dict[str, tuple[MapBox, Numbers]]  # of values, a box and an array for it
ReadSlice = Callable[[TensorSlice], Numbers]
Arrays = Mapping[str, Numbers]  # by their names in a graph; inputs and outputs without the batch of 1
Bind = Callable[[Arrays, Arrays], Callable[[], None]]  # of inputs and outputs: what computes these of those
# Makes a graph of nodes, inputs, outputs, constants and ONNX's version ready to run. Last is whether many graphs have
# the same constants, which then stay where they are.
MakeBind = Callable[[Sequence[NodeProto], Sequence[ValueInfoProto], Sequence[ValueInfoProto], Arrays, int, bool], Bind]


def session(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Arrays,
    opset: int,
    in_place: bool,
) -> Bind:
    """Make of a graph a session of onnxruntime; as `MakeBind`."""
    small = SMALL_IN_PLACE if in_place else SMALL
    large = {n: array for n, array in constants.items() if array.size >= small and array.dtype == np.float32}
    made = make_session(
        nodes,
        inputs,
        outputs,
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name not in large],
        large,
        opset=opset,
        passes_memory_on=True,
        shares_constants=in_place,
    )
    return partial(made.bound, batch=(1,))


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What pieces have in common that are computed one after the other.

    Parameters
    ----------
    room
        By the name, memory for what each needs or leaves, and for what its graphs leave each other; what is not here
        has its own in each.
    in_place
        Whether all graphs use the same weights, where they are.
    """

    room: Mapping[str, Numbers] = field(default_factory=dict)
    in_place: bool = False

    def array(self, net: ConvNet, value: str, box: MapBox, name: str = "") -> Numbers:
        """Return an array for a box of a value; pixels of the image are uint8."""
        shape = shape_of(net, value, box)
        if (name or value) in self.room:
            return self.room[name or value][: math.prod(shape)].reshape(shape)
        return np.empty(shape, np.uint8 if value == net.input else np.float32)


class Slab:
    """A piece of what a rank computes of a segment.

    Parameters
    ----------
    net, piece
        The network, and what of it is computed.
    shared
        What it has in common with others.

    Attributes
    ----------
    graphs
        What computes it, as nodes; it runs when they are bound to those that are made.
    needs
        Of every value that comes in, the box that the piece needs, and an array for it; the image's are uint8. Strips
        by their names.
    leaves
        Of every value that it leaves, its box, or of all ranks' summands this one's, and an array; and strips. What
        needs no computing lies where it came in.
    """

    def __init__(
        self,
        net: ConvNet,
        piece: Piece,
        shared: Shared | None = None,
    ) -> None:
        shared = shared or Shared()
        self.needs: Placed = {
            name: (box, shared.array(net, value, box, name)) for name, (value, box) in piece.coming.items()
        }
        walks = graphs_of(net, piece.walk)
        between = {value for walk in walks for value in coming_into(net, walk)} - self.needs.keys()
        there = self.needs | {
            value: (box, shared.array(net, value, box)) for value, box in piece.walk.needs.items() if value in between
        }
        self.leaves: Placed = {}
        for name, (value, box) in piece.going.items():
            if name in there:
                self.leaves[name] = box, part(net, value, there[name][1], there[name][0], box)
            else:
                self.leaves[name] = box, shared.array(net, value, box, name)
        places = self.leaves | there
        self.graphs = [PieceGraph(net, walk, piece.summed, places, piece.given, shared.in_place) for walk in walks]
        self._calls: list[Callable[[], None]] = []

    def bind(self, ready: Mapping[bytes, Bind]) -> None:
        """Take the graphs that are ready to run, by their keys."""
        self._calls = [graph.bound(ready[graph.key]) for graph in self.graphs]
        self.graphs = []  # their nodes are in what was made of them

    def warm(self) -> None:
        """Compute once: a session's first run allocates what it keeps, and touches its weights."""
        for _, array in self.needs.values():
            array[...] = 0
        self.run()

    def run(self) -> None:
        """Compute `leaves` of `needs`."""
        for call in self._calls:
            call()


def shape_of(net: ConvNet, value: str, box: MapBox) -> tuple[int, ...]:
    """Return the shape of an array of a box of a value, without the batch."""
    rank = net.axes(value)
    return box.shape if rank == 3 else (box.channels.size,) if rank == 1 else net.shapes[value]


def part(net: ConvNet, value: str, array: Numbers, of: MapBox, box: MapBox) -> Numbers:
    """Return a box of a value as a view into the array of a larger one, `of`."""
    view: Numbers = array[index_of(net, value, box, of)]
    return view


def index_of(net: ConvNet, value: str, box: MapBox, of: MapBox) -> tuple[Any, ...]:
    """Return a box of a value as an index into the array of a larger one, `of`: of one number a view, too."""
    rank = net.axes(value)
    return box.within(of) if rank == 3 else box.within(of)[:1] if rank == 1 else (...,)


def _info(name: str, array: Numbers) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [1, *array.shape])


class PieceGraph:
    """The nodes of a graph; a value has one name for each box of it that somebody needs.

    Parameters
    ----------
    net, walk, summed
        The network, what is computed, and of which values it sums up a part of the channels.
    places
        Where values lie that come in, and that are left.
    given
        Strips that it leaves.
    in_place
        Whether other graphs use the same weights, where they are.

    Attributes
    ----------
    key
        All that makes it different from others: of equal ones one is made.
    slices
        What it needs of tensors.
    """

    def __init__(
        self, net: ConvNet, walk: Walk, summed: Mapping[str, Span], places: Placed, given: Sequence[Strip],
        in_place: bool,
    ) -> None:  # fmt: skip
        self._net, self._walk, self._summed, self._in_place = net, walk, summed, in_place
        self._nodes: list[NodeProto] = []
        self._tensors: dict[str, Numbers] = {}
        # Tensors that are read when it is made, by what they are: a slice, and which part of that.
        self._reads: dict[str, tuple[TensorSlice, tuple[slice, ...]]] = {}
        self._names: dict[tuple[str, MapBox], str] = {}
        made = {net.nodes[number].output for number in walk.made}
        left = {value: (value, places[value][0].intersect(walk.needs[value])) for value in places if value in made}
        left |= {strip.name: (strip.value, strip.box) for strip in given if strip.value in made}
        self._inputs = {name: places[value][1] for value, name in self._build(left).items()}
        self._outputs = {
            f"out:{name}": part(net, value, places[name][1], places[name][0], box)
            for name, (value, box) in left.items()
        }
        self._coming, self._going = (
            [_info(name, array) for name, array in arrays.items()] for arrays in (self._inputs, self._outputs)
        )
        parts_of_it = [node.SerializeToString() for node in self._nodes]
        parts_of_it += [info.SerializeToString() for info in (*self._coming, *self._going)]
        constants = [(name, array.shape, array.tobytes()) for name, array in self._tensors.items()]
        self.key = repr((in_place, parts_of_it, constants, list(self._reads))).encode()
        self.slices = list(dict.fromkeys(piece for piece, _ in self._reads.values()))

    def made(self, make: MakeBind, read: ReadSlice) -> Bind:
        """Make it ready to run."""
        tensors = self._tensors | {name: self._part(read(own[0]), *own) for name, own in self._reads.items()}
        return make(self._nodes, self._coming, self._going, tensors, self._net.opset, self._in_place)

    def bound(self, bind: Bind) -> Callable[[], None]:
        """Return what computes what has a place, strips that are given included, from what has one."""
        return bind(self._inputs, self._outputs)

    def _build(self, left: Mapping[str, tuple[str, MapBox]]) -> dict[str, str]:
        """Make the nodes, and name the values and strips that come in, as the graph's inputs."""
        net = self._net
        coming = {value: f"in:{value}" for value in coming_into(net, self._walk)}
        for value, name in coming.items():
            self._names[value, self._walk.needs[value]] = (
                self._normalised(name) if value == net.input else self._as_it_was(value, name)
            )
        made = {net.nodes[number].output for number in self._walk.made}
        for value in {strip.value: None for strip in self._walk.taken if strip.value not in made}:
            self._names[value, self._walk.needs[value]] = self._joined(value)
        for number in sorted(self._walk.made):
            self._add(number, self._walk.made[number])
        for name, (value, box) in left.items():
            self._nodes.append(
                helper.make_node("Cast", [self._box(value, box)], [f"cast:{name}"], to=TensorProto.FLOAT)
            )
            self._nodes.append(self._with_batch("Unsqueeze", value, f"cast:{name}", f"out:{name}"))
        return coming | {strip.name: f"in:{strip.name}" for strip in self._walk.taken}

    def _add(self, number: int, reach: Reach) -> None:
        """Add a node that computes a box of its output."""
        net, node = self._net, self._net.nodes[number]
        whole = self._walk.needs[node.output]
        made = f"{node.output}" if reach.made == whole else f"{node.output}:made"
        attributes = {key: value for key, value in node.attributes.items() if key != "group"}
        values = [
            self._box(value, box) for value, box in zip(net.values_of(node), reach.needs, strict=True) if box.size
        ]
        op = node.op
        if op.startswith(VERBATIM):
            named = dict(zip(net.values_of(node), values, strict=True))
            inputs = [named[name] if name in named else self._tensor(name) if name else "" for name in node.inputs]
            op, attributes = op.removeprefix(VERBATIM), node.attributes["attributes"]
            own = node.attributes["output"]
            outputs = [f"{made}:unused{number}" for number in range(node.attributes.get("outputs", own + 1))]
            outputs[own] = made
            self._nodes.append(helper.make_node(op, inputs, outputs, name=node.name, **attributes))
        elif op in GLOBAL_POOLS and node.output in self._summed:
            pixels = np.float32(1 / (net.extent(net.values_of(node)[0]).size // net.shapes[node.output][0]))
            axes = self._constant(f"{made}:axes", np.array([2, 3], np.int64))
            summed = f"{made}:sum"
            self._nodes.append(helper.make_node("ReduceSum", [values[0], axes], [summed], keepdims=1))
            scale = self._constant(f"{made}:scale", np.array(pixels))
            self._nodes.append(helper.make_node("Mul", [summed, scale], [made]))
        elif op == "Pad":
            self._nodes.append(self._pad(values[0], reach.pads, node.attributes["value"], made))
        elif op == "Slice":  # the box that it needs is the slice
            self._nodes.append(helper.make_node("Identity", values, [made]))
        else:
            inputs, attributes = self._specific(node, reach, values, attributes, made)
            self._nodes.append(helper.make_node(op, inputs, [made], name=node.name, **attributes))
        self._names[node.output, reach.made] = made
        if reach.made != reach.wanted:
            made = self._slice(node.output, made, reach.made, reach.wanted, f"{node.output}:rest")
        self._names[node.output, whole] = self._joined(node.output, made)

    def _joined(self, value: str, rest: str = "") -> str:
        """Put together what is computed of a value and its strips: those beside it, then those above and below."""
        strips = {strip.side: f"in:{strip.name}" for strip in self._walk.taken if strip.value == value}
        for axis, before, behind in ((3, "left", "right"), (2, "above", "below")):
            parts = [name for name in (strips.get(before), rest, strips.get(behind)) if name]
            if len(parts) > 1:
                self._nodes.append(helper.make_node("Concat", parts, [f"{value}:joined{axis}"], axis=axis))
                parts = [f"{value}:joined{axis}"]
            rest = "".join(parts)
        return rest

    def _specific(
        self, node: Node, reach: Reach, values: list[str], attributes: dict[str, Any], made: str
    ) -> tuple[list[str], dict[str, Any]]:
        """Return a node's inputs and attributes for its box."""
        net, op, channels = self._net, node.op, reach.made.channels
        if op in ("Conv", "Gemm"):
            summed = self._summed.get(node.output)
            tensors = [self._tensor(node.inputs[1], channels, summed)]
            # Only one of those that add up adds the bias.
            if len(node.inputs) > 2 and node.inputs[2] and (summed is None or not summed.start):
                tensors.append(self._tensor(node.inputs[2], channels))
            if op == "Gemm":
                return [*values, *tensors], {"transB": 1}
            group = node.attributes.get("group", 1)
            group = group * channels.size // net.shapes[node.output][0] if group > 1 else 1
            return [*values, *tensors], {**attributes, "pads": reach.pads, "group": group}
        if op == "ConvTranspose":
            pads, more = _cropped(net, node, reach)
            tensors = [self._tensor(name) for name in node.inputs[1:] if name]
            attributes |= {"pads": pads, "output_padding": more, "group": node.attributes.get("group", 1)}
            return [*values, *tensors], attributes
        if op in POOLS:
            dilations = {} if op == "MaxPool" else {"dilations"}  # AveragePool has had them since opset 19 only
            kept = {key: value for key, value in attributes.items() if key not in dilations}
            if all(pad < node.attributes["kernel_shape"][axis % 2] for axis, pad in enumerate(reach.pads)):
                return values, {**kept, "pads": reach.pads}
            # onnxruntime refuses to pad as much as a kernel, also where dilation makes it span more.
            self._nodes.append(self._pad(values[0], reach.pads, -np.inf, f"{made}:padded"))
            return [f"{made}:padded"], {**kept, "pads": [0, 0, 0, 0]}
        if op == "Resize":
            scales = self._constant(f"{made}:scales", np.array([1, 1, *attributes["factors"]], np.float32))
            kept = {key: value for key, value in attributes.items() if key not in ("factors", "exact")}
            return [*values, "", scales], kept
        if op == "Clip":
            limits = [
                self._constant(f"{made}:{end}", np.array(attributes[end], np.float32)) if end in attributes else ""
                for end in ("min", "max")
            ]
            return [*values, *limits], {}
        if op == "Concat":
            return values, {"axis": 1}
        if op in BROADCAST:
            named = dict(zip([name for name in node.inputs if name in net.shapes], values, strict=True))
            inputs = [named[name] if name in named else self._broadcast(name, reach.made) for name in node.inputs]
            return inputs, attributes
        return values, attributes

    def _pad(self, value: str, pads: tuple[int, int, int, int], by: float, padded: str) -> NodeProto:
        top, left, bottom, right = pads
        ends = self._constant(f"{padded}:pads", np.array([0, 0, top, left, 0, 0, bottom, right], np.int64))
        return helper.make_node(
            "Pad", [value, ends, self._constant(f"{padded}:by", np.array(by, np.float32))], [padded]
        )

    def _as_it_was(self, value: str, name: str) -> str:
        """Return a value that came in as the node made it: of its own type, and without a batch where it has none."""
        node = self._net.nodes[self._net.made_by[value]]
        kind = node.attributes.get("dtype", "float32")
        if kind == "float32" and node.attributes.get("batch", True):
            return name
        self._nodes.append(self._with_batch("Squeeze", value, name, f"{name}:squeezed"))
        to = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        self._nodes.append(helper.make_node("Cast", [f"{name}:squeezed"], [f"{name}:cast"], to=to))
        return f"{name}:cast"

    def _with_batch(self, op: str, value: str, source: str, name: str) -> NodeProto:
        """Return the node that adds or removes the batch of a value that has none of its own; else one that copies."""
        made = self._net.made_by[value]
        if made < 0 or self._net.nodes[made].attributes.get("batch", True):
            return helper.make_node("Identity", [source], [name])
        return helper.make_node(op, [source, self._constant(f"{name}:axis", np.array([0], np.int64))], [name])

    def _normalised(self, name: str) -> str:
        """Add what makes numbers of pixels."""
        picture = self._net.picture or Picture()
        channels = self._net.shapes[self._net.input][0]
        self._nodes.append(helper.make_node("Cast", [name], ["pixels"], to=TensorProto.FLOAT))
        value = "pixels"
        steps: list[tuple[str, Any]] = [("Mul", picture.scale)]
        if self._net.picture is not None:
            steps += [("Sub", picture.mean), ("Div", picture.std)]
        for number, (op, by) in enumerate(steps):
            array = np.array(by, np.float32)
            constant = self._constant(f"pixels:{op}", array.reshape(channels, 1, 1) if array.ndim else array)
            self._nodes.append(helper.make_node(op, [value, constant], [f"pixels:{number}"]))
            value = f"pixels:{number}"
        return value

    def _box(self, value: str, box: MapBox) -> str:
        """Return the name of a box of a value."""
        if (value, box) not in self._names:
            whole = self._walk.needs[value]
            name = f"{value}:{len(self._names)}"
            self._names[value, box] = self._slice(value, self._names[value, whole], whole, box, name)
        return self._names[value, box]

    def _slice(self, value: str, source: str, of: MapBox, box: MapBox, name: str) -> str:
        rank = self._net.axes(value)
        cut = [
            (axis, own)
            for axis, own, whole in zip(range(1, rank + 1), index_of(self._net, value, box, of), of.shape, strict=False)
            if (own.start, own.stop) != (0, whole)
        ]
        arrays = [[own.start for _, own in cut], [own.stop for _, own in cut], [axis for axis, _ in cut]]
        ends = [
            self._constant(f"{name}:{key}", np.array(numbers, np.int64))
            for key, numbers in zip(("from", "to", "axes"), arrays, strict=True)
        ]
        self._nodes.append(helper.make_node("Slice", [source, *ends], [name]))
        return name

    def _broadcast(self, name: str, box: MapBox) -> str:
        """Name what of a tensor is read for a box: all where it is the same for all channels, rows or columns."""
        shape = self._net.tensors[name]
        spans = box.spans[: len(shape)]
        cut = (slice(None) if size == 1 else span.slice for size, span in zip(shape, spans, strict=False))
        return self._tensor(name, index=tuple(cut))

    def _tensor(
        self, name: str, first: Span | None = None, second: Span | None = None, index: tuple[slice, ...] = ()
    ) -> str:
        """Name a tensor that is read, or some of its output and input channels, or a part of it."""
        length, *others = self._net.tensors[name] or (1,)
        first = first or Span(0, length)
        if second is not None and second.size == others[0]:
            second = None
        shape = (first.size, *(others if second is None else (second.size, *others[1:])))
        found = f"{name}:{first}:{second}:{index}"
        self._reads[found] = TensorSlice(name, first, shape, second), index
        return found

    def _part(self, array: Numbers, piece: TensorSlice, index: tuple[slice, ...]) -> Numbers:
        """Return what is needed of a slice; of a tensor that is one number, that."""
        whole = array if self._net.tensors[piece.name] else array.reshape(())
        return np.ascontiguousarray(whole[index]) if index else whole

    def _constant(self, name: str, array: Numbers) -> str:
        self._tensors[name] = array
        return name


def _cropped(net: ConvNet, node: Node, reach: Reach) -> tuple[list[int], list[int]]:
    """Return what a transposed convolution leaves out at each end, and adds at the far end, to make its box."""
    (needs,) = reach.needs
    pads, more = [], []
    for axis, window in enumerate(windows(node)):
        stride, inside, made = window.per, needs.spans[1 + axis], reach.made.spans[1 + axis]
        length = (node.attributes["kernel_shape"][axis] - 1) * node.attributes.get("dilations", (1, 1))[axis] + 1
        begin = made.start - (inside.start * stride - window.after)
        end = (inside.size - 1) * stride + length - begin - made.size
        pads.append((begin, max(end, 0)))
        more.append(max(-end, 0))
    return [pads[0][0], pads[1][0], pads[0][1], pads[1][1]], more
