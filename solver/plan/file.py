"""The plan file, `hepti-plan/1`: reading with all its checks, and writing.

A person can write one by hand:

    {"format": "hepti-plan/1", "model": {"name": "bert-base"},
     "stages": [{"devices": ["pi-0", "pi-1"],
                 "layers": [{"layers": [0, 12],
                             "attention": {"cut": "block", "heads": [[0, 9], [9, 12]], "norm": "full"},
                             "mlp": {"cut": "rows", "rows": [0.7, 0.3]}}]}]}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.model.blocks import Cut
from solver.model.kinds.attention import Attention
from solver.model.kinds.every import KINDS
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
from solver.plan.plan import BlockPlan, Keys, LayerPlan, Plan, Stage, StreamLayout, Wire
from solver.plan.routes import Route

_NORMS = {
    Cut.ROWS: StreamLayout.ROWS,
    Cut.GRID: StreamLayout.ROWS,
    Cut.SUB_BLOCKS: StreamLayout.COLS,
}  # where nothing is said


def read_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises
    ------
    HeptiError
        If the file is missing, is not JSON, or does not describe a plan.
    """
    return read_with(path, plan_from_json)


def plan_from_json(text: str) -> Plan:
    """Read a plan from JSON."""
    table = plan_table(text)
    if "kind" in table:
        raise HeptiError(f"this is the plan of a {table['kind']}, {named_in(table)}: here an encoder's is needed")
    try:
        return _plan(table)
    except KeyError as error:
        raise HeptiError(f"the plan has no {error}") from error


def plan_to_json(plan: Plan) -> str:
    """Write a plan as JSON that `plan_from_json` reads back to the same plan."""
    table: dict[str, Any] = {
        "format": FORMAT,
        "system": plan.system,
        "model": {"name": plan.model_name, "fingerprint": plan.model_fingerprint},
        "cluster": {"fingerprint": plan.cluster_fingerprint},
        "rows": plan.rows,
        "tile_rows": plan.tile_rows,
        "wire": str(plan.wire),
        "devices": list(plan.devices),
        "stages": [
            {
                "devices": list(stage.devices),
                **({} if stage.is_whole else {"sublayers": [stage.sublayers.start, stage.sublayers.stop]}),
                "layers": [
                    {"layers": [span.start, span.stop], **{block.block: _block_to_table(block) for block in layer}}
                    for span, layer in stage.layers
                ],
            }
            for stage in plan.stages
        ],
    }
    if plan.predicted is not None:
        table["predicted"] = prediction_to_table(plan.predicted)
    return json.dumps(table, indent=1) + "\n"


def _plan(table: dict[str, Any]) -> Plan:
    model, cluster = get(table, "model", dict), get(table, "cluster", dict, {})
    stages = tuple(_stage(entry) for entry in get(table, "stages", list))
    if not stages:
        raise HeptiError("the plan has no stages: write one at least, of all devices and layers")
    devices = devices_of(table) if "devices" in table else ()
    for name in (name for stage in stages for name in stage.devices if devices and name not in devices):
        raise HeptiError(f"plan: a stage has device {name}, devices are {', '.join(devices)}")
    return Plan(
        stages=stages,
        model_name=get(model, "name", str),
        model_fingerprint=get(model, "fingerprint", str, ""),
        cluster_fingerprint=get(cluster, "fingerprint", str, ""),
        system=get(table, "system", str, ""),
        rows=not_negative(get(table, "rows", int, 0), "rows"),
        tile_rows=not_negative(get(table, "tile_rows", int, 0), "tile_rows"),
        wire=Wire(one_of(get(table, "wire", str, "float32"), "wire", list(Wire))),
        predicted=prediction_of(get(table, "predicted", dict)) if "predicted" in table else None,
        devices=devices,
    )


def _stage(entry: Any) -> Stage:
    devices, runs = devices_of(entry), tuple(_run(run) for run in get(entry, "layers", list))
    return Stage(devices, runs, span_of(get(entry, "sublayers", list, [0, 0])))


def _run(entry: Any) -> tuple[Span, LayerPlan]:
    span = span_of(get(entry, "layers", list))
    if not span.size:
        raise HeptiError(f"plan: layers [{span.start}, {span.stop}] are none: the second one is that behind the last")
    where, blocks = f"plan: layers {span.start} to {span.stop - 1}", []
    for name in entry:
        if name == "layers":
            continue
        try:
            blocks.append(_block(get(entry, one_of(name, "block", list(KINDS)), dict), name))
        except HeptiError as error:
            raise HeptiError(f"{where}, {name}: {error}") from error
    if not blocks:
        raise HeptiError(f"{where}: there is no block: write what its layers consist of, of {', '.join(KINDS)}")
    return span, tuple(blocks)


def _block(entry: dict[str, Any], block: str) -> BlockPlan:
    cut = Cut(one_of(get(entry, "cut", str), "cut", list(Cut)))
    inner = _inner_key(block, cut)
    known = ("cut", inner, "columns", "norm", "rows", "route", *(["keys"] if block == Attention.name else []))
    for key in entry:
        if key not in known:
            raise HeptiError(f"unknown key {key!r} (known: {', '.join(known)})")
    norm = get(entry, "norm", str, _NORMS.get(cut, StreamLayout.FULL))
    return BlockPlan(
        block,
        cut,
        inner=_partition(entry, inner),
        columns=_partition(entry, "columns"),
        norm=StreamLayout(one_of(norm, "norm", list(StreamLayout))),
        rows=tuple(checked(share, int | float, "a share") for share in get(entry, "rows", list))
        if "rows" in entry
        else None,
        route=Route(one_of(get(entry, "route", str, "direct"), "route", list(Route))),
        keys=tuple(Keys(one_of(way, "keys", list(Keys))) for way in get(entry, "keys", list))
        if "keys" in entry
        else None,
    )


def _partition(entry: dict[str, Any], name: str) -> Partition | None:
    if name not in entry:
        return None
    try:
        return Partition(tuple(span_of(span) for span in get(entry, name, list)))
    except HeptiError as error:
        raise HeptiError(f"{name}: {error}") from error


def _inner_key(block: str, cut: Cut) -> str:
    """Return under which name the shares of what a block has within stand."""
    return "sub_blocks" if cut is Cut.SUB_BLOCKS else KINDS[block].inner_key


def _block_to_table(block: BlockPlan) -> dict[str, Any]:
    table: dict[str, Any] = {"cut": str(block.cut)}
    for name, partition in ((_inner_key(block.block, block.cut), block.inner), ("columns", block.columns)):
        if partition is not None:
            table[name] = [[span.start, span.stop] for span in partition]
    table["norm"] = str(block.norm)
    if block.rows is not None:
        table["rows"] = list(block.rows)
    table["route"] = str(block.route)
    if block.keys is not None:
        table["keys"] = list(map(str, block.keys))
    return table
