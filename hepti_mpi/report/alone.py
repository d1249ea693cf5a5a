"""What one board alone would have taken, beside what the split took; and whether a prediction can be believed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from solver.base.cache import profile_path
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.model.decoder import Decoder
from solver.model.spec import ModelSpec
from solver.plan.plan import Wire
from solver.schedule.decoders.asked import TokenRequest

# What takes this many times what was predicted, or so little of it, speaks against the profile, not of noise.
FAR = 2.0
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
        """Whether it was predicted for other boards than these, as it seems."""
        return not 1 / FAR < self.ratio < FAR


def encoder_alone(spec: ModelSpec, cluster: Cluster, rows: int) -> BoardAlone | None:
    """Return the best board for a batch of so many rows; None where no board holds the model."""
    from solver.systems import plan_that_fits  # the planners are for rank 0 alone

    return _best(cluster.names, lambda name: plan_that_fits(f"single:{name}", spec, cluster, rows).predicted_s)


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


def alone_line(
    pace: Pace, active: Collection[str], alone: BoardAlone | None, boards: str, show: Callable[[float], str]
) -> str:
    """Return the line that holds the split against the best board alone.

    Where the split took what was predicted for it, that is what is compared; else the hosts are not those boards, and
    the two predictions are.

    Parameters
    ----------
    active
        The boards that computed.
    boards
        For which `alone` is predicted.
    show
        Writes seconds, with the unit.
    """
    if len(active) == 1:
        return f"no split: {next(iter(active))} computes all of it alone, {show(pace.seconds)}"
    split = f"split {show(pace.seconds)}"
    if alone is None:
        return f"{split}; none of {boards} holds it alone"
    by_predictions = pace.is_far and pace.predicted_s is not None
    seconds = pace.predicted_s if by_predictions and pace.predicted_s else pace.seconds
    split += f", predicted {show(seconds)}" if by_predictions else ""
    faster = alone.seconds / seconds
    if faster >= ALIKE:
        verdict = f"the split is {faster:.1f} times as fast"
    elif faster <= 1 / ALIKE:
        verdict = f"one board is {1 / faster:.1f} times as fast: --system single:{alone.name}"
    else:
        verdict = "they are alike"
    verdict += ", by what is predicted" if by_predictions else ""
    return f"{split}; best single board {show(alone.seconds)} ({alone.name}, predicted for {boards}): {verdict}"


def doubt(pace: Pace, boards: str, cluster: Cluster | None, *, kept: bool) -> str | None:
    """Return the note that a prediction was far off, and why that is; None where it was not.

    Parameters
    ----------
    boards
        For which it was.
    cluster
        What was planned for; `kept`: as it was measured by an earlier run.
    """
    if not pace.is_far:
        return None
    times = f"{pace.ratio:.1f} times as long" if pace.ratio > 1 else f"{1 / pace.ratio:.1f} times as fast"
    if kept and cluster is not None and cluster.profile:
        path = profile_path(cluster.profile["fingerprint"])
        when = cluster.profile["date"]
        why = f"the hosts are busier or freer than they were on {when}; remove {path} to measure them again"
    else:
        why = f"{boards.removesuffix(', not these hosts')} are not these hosts, which hepti profile measures"
    return f"{times} as predicted: {why}"


def milliseconds(seconds: float) -> str:
    """Write the seconds from a request to its answer."""
    return f"{1e3 * seconds:.1f} ms"


def requests_a_second(seconds: float) -> str:
    """Write the mean seconds of many requests."""
    return f"{1 / seconds:.2f} requests a second"


def tokens_a_second(seconds: float) -> str:
    """Write the mean seconds of a token."""
    return f"{1 / seconds:.2f} tokens a second"


def images_a_second(seconds: float) -> str:
    """Write the mean seconds of many images."""
    return f"{1 / seconds:.2f} images a second"


def _best(names: Iterable[str], seconds: Callable[[str], float]) -> BoardAlone | None:
    found = []
    for name in names:
        with suppress(HeptiError):  # it lacks memory
            found.append(BoardAlone(name, seconds(name)))
    return min(found, key=lambda board: board.seconds, default=None)
