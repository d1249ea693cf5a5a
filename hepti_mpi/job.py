"""The main job: rank 0 leads the ranks through what is asked."""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hepti_mpi import defaults
from hepti_mpi.comm import hosts
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace
from hepti_mpi.engine.layers import block_kernels, rank_layers
from hepti_mpi.engine.load import BlockWeights, KnownModel, Made, RankWeights, WeightsSource, load, open_weights
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
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.changes import BlockShare, all_bytes
from solver.plan.plan import Plan
from weights.file.store import NETWORK, WeightsFile
from weights.formats import model_kind

if TYPE_CHECKING:
    from hepti_mpi.leader import Leader
    from hepti_mpi.report.speaker import Progress

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
    model = group.from_root(leader.read if leader else None)
    names, notes = agree(options.backend, options.precision, group)
    options.backend = names[group.rank]
    cluster = None
    needs_profile = group.from_root((lambda: leader.needs_profile) if leader else None)
    if needs_profile:
        if leader:
            leader.introduce(places, notes)
        cluster = measured_cluster(model.spec, options.backend, options.precision, group, leader, anew=options.measure)
    plans = group.from_root((lambda: leader.plan(cluster)) if leader else None)
    if not needs_profile:  # else the plan is for the memory that was measured
        check_room(model.spec.name, leader.needed_bytes if leader else None, group)
        if leader:
            leader.introduce(places, notes)
    plan = plans[0]
    computes = backend(options.backend, options.precision)
    make = partial(block_kernels, computes.graph)
    started = clock.now()
    weights, source = load_share(model, plans, make, group, leader.progress if leader else None)
    loaded = all_bytes(model.spec, plans, group.rank), clock.now() - started
    layers = [rank_layers(model.spec, held, group.rank, weights.layers) for held in plans]
    stack = Stack(model.spec, plan, layers[0], group, computes, options.wire)
    tensors = weights.ends
    trace = stack.trace = Trace() if options.trace else None
    member, speeds = None, []
    if options.replan == "off":
        stack.loaded = dict(enumerate(layers))
    else:
        mover = Mover(model.spec, stack, source, make, weights.layers, *plans[1:])
        member = Member(group, stack, mover, Monitor(model.spec, computes))
        speeds = reading_speeds(group.on_all(lambda: loaded))
    del weights, layers  # layers that a change of plan replaces are freed
    # What is there now stays, on rank 0 the planner's libraries too: the garbage collector need not look through it.
    gc.freeze()
    if leader:
        leader.lead(stack, tensors, member, speeds)
    else:
        follow(group, stack, member)
    if trace is not None:
        write_trace(options.trace, plan.devices, trace, group)
    if source.file is not None:
        source.file.close()
    held = stack.plan if member else plans[stack.number]  # plans for other lengths leave the weights where they are
    ranks = group.on_all(lambda: rank_report(model.spec, held, stack.meter, group.rank, options))
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


def load_share(
    model: KnownModel,
    plans: Sequence[Plan],
    make: Callable[[BlockShare, BlockWeights], Made],
    group: Group,
    progress: Progress | None,
) -> tuple[RankWeights[Made], WeightsSource]:
    """Load this rank's share by any of these plans; rank 0 shows how it gets on.

    Return with it where it came from, the file still open since the plan may change.
    """
    file: WeightsFile | None = None

    def open_own() -> bool:
        nonlocal file
        file = open_weights(model.path, model.fingerprint)
        return file is not None

    without_file = [rank for rank, has in enumerate(group.on_all(open_own)) if not has]
    source = WeightsSource(group, file, without_file)
    loaded: list[RankWeights[Made]] = []

    def load_own() -> None:
        total = all_bytes(model.spec, plans, group.rank)
        bar = progress("loading", total) if progress else nullcontext(lambda _: None)
        with bar as done:
            try:
                loaded.append(load(source, model.spec, plans, make, done))
            except HeptiError as error:
                if without_file and group.rank == 0:
                    group.abort(str(error), code=2)  # they wait for their shares and would not hear of it
                raise

    group.on_all(load_own)
    return loaded[0], source


def reading_speeds(loaded: Sequence[tuple[int, float]]) -> list[float]:
    """Return how fast each rank gets weights, of the bytes and seconds of its share; little says little."""
    speeds = [size / seconds if size >= MUCH_BYTES else 0.0 for size, seconds in loaded]
    usual = statistics.median([speed for speed in speeds if speed] or [defaults.READ_BYTES_PER_S])
    return [speed or usual for speed in speeds]
