"""Language models, on every rank: its part in all passes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace
from hepti_mpi.comm.wires import coding
from hepti_mpi.decoding.rank_report import rank_report
from hepti_mpi.decoding.ranks import DecoderShare, Ranks
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.kernels.backends import agree, backend
from hepti_mpi.kernels.kinds.embedding import ReadsRows
from hepti_mpi.measure.profile_decoder import decoder_fingerprint, profile_decoder
from hepti_mpi.program.share import Share
from hepti_mpi.session.kind import OpenedModel
from solver.base import clock
from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.memory import stored_bytes
from solver.schedule.decoders.passes import DecoderPasses
from weights.decoders.file import DecoderFile

if TYPE_CHECKING:
    from hepti_mpi.report.speaker import Progress


class DecoderRank:
    """A rank's part in a session, as `kind.KindOnRank` says it.

    Attributes
    ----------
    load_s
        Seconds in which the slowest rank got its share.
    """

    opens = DecoderFile

    def __init__(self, opened: OpenedModel, options: argparse.Namespace, group: Group) -> None:
        self._model: Decoder = opened.model
        self._precision, self._options, self._group = opened.precision, options, group

    def agree(self) -> tuple[list[str], list[str]]:
        """Return which backend each rank has, in any precision, and notes."""
        # Where no board has onnxruntime, too, a person should know: numpy is much slower.
        return agree(self._options.backend, "float32", self._group, chosen=False)

    def use(self, name: str) -> None:
        """Compute by this backend."""
        self._backend = name

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the model, and of who measures it."""
        return decoder_fingerprint(self._model, self._precision, self._group, self._backend)

    def profile(self) -> Cluster:
        """Measure these hosts."""
        return profile_decoder(self._model, self._precision, self._group, self._backend)

    def load(
        self, source: WeightsSource, plans: Sequence[DecoderPlan], progress: Progress | None, trace: Trace | None
    ) -> None:
        """Get this rank's share of the plan."""
        started, group, (plan,) = clock.now(), self._group, plans
        total = sum(stored_bytes(self._model, plan, each) for each in {group.rank, *source.without_file})
        share: DecoderShare = Share(DecoderPasses(self._model, plan), group.rank, backend=self._backend)
        source.complete(share.lacking(), progress("loading", total) if progress else None)
        self.load_s = group.slowest(clock.now() - started)
        self._share, self._source, self._trace = share, source, trace

    def run_by(self, reads: ReadsRows | None) -> Ranks:
        """Return this rank's part in all passes; a step of all ranks. Rank 0 reads rows of the embedding."""
        cast = backend(self._backend).cast
        wire = coding(self._share.passes.plan.wire, cast)
        self._ranks = Ranks(self._share, self._group, Direct(self._group), wire, self._source, reads, self._trace)
        self._group.traffic.reset()
        return self._ranks

    def follow(self) -> None:
        """Compute what rank 0 says until it lets this rank go."""
        self.run_by(None).follow()

    @property
    def devices(self) -> Sequence[str]:
        """The devices of the plan."""
        return self._ranks.share.passes.plan.devices

    def report(self) -> dict[str, Any]:
        """Return what this rank did."""
        return rank_report(self._model, self._ranks, self._group)
