"""The main job: rank 0 leads the ranks through what is asked."""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hepti_mpi import defaults
from hepti_mpi.comm import hosts
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace
from hepti_mpi.engine.layers import block_kernels, load, rank_layers
from hepti_mpi.engine.load import open_source
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels.backends import agree, backend, need_onnx
from hepti_mpi.live.change_over import Mover
from hepti_mpi.live.member import Member, follow
from hepti_mpi.live.monitor import Monitor
from hepti_mpi.measure.profile import fingerprint, profile
from hepti_mpi.measure.room import check_room
from hepti_mpi.report.ranks import rank_report
from hepti_mpi.report.trace_file import write_trace
from solver.base import clock
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.changes import all_bytes
from weights.file.store import NETWORK, WeightsFile
from weights.formats import model_kind

if TYPE_CHECKING:
    from hepti_mpi.leader import Leader

MUCH_BYTES = 16 << 20  # a share of fewer bytes does not say how fast a rank reads


def run_job(options: argparse.Namespace, group: Group) -> int:
    """Run the main job on all ranks; return the exit code."""
    if group.from_root((lambda: is_network(options.model)) if group.rank == 0 else None):
        need_onnx(options.model.name, group)
        from hepti_mpi.network_job import run_network  # imports onnx

        return run_network(options, group)
    places = group.on_all(hosts.place)
    leader = None
    if group.rank == 0:
        from hepti_mpi.leader import Leader  # with what the other ranks' boards need not have

        leader = Leader(options, group, places)
    path, spec, model_fingerprint = group.from_root(leader.read if leader else None)
    names, notes = agree(options.backend, options.precision, group)
    options.backend = names[group.rank]
    cluster = None
    needs_profile = group.from_root((lambda: leader.needs_profile) if leader else None)
    if needs_profile:
        if leader:
            leader.introduce(places, notes)
        cluster = measured_cluster(spec, options.backend, options.precision, group, leader, anew=options.measure)
    plans = group.from_root((lambda: leader.plan(cluster)) if leader else None)
    if not needs_profile:  # else the plan is for the memory that was measured
        check_room(spec.name, leader.needed_bytes if leader else None, group)
        if leader:
            leader.introduce(places, notes)
    plan = plans[0]
    computes = backend(options.backend, options.precision)
    make = partial(block_kernels, computes.graph)
    started = clock.now()
    source = open_source(WeightsFile, path, model_fingerprint, group)
    total = sum(all_bytes(spec, plans, rank) for rank in {group.rank, *source.without_file})
    tensors, held = load(source, spec, plans, make, leader.progress("loading", total) if leader else None)
    loaded = source.got_bytes, clock.now() - started
    layers = [rank_layers(spec, own, group.rank, held) for own in plans]
    stack = Stack(spec, plan, layers[0], group, computes)
    trace = stack.trace = Trace() if options.trace else None
    member, speeds = None, []
    if options.replan == "off":
        stack.loaded = dict(enumerate(layers))
    else:
        mover = Mover(spec, stack, source, make, held, *plans[1:])
        member = Member(group, stack, mover, Monitor(spec, computes))
        speeds = reading_speeds(group.on_all(lambda: loaded))
    del held, layers  # layers that a change of plan replaces are freed
    # What is there now stays, on rank 0 the planner's libraries too: the garbage collector need not look through it.
    gc.freeze()
    if leader:
        leader.lead(stack, tensors, member, speeds)
    else:
        follow(group, stack, member)
    if trace is not None:
        write_trace(options.trace, plan.devices, trace, group)
    source.close()
    own = stack.plan if member else plans[stack.number]  # plans for other lengths leave the weights where they are
    ranks = group.on_all(lambda: rank_report(spec, own, stack.meter, group.rank, options))
    code = group.from_root((lambda: leader.close(ranks)) if leader else None)
    return code if leader else 0


def is_network(model: Path | None) -> bool:
    """Return whether a model file is a convolutional network's."""
    return model is not None and model_kind(model) == NETWORK


def measured_cluster(
    spec: ModelSpec, backend: str, precision: str, group: Group, leader: Leader | None, *, anew: bool
) -> Cluster:
    """Return what was measured of these hosts for this shape of model, now where it was not before, or `anew`."""
    known_by = fingerprint(spec, group, backend, precision)
    measure = partial(profile, spec, group, backend, precision)
    return defaults.kept_profile(known_by, group, measure, leader.say if leader else None, anew=anew)


def reading_speeds(loaded: Sequence[tuple[int, float]]) -> list[float]:
    """Return how fast each rank gets weights, of the bytes and seconds of its share; little says little."""
    speeds = [size / seconds if size >= MUCH_BYTES else 0.0 for size, seconds in loaded]
    usual = statistics.median([speed for speed in speeds if speed] or [defaults.READ_BYTES_PER_S])
    return [speed or usual for speed in speeds]
