"""Encoders, on every rank: a stack of layers, and where the plan lives what measures and moves them."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace
from hepti_mpi.engine.layers import block_kernels, load, rank_layers
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels.backends import agree, backend
from hepti_mpi.live.change_over import Mover
from hepti_mpi.live.member import Member, follow
from hepti_mpi.live.monitor import Monitor
from hepti_mpi.measure.profile import fingerprint, profile
from hepti_mpi.report.ranks import rank_report
from hepti_mpi.session import defaults
from hepti_mpi.session.kind import OpenedModel
from solver.base import clock
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.changes import all_bytes
from solver.plan.plan import Plan
from weights.file.store import WeightsFile

if TYPE_CHECKING:
    from hepti_mpi.report.speaker import Progress

MUCH_BYTES = 16 << 20  # a share of fewer bytes does not say how fast a rank reads


class EncoderRank:
    """A rank's part in a session, as `kind.KindOnRank` says it.

    Attributes
    ----------
    stack, tensors
        This rank's share, and on rank 0 what embeds and answers; when it is loaded.
    member, read_bytes_per_s
        Where the plan may change, this rank's part in that, and how fast each rank gets weights.
    """

    opens = WeightsFile

    def __init__(self, opened: OpenedModel, options: argparse.Namespace, group: Group) -> None:
        self._spec: ModelSpec = opened.model
        self._precision, self._options, self._group = opened.precision, options, group
        self.member: Member | None = None
        self.read_bytes_per_s: Sequence[float] = ()

    def agree(self) -> tuple[list[str], list[str]]:
        """Return which backend each rank has, and notes."""
        return agree(self._options.backend, self._precision, self._group)

    def use(self, name: str) -> None:
        """Compute by this backend."""
        self._backend = name

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the shape of model, and of who measures it."""
        return fingerprint(self._spec, self._group, self._backend, self._precision)

    def profile(self) -> Cluster:
        """Measure these hosts."""
        return profile(self._spec, self._group, self._backend, self._precision)

    def load(
        self, source: WeightsSource, plans: Sequence[Plan], progress: Progress | None, trace: Trace | None
    ) -> None:
        """Get this rank's shares of all plans."""
        spec, group, options, started = self._spec, self._group, self._options, clock.now()
        computes = backend(self._backend, self._precision)
        make = partial(block_kernels, computes.graph)
        total = sum(all_bytes(spec, plans, rank) for rank in {group.rank, *source.without_file})
        self.tensors, held = load(source, spec, plans, make, progress("loading", total) if progress else None)
        loaded = source.got_bytes, clock.now() - started
        layers = [rank_layers(spec, own, group.rank, held) for own in plans]
        self._plans, self.stack = plans, Stack(spec, plans[0], layers[0], group, computes)
        self.stack.trace = trace
        if options.replan == "off":
            self.stack.loaded = dict(enumerate(layers))
            return
        # Layers that a change of plan replaces are freed: nothing else holds them.
        mover = Mover(spec, self.stack, source, make, held, *plans[1:])
        self.member = Member(group, self.stack, mover, Monitor(spec, computes))
        self.read_bytes_per_s = reading_speeds(group.on_all(lambda: loaded))

    def follow(self) -> None:
        """Do what rank 0 says."""
        follow(self._group, self.stack, self.member)

    @property
    def devices(self) -> Sequence[str]:
        """The devices of the plan."""
        return self.stack.plan.devices

    def report(self) -> dict[str, Any]:
        """Return what this rank did."""
        # Plans for other lengths leave the weights where they are.
        own = self.stack.plan if self.member else self._plans[self.stack.number]
        return rank_report(self._spec, own, self.stack.meter, self._group.rank, self._backend, self._precision)


def reading_speeds(loaded: Sequence[tuple[int, float]]) -> list[float]:
    """Return how fast each rank gets weights, of the bytes and seconds of its share; little says little."""
    speeds = [size / seconds if size >= MUCH_BYTES else 0.0 for size, seconds in loaded]
    usual = statistics.median([speed for speed in speeds if speed] or [defaults.READ_BYTES_PER_S])
    return [speed or usual for speed in speeds]
