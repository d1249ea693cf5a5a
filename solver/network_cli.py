"""What `python -m solver` does where the model is a convolutional network: plan, price, compare and draw segments."""

from __future__ import annotations

import argparse
import sys

from solver.base.command import check_path, write_whole
from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.base.progress import progress
from solver.base.tables import new_console
from solver.cluster.cluster import Cluster
from solver.cluster.named import asked_cluster
from solver.model.convnet import ConvNet
from solver.models import kind_of, known_networks, network_of
from solver.plan.file import plan_to_price, planned_model, read_any_plan, read_plan
from solver.plan.plan import WIRES, Wire
from solver.plan.segments import THROUGHPUT, SegmentPlan
from solver.plan.writing import plan_to_json
from solver.show.advice import Upgrade, upgrades, usual_changes
from solver.show.network_facts import (
    PricedNetwork,
    compare_networks,
    network_bounds,
    network_systems,
    priced_network,
    proved_network,
)
from solver.show.network_pictures import plot_segments
from solver.show.network_tables import (
    network_title,
    network_to_json,
    networks_to_json,
    print_map,
    print_network,
    print_networks,
    print_replicas,
    print_spent,
    replicas_to_json,
)
from solver.show.pictures import check_map, check_picture, draw_winners, draws_map
from solver.show.plan_tables import print_comparison, print_estimated, print_upgrades
from solver.show.schedule_table import print_schedule, schedule_rows, schedule_to_json
from solver.show.titles import links, place, say_drawn
from solver.systems import DEFAULT
from solver.systems.convnets import SYSTEMS, plan_network
from solver.systems.convnets.coedge import plan_coedge
from solver.systems.convnets.hepti_throughput import solve_replicas

# Options that are about transformers, with what they are about.
REFUSED = {
    "rows": "the length of a text",
    "layers": "transformers, whose layers are alike",
}


def is_about_network(options: argparse.Namespace) -> bool:
    """Return whether the model, or where none is named the plan to be priced, is a convolutional network's."""
    if options.model is None:
        return options.price is not None and isinstance(read_any_plan(options.price), SegmentPlan)
    return kind_of(options.model) == "network"


def run_network(options: argparse.Namespace) -> None:
    """Do what the options say.

    Raises
    ------
    HeptiError
        If they do not fit a network or each other, or there is no plan.
    """
    _check(options)
    cluster = asked_cluster(options)
    if options.price:
        _show(options, _priced(options, cluster))
        return
    net = network_of(options.model)
    if options.objective == "throughput" or options.system == THROUGHPUT:
        found = solve_replicas(net, cluster, Wire(options.wire))
        if options.json:
            print(replicas_to_json(net, found), end="")
        else:
            title = f"{network_title(net)} {place(options)}{links(cluster)}"
            print_replicas(new_console(highlight=False), title, net, found)
        return
    if options.compare:
        _compare(options, net, cluster)
        return
    if draws_map(options):
        wire = Wire(options.wire)
        draw_winners(
            options.map, f"{network_title(net)} {place(options)}: who wins by latency", cluster, [*SYSTEMS],
            lambda other, advance: compare_networks(net, other, wire, SYSTEMS, advance),
        )  # fmt: skip
        say_drawn(options, options.map)
        return
    if options.prove is not None:
        plan, words = proved_network(net, cluster, Wire(options.wire), options.prove)
        print(words, file=sys.stderr)
    elif options.deadline_ms is None:
        plan = plan_network(options.system or DEFAULT, net, cluster, Wire(options.wire))
    else:
        plan = plan_coedge(net, cluster, Wire(options.wire), deadline_s=options.deadline_ms / 1e3)
    priced = priced_network(net, cluster, plan)
    if options.out:
        write_whole(options.out, plan_to_json(priced.plan, net))
    _show(options, priced)


def _check(options: argparse.Namespace) -> None:
    """Refuse what is for transformers, cannot be written, or says nothing beside other options."""
    for name, about in REFUSED.items():
        if getattr(options, name) not in (None, False):
            raise HeptiError(f"--{name} is about {about}: for a convolutional network leave it out")
    if options.objective == "throughput" or options.system == THROUGHPUT:
        if options.system not in (None, DEFAULT, THROUGHPUT):
            raise HeptiError(f"--objective throughput is for --system hepti, {options.system} is for one image")
        for name in ("out", "plot", "schedule", "map", "explain", "price", "compare", "deadline_ms"):
            if getattr(options, name) not in (None, False):
                raise HeptiError(
                    f"--{name.replace('_', '-')} is about a plan for one image: leave it out; "
                    f"a run plans for many by itself, with --system {THROUGHPUT}"
                )
    if options.deadline_ms is not None:
        if options.system != "coedge" or options.compare or options.price:
            raise HeptiError("--deadline-ms is for least energy by --system coedge: add that, or leave it out")
        if not options.deadline_ms > 0:
            raise HeptiError(f"--deadline-ms is {options.deadline_ms:g}, must be above 0")
    if options.wire not in (None, *WIRES):
        raise HeptiError(f"--wire {options.wire} is for an encoder's stages, a network sends {', '.join(WIRES)}")
    if draws_map(options):
        check_map(options)
    other = "--compare" if options.compare else "--price" if options.price else ""
    for name in ("system", "out", *(("plot", "schedule", "map", "price") if options.compare else ())):
        if other and getattr(options, name) is not None:
            raise HeptiError(f"--{name} is for a plan that is made, {other} makes none: leave one of the two out")
    for name in ("compare", "schedule"):
        if options.explain and getattr(options, name) not in (None, False):
            raise HeptiError(f"--explain prints where the time of one plan goes, and no more: leave out --{name}")
    printed = [name for name in ("json", "schedule", "explain", "map") if getattr(options, name) not in (None, False)]
    if "map" in printed and len(printed) > 1:
        raise HeptiError(f"--map prints who has which rows, and no more: leave out --{printed[0]}")
    if options.plot is not None:
        check_picture(options.plot)
    if options.out is not None:
        check_path(options.out, (".json",))


def _show(options: argparse.Namespace, found: PricedNetwork) -> None:
    title = f"{network_title(found.net)} {place(options)}{links(found.cluster)}"
    if options.plot:
        facts = found.price.prediction
        by = f" by {found.plan.system}" * bool(found.plan.system)
        plot_segments(found, options.plot, f"{title}\npredicted{by}: {1e3 * facts.seconds:.1f} ms")
        say_drawn(options, options.plot)
    console = new_console(highlight=False)
    if options.schedule is not None:
        rows = schedule_rows(found.cluster, found.price, options.schedule)
        if options.json:
            print(schedule_to_json(rows), end="")
        else:
            print_schedule(console, rows, options.schedule, "segment")
        return
    if options.map:
        console.print(title, markup=False)
        print_map(console, found)
        return
    if options.price or options.explain:
        if options.json:
            print(network_to_json(found), end="")
            return
        console.print(title, markup=False)
        print_network(console, found)
        if options.explain:
            print_spent(console, found)
        return
    systems = [name for name in network_systems(found.cluster) if name not in (DEFAULT, found.plan.system)]
    with progress("comparing", len(systems), unit="systems") as advance:
        others = compare_networks(found.net, found.cluster, found.plan.wire, systems, advance)
    bound, seconds, better = network_bounds(found), found.price.prediction.seconds, list[Upgrade]()
    if found.plan.system == DEFAULT:
        again_s = lambda other: plan_network(DEFAULT, found.net, other, found.plan.wire).predicted_s
        better = upgrades(seconds, again_s, usual_changes(found.cluster, others))
    if options.json:
        print(network_to_json(found, others, bound, better), end="")
        return
    console.print(title, markup=False)
    print_network(console, found)
    print_comparison(console, found.plan, others, bound)
    print_upgrades(console, seconds, better)
    print_estimated(console, found.cluster, lambda device: device.nodes is not None, seconds, others)


def _priced(options: argparse.Namespace, cluster: Cluster) -> PricedNetwork:
    """Return what a plan file would take; of the network that it names, where no other is given."""
    if options.model is None:
        name, _ = planned_model(options.price)
        if name not in (known := known_networks()):
            raise HeptiError(
                f"{options.price}: {name} is no network known by name{did_you_mean(name, known)}; or say --model NET.h5"
            )
        net = network_of(name)
    else:
        net = network_of(options.model)
    plan = read_plan(options.price, SegmentPlan, net)
    plan = plan_to_price(options.price, plan, net, cluster.names, options.wire)
    options.wire = plan.wire
    for text in plan.unheeded(net):
        print(f"note: {options.price}: {text}", file=sys.stderr)
    found = priced_network(net, cluster, plan)
    if found.lacks:
        print(f"note: {options.price} {found.lacks}", file=sys.stderr)
    return found


def _compare(options: argparse.Namespace, net: ConvNet, cluster: Cluster) -> None:
    systems, wire = network_systems(cluster), Wire(options.wire)
    with progress("comparing", len(systems), unit="systems") as advance:
        entries = compare_networks(net, cluster, wire, systems, advance)
    if options.json:
        print(networks_to_json(net, cluster, entries, wire), end="")
    else:
        title = f"{network_title(net)} {place(options)}{links(cluster)}"
        print_networks(new_console(highlight=False), entries, title)
