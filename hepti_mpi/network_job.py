"""The main job with a convolutional network: rank 0 leads, and all ranks compute every image."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from hepti_mpi import defaults
from hepti_mpi.comm import hosts
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace
from hepti_mpi.comm.wires import coding
from hepti_mpi.engine.flow import BatchOrder
from hepti_mpi.engine.load import open_source
from hepti_mpi.engine.network import HeldPlans, HoldPlan, NetworkShare, PreparePlan
from hepti_mpi.kernels.backends import agree, backend, graph_maker, of_all
from hepti_mpi.live.sums import SumsOrder
from hepti_mpi.measure.profile_network import network_fingerprint, profile_network
from hepti_mpi.measure.room import check_room
from hepti_mpi.report.ranks import network_rank_report
from hepti_mpi.report.trace_file import write_trace
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.schedule.networks.segment_steps import weights_of
from weights.file.networks import NetworkFile

if TYPE_CHECKING:
    from hepti_mpi.network_leader import NetworkLeader


def run_network(options: argparse.Namespace, group: Group) -> int:
    """Run the main job of a network on all ranks; return the exit code."""
    places = group.on_all(hosts.place)
    leader = None
    if group.rank == 0:
        from hepti_mpi.network_leader import NetworkLeader  # with what other ranks' boards need not have

        leader = NetworkLeader(options, group)
    path, net, fingerprint = group.from_root(leader.read if leader else None)
    # Where no board has onnxruntime, too, a person should know: numpy takes 3 to 15 times as long.
    names, notes = agree(options.backend, "float32", group, chosen=False)
    computes = names[group.rank]
    make = graph_maker(computes, net.nodes, group)
    cluster = None
    needs_profile = group.from_root((lambda: leader.needs_profile) if leader else None)
    if needs_profile:
        if leader:
            leader.introduce(places, notes)
        cluster = measured_cluster(net, computes, group, leader, anew=options.measure)
    plans = group.from_root((lambda: leader.plan(cluster)) if leader else None)
    if not needs_profile:  # else the plan is for the memory that was measured
        check_room(net.name, leader.needed_bytes if leader else None, group)
        if leader:
            leader.introduce(places, [*notes, *leader.kernels_note(of_all(names))])
    group.coding = coding(plans[0].wire, backend(computes).cast)
    trace = Trace() if options.trace else None
    source = open_source(NetworkFile, path, fingerprint, group)
    held = HeldPlans(lambda plan, before: NetworkShare(net, plan, group, make, before), source, trace,
                     changes=options.replan == "auto")  # fmt: skip
    for plan in plans:
        total = sum(weights_of(net, plan)[rank] for rank in {group.rank, *source.without_file})
        held.load(plan, leader.progress("loading", total) if leader else None)
    if options.replan != "auto":  # nothing is read any more
        source.close()
    if leader:
        leader.lead(held)
    else:
        follow(held, group)
    group.finish_sending()
    if trace is not None:
        write_trace(options.trace, plans[0].devices, trace, group)
    own = held.own(group.rank)
    ranks = group.on_all(lambda: network_rank_report(net, own.plan, own.meter, group.rank, computes))
    code = group.from_root((lambda: leader.close(ranks, places)) if leader else None)
    return code if leader else 0


def measured_cluster(net: ConvNet, backend: str, group: Group, leader: NetworkLeader | None, *, anew: bool) -> Cluster:
    """Return what was measured of these hosts for this network, now where it was not before, or `anew`."""
    measure, say = partial(profile_network, net, group, backend), leader.say if leader else None
    return defaults.kept_profile(network_fingerprint(net, group, backend), group, measure, say, anew=anew)


def follow(held: HeldPlans, group: Group) -> None:
    """Compute with the other ranks what rank 0 orders, until it orders no more."""
    while (order := group.orders.take(held.preparation.step)) is not None:
        if isinstance(order, BatchOrder):
            held.own(group.rank).run(counts=order.count)
        elif isinstance(order, SumsOrder):
            group.sums.send(held.of(0).meter, [0])
        elif isinstance(order, PreparePlan | HoldPlan):
            held.change(order)
        else:
            compute_s = held.of(order.number).run(counts=order.counts)
            if order.tell:
                group.reports.send((group.rank, compute_s), [0])
                held.preparation.work()
