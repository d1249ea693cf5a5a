"""Plan files of the first version, `hepti-plan/1`, as tables of the second, so that there is one reader.

Each family had a form of its own: an encoder `layers` whose blocks had spans and a norm, a network `segments`, and a
language model counts of all devices in a stage, and `words`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from solver.base.errors import HeptiError
from solver.base.spans import Partition
from solver.model.kinds.every import KINDS
from solver.plan.fields import PlanFields

FORMAT = "hepti-plan/1"
# Shares that stood there as spans, by the names of their axes now.
_SPANS = {"heads": "heads", "ffn": "columns", "inner": "inner", "columns": "output", "sub_blocks": "sub_blocks"}


def renewed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of the first version as one of the second.

    Raises
    ------
    HeptiError
        If spans leave a gap, or it contradicts itself in what the second version does not have.
    """
    old = PlanFields(table)
    kinds = {"convnet": _network, "decoder": _language_model}
    found = kinds[old.word("kind", kinds)](old) if "kind" in old else _encoder(old)
    return _without(table, "kind", "format", "stages", "segments", "words") | found


def _encoder(old: PlanFields) -> dict[str, Any]:
    stages = [(_without(stage.table, "layers"), stage.subs("layers", "run")) for stage in old.subs("stages", "stage")]
    return {"stages": [rest | {"runs": [*map(_run, runs)]} for rest, runs in stages]}


def _run(run: PlanFields) -> dict[str, Any]:
    return {name: value if name == "layers" else _block(name, run.sub(name)) for name, value in run.table.items()}


def _block(name: str, block: PlanFields) -> dict[str, Any]:
    cut = block.get("cut", str)
    unit = KINDS[name].axis if name in KINDS else name
    leaves = "cols" if cut == "sub_blocks" else "rows" if "rows" in block else "full"
    if (norm := block.get("norm", str, leaves)) != leaves:
        raise block.error(f"norm is {norm}, with {'' if 'rows' in block else 'no '}shares of rows and cut {cut}")
    new = {_SPANS.get(key, key): _counts(key, block) if key in _SPANS else block.table[key] for key in block.table}
    return _without(new, "norm") | {"cut": {"block": unit, "columns": "output"}.get(cut, cut)}


def _counts(key: str, block: PlanFields) -> list[int]:
    """Return how long the spans are of what is shared out, which must follow each other."""
    named = PlanFields({f"{key} {number}": span for number, span in enumerate(block.get(key, list))}, block.where)
    spans = tuple(named.span(name, empty=True) for name in named.table)
    try:
        return list(Partition(spans).counts)
    except HeptiError as error:
        raise block.error(f"{key}: {error}") from error


def _network(old: PlanFields) -> dict[str, Any]:
    return {"stages": [{"runs": [_segment(segment) for segment in old.subs("segments", "run")]}]}


def _segment(segment: PlanFields) -> dict[str, Any]:
    cut = segment.get("cut", str, "rows")
    parts = "channels" if cut == "sums" else cut
    if ("shares" in segment) == (parts in segment):
        raise segment.error(f"write either {parts} or shares, one a device")
    axis = "input_channels" if cut == "sums" else cut
    numbers = segment.table["shares" if "shares" in segment else parts]
    return _without(segment.table, "shares", parts) | {"cut": axis, axis: numbers}


def _language_model(old: PlanFields) -> dict[str, Any]:
    stages = [{"runs": [_half_layers(stage)]} for stage in old.subs("stages", "stage")]
    return {"stages": stages, "head": {"cut": "words", "words": old.get("words", list)}}


def _half_layers(stage: PlanFields) -> dict[str, Any]:
    blocks = {
        "attention": {"cut": "heads", "heads": stage.get("heads", list)},
        "mlp": {"cut": "columns", "columns": stage.get("columns", list)},
    }
    return _without(stage.table, "heads", "columns") | blocks


def _without(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}
