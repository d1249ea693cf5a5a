"""Convolutional networks, on every rank: its shares of the plans that it holds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace
from hepti_mpi.comm.wires import coding
from hepti_mpi.engine.flow import BatchOrder
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.engine.network import HeldPlans, HoldPlan, NetworkShare, PreparePlan
from hepti_mpi.kernels.backends import agree, backend, graph_maker
from hepti_mpi.live.sums import SumsOrder
from hepti_mpi.measure.profile_network import network_fingerprint, profile_network
from hepti_mpi.report.ranks import network_rank_report
from hepti_mpi.session.kind import OpenedModel
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.plan.segments import SegmentPlan
from solver.schedule.networks.segment_steps import weights_of
from weights.file.networks import NetworkFile

if TYPE_CHECKING:
    from hepti_mpi.report.speaker import Progress


class NetworkRank:
    """A rank's part in a session, as `kind.KindOnRank` says it.

    Attributes
    ----------
    held
        This rank's shares, when they are loaded.
    """

    opens = NetworkFile

    def __init__(self, opened: OpenedModel, options: argparse.Namespace, group: Group) -> None:
        self._net: ConvNet = opened.model
        self._precision, self._options, self._group = opened.precision, options, group

    def agree(self) -> tuple[list[str], list[str]]:
        """Return which backend each rank has, and notes."""
        # Where no board has onnxruntime, too, a person should know: numpy takes 3 to 15 times as long.
        return agree(self._options.backend, self._precision, self._group, chosen=False)

    def use(self, name: str) -> None:
        """Compute by this backend."""
        self._backend, self._make = name, graph_maker(name, self._net.nodes, self._group)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the network, and of who measures it."""
        return network_fingerprint(self._net, self._group, self._backend)

    def profile(self) -> Cluster:
        """Measure these hosts."""
        return profile_network(self._net, self._group, self._backend)

    def load(
        self, source: WeightsSource, plans: Sequence[SegmentPlan], progress: Progress | None, trace: Trace | None
    ) -> None:
        """Get this rank's shares of all plans."""
        net, group, make = self._net, self._group, self._make
        group.coding = coding(plans[0].wire, backend(self._backend).cast)
        self.held = HeldPlans(
            lambda plan, before: NetworkShare(net, plan, group, make, before), source, trace,
            changes=self._options.replan == "auto",
        )  # fmt: skip
        for plan in plans:
            total = sum(weights_of(net, plan)[rank] for rank in {group.rank, *source.without_file})
            self.held.load(plan, progress("loading", total) if progress else None)

    def follow(self) -> None:
        """Compute with the other ranks what rank 0 orders, until it orders no more."""
        held, group = self.held, self._group
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

    @property
    def devices(self) -> Sequence[str]:
        """The devices of the plan."""
        return self.held.of(0).plan.devices

    def report(self) -> dict[str, Any]:
        """Return what this rank did."""
        own = self.held.own(self._group.rank)
        return network_rank_report(self._net, own.plan, own.meter, self._group.rank, self._backend)
