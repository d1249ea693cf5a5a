"""A convolutional network's plan as tables and a map that a person reads, and as JSON that a program does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from solver.base.phrases import ms, percent
from solver.base.spans import largest_remainder
from solver.base.tables import new_table
from solver.cluster.cluster import MIB, Cluster
from solver.model.convnet import ConvNet
from solver.plan.plan import Wire
from solver.plan.segments import Segment, whole_parts
from solver.plan.writing import plan_table
from solver.schedule.networks.segment_steps import weights_of
from solver.schedule.price import PricedStep
from solver.show.advice import Bounds, Upgrade
from solver.show.comparison import ComparedSystem, ranked
from solver.show.network_facts import PricedNetwork, work
from solver.show.plan_tables import MOST_LISTED
from solver.show.system_tables import print_notes
from solver.systems.convnets.hepti_throughput import Replicas

MOST_APART = 8  # devices whose rows stand beside each other; of more, those alike together
MOST_NAMED = 20  # letters of a node on the map in one line
MARKS = "0123456789abcdefghijklmnopqrstuvwxyz"  # of devices on the map
# As the devices of a picture.
STYLES = ("bright_blue", "red", "green", "yellow", "cyan", "magenta", "white", "bright_black")
IN_A_LINE = 6  # parts of devices: of more a line breaks between them


def network_title(net: ConvNet) -> str:
    """Return what a network is, in words."""
    shape = "\N{MULTIPLICATION SIGN}".join(map(str, net.shapes[net.input][1:]))
    return f"{net.name}, {len(net.nodes)} nodes, {work(net) / 1e9:.1f} GFLOP an image of {shape}"


def print_network(console: Console, found: PricedNetwork) -> None:
    """Print who computes what of every segment, what every device does with its time, and what is predicted."""
    console.print(_segments(found))
    active = found.plan.active
    count = len(found.plan.devices)
    listed = range(count) if count <= MOST_LISTED else active
    console.print(_devices(found, listed))
    if len(listed) < count:
        console.print(f"The {count - len(listed)} others hold nothing.")
    if len(active) == 1 and count > 1:
        console.print(f"By {found.plan.system or 'this plan'} all is on {found.plan.devices[active[0]]}.")
    if found.twice >= 0.0005:
        console.print(
            "Rows of the image that several devices need count for each: "
            f"{percent(found.twice)} of the work is done twice, so that rows need not be waited for."
        )
    facts = found.price.prediction
    console.print(
        f"[bold]{ms(facts.seconds)} ms[/] for an image{f' by {found.plan.system}' * bool(found.plan.system)}: "
        f"the busiest device computes {ms(facts.compute_s)} ms and waits {ms(facts.exchange_s)} ms; "
        f"{facts.bytes_on_wire / MIB:.2f} MiB are sent{_wire(found.plan.wire)}."
    )


def _segments(found: PricedNetwork) -> Table:
    headings = ("nodes", "from", "shared out", "rank by\nrank", "wire\nms", "compute\nms")
    table = new_table("segments: rows, or channels, of every device", *headings, words=4)
    table.columns[0].no_wrap = True
    table.columns[3].no_wrap = len(found.plan.devices) <= IN_A_LINE
    parts = [whole_parts(found.net, segment) for segment in found.plan.segments]
    widths = [max(len(str(own[rank])) for own in parts) for rank in range(len(found.plan.devices))]
    for segment, own, step in zip(found.plan.segments, parts, found.steps, strict=True):
        alone = len(segment.active) == 1
        table.add_row(
            _numbers(segment),
            first_node(found.net, segment),
            shared_out(segment, own) + ", edges first" * segment.edges_first,
            found.plan.devices[segment.active[0]] if alone else _side_by_side(own, widths),
            ms(wire_s(step)),
            ms(float(step.times.compute.max())),
        )
    table.add_row("", "to rank 0", "", "", ms(wire_s(found.handed_in)), "")
    return table


def shared_out(segment: Segment, parts: Sequence[int]) -> str:
    """Return what is shared out, in words: "56 rows"."""
    if len(segment.active) == 1:
        return "whole"
    return f"{sum(parts)} {segment.cut.replace('_', ' ')}"


def first_node(net: ConvNet, segment: Segment) -> str:
    """Return the name of a segment's first node; "" where it has none."""
    return net.nodes[segment.nodes.start].name if segment.nodes.size else ""


def _side_by_side(parts: Sequence[int], widths: Sequence[int]) -> str:
    """Return the parts of few devices one below the other; of many, those alike together."""
    if len(parts) <= MOST_APART:
        return " ".join(f"{part or '-':>{width}}" for part, width in zip(parts, widths, strict=True))
    alike = [(part, len(list(several))) for part, several in groupby(parts)]
    return ", ".join(f"{part or '-'}" + f" \N{MULTIPLICATION SIGN}{count}" * (count > 1) for part, count in alike)


def _numbers(segment: Segment) -> str:
    nodes = segment.nodes
    if not nodes.size:
        return f"before {nodes.start}"
    return f"{nodes.start}" + f"-{nodes.stop - 1}" * (nodes.size > 1)


def _devices(found: PricedNetwork, listed: Sequence[int]) -> Table:
    headings = ("device", "image\nrows", "MFLOP", "weights\nMiB", "needs\nMiB", "free\nMiB")
    table = new_table("devices", *headings, "compute\nms", "exchange\nms", "idle\nms")
    price = found.price
    for rank in listed:
        device = found.cluster.devices[rank]
        times = (price.compute_s[rank], price.exchange_s[rank], price.idle_s[rank])
        table.add_row(
            device.name,
            str(found.image_rows[rank]),
            f"{found.flop[rank] / 1e6:.0f}",
            f"{price.weights_bytes[rank] / MIB:.1f}",
            f"{found.memory[rank] / MIB:.0f}",
            f"{device.memory_bytes / MIB:.0f}",
            *map(ms, times),
            style="bold red" if found.memory[rank] > device.memory_bytes else "",
        )
    return table


def print_spent(console: Console, found: PricedNetwork) -> None:
    """Print what every device that takes part does with the time of an image."""
    headings = ("device", "its\npart", "done\ntwice", "few\nrows", "graphs", "messages", "exchange", "idle")
    table = new_table("where the milliseconds go", *headings, "all")
    for rank in found.plan.active:
        seconds = [*found.spent.of(rank).values(), float(found.price.exchange_s[rank]), float(found.price.idle_s[rank])]
        table.add_row(found.cluster.names[rank], *map(ms, seconds), ms(sum(seconds)))
    console.print(table)
    console.print(
        "Its part: of the work, at the speed of whole maps. Done twice: what neighbours compute, too. Few rows: a "
        "graph reads all weights, however few rows it makes. Graphs: calling them, and laying out anew what enters "
        "them. Messages: handling and copying. Exchange: the wire, as far as computing does not hide it. Idle: waiting "
        "for others."
    )


def network_to_json(
    found: PricedNetwork, others: Sequence[ComparedSystem] = (), bound: Bounds | None = None,
    upgrades: Sequence[Upgrade] = (),
) -> str:  # fmt: skip
    """Return the plan's table as JSON, with all that is printed of it."""
    table = plan_table(found.plan, found.net)
    table["per_segment"] = [
        {
            "parts": list(whole_parts(found.net, segment)),
            "compute_s": float(step.times.compute.max()),
            "exchange_s": wire_s(step),
            "sent_bytes": round(float(step.sent.sum())),
        }
        for segment, step in zip(found.plan.segments, found.steps, strict=True)
    ]
    price = found.price
    table["per_device"] = [
        {
            "device": device.name,
            "image_rows": found.image_rows[rank],
            "flop": float(found.flop[rank]),
            "weights_bytes": price.weights_bytes[rank],
            "memory_bytes": found.memory[rank],
            "compute_s": float(price.compute_s[rank]),
            **{f"{name}_s": seconds for name, seconds in found.spent.of(rank).items()},
            "exchange_s": float(price.exchange_s[rank]),
            "idle_s": float(price.idle_s[rank]),
        }
        for rank, device in enumerate(found.cluster.devices)
    ]
    if bound is not None:
        table["alternatives"] = [_entry(other) for other in others]
        table["bounds"] = {"compute_bound_s": bound.compute_s, "exchange_bound_s": bound.exchange_s}
        table["upgrades"] = [asdict(upgrade) for upgrade in upgrades]
    return json.dumps(table, indent=1) + "\n"


def print_networks(console: Console, entries: Sequence[ComparedSystem], title: str) -> None:
    """Print every system's prediction, the fastest that can be run first; and who wins."""
    console.print(title, markup=False)
    table = new_table("predicted", "system", "ms", "MiB\nsent", "weights:\nmost MiB", "least MiB")
    entries = ranked(entries, "latency")
    for place, entry in enumerate(entries):
        held = entry.weights_bytes
        table.add_row(
            entry.system + (" †" if entry.lacks else ""),
            ms(entry.seconds) if held else "-",
            f"{entry.bytes_on_wire / MIB:.2f}" if held else "-",
            *((f"{size / MIB:.1f}" for size in (max(held), min(held))) if held else "--"),
            style="dim" if entry.lacks else "bold" if not place else "",
        )
    console.print(table)
    print_notes(console, entries)
    best = entries[0]
    console.print("None of them can be run." if best.lacks else f"{best.system} wins with {ms(best.seconds)} ms.")


def print_replicas(console: Console, title: str, net: ConvNet, found: Replicas) -> None:
    """Print which devices answer images together, and how many."""
    console.print(title, markup=False)
    table = new_table("replicas, each with images of its own", "devices", "images a second", "weights MiB")
    for plan, rate in zip(found.plans, found.rates, strict=True):
        weights = weights_of(net, plan)
        held = " ".join(f"{weights[rank] / MIB:.1f}" for rank in plan.active)
        table.add_row(", ".join(plan.devices[rank] for rank in plan.active), f"{rate:.2f}", held)
    console.print(table)
    console.print(f"[bold]{found.images_per_s:.2f}[/] images a second")


def replicas_to_json(net: ConvNet, found: Replicas) -> str:
    """Return the replicas' plans, and how many images a second each and all of them answer."""
    replicas = [
        {
            "devices": [plan.devices[rank] for rank in plan.active],
            "images_per_s": rate,
            "plan": plan_table(plan, net),
        }
        for plan, rate in zip(found.plans, found.rates, strict=True)
    ]
    return json.dumps({"images_per_s": found.images_per_s, "replicas": replicas}, indent=1) + "\n"


def networks_to_json(net: ConvNet, cluster: Cluster, entries: Sequence[ComparedSystem], wire: Wire) -> str:
    """Return the same as JSON; the winner by name, null where nothing can be run."""
    able = [entry for entry in entries if not entry.lacks]
    table = {
        "model": {"name": net.name, "fingerprint": net.fingerprint},
        "cluster": {"fingerprint": cluster.fingerprint},
        "wire": str(wire),
        "devices": list(cluster.names),
        "systems": [_entry(entry) for entry in entries],
        "winner": min(able, key=lambda entry: entry.seconds).system if able else None,
    }
    return json.dumps(table, indent=1) + "\n"


def _entry(entry: ComparedSystem) -> dict[str, Any]:
    return {
        "system": entry.system,
        "seconds": entry.seconds if np.isfinite(entry.seconds) else None,
        "bytes_on_wire": entry.bytes_on_wire,
        "weights_bytes": list(entry.weights_bytes),
        "lacks": entry.lacks,
    }


def print_map(console: Console, found: PricedNetwork) -> None:
    """Print who has which rows, or channels, of what every segment leaves: from the first, on the left, to the last."""
    rows = []
    for segment in found.plan.segments:
        parts = whole_parts(found.net, segment)
        rows.append((_numbers(segment), first_node(found.net, segment), shared_out(segment, parts), parts))
    nodes, shared = (max(len(str(row[place])) for row in rows) for place in (0, 2))
    names = min(MOST_NAMED, max(len(name) for _, name, _, _ in rows))
    width = max(16, console.width - 13 - max(nodes, len("nodes")) - names - max(shared, len("shared out")))
    table = new_table(
        "who has which rows, or channels, of every segment", "nodes", "from", "shared out", "first to last", words=4
    )
    for place in (0, 2, 3):
        table.columns[place].no_wrap = True
    for *words, parts in rows:
        table.add_row(*words, bar(parts, width))
    console.print(table)
    console.print(Text(", ").join(legend(found.plan.devices)))


def bar(parts: Sequence[float], width: int) -> Text:
    """Return a bar of so many letters, of every device its part in its own."""
    bar = Text()
    for rank, size in enumerate(largest_remainder(parts, width)):
        bar.append(_mark(rank) * size, STYLES[rank % len(STYLES)])
    return bar


def wire_s(step: PricedStep) -> float:
    """Return by how much a step takes longer than its slowest device computes; not below 0 where it began early."""
    return max(float(step.times.end.max() - step.times.compute.max()), 0.0)


def legend(devices: Sequence[str]) -> list[Text]:
    """Return which letter each device has."""
    return [Text(f"{_mark(rank)} {name}", STYLES[rank % len(STYLES)]) for rank, name in enumerate(devices)]


def _mark(rank: int) -> str:
    return MARKS[rank % len(MARKS)]


def _wire(wire: Wire) -> str:
    return f" as {wire}" * (wire is not Wire.FLOAT32)
