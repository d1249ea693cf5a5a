"""The plan file of a convolutional network: `hepti-plan/1` of kind `convnet`, reading with all its checks, and writing.

A person can write one by hand:

    {"format": "hepti-plan/1", "kind": "convnet", "model": {"name": "resnet18"}, "devices": ["pi-0", "pi-1"],
     "segments": [{"nodes": [0, 32], "first": "conv1", "cut": "rows", "rows": [5, 2]},
                  {"nodes": [32, 48], "cut": "rows", "shares": [1, 0]}]}

`rows`, or `channels` where these are cut, are whole ones of the coarsest value that the segment leaves: its others are
shared out in the same ratio. `shares` are parts of one. A segment that is cut by `tiles` has a `grid`, [5, 5].
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.model.convnet import ConvNet
from solver.model.decoder import KIND as DECODER
from solver.plan.decoder_file import decoder_plan_from_json
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.fields import (
    FORMAT,
    checked,
    devices_of,
    get,
    named_in,
    not_negative,
    one_of,
    plan_table,
    prediction_of,
    prediction_to_table,
    read_with,
    span_of,
)
from solver.plan.file import plan_from_json
from solver.plan.plan import Plan, Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, pooled_in, tile_boxes

KIND = "convnet"
# Under which name the whole parts of a cut stand.
PARTS = {
    SegmentCut.ROWS: "rows", SegmentCut.CHANNELS: "channels", SegmentCut.SUMS: "channels", SegmentCut.TILES: "tiles"
}  # fmt: skip


def read_any_plan(path: Path) -> Plan | SegmentPlan | DecoderPlan:
    """Read a plan file, of a transformer, of a convolutional network, or of a language model.

    Raises
    ------
    HeptiError
        If the file is missing, is not JSON, or does not describe a plan.
    """
    return read_with(path, any_plan_from_json)


def any_plan_from_json(text: str) -> Plan | SegmentPlan | DecoderPlan:
    """Read a plan of any kind from JSON; errors as `read_any_plan`."""
    if plan_table(text).get("kind") == DECODER:
        return decoder_plan_from_json(text)
    return segments_from_json(text) if "kind" in plan_table(text) else plan_from_json(text)


def read_segments(path: Path, net: ConvNet | None = None) -> SegmentPlan:
    """Read the plan file of a convolutional network; of the one that is given, it must name the nodes.

    Raises
    ------
    HeptiError
        As `read_any_plan`, or if it is an encoder's, or a segment begins with another node than it says.
    """
    return read_with(path, partial(segments_from_json, net=net))


def segments_from_json(text: str, net: ConvNet | None = None) -> SegmentPlan:
    """Read the plan of a convolutional network from JSON; errors as `read_segments`."""
    table = plan_table(text)
    if "kind" not in table:
        raise HeptiError(f"this is the plan of an encoder, {named_in(table)}: here a {KIND}'s is needed")
    try:
        return _plan(table, net)
    except KeyError as error:
        raise HeptiError(f"the plan has no {error}") from error


def segments_to_json(net: ConvNet, plan: SegmentPlan) -> str:
    """Write a plan as JSON that `segments_from_json` reads back to the same plan; the network says names and rows."""
    table: dict[str, Any] = {
        "format": FORMAT,
        "kind": KIND,
        "system": plan.system,
        "model": {"name": plan.model_name, "fingerprint": plan.model_fingerprint},
        "cluster": {"fingerprint": plan.cluster_fingerprint},
        "wire": str(plan.wire),
        "devices": list(plan.devices),
        "segments": [_to_table(net, segment) for segment in plan.segments],
    }
    if plan.predicted is not None:
        table["predicted"] = prediction_to_table(plan.predicted)
    return json.dumps(table, indent=1) + "\n"


def whole_parts(net: ConvNet, segment: Segment) -> tuple[int, ...]:
    """Return how many rows, or channels, every device has of the coarsest value that a segment leaves.

    Of summands those of what they are added up over; of tiles how many.
    """
    if segment.cut is SegmentCut.SUMS:
        value = net.values_of(net.nodes[segment.nodes.start])[0]
        return Partition.of_shares(segment.shares, net.extent(value).channels.stop).counts
    if segment.cut is SegmentCut.TILES:
        return Partition.of_shares(segment.shares, max(len(tile_boxes(net, segment)), 1)).counts
    pooled = {net.nodes[number].output: number for number in pooled_in(net, segment.nodes)}
    lengths = set()
    for value in net.live(segment.nodes.stop):
        if segment.cut is SegmentCut.CHANNELS:
            lengths.add(net.extent(value).channels.stop)
        else:
            shared = net.values_of(net.nodes[pooled[value]])[0] if value in pooled else value
            lengths.add(net.extent(shared).rows.stop)
    return Partition.of_shares(segment.shares, min(lengths - {1}, default=1)).counts


def _to_table(net: ConvNet, segment: Segment) -> dict[str, Any]:
    table: dict[str, Any] = {"nodes": [segment.nodes.start, segment.nodes.stop]}
    if segment.nodes.size:
        table["first"] = net.nodes[segment.nodes.start].name
    table["cut"] = str(segment.cut)
    parts = whole_parts(net, segment)
    if _shares_of(parts) == segment.shares:
        table[PARTS[segment.cut]] = list(parts)
    else:
        table["shares"] = list(segment.shares)
    if segment.cut is SegmentCut.TILES:
        return table | {"grid": list(segment.grid), "stealing": segment.stealing, "reuse": segment.reuse}
    return table | {"edges_first": segment.edges_first}


def _shares_of(parts: Sequence[int]) -> tuple[float, ...]:
    return tuple(part / sum(parts) for part in parts)


def _plan(table: dict[str, Any], net: ConvNet | None) -> SegmentPlan:
    one_of(get(table, "kind", str), "kind", [KIND])
    model, cluster = get(table, "model", dict), get(table, "cluster", dict, {})
    devices = devices_of(table)
    fingerprint = get(model, "fingerprint", str, "")
    if net is not None and fingerprint not in ("", net.fingerprint):
        net = None  # whose nodes are others: `SegmentPlan.check` refuses it
    entries = get(table, "segments", list)
    segments = tuple(_segment(entry, number, len(devices), net) for number, entry in enumerate(entries))
    if not segments:
        raise HeptiError("the plan has no segments: write one at least, of all nodes")
    return SegmentPlan(
        segments,
        devices,
        model_name=get(model, "name", str),
        model_fingerprint=fingerprint,
        cluster_fingerprint=get(cluster, "fingerprint", str, ""),
        system=get(table, "system", str, ""),
        wire=Wire(one_of(get(table, "wire", str, "float32"), "wire", list(Wire))),
        predicted=prediction_of(get(table, "predicted", dict)) if "predicted" in table else None,
    )


def _segment(entry: Any, number: int, devices: int, net: ConvNet | None) -> Segment:
    try:
        cut = SegmentCut(one_of(get(entry, "cut", str, SegmentCut.ROWS), "cut", list(SegmentCut)))
        own = ("grid", "stealing", "reuse") if cut is SegmentCut.TILES else ("edges_first",)
        known = ("nodes", "first", "cut", PARTS[cut], "shares", *own)
        for key in entry:
            if key not in known:
                raise HeptiError(f"unknown key {key!r} (known: {', '.join(known)})")
        nodes = span_of(get(entry, "nodes", list))
        _check_first(get(entry, "first", str, ""), nodes, net)
        shares, grid = _shares(entry, PARTS[cut], devices), (1, 1)
        if cut is SegmentCut.TILES:
            grid = _grid(entry)
        edges_first, stealing, reuse = (_yes_or_no(entry, key) for key in ("edges_first", "stealing", "reuse"))
        return Segment(nodes, cut, shares, edges_first, grid, stealing, reuse)
    except HeptiError as error:
        raise HeptiError(f"segment {number}: {error}") from error
    except KeyError as error:
        raise HeptiError(f"segment {number} has no {error}") from error


def _check_first(first: str, nodes: Span, net: ConvNet | None) -> None:
    """Refuse the name of another node than the first one."""
    if first and net is not None:
        found = net.nodes[nodes.start].name if nodes.start < len(net.nodes) else ""
        if found != first:
            there = f"node {nodes.start} is {found}" if found else f"there are {len(net.nodes)} nodes"
            raise HeptiError(f"nodes begin with {nodes.start}, first is {first}; of {net.name} {there}: plan again")


def _shares(entry: dict[str, Any], parts: str, devices: int) -> tuple[float, ...]:
    """Return every device's share, of whole parts or as it stands."""
    if ("shares" in entry) == (parts in entry):
        raise HeptiError(f"write either {parts} or shares, one a device")
    name = parts if parts in entry else "shares"
    numbers = [checked(part, int if name == parts else int | float, name) for part in get(entry, name, list)]
    if len(numbers) != devices:
        raise HeptiError(f"{name} are {len(numbers)}, there are {devices} devices")
    if not all(map(math.isfinite, numbers)):
        raise HeptiError(f"{name} are {numbers}: there is one that is no number")
    for part in numbers:
        not_negative(part, name)
    if not sum(numbers):
        raise HeptiError(f"{name} are all 0: somebody must have some")
    if name == parts:
        return _shares_of(numbers)
    if abs(sum(numbers) - 1) > 1e-6:
        raise HeptiError(f"{name} add up to {sum(numbers):g}, must add up to 1")
    return tuple(map(float, numbers))


def _grid(entry: dict[str, Any]) -> tuple[int, int]:
    counts = [checked(count, int, "grid") for count in get(entry, "grid", list)]
    if len(counts) != 2 or min(counts) < 1:
        raise HeptiError(f"grid is {counts}, must be two numbers of at least 1: tiles down and across")
    return counts[0], counts[1]


def _yes_or_no(entry: dict[str, Any], key: str) -> bool:
    found = entry.get(key, False)
    if not isinstance(found, bool):
        raise HeptiError(f"{key} is {found!r}, must be true or false")
    return found
