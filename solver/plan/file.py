"""The plan file, `hepti-plan/2`, of every kind of model: reading with all its checks (`writing.py` writes it).

A person can write one by hand:

    {"format": "hepti-plan/2", "model": {"name": "bert-base"}, "devices": ["pi-0", "pi-1"],
     "stages": [{"runs": [{"layers": [0, 12],
                           "attention": {"cut": "heads", "heads": [9, 3]},
                           "mlp": {"cut": "rows", "rows": [0.7, 0.3]}}]}]}

A cut goes by the axis that it shares out, and under the names of axes stands what every device of the stage has: of
heads, columns and words how many; of rows, channels and tiles whole numbers, in whose ratio they go, or parts of one.
Runs of nodes are a network's; a head, or what else only language models have, makes it the plan of one of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.model.blocks import Cut
from solver.model.convnet import ConvNet
from solver.model.decoder import Decoder
from solver.model.kinds.attention import CACHES, Attention
from solver.model.kinds.every import KINDS
from solver.model.kinds.part import HIDDEN, KEY, ROW, WORD
from solver.model.kinds.weight import PRECISIONS
from solver.plan import old_files
from solver.plan.decoder_plan import ROWS_BY_MPI, DecoderPlan, DecoderPrediction, DecoderStage, kind_names
from solver.plan.fields import Amounts, PlanFields, parsed, read_with
from solver.plan.plan import (
    NOTHING,
    ROUNDING,
    WIRES,
    BlockPlan,
    Keys,
    LayerPlan,
    Plan,
    Prediction,
    Stage,
    StreamLayout,
    Wire,
    cut_word,
)
from solver.plan.routes import Route
from solver.plan.segments import Segment, SegmentCut, SegmentPlan

FORMAT, OUTPUT = "hepti-plan/2", "output"
AnyPlan = Plan | SegmentPlan | DecoderPlan
P = TypeVar("P", Plan, SegmentPlan, DecoderPlan)
Staged = tuple[PlanFields, tuple[str, ...], list[PlanFields]]  # a stage, its devices, its runs

_OF: dict[type, str] = {Plan: "an encoder", SegmentPlan: "a convolutional network", DecoderPlan: "a language model"}
_OF_ALL = ("format", "system", "model", "devices", "wire", "stages", "predicted")
OF_LANGUAGE_MODELS = ("precision", "cache", "context", "sequences", "two_steps_from", "rows_from", "embedding", "head")


def read_plan(path: Path, kind: type[P], model: ConvNet | Decoder | None = None) -> P:
    """Read the plan file of one kind of model; of the one that is given, it must be for that, and name its nodes.

    Raises
    ------
    HeptiError
        If the file is missing, is not JSON, does not describe a plan, or is another kind's or another model's.
    """
    return read_with(path, lambda text: plan_from_json(text, kind, model))


def read_any_plan(path: Path) -> AnyPlan:
    """Read the plan file of any kind of model; errors as `read_plan`."""
    return read_with(path, any_plan_from_json)


def planned_model(path: Path) -> tuple[str, str]:
    """Return the name of the model that a plan file is for, and its fingerprint, or ""; errors as `read_plan`."""
    return read_with(path, lambda text: _named(PlanFields(_table(text))))


def check_plan(path: Path, plan: Plan | SegmentPlan | DecoderPlan, model: Any, ranks: int) -> None:
    """Refuse the plan of a file that does not fit a model and a number of ranks.

    Raises
    ------
    HeptiError
        Naming the file, and the number that does not fit.
    """
    try:
        plan.check(model, ranks)
    except HeptiError as error:
        raise type(error)(f"{path}: {error}") from error


def sent_as(plan: P, wire: str | None) -> P:
    """Return a plan whose numbers travel as a command line says, which goes before a file; None: as the plan says."""
    return plan if wire in (None, plan.wire) else replace(plan, wire=Wire(wire), predicted=None)


def plan_to_price(path: Path, plan: P, model: Any, devices: Sequence[str], wire: str | None) -> P:
    """Return the plan of a file as it is to be priced, on the wire that is asked for, if any.

    Raises
    ------
    HeptiError
        As `check_plan`, or if the cluster has other devices.
    """
    if plan.devices != devices:
        raise HeptiError(f"{path} is for devices {', '.join(plan.devices)}, the cluster has {', '.join(devices)}")
    plan = sent_as(plan, wire)
    check_plan(path, plan, model, len(devices))
    return plan


def plan_from_json(text: str, kind: type[P], model: ConvNet | Decoder | None = None) -> P:
    """Read the plan of one kind of model from JSON; errors as `read_plan`."""
    table = _table(text)
    if (found := _kind(table, kind)) is not kind:
        raise HeptiError(f"this is the plan of {_OF[found]}, {_name(table)}: here {_OF[kind]}'s is needed")
    plan = _read(table, kind, model)
    assert isinstance(plan, kind)
    return plan


def any_plan_from_json(text: str) -> AnyPlan:
    """Read the plan of any kind of model from JSON; errors as `read_plan`."""
    table = _table(text)
    return _read(table, _kind(table), None)


def parts_of_one(numbers: Amounts) -> Amounts:
    """Return shares as parts of one; as they stand where they are that."""
    whole = sum(numbers)
    return numbers if abs(whole - 1) <= ROUNDING else tuple(number / whole for number in numbers)


def _table(text: str) -> dict[str, Any]:
    """Return the JSON of a plan; of the first version as this one has it."""
    table = parsed(text)
    if not isinstance(table, dict) or "format" not in table:
        raise HeptiError(f'no plan, which is a JSON object with "format": "{FORMAT}": hepti plan --out writes one')
    if table["format"] == old_files.FORMAT:
        return old_files.renewed(table)
    if table["format"] != FORMAT:
        raise HeptiError(f"format is {table['format']!r}, this version reads {FORMAT} and {old_files.FORMAT}")
    return table


def _name(table: Mapping[str, Any]) -> str:
    return str(PlanFields(table).sub("model", {}).get("name", str, "of no name"))


def _kind(
    table: Mapping[str, Any], asked: type[AnyPlan] | None = None
) -> type[Plan] | type[SegmentPlan] | type[DecoderPlan]:
    """Return which kind of plan a table is, by what only this kind has; a key more makes no other kind of it."""
    stages = PlanFields(table).subs("stages", "stage")
    if any("nodes" in run for stage in stages for run in stage.subs("runs", "run")):
        return SegmentPlan
    others = () if asked is Plan else OF_LANGUAGE_MODELS
    return DecoderPlan if any(key in table for key in ("head", *others)) else Plan


def _read(table: Mapping[str, Any], kind: type[AnyPlan], model: ConvNet | Decoder | None) -> AnyPlan:
    readers: dict[type, Callable[[PlanFields, Any], AnyPlan]]
    readers = {Plan: _encoder, SegmentPlan: _network, DecoderPlan: _language_model}
    return readers[kind](PlanFields(table), model)


# What all kinds of models have.


def _facts(plan: PlanFields, prediction: type, wires: Sequence[Wire]) -> dict[str, Any]:
    return {
        "system": plan.get("system", str, ""),
        "wire": Wire(plan.word("wire", wires, Wire.FLOAT32)),
        "predicted": plan.sub("predicted").record(prediction) if "predicted" in plan else None,
    }


def _named(plan: PlanFields) -> tuple[str, str]:
    model = plan.sub("model")
    model.only("name", "fingerprint")
    return model.get("name", str), model.get("fingerprint", str, "")


def _made_for(plan: PlanFields) -> dict[str, str]:
    """Return which model and cluster the plan of an encoder or a network is for."""
    cluster = plan.sub("cluster", {})
    cluster.only("fingerprint")
    names = ("model_name", "model_fingerprint", "cluster_fingerprint")
    return dict(zip(names, (*_named(plan), cluster.get("fingerprint", str, "")), strict=True))


def _stages(
    plan: PlanFields, *known: str
) -> tuple[tuple[str, ...], list[tuple[PlanFields, tuple[str, ...], list[PlanFields]]]]:
    """Return all devices, and of every stage its table, its devices and its runs."""
    stages = plan.subs("stages", "stage")
    named = "devices" in plan or not any("devices" in stage for stage in stages)
    devices = plan.names("devices") if named else ()
    found = []
    for stage in stages:
        stage.only("devices", *known, "runs")
        crew = devices if devices and "devices" not in stage else stage.names("devices")
        for name in crew:
            stage.known(name, "device", devices or crew)
        found.append((stage, crew, stage.subs("runs", "run")))
    return devices or tuple(dict.fromkeys(name for _, crew, _ in found for name in crew)), found


def _over(devices: Sequence[str], crew: Sequence[str], numbers: Amounts) -> Amounts:
    """Return the numbers of all devices, where those of a crew are given."""
    own = dict(zip(crew, numbers, strict=True))
    return tuple(own.get(name, 0) for name in devices)


# Encoders.


def _encoder(plan: PlanFields, _model: None) -> Plan:
    plan.only(*_OF_ALL, "cluster", "rows", "tile_rows")
    devices, staged = _stages(plan, "sublayers")
    stages = []
    for stage, crew, runs in staged:
        part = stage.span("sublayers") if "sublayers" in stage else NOTHING
        stages.append(Stage(crew, tuple(_run(run, len(crew)) for run in runs), part))
    facts = _made_for(plan) | _facts(plan, Prediction, tuple(Wire))
    rows, tile_rows = plan.count("rows", 0), plan.count("tile_rows", 0)
    return Plan(tuple(stages), rows=rows, tile_rows=tile_rows, devices=devices, **facts)


def _run(run: PlanFields, devices: int) -> tuple[Span, LayerPlan]:
    run.only("layers", *KINDS)
    blocks = [name for name in run.table if name != "layers"]
    if not blocks:
        raise run.error(f"there is no block: write what its layers consist of, of {', '.join(KINDS)}")
    return run.span("layers"), tuple(_block(name, run.sub(name), devices) for name in blocks)


def _block(name: str, entry: PlanFields, devices: int) -> BlockPlan:
    cuts, unit = {cut_word(name, cut): cut for cut in Cut}, KINDS[name].axis
    word, entry = entry.cut(tuple(cuts))
    several = {"to_rows": (unit, "rows"), OUTPUT: (unit, OUTPUT), "grid": (unit, OUTPUT, "rows"), "whole": ()}
    axes = several.get(word, (word,))
    left = ("rows",) * (word in (unit, OUTPUT))  # where devices have rows after it; else all have all
    own = (KEY,) * (word == "rows" and name == Attention.name) + ("groups",) * (word == "to_rows")
    entry.only("cut", *axes, *left, "route", *own)
    by_rows = "rows" in (*axes, *entry.table)

    def partition(axis: str, parts: int) -> Partition | None:
        return Partition.of_counts(map(int, entry.numbers(axis, parts, int))) if axis in axes else None

    return BlockPlan(
        name,
        cuts[word],
        inner=partition(word if word == "sub_blocks" else unit, devices),
        columns=partition(OUTPUT, devices * (word != "grid")),
        norm=StreamLayout.ROWS if by_rows else StreamLayout.COLS if word == "sub_blocks" else StreamLayout.FULL,
        rows=parts_of_one(entry.numbers("rows", devices)) if by_rows else None,
        route=Route(entry.word("route", tuple(Route), Route.DIRECT)),
        keys=tuple(Keys(entry.known(way, KEY, tuple(Keys))) for way in entry.several(KEY, str))
        if KEY in entry
        else None,
        groups=entry.count("groups", 1, least=1),
    )


# Convolutional networks.


def _network(plan: PlanFields, net: ConvNet | None) -> SegmentPlan:
    plan.only(*_OF_ALL, "cluster")
    devices, staged = _stages(plan)
    facts = _made_for(plan) | _facts(plan, Prediction, WIRES)
    if net is not None and facts["model_fingerprint"] not in ("", net.fingerprint):
        net = None  # whose nodes are others: `SegmentPlan.check` refuses it
    segments = (_segment(run, crew, devices, net) for _, crew, runs in staged for run in runs)
    return SegmentPlan(tuple(segments), devices, **facts)


def _segment(run: PlanFields, crew: Sequence[str], devices: Sequence[str], net: ConvNet | None) -> Segment:
    cuts = {str(cut): cut for cut in SegmentCut}
    word, entry = run.cut(tuple(cuts))
    own = ("grid", "stealing", "reuse") if cuts[word] is SegmentCut.TILES else ("edges_first",)
    entry.only("nodes", "first", "cut", word, *own)
    nodes, first = entry.span("nodes", empty=True), entry.get("first", str, "")
    found = net.nodes[nodes.start].name if net is not None and nodes.start < len(net.nodes) else ""
    if net is not None and first not in ("", found):
        there = f"node {nodes.start} is {found}" if found else f"there are {len(net.nodes)} nodes"
        raise entry.error(f"nodes begin with {nodes.start}, first is {first}; of {net.name} {there}: plan again")
    shares = _over(devices, crew, parts_of_one(entry.numbers(word, len(crew))))
    grid = tuple(entry.several("grid", int)) if "grid" in own else (1, 1)
    if len(grid) != 2 or min(grid) < 1:
        raise entry.error(f"grid is {list(grid)}, must be two numbers of at least 1: tiles down and across")
    flags = {key: entry.get(key, bool, False) for key in own if key != "grid"}
    return Segment(nodes, cuts[word], shares, grid=(grid[0], grid[1]), **flags)


# Language models.


def _language_model(plan: PlanFields, model: Decoder | None) -> DecoderPlan:
    plan.only(*_OF_ALL, *OF_LANGUAGE_MODELS)
    name, fingerprint = _named(plan)
    if model is not None and (name != model.name or fingerprint not in ("", model.fingerprint)):
        others = " of other layers or widths" * (name == model.name)
        raise HeptiError(f"this is the plan of {name}{others}, the model is {model.name}: plan again")
    devices, staged = _stages(plan)
    _, last, _ = staged[-1]
    word, head = plan.sub("head").cut((WORD, HIDDEN))
    head.only("cut", WORD, *[HIDDEN] * (word == HIDDEN))
    return DecoderPlan(
        devices=devices,
        stages=tuple(_decoder_stage(run, crew, devices, model) for _, crew, runs in staged for run in runs),
        words=_shared(head, WORD, last, devices),
        hidden=_shared(head, HIDDEN, last, devices) if word == HIDDEN else None,
        embedding=_embedded(plan.sub("embedding"), devices) if "embedding" in plan else None,
        precision=plan.word("precision", tuple(PRECISIONS), "float32"),
        cache=plan.word("cache", CACHES, "float32"),
        context=plan.count("context"),
        sequences=plan.count("sequences", 1, least=1),
        two_steps_from=plan.count("two_steps_from", ROWS_BY_MPI),
        rows_from=plan.count("rows_from", 0),
        **_facts(plan, DecoderPrediction, WIRES),
    )


def _decoder_stage(run: PlanFields, crew: Sequence[str], devices: Sequence[str], model: Decoder | None) -> DecoderStage:
    layers = run.span("layers")
    blocks = [name for name in KINDS if name in run] if model is None else kind_names(model, layers)
    run.only("layers", *(KINDS if model is None else blocks), "rows")
    if not blocks:
        raise run.error(f"there is no block: write what its layers consist of, of {', '.join(KINDS)}")
    shares: dict[str, Partition] = {}
    outputs: dict[str, Partition | None] = {}
    keys: tuple[int, ...] = ()
    rows_of = [run] if ROW in run else []
    for name in blocks:
        axis = KINDS[name].axis
        word, entry = run.sub(name).cut((axis, OUTPUT))
        entry.only("cut", axis, *[OUTPUT] * (word == OUTPUT), *[KEY, ROW] * (name == Attention.name))
        if KEY in entry:
            keys = _shared(entry, KEY, crew, devices).counts
        if ROW in entry:
            rows_of.append(entry)
        shared = _shared(entry, axis, crew, devices)
        output = _shared(entry, OUTPUT, crew, devices) if word == OUTPUT else None
        if shares.setdefault(axis, shared) != shared or outputs.setdefault(axis, output) != output:
            raise run.error(f"{name} is shared out otherwise than a block before it, also by {axis}: write the same")
    if len(rows_of) > 1:
        raise run.error(f"{ROW} are of the run and of {Attention.name}: write them once")
    rows = _over(devices, crew, rows_of[0].numbers(ROW, len(crew))) if rows_of else ()
    columns = {axis: own for axis, own in outputs.items() if own is not None}
    return DecoderStage(layers, shares, rows, columns, keys, rows_end=bool(rows_of) and rows_of[0] is not run)


def _embedded(embedding: PlanFields, devices: Sequence[str]) -> Partition:
    _, entry = embedding.cut((WORD,))
    entry.only("cut", WORD)
    return _shared(entry, WORD, devices, devices)


def _shared(entry: PlanFields, axis: str, crew: Sequence[str], devices: Sequence[str]) -> Partition:
    """Return who has how many of an axis."""
    return Partition.of_counts(map(int, _over(devices, crew, entry.numbers(axis, len(crew), int))))
