"""The plan file of a language model: `hepti-plan/1` of kind `decoder`, reading with all its checks, and writing.

A person can write one by hand:

    {"format": "hepti-plan/1", "kind": "decoder", "model": {"name": "llama-3.2-1b"}, "devices": ["pi-0", "pi-1"],
     "precision": "int4", "context": 4096,
     "stages": [{"layers": [0, 16], "heads": [8, 24], "columns": [2048, 6144]}], "words": [32064, 96192]}

`heads` and `columns`, the axes of its blocks, and `words` are how many every device has, in their order; `cache` and
`wire` are float32, `sequences` is 1, and `two_steps_from` 8 rows, where nothing else is written. A stage may have
`rows`, parts of a prompt's rows for every device; then the plan says from how many rows on, `rows_from`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError
from solver.base.spans import Partition
from solver.model.decoder import KIND, Decoder
from solver.model.kinds.attention import CACHES
from solver.model.kinds.every import KINDS
from solver.model.kinds.weight import PRECISIONS
from solver.plan.decoder_plan import ROWS_BY_MPI, DecoderPlan, DecoderPrediction, DecoderStage, totals_of
from solver.plan.fields import (
    FORMAT,
    checked,
    devices_of,
    get,
    named_in,
    not_negative,
    one_of,
    plan_table,
    read_with,
    span_of,
)
from solver.plan.plan import Wire

WIRES = (Wire.FLOAT32, Wire.FLOAT16, Wire.INT8)
KNOWN = (
    "format", "kind", "system", "model", "devices", "precision", "cache", "wire", "context", "sequences",
    "two_steps_from", "rows_from", "stages", "words", "predicted",
)  # fmt: skip


def read_decoder_plan(path: Path, model: Decoder | None = None) -> DecoderPlan:
    """Read the plan file of a language model; if one is given, it must be for that.

    Raises
    ------
    HeptiError
        If the file is missing, is not JSON, describes no such plan, or is for another model.
    """
    return read_with(path, partial(decoder_plan_from_json, model=model))


def planned_model(path: Path) -> str:
    """Return the name of the model that a plan file is for; errors as `read_decoder_plan`."""
    return read_with(path, lambda text: named_in(plan_table(text)))


def decoder_plan_from_json(text: str, model: Decoder | None = None) -> DecoderPlan:
    """Read the plan of a language model from JSON; errors as `read_decoder_plan`."""
    table = plan_table(text)
    if table.get("kind") != KIND:
        of = f"a {table['kind']}" if "kind" in table else "an encoder"
        raise HeptiError(f"this is the plan of {of}, {named_in(table)}: here a language model's is needed")
    try:
        return _plan(table, model)
    except KeyError as error:
        raise HeptiError(f"the plan has no {error}") from error


def decoder_plan_to_json(model: Decoder, plan: DecoderPlan) -> str:
    """Write a plan as JSON that `decoder_plan_from_json` reads back to the same plan."""
    return json.dumps(decoder_plan_table(model, plan), indent=1) + "\n"


def decoder_plan_table(model: Decoder, plan: DecoderPlan) -> dict[str, Any]:
    """Return a plan as the table that its file holds."""
    table: dict[str, Any] = {
        "format": FORMAT,
        "kind": KIND,
        "system": plan.system,
        "model": {"name": model.name, "fingerprint": model.fingerprint},
        "devices": list(plan.devices),
        "precision": plan.precision,
        "cache": plan.cache,
        "wire": str(plan.wire),
        "context": plan.context,
        "sequences": plan.sequences,
        "two_steps_from": plan.two_steps_from,
        **({"rows_from": plan.rows_from} if plan.rows_from else {}),
        "stages": [
            {
                "layers": [stage.layers.start, stage.layers.stop],
                **{axis: list(own.counts) for axis, own in stage.shares.items()},
                **({"rows": list(stage.rows)} if stage.rows else {}),
            }
            for stage in plan.stages
        ],
        "words": list(plan.words.counts),
    }
    if plan.predicted is not None:
        table["predicted"] = asdict(plan.predicted) | {"memory_bytes": list(plan.predicted.memory_bytes)}
    return table


def _plan(table: dict[str, Any], model: Decoder | None) -> DecoderPlan:
    for key in table:
        if key not in KNOWN:
            raise HeptiError(f"unknown key {key!r} (known: {', '.join(KNOWN)})")
    named, devices = get(table, "model", dict), devices_of(table)
    name, fingerprint = get(named, "name", str), get(named, "fingerprint", str, "")
    if model is not None and (name != model.name or fingerprint not in ("", model.fingerprint)):
        others = " of other layers or widths" * (name == model.name)
        raise HeptiError(f"this is the plan of {name}{others}, the model is {model.name}: plan again")
    entries = enumerate(get(table, "stages", list))
    stages = tuple(_stage(entry, number, len(devices), model) for number, entry in entries)
    if not stages:
        raise HeptiError("the plan has no stages: write one at least, of all layers")
    return DecoderPlan(
        get(table, "system", str, ""),
        devices,
        stages,
        _counts(table, "words", len(devices)),
        wire=Wire(one_of(get(table, "wire", str, "float32"), "wire", WIRES)),
        precision=one_of(get(table, "precision", str, "float32"), "precision", tuple(PRECISIONS)),
        cache=one_of(get(table, "cache", str, "float32"), "cache", CACHES),
        context=get(table, "context", int),
        sequences=_sequences(get(table, "sequences", int, 1)),
        two_steps_from=get(table, "two_steps_from", int, ROWS_BY_MPI),
        rows_from=not_negative(get(table, "rows_from", int, 0), "rows_from"),
        predicted=_predicted(get(table, "predicted", dict)) if "predicted" in table else None,
    )


def _sequences(count: int) -> int:
    if count < 1:
        raise HeptiError(f"sequences is {count}, must be at least 1")
    return count


def _stage(entry: Any, number: int, devices: int, model: Decoder | None) -> DecoderStage:
    try:
        layers = span_of(get(checked(entry, dict, "a stage"), "layers", list))
        axes = [kind.axis for kind in KINDS.values() if kind.axis] if model is None else [*totals_of(model, layers)]
        known = ("layers", *axes, "rows")
        for key in entry:
            if key not in known:
                raise HeptiError(f"unknown key {key!r} (known: {', '.join(known)})")
        shares = {axis: _counts(entry, axis, devices) for axis in axes if axis in entry or model is not None}
        rows = tuple(not_negative(checked(own, int, "rows"), "rows") for own in get(entry, "rows", list, []))
        return DecoderStage(layers, shares, rows)
    except HeptiError as error:
        raise HeptiError(f"stage {number}: {error}") from error
    except KeyError as error:
        raise HeptiError(f"stage {number} has no {error}") from error


def _counts(table: dict[str, Any], what: str, devices: int) -> Partition:
    counts = [not_negative(checked(count, int, what), what) for count in get(table, what, list)]
    if len(counts) != devices:
        raise HeptiError(f"{what} are {len(counts)}, there are {devices} devices")
    return Partition.of_counts(counts)


def _predicted(entry: dict[str, Any]) -> DecoderPrediction:
    seconds = {key: get(entry, key, int | float) for key in ("token_s", "first_s", "compute_s", "exchange_s")}
    counts = {key: get(entry, key, int) for key in ("prompt", "behind")}
    sizes = tuple(checked(size, int, "memory_bytes") for size in get(entry, "memory_bytes", list))
    return DecoderPrediction(memory_bytes=sizes, **seconds, **counts)
