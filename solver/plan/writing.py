"""Writing plan files, of every kind of model; what is usual is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from solver.base.spans import Partition, Span
from solver.model.blocks import Cut
from solver.model.convnet import ConvNet
from solver.model.decoder import Decoder
from solver.model.kinds.attention import Attention
from solver.model.kinds.every import KINDS
from solver.model.kinds.part import HIDDEN, KEY, ROW, WORD
from solver.plan.decoder_plan import DecoderPlan, DecoderStage, kind_names
from solver.plan.file import FORMAT, OF_LANGUAGE_MODELS, OUTPUT, AnyPlan, parts_of_one
from solver.plan.plan import BlockPlan, Plan, Stage, cut_word
from solver.plan.routes import Route
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, whole_parts

_LINE = 110  # characters of a table that is written in one line


def plan_to_json(plan: AnyPlan, model: ConvNet | Decoder | None = None) -> str:
    """Write a plan as JSON that is read back to the same plan; `model` as for `plan_table`."""
    return _written(plan_table(plan, model)) + "\n"


def plan_table(plan: AnyPlan, model: ConvNet | Decoder | None = None) -> dict[str, Any]:
    """Return a plan as the table that its file holds.

    Parameters
    ----------
    model
        What it is for: of a language model, whose plan does not say it; of a network, where names of nodes and whole
        rows are wanted.
    """
    if isinstance(plan, DecoderPlan):
        assert isinstance(model, Decoder)
        named, stages = (model.name, model.fingerprint), _decoder_stages(plan, model)
        own = {name: getattr(plan, name) for name in OF_LANGUAGE_MODELS if name not in ("embedding", "head")}
    else:
        named, own = (plan.model_name, plan.model_fingerprint), {"cluster": {"fingerprint": plan.cluster_fingerprint}}
        if isinstance(plan, SegmentPlan):
            assert not isinstance(model, Decoder)
            stages = [{"runs": [_segment(segment, model) for segment in plan.segments]}]
        else:
            own |= {"rows": plan.rows, "tile_rows": plan.tile_rows}
            stages = [_stage(plan, stage) for stage in plan.stages]
    table: dict[str, Any] = {"format": FORMAT, "system": plan.system}
    table |= {"model": dict(zip(("name", "fingerprint"), named, strict=True)), **own, "wire": str(plan.wire)}
    table |= {"devices": list(plan.devices), "stages": stages}
    if isinstance(plan, DecoderPlan):
        if plan.embedding is not None:
            table["embedding"] = {"cut": WORD, WORD: list(plan.embedding.counts)}
        shared = {WORD: plan.words} | ({} if plan.hidden is None else {HIDDEN: plan.hidden})
        crew = _crew(plan, plan.stages[-1])
        table["head"] = {"cut": [*shared][-1], **{axis: _of(crew, own.counts) for axis, own in shared.items()}}
    if plan.predicted is not None:
        facts = asdict(plan.predicted)
        table["predicted"] = {name: list(fact) if isinstance(fact, tuple) else fact for name, fact in facts.items()}
    return table


def _written(value: Any, indent: int = 0) -> str:
    """Write JSON for people: a table that is short, and a list of numbers or names, stands in one line."""
    line, pad = json.dumps(value), "\n" + " " * (indent + 1)
    if isinstance(value, dict) and indent + len(line) > _LINE:
        entries = [f"{pad}{json.dumps(name)}: {_written(entry, indent + 1)}" for name, entry in value.items()]
        return f"{{{','.join(entries)}{pad[:-1]}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"[{','.join(pad + _written(entry, indent + 1) for entry in value)}{pad[:-1]}]"
    return line


def _stage(plan: Plan, stage: Stage) -> dict[str, Any]:
    table: dict[str, Any] = {} if stage.devices == plan.devices else {"devices": list(stage.devices)}
    table |= {} if stage.is_whole else {"sublayers": _ends(stage.sublayers)}
    runs = (({block.block: _block(block, plan.rows) for block in layer}, span) for span, layer in stage.layers)
    return table | {"runs": [{"layers": _ends(span)} | blocks for blocks, span in runs]}


def _block(block: BlockPlan, rows: int) -> dict[str, Any]:
    word = cut_word(block.block, block.cut)
    inner = word if block.cut is Cut.SUB_BLOCKS else KINDS[block.block].axis
    table: dict[str, Any] = {"cut": word}
    table |= {axis: list(own.counts) for axis, own in ((inner, block.inner), (OUTPUT, block.columns)) if own}
    if block.rows is not None:
        table["rows"] = _whole(block.rows, Partition.of_shares(block.rows, rows).counts if rows else block.rows)
    table |= {} if block.route is Route.DIRECT else {"route": str(block.route)}
    table |= {"groups": block.groups} if block.groups > 1 else {}
    return table | ({} if block.keys is None else {KEY: list(map(str, block.keys))})


def _segment(segment: Segment, net: ConvNet | None) -> dict[str, Any]:
    word, shares = str(segment.cut), segment.shares
    table: dict[str, Any] = {"nodes": _ends(segment.nodes)}
    if net is not None and segment.nodes.size:
        table["first"] = net.nodes[segment.nodes.start].name
    table |= {"cut": word, word: _whole(shares, shares if net is None else whole_parts(net, segment))}
    table |= {"grid": list(segment.grid)} if segment.cut is SegmentCut.TILES else {}
    return table | {name: True for name in ("edges_first", "stealing", "reuse") if getattr(segment, name)}


def _decoder_stages(plan: DecoderPlan, model: Decoder) -> list[dict[str, Any]]:
    tables = []
    for stage in plan.stages:
        crew = _crew(plan, stage)
        run = {
            "layers": _ends(stage.layers),
            **{name: _block_of(crew, stage, name) for name in kind_names(model, stage.layers)},
            **({ROW: _of(crew, stage.rows)} if stage.rows and not stage.rows_end else {}),
        }
        devices = _of(crew, plan.devices)
        tables.append({**({} if len(devices) == len(plan.devices) else {"devices": devices}), "runs": [run]})
    return tables


def _block_of(crew: list[int], stage: DecoderStage, name: str) -> dict[str, Any]:
    axis = KINDS[name].axis
    shared = {axis: _of(crew, stage.shares[axis].counts)}
    if axis in stage.outputs:
        shared[OUTPUT] = _of(crew, stage.outputs[axis].counts)
    table = {"cut": [*shared][-1], **shared}
    if name != Attention.name:
        return table
    table |= {KEY: _of(crew, stage.keys)} if stage.keys else {}
    return table | ({ROW: _of(crew, stage.rows)} if stage.rows and stage.rows_end else {})


def _whole(shares: Sequence[float], counts: Sequence[float]) -> list[float]:
    """Return whole numbers in the place of shares that they say exactly."""
    return list(counts if parts_of_one(tuple(counts)) == shares else shares)


def _crew(plan: DecoderPlan, stage: DecoderStage) -> list[int]:
    """Return the ranks that have anything of a stage; of the last one also those that have words."""
    heads = [plan.words, *([] if plan.hidden is None else [plan.hidden])] * (stage is plan.stages[-1])
    shared = (own.counts for own in (*stage.shares.values(), *stage.outputs.values(), *heads))
    numbers = [*shared, stage.keys, stage.rows]
    return [rank for rank in range(len(plan.devices)) if any(own[rank] for own in numbers if own)]


def _of(ranks: Sequence[int], values: Sequence[Any]) -> list[Any]:
    return [values[rank] for rank in ranks]


def _ends(span: Span) -> list[int]:
    return [span.start, span.stop]
