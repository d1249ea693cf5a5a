"""`Plan`: for every layer the two cuts and their partitions; the file `hepti-plan/1`, with all its checks.

A person can write one by hand:

    {"format": "hepti-plan/1", "model": {"name": "bert-base"},
     "stages": [{"devices": ["pi-0", "pi-1"],
                 "layers": [{"layers": [0, 12],
                             "attention": {"cut": "block", "heads": [[0, 9], [9, 12]], "norm": "full"},
                             "mlp": {"cut": "rows", "rows": [0.7, 0.3]}}]}]}

Heads and columns are half-open spans, one per device; rows are shares of any request's length, resolved for the
length at hand by the largest remainder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from solver.errors import HeptiError
from solver.model import ModelSpec
from solver.spans import Partition, Span

FORMAT = "hepti-plan/1"


class Cut(StrEnum):
    """How one block (attention or MLP) is split over the ranks."""

    ROWS = "rows"  # each rank its rows, all weights
    COLUMNS = "columns"  # heads or F columns, gathered, then output columns
    BLOCK = "block"  # heads or F columns, then full-size summands


class Layout(StrEnum):
    """How an activation lies on the ranks."""

    FULL = "full"  # all have all
    ROWS = "rows"  # each its rows


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One block's cut and partitions.

    Parameters
    ----------
    cut
        How the block is split.
    inner
        Heads (attention) or F columns (MLP) per rank; None for cut `rows`.
    columns
        Output columns per rank; for cut `columns` only.
    norm
        Where the residual is added and normalised after the block; always `rows` for cut `rows`.
    rows
        Shares of the rows per rank, where `norm` is `rows`; they add up to one.
    """

    cut: Cut
    inner: Partition | None = None
    columns: Partition | None = None
    norm: Layout = Layout.FULL
    rows: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.cut is Cut.ROWS and self.norm is not Layout.ROWS:
            raise HeptiError("cut rows leaves rows on every rank: its norm must be rows")
        if (self.inner is None) != (self.cut is Cut.ROWS):
            raise HeptiError(
                f"cut {self.cut} {'needs' if self.inner is None else 'has no'} heads or columns of its own"
            )
        if (self.columns is None) == (self.cut is Cut.COLUMNS):
            raise HeptiError(f"cut {self.cut} {'needs' if self.columns is None else 'has no'} output columns")
        if (self.rows is None) == (self.norm is Layout.ROWS):
            raise HeptiError(f"norm {self.norm} {'needs' if self.rows is None else 'has no'} shares of rows")
        if self.rows is not None:
            _check_shares(self.rows)

    def only(self, ranks: Sequence[int]) -> BlockPlan:
        """Return the plan as seen by a group of these ranks; the others must hold nothing."""

        def narrow(partition: Partition | None) -> Partition | None:
            return partition and Partition(tuple(partition[rank] for rank in ranks))

        rows = self.rows and tuple(self.rows[rank] for rank in ranks)
        return replace(self, inner=narrow(self.inner), columns=narrow(self.columns), rows=rows)

    def has_share(self, rank: int) -> bool:
        """Return whether a rank has anything to do in this block."""
        spans = [partition[rank] for partition in (self.inner, self.columns) if partition is not None]
        return any(span.size for span in spans) or (self.rows is not None and self.rows[rank] > 0)

    def row_partition(self, rows: int) -> Partition | None:
        """Return who has which of `rows` rows after the block; None where all have all."""
        return None if self.rows is None else Partition.of_shares(self.rows, rows)


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The two cuts of one layer."""

    attention: BlockPlan
    mlp: BlockPlan


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on a group of devices; `devices` are names in rank order."""

    devices: tuple[str, ...]
    layers: tuple[tuple[Span, LayerPlan], ...]  # runs of equal layers

    @property
    def active(self) -> tuple[int, ...]:
        """Ranks that have a share; the others take no part in any exchange."""
        blocks = [block for _, layer in self.layers for block in (layer.attention, layer.mlp)]
        return tuple(rank for rank in range(len(self.devices)) if any(block.has_share(rank) for block in blocks))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the planner expects of one request."""

    seconds: float
    compute_s: float
    exchange_s: float
    weights_bytes: tuple[int, ...]  # per device
    bytes_on_wire: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Who computes what: all that a run needs to know."""

    stages: tuple[Stage, ...]
    model_name: str
    model_fingerprint: str = ""  # empty where a person wrote the plan
    cluster_fingerprint: str = ""
    system: str = ""
    rows: int = 0  # the length that it was made for; it fits every other
    predicted: Prediction | None = field(default=None)

    @property
    def devices(self) -> tuple[str, ...]:
        """Device names in rank order, over all stages."""
        return tuple(dict.fromkeys(name for stage in self.stages for name in stage.devices))

    def check(self, spec: ModelSpec, ranks: int) -> None:
        """Refuse a plan that does not fit the model or the number of ranks.

        Raises
        ------
        HeptiError
            Naming the number that does not fit.
        """
        if self.model_fingerprint and self.model_fingerprint != spec.fingerprint:
            raise HeptiError(
                f"the plan is for model {self.model_name} ({self.model_fingerprint}), "
                f"the weights are {spec.name} ({spec.fingerprint}): plan again with python -m solver"
            )
        if len(self.devices) != ranks:
            raise HeptiError(
                f"the plan is for {len(self.devices)} devices, the job has {ranks} ranks: start mpirun with "
                f"-np {len(self.devices)} or plan again for {ranks}"
            )
        runs = [(span, layer, len(stage.devices)) for stage in self.stages for span, layer in stage.layers]
        try:
            covered = Partition(tuple(span for span, _, _ in runs))
        except HeptiError as error:
            raise HeptiError(f"plan: layers: {error}") from error
        if covered.total != spec.layers:
            raise HeptiError(f"the plan has {covered.total} layers, model {spec.name} has {spec.layers}")
        for span, layer, devices in runs:
            where = f"plan: layers {span.start} to {span.stop - 1}"
            _check_block(layer.attention, f"{where}, attention", spec, devices, spec.heads, "heads")
            _check_block(layer.mlp, f"{where}, mlp", spec, devices, spec.ffn, "ffn columns")

    def layer(self, number: int) -> LayerPlan:
        """Return the cuts of one layer."""
        for stage in self.stages:
            for span, layer in stage.layers:
                if span.start <= number < span.stop:
                    return layer
        raise HeptiError(f"the plan has no layer {number}")


def uniform_plan(spec: ModelSpec, devices: Sequence[str], layer: LayerPlan, **facts: Any) -> Plan:
    """Return the plan that cuts every layer of `spec` the same way, in one stage."""
    stage = Stage(tuple(devices), ((Span(0, spec.layers), layer),))
    return Plan((stage,), model_name=spec.name, model_fingerprint=spec.fingerprint, **facts)


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
        "stages": [
            {
                "devices": list(stage.devices),
                "layers": [
                    {
                        "layers": [span.start, span.stop],
                        "attention": _block_to_table(layer.attention, "heads"),
                        "mlp": _block_to_table(layer.mlp, "ffn"),
                    }
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
    return Plan(
        stages=tuple(_stage(entry) for entry in _get(table, "stages", list)),
        model_name=_get(model, "name", str),
        model_fingerprint=_get(model, "fingerprint", str, ""),
        cluster_fingerprint=_get(cluster, "fingerprint", str, ""),
        system=_get(table, "system", str, ""),
        rows=_get(table, "rows", int, 0),
        predicted=_prediction(_get(table, "predicted", dict)) if "predicted" in table else None,
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
    devices = tuple(_is(name, str, "the name of a device") for name in _get(entry, "devices", list))
    if len(set(devices)) < len(devices):
        raise HeptiError(f"plan: devices {', '.join(devices)}: one is named twice")
    return Stage(devices, tuple(_run(run) for run in _get(entry, "layers", list)))


def _run(entry: Any) -> tuple[Span, LayerPlan]:
    span = _span(_get(entry, "layers", list))
    blocks = []
    for name, inner in (("attention", "heads"), ("mlp", "ffn")):
        table = _get(entry, name, dict)
        try:
            blocks.append(_block(table, inner))
        except HeptiError as error:
            raise HeptiError(f"plan: layers {span.start} to {span.stop - 1}, {name}: {error}") from error
    return span, LayerPlan(*blocks)


def _block(entry: dict[str, Any], inner: str) -> BlockPlan:
    known = ("cut", inner, "columns", "norm", "rows")
    for key in entry:
        if key not in known:
            raise HeptiError(f"unknown key {key!r} (known: {', '.join(known)})")
    cut = Cut(_one_of(_get(entry, "cut", str), "cut", list(Cut)))
    norm = _get(entry, "norm", str, "rows" if cut is Cut.ROWS else "full")
    return BlockPlan(
        cut,
        inner=_partition(entry, inner),
        columns=_partition(entry, "columns"),
        norm=Layout(_one_of(norm, "norm", list(Layout))),
        rows=tuple(_is(share, int | float, "a share") for share in _get(entry, "rows", list))
        if "rows" in entry
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


def _one_of(value: str, what: str, known: Sequence[str]) -> str:
    if value not in known:
        raise HeptiError(f"{what} {value!r} is not one of {', '.join(known)}")
    return value


def _block_to_table(block: BlockPlan, inner: str) -> dict[str, Any]:
    table: dict[str, Any] = {"cut": str(block.cut)}
    for name, partition in ((inner, block.inner), ("columns", block.columns)):
        if partition is not None:
            table[name] = [[span.start, span.stop] for span in partition]
    table["norm"] = str(block.norm)
    if block.rows is not None:
        table["rows"] = list(block.rows)
    return table


def _check_shares(shares: tuple[float, ...]) -> None:
    # A person may write 0.33 three times, or 0.34.
    slack = 0.02
    if not all(0 <= share <= 1 + slack for share in shares):
        raise HeptiError(f"shares of rows {list(shares)}: every one must be between 0 and 1")
    if abs(math.fsum(shares) - 1) > slack:
        raise HeptiError(f"shares of rows {list(shares)} add up to {math.fsum(shares):g}, not 1")


def _check_block(block: BlockPlan, where: str, spec: ModelSpec, devices: int, inner: int, unit: str) -> None:
    for partition, total, name in ((block.inner, inner, unit), (block.columns, spec.hidden, "output columns")):
        if partition is None:
            continue
        if len(partition) != devices:
            raise HeptiError(f"{where}: {len(partition)} spans of {name} for {devices} devices")
        if partition.total != total:
            raise HeptiError(f"{where}: the spans cover {partition.total} {name}, model {spec.name} has {total}")
    if block.rows is not None and len(block.rows) != devices:
        raise HeptiError(f"{where}: {len(block.rows)} shares of rows for {devices} devices")
