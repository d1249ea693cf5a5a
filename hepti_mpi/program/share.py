"""A rank's share of a model under a plan: what computes its runs of parts, and its keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Generic, Protocol, TypeVar

from hepti_mpi.base.lacking import Lacking
from hepti_mpi.base.memory import give_back
from hepti_mpi.comm.group import Group
from hepti_mpi.kernels.backends import ONNXRUNTIME, run_maker
from hepti_mpi.kernels.kinds.heads import check_width, turning_tables
from hepti_mpi.kernels.kinds.held import PartRun
from hepti_mpi.program.graphs import Graphs
from hepti_mpi.program.source import RunTensors
from hepti_mpi.program.state import HeadsLayout, KeptHeads, keeper_of, move_heads
from solver.base.arrays import Array
from solver.base.spans import Span, tiles
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.part import HEAD, ROW, WORD, Part, RankRegion, Value
from solver.model.kinds.weight import PRECISIONS
from solver.plan.layout import Box
from solver.schedule.places import OwnCompute, OwnStep, Places, RankRun, own_steps, places_of, rank_run
from solver.schedule.schedule import AnyStep, Called, ComputeStep, ExchangeStep
from solver.schedule.stretches import PassRows

HEAD_BYTES = 32 << 20  # of words in a graph: of all at once three copies were in memory while it was made

KEPT_PASSES = 16  # of other cuts than these a pass is found anew; of 24 layers one takes 0.3 MiB

RunKey = tuple[object, ...]


def key_of(run: RankRun, called: Called = str) -> RunKey:
    """Return what tells a graph from others: one serves any rows."""
    return tuple((called(part.name), *(own for own in region.items() if own[0] != ROW)) for part, region in run)


@dataclass(frozen=True, slots=True, eq=False)
class ShareGraphs:
    """What computes a run, one but where words are many: of each its words; and the turning tables of its heads."""

    runs: Sequence[tuple[Span, PartRun]]
    turns: Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class OwnRun:
    """What a rank computes in a step of a layer, as names are there.

    Parameters
    ----------
    graphs
        What computes it.
    attends
        The part of it that recalls what is kept, if one does.
    by_sequence
        Whether graphs have rows by sequence: where they stand in it matters.
    reads, written
        As of `OwnCompute`.
    """

    graphs: ShareGraphs
    attends: Part | None
    by_sequence: bool
    reads: Sequence[tuple[str, Box]]
    written: Sequence[tuple[str, str, Box]]

    @classmethod
    def of(cls, step: OwnCompute, called: Called, graphs: ShareGraphs) -> OwnRun:
        """Return what some graphs compute."""
        attends = next((part for part, _ in step.run if part.recalls), None)
        turns = any("places" in run.inputs for _, run in graphs.runs)
        reads = [(called(name), box) for name, box in step.reads.items()]
        written = [(called(place), called(name), box) for place, name, box in step.written]
        return cls(graphs, attends, attends is not None or turns, reads, written)


@dataclass(frozen=True, slots=True, eq=False)
class OwnPass:
    """A rank's part in passes whose rows are cut alike, which are counted in stretches; found once for all lengths.

    Parameters
    ----------
    every
        Its part in every step, and what values are called there.
    given
        What it begins with, where this rank gets that.
    places
        Where values lie.
    runs
        What is computed in steps, of those that have been asked for.
    """

    every: Sequence[tuple[OwnStep, Called]]
    given: Value
    places: Places
    runs: dict[tuple[OwnCompute, Called], OwnRun] = field(default_factory=dict)

    @classmethod
    def of(cls, passes: Passes, rank: int, rows: PassRows) -> OwnPass:
        """Find it."""
        every, given = own_steps(passes.steps(rows, folded=True), rank), passes.given(rows.count)
        begins = [(given.name, Box.whole(*given.shape))] if rank in passes.first else ()
        return cls(every, given, places_of(every, begins))

    def run_of(self, step: OwnCompute, called: Called, graphs: Mapping[RunKey, ShareGraphs]) -> OwnRun:
        """Return what is computed in a step, which has a graph."""
        if (step, called) not in self.runs:
            self.runs[step, called] = OwnRun.of(step, called, graphs[key_of(step.run, called)])
        return self.runs[step, called]


class Passes(Protocol):
    """What is asked of a model under a plan."""

    @property
    def name(self) -> str:
        """Of the model."""

    @property
    def precision(self) -> str:
        """What matrices are held in."""

    @property
    def cache(self) -> str:
        """What keys and values are held in."""

    @property
    def context(self) -> int:
        """Tokens that there is room for, of one sequence."""

    @property
    def sequences(self) -> int:
        """How many sequences have room."""

    @property
    def first(self) -> tuple[int, ...]:
        """The ranks that get what a pass begins with."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of passes that together have all computations that there are."""

    def rows(self, rows: int, chosen: int) -> PassRows:
        """Return the rows of a pass, of which the last `chosen` are asked for."""

    def steps(self, rows: PassRows, *, folded: bool) -> Sequence[AnyStep]:
        """Return what ranks do in a pass.

        Folded, layers that are alike stand in it once (`solver.schedule.schedule.unfolded`).
        """

    def coded(self, step: ExchangeStep) -> bool:
        """Return whether the numbers of an exchange travel as the plan's wire says."""

    def given(self, rows: int) -> Value:
        """Return what a pass of rows begins with."""

    def kept(self) -> Iterable[tuple[str, Attention, Sequence[Span]]]:
        """Return of all keys and values their name, the attention, and the query heads of every rank."""


AnyPasses = TypeVar("AnyPasses", bound=Passes, covariant=True)


class Share(Graphs[RunKey, tuple[RankRun, frozenset[str]], ShareGraphs], Generic[AnyPasses]):
    """A rank's share of a model.

    Parameters
    ----------
    passes, rank
        The model under a plan, and whose share this is.
    before
        This rank's share under the plan before: graphs that are the same under both are taken over, and the keys and
        values of the same heads.
    backend
        What computes: numpy or onnxruntime.

    Attributes
    ----------
    own_pass
        Return this rank's part in passes whose rows, in stretches, are cut alike.
    graphs
        Of every run of parts, by `key_of`; numpy has functions in place of graphs. Those that are `lacking` are not
        there yet.
    state
        The keys and values of every layer, by their value's name.
    """

    def __init__(
        self, passes: AnyPasses, rank: int, before: Share[AnyPasses] | None = None, *, backend: str = ONNXRUNTIME
    ) -> None:
        self.passes, self.rank, self.backend = passes, rank, backend
        self.own_pass = lru_cache(KEPT_PASSES)(partial(OwnPass.of, passes, rank))
        self.state: dict[str, KeptHeads] = {}
        self._turns: dict[Rope, Mapping[str, Array]] = {} if before is None else before._turns
        runs: dict[RunKey, tuple[RankRun, frozenset[str]]] = {}
        for run, leaves in self._runs():
            runs.setdefault(key_of(run), (run, leaves))
        super().__init__(runs.items(), [before] if before else [])
        for run, _ in runs.values():
            for part, region in run:
                if part.recalls:
                    self._keep(part, region[HEAD], before)

    def _runs(self) -> Iterator[tuple[RankRun, frozenset[str]]]:
        """Yield what this rank computes in passes of one row, and of many: parts, and the values that leave them."""
        for rows in self.passes.sizes:
            for step in self.passes.steps(self.passes.rows(rows, rows), folded=False):
                if isinstance(step, ComputeStep) and (run := rank_run(step, self.rank)):
                    yield run, step.leaves

    def lacking(self) -> Iterator[Lacking]:
        """Yield what is lacking, run by run, the largest first; what is made of it are graphs of this share.

        While a graph is made its weights lie there up to three times, with the next one's beside them: best as long as
        there is little else. Of llama-3.2-1b in int4, whose head came last, a board alone held 1165 MiB for a moment
        where the plan says 1071.
        """
        for key, (run, leaves) in sorted(self._lacking.items(), key=self._held_bytes, reverse=True):
            runs: list[tuple[Span, PartRun]] = []
            self.graphs[key] = ShareGraphs(runs, self._turning(run))
            for words in _words(run, self.passes.precision):
                own = [(part, {**region, WORD: words} if WORD in region else region) for part, region in run]
                tensors = RunTensors(self.passes.precision, own)
                yield Lacking(tensors.places, partial(self._make, runs, words, own, leaves, tensors))
        self._lacking.clear()

    def _held_bytes(self, lacking: tuple[RunKey, tuple[RankRun, frozenset[str]]]) -> int:
        """Return the bytes of a run's weights, those of whole rows where columns are cut: it is for an order."""
        _, (run, _) = lacking
        precision = PRECISIONS[self.passes.precision]
        return sum(
            tensor.held_bytes(precision, region[tensor.axis].size if tensor.axis else None)
            for part, region in run
            for tensor in part.tensors
        )

    def _make(
        self, runs: list[tuple[Span, PartRun]], words: Span, run: Sequence[tuple[Part, RankRegion]],
        leaves: frozenset[str], tensors: RunTensors,
    ) -> None:  # fmt: skip
        """Make a graph of a run, of which the tensors are there."""
        # A lookup is no product that a graph makes faster.
        make = run_maker("numpy" if any(part.role == "words" for part, _ in run) else self.backend)
        runs.append((words, make(run, leaves | {run[-1][0].writes.name}, tensors, cache=self.passes.cache)))
        give_back()

    def _turning(self, run: RankRun) -> Mapping[str, Array]:
        """Return the turning tables of a run's heads."""
        turns: Mapping[str, Array] = {}
        for part, _ in run:
            if isinstance(part.kind, Attention):
                if self.backend == ONNXRUNTIME:
                    check_width(self.passes.name, part.kind, self.passes.precision)
                if part.kind.rope is not None:
                    if part.kind.rope not in self._turns:
                        self._turns[part.kind.rope] = turning_tables(part.kind.rope, self.passes.context)
                    turns = self._turns[part.kind.rope]
        return turns

    def _keep(self, part: Part, heads: Span, before: Share[AnyPasses] | None) -> None:
        kept, passes = part.reads[1].name, self.passes
        attention, _, keeper = holds = self._holds(kept)
        if before is not None and kept in before.state and before._holds(kept) == holds:
            self.state[kept] = before.state[kept]
            return
        self.state[kept] = KeptHeads.empty(
            attention, heads, sequences=passes.sequences, context=passes.context, cache=passes.cache, keeper=keeper
        )

    def _holds(self, kept: str) -> tuple[Attention, Span, int]:
        """Return the attention of some keys and values, this rank's query heads, and which it is of those who keep."""
        attention, every = next((own, heads) for name, own, heads in self.passes.kept() if name == kept)
        return attention, every[self.rank], keeper_of(every, self.rank) if attention.dealt else 0

    def move_state(self, before: Share[AnyPasses], kept: Sequence[int], group: Group) -> None:
        """Bring keys and values of all sequences from where they lie under the plan before; a step of all ranks.

        Parameters
        ----------
        kept
            How many tokens of every sequence there are.
        """
        layouts = [
            {name: HeadsLayout(attention, heads) for name, attention, heads in share.passes.kept()}
            for share in (before, self)
        ]
        for name, lies in layouts[0].items():
            have, want = before.state.get(name), self.state.get(name)
            move_heads(group, (lies, layouts[1][name]), have, want, kept, scales=self.passes.cache == "int8")


def _words(run: RankRun, precision: str) -> list[Span]:
    """Return the words of each graph of a run; of one without a matrix of logits there is one graph.

    Of summands of all words, too: they lie side by side.
    """
    part, region = run[-1]
    if part.role != "logits" or not part.tensors:
        return [region.get(WORD, Span(0, 1))]
    _, width = next(tensor.weight.shape for tensor in part.tensors if tensor.axis == WORD)
    return tiles(region[WORD], max(1, HEAD_BYTES * 8 // (width * PRECISIONS[precision].of_words.bits)))
