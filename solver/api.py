"""Planning from a program, as `python -m solver` does it: `from solver import make_plan`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Literal, SupportsIndex

from rich.console import Console

from solver.base.command import check_path, write_whole
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.cluster.named import find_cluster
from solver.model.convnet import ConvNet
from solver.model.decoder import Decoder
from solver.model.spec import ModelSpec, request_rows
from solver.models import NamedKind, decoder_of, encoder_of, kind_of, network_of
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.plan import Plan, Wire
from solver.plan.segments import SegmentPlan
from solver.plan.writing import plan_to_json
from solver.programs.planner import Solution
from solver.schedule.decoders.asked import TokenRequest, token_request
from solver.schedule.encoders.stages import price_plan
from solver.show.advice import proved_encoder
from solver.show.decoder_facts import priced_decoder, proved_decoder
from solver.show.decoder_tables import decoder_title, print_decoder
from solver.show.network_facts import priced_network, proved_network
from solver.show.network_tables import network_title, print_network
from solver.show.plan_tables import print_plan
from solver.show.system_tables import print_stages
from solver.show.titles import encoder_title, links
from solver.systems import DEFAULT, THROUGHPUT, plan_that_fits
from solver.systems.convnets import plan_network
from solver.systems.decoders import plan_decoder
from solver.systems.hepti import solve_hepti

WIDTH = 80  # characters of a printed plan


@dataclass(frozen=True, slots=True)
class MadePlan:
    """A plan with its prediction; `print` shows it as tables of 80 columns.

    Parameters
    ----------
    plan
        Who computes what: `Plan` of an encoder, `SegmentPlan` of a convolutional network, `DecoderPlan` of a language
        model. Its `predicted` has all that is predicted.
    seconds
        Predicted, of one request (a text, an image); of a language model, of one token in the middle of the answer.
    bytes_on_wire
        That all devices together send for it.
    proof
        Whether no other plan saves more than `prove` per cent, in words; "" where that was not asked.
    """

    plan: Plan | SegmentPlan | DecoderPlan
    seconds: float
    bytes_on_wire: int
    _text: str = field(repr=False)
    _show: Callable[[Console], None] = field(repr=False, compare=False)
    proof: str = ""

    def __str__(self) -> str:
        """Return the tables that `python -m solver` prints about the plan itself."""
        console = Console(file=StringIO(), width=WIDTH, highlight=False)
        self._show(console)
        assert isinstance(console.file, StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())

    def save(self, path: str | Path) -> None:
        """Write the plan file, as `--out` does: `--plan` of a run reads it.

        Raises
        ------
        HeptiError
            If it cannot be written, or the ending is not .json.
        """
        path = Path(path)
        check_path(path, (".json",))
        write_whole(path, self._text)


def make_plan(
    model: str | Path | ModelSpec | ConvNet | Decoder,
    cluster: str | Path | Cluster,
    *,
    layers: int | None = None,
    system: str | None = None,
    wire: str = "float32",
    objective: Literal["latency", "throughput"] = "latency",
    rows: int | None = None,
    prompt: int | None = None,
    tokens: int | None = None,
    context: int | None = None,
    sequences: int | None = None,
    cache: str | None = None,
    precision: str | None = None,
    prove: float | None = None,
) -> MadePlan:
    """Plan for a cluster, which need not be there, and predict what the plan takes; no file is written.

    Parameters
    ----------
    model
        A description, an architecture's name (bert-large, resnet50, llama-3.2-1b, …), or the path of a weights file or
        of a model in another format.
    cluster
        A description, a ready one's name (mixed4, pi4x4, …), or the path of a cluster file.
    layers
        Another layer count, of an architecture's name.
    system
        Who plans (docs/systems.md); None: hepti.
    wire
        Numbers on the wire: float32, float16, int8, ….
    objective
        Of a transformer: the latency of one request, or the throughput of many; of a language model tokens a second of
        all sequences together, of `sequences` or, with None, of as many as make most.
    rows
        Of encoders, the length of a request in tokens; None: the usual one.
    prompt, tokens, context, sequences
        Of language models: tokens of the prompt, of the answer, and to have room for; how many sequences have room.
        None: 64, 128, 4096, as far as the model goes, and 1.
    cache, precision
        Of language models: what keys and values, and weights, are kept in. None: float32, and int4 or as the file has
        it.
    prove
        Search on until no other plan can save more than so many per cent of the time, or all is tried.

    Returns
    -------
    MadePlan
        The plan, seconds of a request and bytes on the wire.

    Raises
    ------
    HeptiError
        If there is no such model, cluster or system, an argument is of another kind of model or out of range, or no
        plan fits (`InfeasiblePlanError`: how many bytes are missing, and where). One line.

    Examples
    --------
    >>> from solver import make_plan
    >>> found = make_plan("bert-large", "mixed4", rows=256)
    >>> print(found)  # doctest: +SKIP
    >>> found.save("plan.json")  # doctest: +SKIP
    """
    given = cluster if isinstance(cluster, Cluster) else find_cluster(str(cluster))
    if wire not in [*map(str, Wire)]:
        raise HeptiError(f"wire is {wire!r}, must be one of {', '.join(Wire)}")
    if objective not in ("latency", "throughput"):
        raise HeptiError(f"objective is {objective!r}, must be latency or throughput")
    _check_whole(layers=layers, rows=rows, prompt=prompt, tokens=tokens, context=context, sequences=sequences)
    if prove is not None:
        if not 0 < prove < 100:
            raise HeptiError(f"prove is {prove:g}, must be above 0 and below 100")
        if system not in (None, DEFAULT) or objective != "latency":
            raise HeptiError(f"prove is for system {DEFAULT} and one request: leave it out")
    kind = _kind(model)
    about_tokens = {
        "prompt": prompt, "tokens": tokens, "context": context, "sequences": sequences, "cache": cache,
        "precision": precision,
    }  # fmt: skip
    if kind != "decoder":
        _refuse(about_tokens, "language models")
    if kind != "encoder":
        _refuse({"rows": rows}, "encoders")
    if isinstance(model, str | Path):
        if kind == "network":
            _refuse({"layers": layers}, "transformers, whose layers are alike")
    else:
        _refuse({"layers": layers}, "models that are named")
    if kind == "network":
        _refuse({"objective": None if objective == "latency" else objective}, "transformers")
        net = model if isinstance(model, ConvNet) else network_of(str(model))
        return _of_network(net, given, system or DEFAULT, Wire(wire), prove)
    if kind == "decoder":
        decoder, stored = (model, None) if isinstance(model, Decoder) else decoder_of(str(model), layers)
        asked = token_request(
            decoder, stored, precision, Wire(wire), prompt=prompt, tokens=tokens, context=context,
            sequences=sequences, cache=cache,
        )  # fmt: skip
        many = objective == "throughput" and sequences is None
        return _of_decoder(decoder, given, system or DEFAULT, asked, prove, any_sequences=many)
    spec = model if isinstance(model, ModelSpec) else encoder_of(str(model), layers)
    if objective == "throughput":
        if system not in (None, DEFAULT, THROUGHPUT):
            raise HeptiError(f"objective throughput is for system hepti, {system} has its own objective")
        system = THROUGHPUT
    return _of_encoder(spec, given, system or DEFAULT, request_rows(spec, rows), Wire(wire), prove)


def plan_encoder(system: str, spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire) -> tuple[Plan, Solution | None]:
    """Plan by the named system, and return with it how it was found, where it is hepti's own.

    Raises
    ------
    HeptiError
        If there is no such system, or a device lacks memory for its share.
    """
    if system == DEFAULT:
        return solve_hepti(spec, cluster, rows, wire)
    return plan_that_fits(system, spec, cluster, rows, wire), None


def _of_encoder(spec: ModelSpec, cluster: Cluster, system: str, rows: int, wire: Wire, prove: float | None) -> MadePlan:
    if prove is None:
        (plan, _), proof = plan_encoder(system, spec, cluster, rows, wire), ""
    else:
        (plan, _), proof = proved_encoder(spec, cluster, rows, wire, prove)
    found = price_plan(spec, cluster, plan, rows)

    def show(console: Console) -> None:
        console.print(encoder_title(spec, rows) + links(cluster), markup=False)
        if plan.in_one:
            print_plan(console, cluster, plan, found.in_one)
        else:
            print_stages(console, cluster, plan, found)

    return MadePlan(plan, found.prediction.seconds, found.prediction.bytes_on_wire, plan_to_json(plan), show, proof)


def _of_network(net: ConvNet, cluster: Cluster, system: str, wire: Wire, prove: float | None) -> MadePlan:
    if prove is None:
        plan, proof = plan_network(system, net, cluster, wire), ""
    else:
        plan, proof = proved_network(net, cluster, wire, prove)
    found = priced_network(net, cluster, plan)
    facts = found.price.prediction

    def show(console: Console) -> None:
        console.print(network_title(net) + links(cluster), markup=False)
        print_network(console, found)

    return MadePlan(found.plan, facts.seconds, facts.bytes_on_wire, plan_to_json(found.plan, net), show, proof)


def _of_decoder(
    model: Decoder, cluster: Cluster, system: str, asked: TokenRequest, prove: float | None, *, any_sequences: bool
) -> MadePlan:
    if prove is None:
        plan, proof = plan_decoder(system, model, cluster, asked, any_sequences=any_sequences), ""
    else:
        plan, proof = proved_decoder(model, cluster, asked, prove)
    found = priced_decoder(model, cluster, plan, replace(asked, sequences=plan.sequences))
    assert found.plan.predicted is not None
    sent = found.token.prediction.bytes_on_wire

    def show(console: Console) -> None:
        console.print(decoder_title(model, asked) + links(cluster), markup=False)
        print_decoder(console, found)

    return MadePlan(found.plan, found.plan.predicted.token_s, sent, plan_to_json(found.plan, model), show, proof)


def _kind(model: str | Path | ModelSpec | ConvNet | Decoder) -> NamedKind:
    if isinstance(model, str | Path):
        return kind_of(str(model))
    if isinstance(model, ModelSpec):
        return "encoder"
    if isinstance(model, ConvNet):
        return "network"
    if isinstance(model, Decoder):
        return "decoder"
    raise HeptiError(f"model is {model!r}, must be a name, a path or a description")


def _check_whole(**numbers: int | None) -> None:
    """Refuse numbers that are not whole or below 1."""
    for name, value in numbers.items():
        if value is not None and (not isinstance(value, SupportsIndex) or operator.index(value) < 1):
            raise HeptiError(f"{name} is {value!r}, must be a whole number of at least 1")


def _refuse(arguments: Mapping[str, object], about: str) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise HeptiError(f"{name} is about {about}: for this model leave it out")
