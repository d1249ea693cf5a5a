"""A language model's plan as tables and a map that a person reads, and as JSON that a program does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from solver.base.phrases import counted, ms
from solver.base.tables import new_table
from solver.cluster.cluster import MIB, Cluster
from solver.model.decoder import Decoder
from solver.model.kinds.part import KEY, KV
from solver.plan.decoder_plan import DecoderStage
from solver.plan.writing import plan_table
from solver.schedule.decoders.asked import TokenRequest
from solver.show.advice import Upgrade, saved_at_most
from solver.show.comparison import ranked
from solver.show.decoder_facts import AnswerBound, ComparedDecoder, PricedDecoder
from solver.show.network_tables import bar, legend
from solver.show.plan_tables import MOST_LISTED
from solver.show.system_tables import print_notes

_HEADINGS = {KV: "with keys\nof", KEY: "keys of\ntokens"}


def decoder_title(model: Decoder, asked: TokenRequest) -> str:
    """Return what is planned, in words."""
    return (
        f"{model.name} in {asked.precision}, {counted(len(model.layers), 'layer')}: {asked.tokens} tokens "
        f"after a prompt of {asked.prompt}"
    )


def print_decoder(console: Console, found: PricedDecoder) -> None:
    """Print who has what, what every device does with the time of a token, and what is predicted."""
    plan, facts = found.plan, found.plan.predicted
    assert facts is not None
    count = len(plan.devices)
    taking = list(plan.active)
    listed = list(range(count)) if count <= MOST_LISTED else taking
    console.print(_shares(found, listed))
    console.print(_devices(found, listed))
    if len(listed) < count:
        console.print(f"The {count - len(listed)} others hold nothing.")
    if len(taking) == 1 and count > 1:
        console.print(f"By {plan.system or 'this plan'} all is on {plan.devices[taking[0]]}.")
    of = f" for each of {plan.sequences} sequences" * (plan.sequences > 1)
    console.print(f"There is room for {plan.context} tokens{of}; keys and values are kept in {plan.cache}.")
    if plan.rows_from:
        ends = any(stage.rows and stage.rows_end for stage in plan.stages)
        what = "have attention's output product" if ends else "are"
        console.print(f"Prompts of {plan.rows_from} rows and more {what} cut by rows{' after attention' * (not ends)}.")
    console.print(
        f"[bold]{1 / facts.token_s:.2f} tokens a second[/]{of} with {facts.behind} before"
        f"{f' by {plan.system}' * bool(plan.system)}: {ms(facts.token_s)} ms a token, in which the busiest "
        f"device computes {ms(facts.compute_s)} and waits {ms(facts.exchange_s)}; "
        f"{_kib(found.token.prediction.bytes_on_wire)} KiB are sent. "
        f"[bold]{facts.first_s:.2f} s[/] from a prompt of {counted(facts.prompt, 'token')} to the first."
    )
    if plan.sequences > 1:
        console.print(
            f"[bold]{found.tokens_per_s:.2f} tokens a second[/] of all {plan.sequences} sequences together, of the "
            f"time that their prompts take, too."
        )


def _shares(found: PricedDecoder, listed: Sequence[int]) -> Table:
    own = {
        rank: [(_layers(stage), _units(found.model, stage, rank)) for stage in found.plan.stages if rank in stage.ranks]
        for rank in listed
    }
    axes = list(dict.fromkeys(axis for stages in own.values() for _, units in stages for axis in units))
    of_words = found.plan.word_columns
    headings = ("device", "layers", *(_HEADINGS.get(axis, axis) for axis in axes), *of_words)
    table = new_table("who has what", *headings, words=2)
    for rank, stages in own.items():
        words = [str(partition[rank].size or "-") for partition in of_words.values()]
        for layers, units in stages or [("-", dict[str, int]())]:
            table.add_row(found.plan.devices[rank], layers, *(str(units.get(axis) or "-") for axis in axes), *words)
    return table


def _units(model: Decoder, stage: DecoderStage, rank: int) -> dict[str, int]:
    """Return how many units of every axis a rank has of the blocks of a stage."""
    kinds = dict.fromkeys(chain(*model.layers[stage.layers.slice]))
    first = {kind.axis: kind for kind in reversed(kinds)}
    found = {
        axis: number
        for kind in kinds if first[kind.axis] is kind
        for axis, number in kind.units(stage.shares[kind.axis][rank]).items()
    }  # fmt: skip
    if not stage.keys:
        return found
    return {KEY if axis == KV else axis: stage.keys[rank] if axis == KV else own for axis, own in found.items()}


def _layers(stage: DecoderStage) -> str:
    return f"{stage.layers.start}" + f"-{stage.layers.stop - 1}" * (stage.layers.size > 1)


def _devices(found: PricedDecoder, listed: Sequence[int]) -> Table:
    headings = ("weights\nMiB", "cache\nMiB", "needs\nMiB", "free\nMiB", "compute\nms", "wire\nms", "idle\nms")
    table = new_table("memory, and the time of a token", "device", *headings)
    price = found.token
    for rank in listed:
        device, needs = found.cluster.devices[rank], found.memory[rank]
        times = (price.compute_s[rank], price.exchange_s[rank], price.idle_s[rank])
        sizes = (needs.weights, needs.cache, needs.total, device.memory_bytes)
        table.add_row(
            device.name, *(f"{size / MIB:.0f}" for size in sizes), *(ms(float(seconds)) for seconds in times),
            style="bold red" if needs.total > device.memory_bytes else "",
        )  # fmt: skip
    return table


def decoder_to_json(
    found: PricedDecoder, others: Sequence[ComparedDecoder] = (), bound: AnswerBound | None = None,
    upgrades: Sequence[Upgrade] = (),
) -> str:  # fmt: skip
    """Return the plan's table as JSON, with all that is printed of it."""
    table = plan_table(found.plan, found.model)
    price = found.token
    table["tokens_per_s"] = found.tokens_per_s
    table["bytes_on_wire"] = price.prediction.bytes_on_wire
    table["per_device"] = [
        {
            "device": device.name,
            "weights_bytes": found.memory[rank].weights,
            "cache_bytes": found.memory[rank].cache,
            "memory_bytes": found.memory[rank].total,
            "compute_s": float(price.compute_s[rank]),
            "exchange_s": float(price.exchange_s[rank]),
            "idle_s": float(price.idle_s[rank]),
        }
        for rank, device in enumerate(found.cluster.devices)
    ]
    if bound is not None:
        table["alternatives"] = [_entry(other) for other in others]
        table["bounds"] = {"answer_s": bound.answer_s, "answer_bound_s": bound.bound_s}
        table["upgrades"] = [asdict(upgrade) for upgrade in upgrades]
    return json.dumps(table, indent=1) + "\n"


def print_beside(
    console: Console, found: PricedDecoder, others: Sequence[ComparedDecoder], bound: AnswerBound, objective: str
) -> None:  # fmt: skip
    """Print the plan beside what else there is, the best for the objective first, and what it cannot beat."""
    plan, facts = found.plan, found.plan.predicted
    assert facts is not None
    table = new_table("predicted", *_headings(objective), "this plan is")
    own = ComparedDecoder(
        plan.system, facts.token_s, found.tokens_per_s, 0, (0,), first_s=facts.first_s, sequences=plan.sequences
    )
    for entry in ranked([own, *(other for other in others if other.system != plan.system)], objective):
        compared = entry is not own and bool(entry.weights_bytes)
        ratio = f"{entry.cost_s(objective) / own.cost_s(objective):.2f} times as fast" if compared else ""
        style = "bold" if entry is own else "dim" if entry.lacks else ""
        table.add_row(*_figures(entry, objective), ratio, style=style)
    console.print(table)
    print_notes(console, others)
    console.print(
        f"{_answers(plan.sequences)} {bound.answer_s:.2f} s; no plan beats {bound.bound_s:.2f} s: "
        f"{saved_at_most(bound.answer_s, bound.bound_s)}."
    )


def _answers(sequences: int) -> str:
    return "The whole answer takes" if sequences == 1 else f"All {sequences} answers take"


def print_decoders(console: Console, entries: Sequence[ComparedDecoder], title: str, objective: str) -> None:
    """Print every system's prediction, of those that can be run the best for the objective first; and who wins."""
    console.print(title, markup=False)
    headings = (*_headings(objective), "KiB sent\na token", "weights:\nmost MiB", "least MiB")
    table = new_table("predicted", *headings)
    entries = ranked(entries, objective)
    for place, entry in enumerate(entries):
        held = entry.weights_bytes
        table.add_row(
            *_figures(entry, objective),
            _kib(entry.bytes_on_wire) if held else "-",
            *((f"{size / MIB:.0f}" for size in (max(held), min(held))) if held else "--"),
            style="dim" if entry.lacks else "bold" if not place else "",
        )
    console.print(table)
    print_notes(console, entries)
    best = entries[0]
    if best.lacks:
        console.print("None of them can be run.")
    else:
        of = f" of {counted(best.sequences, 'sequence')} together" * (objective == "throughput")
        console.print(f"{best.system} wins with {1 / best.cost_s(objective):.2f} tokens a second{of}.")


def decoders_to_json(
    model: Decoder, cluster: Cluster, entries: Sequence[ComparedDecoder], asked: TokenRequest, objective: str
) -> str:
    """Return the same as JSON; the winner by name, null where nothing can be run."""
    able = [entry for entry in ranked(entries, objective) if not entry.lacks]
    table = {
        "model": {"name": model.name, "fingerprint": model.fingerprint},
        "cluster": {"fingerprint": cluster.fingerprint},
        "precision": asked.precision,
        "cache": asked.cache,
        "wire": str(asked.wire),
        "prompt": asked.prompt,
        "tokens": asked.tokens,
        "context": asked.context,
        "objective": objective,
        "devices": list(cluster.names),
        "systems": [_entry(entry) for entry in entries],
        "winner": able[0].system if able else None,
    }
    return json.dumps(table, indent=1) + "\n"


def _headings(objective: str) -> tuple[str, ...]:
    together = ("sequences", "of all\na second") if objective == "throughput" else ()
    return ("system", *together, "tokens\na second", "first\ns")


def _figures(entry: ComparedDecoder, objective: str) -> tuple[str, ...]:
    """Return a system's name, tokens a second, and seconds to the first; where many count, of all sequences before."""
    planned = bool(entry.weights_bytes)
    together = (str(entry.sequences), f"{entry.requests_per_s:.2f}") if planned else ("-", "-")
    return (
        entry.system + " †" * bool(entry.lacks),
        *(together if objective == "throughput" else ()),
        f"{1 / entry.seconds:.2f}" if planned else "-",
        f"{entry.first_s:.2f}" if planned else "-",
    )


def _entry(entry: ComparedDecoder) -> dict[str, Any]:
    planned = bool(np.isfinite(entry.seconds))
    return {
        "system": entry.system,
        "token_s": entry.seconds if planned else None,
        "first_s": entry.first_s if planned else None,
        "sequences": entry.sequences if planned else None,
        "tokens_per_s": entry.requests_per_s if planned else None,
        "bytes_on_wire": entry.bytes_on_wire,
        "weights_bytes": list(entry.weights_bytes),
        "lacks": entry.lacks,
    }


def print_shares_map(console: Console, found: PricedDecoder) -> None:
    """Print who has what share of every stage, from the first, on the left, to the last."""
    rows: list[tuple[str, str, Sequence[float]]] = [
        (_layers(stage), f"{partition.total} {axis}", partition.counts)
        for stage in found.plan.stages
        for axis, partition in stage.shares.items()
    ]
    rows += [
        (_layers(stage), f"{columns.total} output of {axis}", columns.counts)
        for stage in found.plan.stages
        for axis, columns in stage.outputs.items()
    ]
    rows += [(_layers(stage), "tokens' keys", stage.keys) for stage in found.plan.stages if stage.keys]
    rows += [
        (_layers(stage), "prompts' rows of output" if stage.rows_end else "prompts' rows", stage.rows)
        for stage in found.plan.stages
        if stage.rows
    ]
    rows.append(("", f"{found.plan.words.total} words", found.plan.words.counts))
    if (hidden := found.plan.hidden) is not None:
        rows.append(("", f"{hidden.total} hidden of words", hidden.counts))
    layers, shared = (max(len(str(row[place])) for row in rows) for place in (0, 1))
    width = max(16, console.width - 10 - max(layers, len("layers")) - max(shared, len("shared out")))
    table = new_table("who has what", "layers", "shared out", "first to last", words=3)
    for column in table.columns:
        column.no_wrap = True
    for *words, parts in rows:
        table.add_row(*words, bar(parts, width))
    console.print(table)
    console.print(Text(", ").join(legend(found.plan.devices)))


def _kib(size: int) -> str:
    return f"{size / 1024:.0f}"
