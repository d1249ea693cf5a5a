"""`python -m hepti_mpi generate` on all ranks: rank 0 leads, and all ranks compute every token."""

from __future__ import annotations

import argparse
import gc
from functools import partial
from typing import TYPE_CHECKING

from hepti_mpi import defaults
from hepti_mpi.base.memory import large_pages
from hepti_mpi.comm import hosts
from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.wires import coding
from hepti_mpi.decoding.rank_report import rank_report
from hepti_mpi.decoding.ranks import DecoderShare, Ranks
from hepti_mpi.engine.load import WeightsSource, open_source
from hepti_mpi.kernels.backends import agree, backend, of_all
from hepti_mpi.measure.room import check_room
from hepti_mpi.program.share import Share
from solver.base import clock
from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.memory import stored_bytes
from solver.schedule.decoders.passes import DecoderPasses
from weights.decoders.file import DecoderFile

if TYPE_CHECKING:
    from hepti_mpi.decoder_leader import DecoderLeader
    from hepti_mpi.report.speaker import Progress


def run(options: argparse.Namespace, group: Group) -> int:
    """Answer what is asked; return the exit code."""
    places = group.on_all(hosts.place)
    leader = None
    if group.rank == 0:
        from hepti_mpi.decoder_leader import DecoderLeader  # with what other ranks' boards need not have

        leader = DecoderLeader(options, group)
    path, model, precision, fingerprint = group.from_root(leader.read if leader else None)
    if group.from_root((lambda: leader.answers_nothing) if leader else None):
        return 2 if leader else 0
    # In any precision; where no board has onnxruntime, too, a person should know: numpy is much slower.
    names, notes = agree(options.backend, "float32", group, chosen=False)
    computes = names[group.rank]
    cluster = None
    needs_profile = group.from_root((lambda: leader.needs_profile) if leader else None)
    if needs_profile:
        if leader:
            leader.introduce(places, notes)
        cluster = measured_cluster(model, precision, computes, group, leader, anew=options.measure)
    plan = group.from_root((lambda: leader.plan(cluster)) if leader else None)
    if not needs_profile:  # else the plan is for the memory that was measured
        check_room(model.name, leader.needed_bytes if leader else None, group)
        if leader:
            leader.introduce(places, [*notes, *leader.kernels_note(of_all(names))])
    started = clock.now()
    source = open_source(DecoderFile, path, fingerprint, group)
    share = load_share(source, model, computes, plan, leader.progress if leader else None)
    load_s = group.slowest(clock.now() - started)
    if group.from_root((lambda: leader.asks_much) if leader else None):
        large_pages()
    if options.replan != "auto" and options.plan_by != "measure":  # nothing is read any more
        source.close()
    cast, reads = backend(computes).cast, leader.reads if leader else None
    ranks = Ranks(share, group, Direct(group), coding(plan.wire, cast), source, reads)
    # What is there now stays: the garbage collector need not look through it.
    gc.freeze()
    group.traffic.reset()
    if leader:
        try:
            leader.lead(ranks, load_s)
        finally:
            ranks.finish()
    else:
        ranks.follow()
    group.finish_sending()
    told = group.on_all(lambda: rank_report(model, ranks, group))
    code = group.from_root((lambda: leader.close(told, places)) if leader else None)
    return code if leader else 0


def measured_cluster(
    model: Decoder, precision: str, backend: str, group: Group, leader: DecoderLeader | None, *, anew: bool
) -> Cluster:
    """Return what was measured of these hosts for this model, now where it was not before, or `anew`."""
    from hepti_mpi.measure.profile_decoder import decoder_fingerprint, profile_decoder

    measure = partial(profile_decoder, model, precision, group, backend)
    fingerprint = decoder_fingerprint(model, precision, group, backend)
    return defaults.kept_profile(fingerprint, group, measure, leader.say if leader else None, anew=anew)


def load_share(
    source: WeightsSource, model: Decoder, backend: str, plan: DecoderPlan, progress: Progress | None
) -> DecoderShare:
    """Load this rank's share; a step of all ranks. The `progress` shows how it gets on."""
    rank = source.group.rank
    total = sum(stored_bytes(model, plan, each) for each in {rank, *source.without_file})
    share = Share(DecoderPasses(model, plan), rank, backend=backend)
    source.complete(share.lacking(), progress("loading", total) if progress else None)
    return share
