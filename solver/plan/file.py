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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError
from solver.model.attention import Attention
from solver.model.blocks import Cut
from solver.model.spec import KINDS
from solver.plan.plan import BlockPlan, Keys, LayerPlan, Layout, Plan, Prediction, Stage, Wire
from solver.plan.routes import Route
from solver.plan.spans import Partition, Span

FORMAT = "hepti-plan/1"

_NORMS = {Cut.ROWS: Layout.ROWS, Cut.GRID: Layout.ROWS, Cut.SUB_BLOCKS: Layout.COLS}  # where nothing is said


def read_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises
    ------
    HeptiError
        If the file is missing, is not JSON, or does not describe a plan.
    """
    try:
        return plan_from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeptiError(f"cannot read plan {path}: {error.strerror}") from error
    except (HeptiError, UnicodeDecodeError) as error:
        raise HeptiError(f"{path}: {error}") from error


def plan_from_json(text: str) -> Plan:
    """Read a plan from JSON."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HeptiError(f"not JSON: {error}") from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        found = table.get("format") if isinstance(table, dict) else None
        raise HeptiError(f"format is {found!r}, this version reads {FORMAT!r}")
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
        facts = plan.predicted
        table["predicted"] = {
            "seconds": facts.seconds,
            "compute_s": facts.compute_s,
            "exchange_s": facts.exchange_s,
            "weights_bytes": list(facts.weights_bytes),
            "bytes_on_wire": facts.bytes_on_wire,
        }
    return json.dumps(table, indent=1) + "\n"


def _plan(table: dict[str, Any]) -> Plan:
    model, cluster = _get(table, "model", dict), _get(table, "cluster", dict, {})
    stages = tuple(_stage(entry) for entry in _get(table, "stages", list))
    if not stages:
        raise HeptiError("the plan has no stages: write one at least, of all devices and layers")
    devices = _devices(table) if "devices" in table else ()
    for name in (name for stage in stages for name in stage.devices if devices and name not in devices):
        raise HeptiError(f"plan: a stage has device {name}, devices are {', '.join(devices)}")
    return Plan(
        stages=stages,
        model_name=_get(model, "name", str),
        model_fingerprint=_get(model, "fingerprint", str, ""),
        cluster_fingerprint=_get(cluster, "fingerprint", str, ""),
        system=_get(table, "system", str, ""),
        rows=_not_negative(_get(table, "rows", int, 0), "rows"),
        tile_rows=_not_negative(_get(table, "tile_rows", int, 0), "tile_rows"),
        wire=Wire(_one_of(_get(table, "wire", str, "float32"), "wire", list(Wire))),
        predicted=_prediction(_get(table, "predicted", dict)) if "predicted" in table else None,
        devices=devices,
    )


def _prediction(entry: Any) -> Prediction:
    return Prediction(
        seconds=_get(entry, "seconds", int | float),
        compute_s=_get(entry, "compute_s", int | float),
        exchange_s=_get(entry, "exchange_s", int | float),
        weights_bytes=tuple(_is(size, int, "weights_bytes") for size in _get(entry, "weights_bytes", list)),
        bytes_on_wire=_get(entry, "bytes_on_wire", int),
    )


def _stage(entry: Any) -> Stage:
    devices, runs = _devices(entry), tuple(_run(run) for run in _get(entry, "layers", list))
    return Stage(devices, runs, _span(_get(entry, "sublayers", list, [0, 0])))


def _devices(entry: Any) -> tuple[str, ...]:
    devices = tuple(_is(name, str, "the name of a device") for name in _get(entry, "devices", list))
    if not devices:
        raise HeptiError("plan: devices is empty: write the names of those that take part")
    if len(set(devices)) < len(devices):
        raise HeptiError(f"plan: devices {', '.join(devices)}: one is named twice")
    return devices


def _run(entry: Any) -> tuple[Span, LayerPlan]:
    span = _span(_get(entry, "layers", list))
    if not span.size:
        raise HeptiError(f"plan: layers [{span.start}, {span.stop}] are none: the second one is that behind the last")
    where, blocks = f"plan: layers {span.start} to {span.stop - 1}", []
    for name in entry:
        if name == "layers":
            continue
        try:
            blocks.append(_block(_get(entry, _one_of(name, "block", list(KINDS)), dict), name))
        except HeptiError as error:
            raise HeptiError(f"{where}, {name}: {error}") from error
    if not blocks:
        raise HeptiError(f"{where}: there is no block: write what its layers consist of, of {', '.join(KINDS)}")
    return span, tuple(blocks)


def _block(entry: dict[str, Any], block: str) -> BlockPlan:
    cut = Cut(_one_of(_get(entry, "cut", str), "cut", list(Cut)))
    inner = _inner_key(block, cut)
    known = ("cut", inner, "columns", "norm", "rows", "route", *(["keys"] if block == Attention.name else []))
    for key in entry:
        if key not in known:
            raise HeptiError(f"unknown key {key!r} (known: {', '.join(known)})")
    norm = _get(entry, "norm", str, _NORMS.get(cut, Layout.FULL))
    return BlockPlan(
        block,
        cut,
        inner=_partition(entry, inner),
        columns=_partition(entry, "columns"),
        norm=Layout(_one_of(norm, "norm", list(Layout))),
        rows=tuple(_is(share, int | float, "a share") for share in _get(entry, "rows", list))
        if "rows" in entry
        else None,
        route=Route(_one_of(_get(entry, "route", str, "direct"), "route", list(Route))),
        keys=tuple(Keys(_one_of(way, "keys", list(Keys))) for way in _get(entry, "keys", list))
        if "keys" in entry
        else None,
    )


def _partition(entry: dict[str, Any], name: str) -> Partition | None:
    if name not in entry:
        return None
    try:
        return Partition(tuple(_span(span) for span in _get(entry, name, list)))
    except HeptiError as error:
        raise HeptiError(f"{name}: {error}") from error


def _span(value: Any) -> Span:
    if not isinstance(value, list) or len(value) != 2:
        raise HeptiError(f"{value!r} is not a span: write [start, stop]")
    start, stop = (_is(end, int, "the end of a span") for end in value)
    return Span(start, stop)


def _get(entry: Any, key: str, kind: Any, *default: Any) -> Any:
    """Return a value of the JSON; KeyError if it is not there and has no default."""
    table = _is(entry, dict, f"what holds {key}")
    return _is(table[key], kind, key) if key in table or not default else default[0]


def _is(value: Any, kind: Any, what: str) -> Any:
    """Refuse a value of another kind; true and false are no numbers."""
    if not isinstance(value, kind) or isinstance(value, bool):
        words = {dict: "a table", list: "a list", str: "a text", int: "a whole number"}
        raise HeptiError(f"{what} is {value!r}, must be {words.get(kind, 'a number')}")
    return value


def _not_negative(value: int, what: str) -> int:
    if value < 0:
        raise HeptiError(f"{what} is {value}, must not be negative")
    return value


def _one_of(value: str, what: str, known: Sequence[str]) -> str:
    if value not in known:
        raise HeptiError(f"{what} {value!r} is not one of {', '.join(known)}")
    return value


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
