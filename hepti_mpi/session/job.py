"""A job on all ranks: rank 0 leads them through what is asked, whatever the model."""

from __future__ import annotations

import argparse
import gc

from hepti_mpi.base.memory import large_pages
from hepti_mpi.comm import hosts
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace
from hepti_mpi.engine.load import open_source
from hepti_mpi.kernels.backends import need_onnx, of_all
from hepti_mpi.measure.room import check_room
from hepti_mpi.report.trace_file import write_trace
from hepti_mpi.session import defaults
from hepti_mpi.session.kind import KindOnRank, OpenedModel
from weights.file.store import ENCODER, LANGUAGE_MODEL, NETWORK
from weights.formats import model_kind


def run_job(options: argparse.Namespace, group: Group) -> int:
    """Run a job on all ranks; return the exit code."""
    kind = group.from_root((lambda: kind_asked(options)) if group.rank == 0 else None)
    if kind == NETWORK:  # before it is opened
        need_onnx(options.model.name, group)
    places = group.on_all(hosts.place)
    leader = None
    if group.rank == 0:
        from hepti_mpi.session.leader import Leader  # with what the other ranks' boards need not have

        leader = Leader(options, group, places, kind)
    opened = group.from_root(leader.read if leader else None)
    if opened is None:
        return 2 if leader else 0
    rank = rank_of(kind, opened, options, group)
    names, notes = rank.agree()
    rank.use(names[group.rank])
    cluster, name = None, opened.model.name
    needs_profile = group.from_root((lambda: leader.needs_profile) if leader else None)
    if needs_profile:
        if leader:
            leader.introduce(places, notes)
        say = leader.say if leader else None
        cluster = defaults.kept_profile(rank.fingerprint, group, rank.profile, say, anew=options.measure)
    plans = group.from_root((lambda: leader.plan(cluster)) if leader else None)
    if not needs_profile:  # else the plan is for the memory that was measured
        check_room(name, leader.needed_bytes if leader else None, group)
        if leader:
            leader.introduce(places, [*notes, *leader.kernels_note(of_all(names))])
    trace = Trace() if options.trace else None
    source = open_source(rank.opens, opened.path, opened.fingerprint, group)
    rank.load(source, plans, leader.progress if leader else None, trace)
    if group.from_root((lambda: leader.asks_much) if leader else None):
        large_pages()
    if options.replan != "auto" and options.plan_by != "measure":  # nothing is read any more
        source.close()
    # What is there now stays, on rank 0 the planner's libraries too: the garbage collector need not look through it.
    gc.freeze()
    if leader:
        leader.lead(rank)
    else:
        rank.follow()
    group.finish_sending()
    if trace is not None:
        write_trace(options.trace, rank.devices, trace, group)
    source.close()
    told = group.on_all(rank.report)
    code = group.from_root((lambda: leader.close(told)) if leader else None)
    return code if leader else 0


def kind_asked(options: argparse.Namespace) -> str:
    """Return what the model is that is asked, in the words of `weights.file.store`."""
    usual = LANGUAGE_MODEL if options.generates or options.prompt or options.chat else ENCODER
    return usual if options.model is None else model_kind(options.model) or usual


def rank_of(kind: str, opened: OpenedModel, options: argparse.Namespace, group: Group) -> KindOnRank:
    """Return a rank's part of a kind of model; what only others need is not imported."""
    if kind == NETWORK:
        from hepti_mpi.session.network_rank import NetworkRank  # imports onnx

        return NetworkRank(opened, options, group)
    if kind == LANGUAGE_MODEL:
        from hepti_mpi.session.decoder_rank import DecoderRank

        return DecoderRank(opened, options, group)
    from hepti_mpi.session.encoder_rank import EncoderRank

    return EncoderRank(opened, options, group)
