"""What one board alone would have taken, beside what the split took; and whether a prediction can be believed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hepti_mpi.comm.hosts import Place
from hepti_mpi.comm.mailbox import LONGEST_PAUSE_S
from hepti_mpi.kernels.backends import ONNXRUNTIME
from solver.base.errors import HeptiError
from solver.base.phrases import ms
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.model.decoder import Decoder
from solver.model.spec import ModelSpec
from solver.plan.plan import Wire
from solver.schedule.decoders.asked import TokenRequest

# What takes this many times what was predicted, or so little of it, speaks against the profile, not of noise.
FAR = 2.0
# A rank that waits looks up to so much later, which no profile has: the times of what is as short say nothing.
SHORT_S = LONGEST_PAUSE_S
# Times that differ by less are the same: they are predicted to within so much at best.
ALIKE = 1.05


@dataclass(frozen=True, slots=True)
class BoardAlone:
    """The board that has the answer first by itself, and the seconds that are predicted for it."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How long something took, and was predicted to take; `predicted_s` is None where nothing is known."""

    seconds: float
    predicted_s: float | None

    @property
    def ratio(self) -> float:
        """How many times as long it took."""
        return self.seconds / self.predicted_s if self.predicted_s else 1.0

    @property
    def is_far(self) -> bool:
        """Whether the boards are not as they were predicted to be, as it seems."""
        if self.predicted_s is None or abs(self.seconds - self.predicted_s) <= SHORT_S:
            return False
        return not 1 / FAR < self.ratio < FAR


def other_kernels(options: argparse.Namespace, cluster: Cluster | None, backend: str, *, measured: bool) -> list[str]:
    """Return what to say of predictions that are for other kernels than `backend`, which computes here.

    Parameters
    ----------
    measured
        Whether all boards of the cluster were measured for such a model: by the backend that their profile names.
    """
    if cluster is None or options.cluster is None:
        return []
    known = (cluster.profile or {}).get("backend", ONNXRUNTIME) if measured else ONNXRUNTIME
    if known == backend:
        return []
    return [predicted_for(known, options.cluster, f"--backend {options.backend}")]


def predicted_for(measured: str, cluster: str, option: str) -> str:
    """Return that predictions are for what was measured, by a cluster's name, and how to measure what runs."""
    return f"what is predicted is for {measured}, by {cluster}: hepti profile {option} measures these boards"


def encoder_alone(spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire) -> BoardAlone | None:
    """Return the best board for a batch of so many rows; None where no board holds the model."""
    from solver.systems import plan_that_fits  # the planners are for rank 0 alone

    def seconds(name: str) -> float:
        return plan_that_fits(f"single:{name}", spec, cluster, rows, wire.within).predicted_s

    return _best(cluster.names, seconds)


def network_alone(net: ConvNet, cluster: Cluster, wire: Wire) -> BoardAlone | None:
    """Return the best board for an image, which rank 0 has; None where no board holds the network."""
    from solver.systems.convnets import plan_network  # the planners are for rank 0 alone

    return _best(cluster.names, lambda name: plan_network(f"single:{name}", net, cluster, wire).predicted_s)


def decoder_alone(model: Decoder, cluster: Cluster, asked: TokenRequest, position: int) -> BoardAlone | None:
    """Return the best board for a token at a position; None where no board holds the model."""
    from solver.schedule.decoders.cost import setting_of, token_seconds
    from solver.systems.decoders import plan_decoder  # the planners are for rank 0 alone

    def seconds(name: str) -> float:
        plan = plan_decoder(f"single:{name}", model, cluster, asked)
        return token_seconds(setting_of(model, cluster, plan), plan, position)

    return _best(cluster.names, seconds)


def runs_here(devices: Sequence[str], places: Sequence[Place]) -> bool:
    """Return whether the boards that a plan is for are the hosts that run it, a rank on each."""
    return list(devices) == [place.host for place in places]


def boards_planned_for(options: argparse.Namespace, *, here: bool) -> str:
    """Return whose seconds are predicted, in words; `here`: as `runs_here` says of a plan for what was measured."""
    if options.cluster is not None:
        return f"the boards of {options.cluster}"
    if options.plan is not None:
        return f"the boards of {options.plan}"
    return "these hosts" if here else "these ranks, as if each were a board"


def alone_line(
    pace: Pace, active: Collection[str], alone: BoardAlone | None, boards: str, show: Callable[[float], str], *,
    here: bool,
) -> str:  # fmt: skip
    """Return the line that holds the split against the best board alone.

    Where the split took what was predicted for it, that is what is compared; else the hosts are busy or freer than they
    were, and the two predictions are, as they are where other boards are planned for than those that run.

    Parameters
    ----------
    active
        The boards that computed.
    boards
        For which `alone` is predicted.
    show
        Writes seconds, with the unit.
    here
        Whether the ranks run on these boards. What one machine takes says nothing of others.
    """
    if len(active) == 1:
        return f"no split: {next(iter(active))} computes all of it alone, {show(pace.seconds)}"
    if alone is None:
        return f"split {show(pace.seconds)}; none of {boards} holds it alone"
    if not here:
        line = f"best single board {show(alone.seconds)} ({alone.name})"
        if pace.predicted_s is not None:
            line = f"split {show(pace.predicted_s)}; {line}: {_verdict(pace.predicted_s, alone)}"
        return f"predicted for {boards}: {line}"
    split = f"split {show(pace.seconds)}"
    by_predictions = pace.is_far and pace.predicted_s is not None
    seconds = pace.predicted_s if by_predictions and pace.predicted_s else pace.seconds
    split += f", predicted {show(seconds)}" if by_predictions else ""
    best = f"best single board {show(alone.seconds)} ({alone.name}, predicted for {boards})"
    return f"{split}; {best}: {_verdict(seconds, alone)}" + (", by what is predicted" if by_predictions else "")


def doubt(pace: Pace, boards: str, cluster: Cluster | None, *, kept: bool, here: bool) -> str | None:
    """Return the note that a prediction was far off, and why that is; None where it was not, or is for others.

    Parameters
    ----------
    boards
        For which it was.
    cluster
        What was planned for; `kept`: as this run or an earlier one measured it.
    here
        Whether the ranks run on these boards.
    """
    if not pace.is_far:
        return None
    times = f"{pace.ratio:.1f} times as long" if pace.ratio > 1 else f"{1 / pace.ratio:.1f} times as fast"
    if kept and cluster is not None and cluster.profile:
        when = cluster.profile["date"]
        busier = "busier" if pace.ratio > 1 else "freer"
        why = f"the hosts are {busier} than when they were measured, {when}; --measure measures them again"
    elif here:
        why = f"the hosts are not as {boards.removeprefix('the boards of ')} says; hepti profile measures them"
    else:
        return None
    return f"{times} as predicted: {why}"


def milliseconds(seconds: float) -> str:
    """Write the seconds from a request to its answer."""
    return f"{ms(seconds)} ms"


def requests_a_second(seconds: float) -> str:
    """Write the mean seconds of many requests."""
    return f"{1 / seconds:.2f} requests a second"


def tokens_a_second(seconds: float) -> str:
    """Write the mean seconds of a token."""
    return f"{1 / seconds:.2f} tokens a second"


def images_a_second(seconds: float) -> str:
    """Write the mean seconds of many images."""
    return f"{1 / seconds:.2f} images a second"


def _verdict(split_s: float, alone: BoardAlone) -> str:
    faster = alone.seconds / split_s
    if faster >= ALIKE:
        return f"the split is {faster:.1f} times as fast"
    if faster <= 1 / ALIKE:
        return f"one board is {1 / faster:.1f} times as fast: --system single:{alone.name}"
    return "they are alike"


def _best(names: Iterable[str], seconds: Callable[[str], float]) -> BoardAlone | None:
    found = []
    for name in names:
        with suppress(HeptiError):  # it lacks memory
            found.append(BoardAlone(name, seconds(name)))
    return min(found, key=lambda board: board.seconds, default=None)
