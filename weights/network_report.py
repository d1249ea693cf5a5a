"""What a convolutional network is made of: stretches of its graph, their work, weights and receptive fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from solver.base.arrays import FLOAT_BYTES
from solver.base.spans import Span
from solver.model.convnet import ConvNet, MapBox
from solver.model.operators import VERBATIM, flop, parts_between, row_part, tensors_of
from solver.schedule.networks.pieces import walk_back

MOST_STRETCHES = 25


@dataclass(frozen=True, slots=True)
class Stretch:
    """Nodes between two points where only one value is alive.

    Parameters
    ----------
    shape
        Of the value that it ends with.
    flop, weights_bytes
        Of all of its nodes.
    field
        Rows and columns of the image that the middle pixel of that value depends on; None after the row part.
    """

    nodes: Span
    first: str
    last: str
    shape: tuple[int, ...]
    flop: int
    weights_bytes: int
    field: tuple[int, int] | None


def stretches(net: ConvNet) -> list[Stretch]:
    """Cut a network where only one value is alive; the least neighbours are put together until there are few."""
    count = len(net.nodes)
    cuts = [0, *(at for at in range(1, count) if len(net.live(at)) == 1), count]
    work = [flop(net, node) for node in net.nodes]
    # An activation is part of the line before it.
    cuts = [at for at, behind in zip(cuts, [*cuts[1:], None], strict=True) if not _is_light(net, at, behind)]
    while len(cuts) - 1 > MOST_STRETCHES:
        # Of the same map first: a line is then about one size of map.
        _, least = min(
            ((_map_of(net, before) != _map_of(net, behind), sum(work[before:behind])), number)
            for number, (before, behind) in enumerate(zip(cuts, cuts[2:], strict=False), 1)
        )
        del cuts[least]
    return [_stretch(net, Span(start, stop), work) for start, stop in pairwise(cuts)]


def tail(net: ConvNet) -> tuple[str, str, float] | None:
    """Return the node that ends the row part, its operator, and the share of the work from it on."""
    number = row_part(net)
    if number == len(net.nodes):
        return None
    work = [flop(net, node) for node in net.nodes]
    node = net.nodes[number]
    return node.name, node.op.removeprefix(VERBATIM), sum(work[number:]) / (sum(work) or 1)


def _is_light(net: ConvNet, start: int, stop: int | None) -> bool:
    """Return whether a stretch, not the first, has no weights and leaves the map as it is."""
    if not start or stop is None:
        return False
    return not any(map(partial(tensors_of, net), net.nodes[start:stop])) and _map_of(net, start) == _map_of(net, stop)


def _map_of(net: ConvNet, stop: int) -> tuple[int, ...]:
    return net.shapes[net.nodes[stop - 1].output if stop else net.input][1:]


def _stretch(net: ConvNet, nodes: Span, work: list[int]) -> Stretch:
    own = net.nodes[nodes.slice]
    names = {name for node in own for name in tensors_of(net, node)}
    value = own[-1].output
    return Stretch(
        nodes,
        own[0].name,
        own[-1].name,
        net.shapes[value],
        sum(work[nodes.slice]),
        FLOAT_BYTES * sum(math.prod(net.tensors[name]) for name in names),
        _field(net, nodes.stop, value),
    )


def _field(net: ConvNet, stop: int, value: str) -> tuple[int, int] | None:
    if stop > row_part(net):
        return None
    whole = net.extent(value)
    rows, columns = (Span(span.stop // 2, span.stop // 2 + 1) for span in (whole.rows, whole.columns))
    found = walk_back(parts_between(net, Span(0, stop)), {value: MapBox(whole.channels, rows, columns)}).needs[
        net.input
    ]
    return found.rows.size, found.columns.size
