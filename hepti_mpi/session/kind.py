"""What a session asks of a kind of model: on every rank (`KindOnRank`), and of rank 0, which answers (`ModelKind`).

`job.py` takes the steps of the first on all ranks, `leader.py` those of the second.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from hepti_mpi.comm.trace import Trace
from hepti_mpi.engine.load import ModelFile, WeightsSource
from solver.cluster.cluster import Cluster, Device
from solver.plan.plan import Wire

if TYPE_CHECKING:  # what light boards do without
    from rich.console import Console

    from hepti_mpi.report.speaker import Progress
    from hepti_mpi.requests.answers import Answer, Tally
    from hepti_mpi.session.desk import FrontDesk

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


class ModelKind(ABC):
    """Rank 0's part: how requests are read, what computes them, and how answers and plans are shown.

    Parameters
    ----------
    desk
        Where requests come in and complaints go out.

    Attributes
    ----------
    reads
        Of the options in `cli.FOR_SOME` those that say something to it.
    suffixes
        Of files of answers.
    keeps
        Whether answers for a file wait in memory until all are there; they are small.
    unit
        What a bar counts.
    count
        How many requests there are, as far as it is known before they are computed.
    cluster
        What the plan is for; None where a file gave the plan alone.
    """

    reads: ClassVar[Collection[str]]
    suffixes: ClassVar[Sequence[str]]
    keeps: ClassVar[bool] = False
    unit: ClassVar[str]
    count: int
    _model: Any
    _plan: Any

    def __init__(self, desk: FrontDesk) -> None:
        self._desk, self._options = desk, desk.options
        self.cluster: Cluster | None = None
        self._changes: list[dict[str, Any]] = []  # of a plan that follows devices
        self._turns: Any = None  # where several plans are tried

    @property
    def is_try_out(self) -> bool:
        """Whether one host plays example boards, and nothing is measured, if no file says what to plan for."""
        return False

    @property
    def asks_much(self) -> bool:
        """Whether so much is asked that it pays to move weights onto large pages; where each token reads them all."""
        return False

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self._model.name)

    @property
    def wire(self) -> Wire:
        """How numbers travel."""
        return Wire(self._plan.wire)

    @property
    def plan_devices(self) -> Sequence[str]:
        """The plan's devices."""
        return tuple(self._plan.devices)

    @property
    def trials(self) -> Sequence[Mapping[str, Any]]:
        """Of plans that were tried in turn, as the report has them."""
        return [] if self._turns is None else list(self._turns.to_table())

    @property
    def decisions(self) -> tuple[Sequence[Mapping[str, Any]], int, int]:
        """The last decisions about the plan, how many there were, and how many have changed it."""
        return self._changes, len(self._changes), sum(change["taken"] for change in self._changes)

    @property
    def out(self) -> Console:
        """Where tables go."""
        from hepti_mpi.report import tables  # with what light boards do without

        return tables.terminal(stderr=False)

    def more_status(self) -> Mapping[str, Any]:
        """Return what the status has of this kind alone."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """Return what the report has of this kind alone."""
        return {}

    @property
    @abstractmethod
    def silent(self) -> bool:
        """Whether nothing is printed while requests are computed, so that a bar can be."""

    @abstractmethod
    def open(self) -> OpenedModel | None:
        """Open the model, and read what is asked of it, as far as planning needs it.

        Return None if everything that is asked was refused, each with what is wrong with it.

        Raises
        ------
        HeptiError
            If nothing can be computed.
        """

    @abstractmethod
    def plan(self, cluster: Cluster | None) -> Sequence[Any]:
        """Read or make the plan, and others for which ranks hold weights; None: no cluster is known.

        Raises
        ------
        HeptiError
            If there is no plan, or it does not fit.
        """

    @abstractmethod
    def needed_bytes(self) -> list[int]:
        """Return the memory that every rank needs for these plans."""

    @abstractmethod
    def measured(self, device: Device) -> bool | None:
        """Return whether a device was measured for such models by a backend; None: backends are no matter."""

    @abstractmethod
    def begin(self, rank: Any, last: ExitStack) -> None:
        """Take rank 0's part, which is loaded; `last` ends what is begun."""

    @abstractmethod
    def requests(self) -> Iterable[Any]:
        """Return what is asked, in order; it may come while it is computed."""

    @abstractmethod
    def answers(self, requests: Iterable[Any], *, counts: bool, shows: bool) -> Iterator[Answer]:
        """Compute requests on all ranks, and answer them.

        Parameters
        ----------
        counts
            Whether they count in the report.
        shows
            Whether a person sees what is answered: of several passes that is the last.
        """

    @abstractmethod
    def has_numbers(self, answer: Answer) -> bool:
        """Tell whether what the model computed for an answer are numbers."""

    @abstractmethod
    def show(self, answer: Answer) -> None:
        """Show an answer to a person, now or with the tables."""

    @abstractmethod
    def end(self) -> None:
        """Let the other ranks go."""

    @property
    @abstractmethod
    def table(self) -> dict[str, Any]:
        """Return the plan as its file has it."""

    @property
    @abstractmethod
    def active(self) -> Collection[str]:
        """Return the devices that compute."""

    @abstractmethod
    def meters(self) -> Mapping[int, Mapping[str, float]]:
        """Return what ranks did so far, of those that have told it."""

    @abstractmethod
    def predicted(self, tally: Tally) -> dict[str, Any]:
        """Return what was predicted: `predicted_seconds`, `predicted_requests_per_s`, and what is this kind's alone."""

    @abstractmethod
    def alone(self, tally: Tally) -> Any:
        """Return the best board alone, if it is to be compared; None where no board holds the model."""

    @abstractmethod
    def tables(self, report: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> None:
        """Show the answers that wait for it, and who computed what."""

    @abstractmethod
    def pace(self, report: Mapping[str, Any]) -> tuple[Any, Show] | None:
        """Return what the split took, and how that is written; None where there is nothing to compare."""
