"""What a session asks of a kind of model: on every rank (`KindOnRank`), and of rank 0, which answers (`ModelKind`).

`job.py` takes the steps of the first on all ranks, `leader.py` those of the second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hepti_mpi.comm.trace import Trace
from hepti_mpi.engine.load import ModelFile, WeightsSource
from solver.cluster.cluster import Cluster, Device
from solver.plan.plan import Wire

if TYPE_CHECKING:  # what light boards do without
    from rich.console import Console

    from hepti_mpi.report.speaker import Progress
    from hepti_mpi.requests.answers import Answer, Tally

Show = Callable[[float], str]  # writes seconds, with the unit


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """What rank 0 has found in a weights file, for all ranks.

    Parameters
    ----------
    model
        What the file describes: `ModelSpec`, `ConvNet` or `Decoder`.
    precision
        In which products are computed.
    """

    path: Path
    model: Any
    precision: str
    fingerprint: str


class KindOnRank(Protocol):
    """A rank's part in a session."""

    @property
    def opens(self) -> Callable[[Path], ModelFile]:
        """What opens a file of weights."""

    def agree(self) -> tuple[list[str], list[str]]:
        """Return which backend each rank has, and notes; a collective step."""

    def use(self, backend: str) -> None:
        """Compute by this backend; a collective step."""

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of all that a profile is for; a collective step."""

    def profile(self) -> Cluster:
        """Measure these hosts; a collective step."""

    def load(self, source: WeightsSource, plans: Sequence[Any], progress: Progress | None, trace: Trace | None) -> None:
        """Get this rank's shares of all plans, the first to run in front; a collective step.

        Parameters
        ----------
        progress
            Shows on rank 0 how it gets on.
        trace
            Records the last request, where one is asked for.
        """

    def follow(self) -> None:
        """Do what rank 0 says until it says that all is done."""

    @property
    def devices(self) -> Sequence[str]:
        """The devices of the plan."""

    def report(self) -> dict[str, Any]:
        """Return what this rank did in all requests that count."""


class ModelKind(Protocol):
    """Rank 0's part: how requests are read, what computes them, and how answers and plans are shown."""

    count: int  # of requests, as far as it is known before they are computed
    cluster: Cluster | None  # what the plan is for; None where a file gave the plan alone

    @property
    def reads(self) -> Collection[str]:
        """Of the options in `cli.FOR_SOME` those that say something to it."""

    @property
    def suffixes(self) -> Sequence[str]:
        """Of files of answers."""

    @property
    def keeps(self) -> bool:
        """Whether answers for a file wait in memory until all are there; they are small."""

    @property
    def unit(self) -> str:
        """What a bar counts."""

    @property
    def trials(self) -> Sequence[Mapping[str, Any]]:
        """Of plans that were tried in turn, as the report has them."""

    @property
    def is_try_out(self) -> bool:
        """Whether one host plays example boards, and nothing is measured, if no file says what to plan for."""

    @property
    def silent(self) -> bool:
        """Whether nothing is printed while requests are computed, so that a bar can be."""

    def open(self) -> OpenedModel | None:
        """Open the model, and read what is asked of it, as far as planning needs it.

        Return None if everything that is asked was refused, each with what is wrong with it.

        Raises
        ------
        HeptiError
            If nothing can be computed.
        """

    def plan(self, cluster: Cluster | None) -> Sequence[Any]:
        """Read or make the plan, and others for which ranks hold weights; None: no cluster is known.

        Raises
        ------
        HeptiError
            If there is no plan, or it does not fit.
        """

    def needed_bytes(self) -> list[int]:
        """Return the memory that every rank needs for these plans."""

    def measured(self, device: Device) -> bool | None:
        """Return whether a device was measured for such models by a backend; None: backends are no matter."""

    @property
    def asks_much(self) -> bool:
        """Whether so much is asked that it pays to move weights onto large pages."""

    def begin(self, rank: Any, last: ExitStack) -> None:
        """Take rank 0's part, which is loaded; `last` ends what is begun."""

    def requests(self) -> Iterable[Any]:
        """Return what is asked, in order; it may come while it is computed."""

    def answers(self, requests: Iterable[Any], *, counts: bool, shows: bool) -> Iterator[Answer]:
        """Compute requests on all ranks, and answer them.

        Parameters
        ----------
        counts
            Whether they count in the report.
        shows
            Whether a person sees what is answered: of several passes that is the last.
        """

    def has_numbers(self, answer: Answer) -> bool:
        """Tell whether what the model computed for an answer are numbers."""

    def show(self, answer: Answer) -> None:
        """Show an answer to a person, now or with the tables."""

    def end(self) -> None:
        """Let the other ranks go."""

    @property
    def name(self) -> str:
        """Return the model's name."""

    @property
    def table(self) -> dict[str, Any]:
        """Return the plan as its file has it."""

    @property
    def wire(self) -> Wire:
        """Return how numbers travel."""

    @property
    def plan_devices(self) -> Sequence[str]:
        """Return the plan's devices."""

    @property
    def active(self) -> Collection[str]:
        """Return the devices that compute."""

    @property
    def decisions(self) -> tuple[Sequence[Mapping[str, Any]], int, int]:
        """Return the last decisions about the plan, how many there were, and how many have changed it."""

    def meters(self) -> Mapping[int, Mapping[str, float]]:
        """Return what ranks did so far, of those that have told it."""

    def more_status(self) -> Mapping[str, Any]:
        """Return what the status has of this kind alone."""

    def predicted(self, tally: Tally) -> dict[str, Any]:
        """Return what was predicted: `predicted_seconds`, `predicted_requests_per_s`, and what is this kind's alone."""

    def alone(self, tally: Tally) -> Any:
        """Return the best board alone, if it is to be compared; None where no board holds the model."""

    def facts(self) -> Mapping[str, Any]:
        """Return what the report has of this kind alone."""

    @property
    def out(self) -> Console:
        """Return where tables go."""

    def tables(self, report: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> None:
        """Show the answers that wait for it, and who computed what."""

    def pace(self, report: Mapping[str, Any]) -> tuple[Any, Show] | None:
        """Return what the split took, and how that is written; None where there is nothing to compare."""
