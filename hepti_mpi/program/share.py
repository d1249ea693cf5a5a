"""A rank's share of a model under a plan: what computes its runs of parts, and its keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hepti_mpi.base.memory import give_back
from hepti_mpi.comm.group import Group
from hepti_mpi.kernels.backends import ONNXRUNTIME, run_maker
from hepti_mpi.kernels.kinds.heads import check_width, turning_tables
from hepti_mpi.kernels.kinds.held import PartRun, RankRegion
from hepti_mpi.program.source import FileSource, Reads
from hepti_mpi.program.state import HeadsLayout, KeptHeads, move_heads
from solver.base.arrays import Array
from solver.base.spans import Span, tiles
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.part import HEAD, ROW, WORD, Part, Value, there
from solver.model.kinds.weight import PRECISIONS
from solver.schedule.schedule import AnyStep, Called, ComputeStep, ExchangeStep

HEAD_BYTES = 32 << 20  # of words in a graph: of all at once three copies were in memory while it was made

RankRun = tuple[tuple[Part, RankRegion], ...]  # what a rank computes in a step: parts, and its region of each
RunKey = tuple[object, ...]


def rank_run(step: ComputeStep, rank: int) -> RankRun:
    """Return what a rank computes in a step."""
    return tuple(
        (part, {axis: Span(*spans[0, rank].tolist()) for axis, spans in region.items()})
        for part, region in step.parts
        if there(region)[0, rank]
    )


def key_of(run: RankRun, called: Called = str) -> RunKey:
    """Return what tells a graph from others: one serves any rows."""
    return tuple((called(part.name), *(own for own in region.items() if own[0] != ROW)) for part, region in run)


@dataclass(frozen=True, slots=True, eq=False)
class ShareGraphs:
    """What computes a run, one but where words are many: of each its words; and the turning tables of its heads."""

    runs: Sequence[tuple[Span, PartRun]]
    turns: Mapping[str, Array]


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

    def steps(self, rows: int, chosen: int, *, folded: bool) -> Sequence[AnyStep]:
        """Return what ranks do in a pass of rows, of which the last `chosen` are asked for.

        Folded, layers that are alike stand in it once (`solver.schedule.schedule.unfolded`).
        """

    def coded(self, step: ExchangeStep) -> bool:
        """Return whether the numbers of an exchange travel as the plan's wire says."""

    def given(self, rows: int) -> Value:
        """Return what a pass of rows begins with."""

    def kept(self) -> Iterable[tuple[str, Attention, Sequence[Span]]]:
        """Return of all keys and values their name, the attention, and the query heads of every rank."""


AnyPasses = TypeVar("AnyPasses", bound=Passes, covariant=True)


class Share(Generic[AnyPasses]):
    """A rank's share of a model.

    Parameters
    ----------
    passes, rank
        The model under a plan, and whose share this is.
    reads
        Where the weights are; not kept.
    before
        This rank's share under the plan before: graphs that are the same under both are taken over, and the keys and
        values of the same heads.
    backend
        What computes: numpy or onnxruntime.

    Attributes
    ----------
    graphs
        Of every run of parts, by `key_of`; numpy has functions in place of graphs.
    state
        The keys and values of every layer, by their value's name.
    """

    def __init__(
        self, passes: AnyPasses, rank: int, reads: Reads, before: Share[AnyPasses] | None = None, *,
        backend: str = ONNXRUNTIME,
    ) -> None:  # fmt: skip
        self.passes, self.rank, self.backend = passes, rank, backend
        self.graphs: dict[RunKey, ShareGraphs] = {}
        self.state: dict[str, KeptHeads] = {}
        self._turns: dict[Rope, Mapping[str, Array]] = {} if before is None else before._turns
        source, old = FileSource(passes.precision, reads), before
        for run, leaves in self._runs():
            key = key_of(run)
            if key in self.graphs:
                continue
            self.graphs[key] = old.graphs[key] if old and key in old.graphs else self._made(run, leaves, source)
            for part, region in run:
                if part.role == "contexts":
                    self._keep(part, region[HEAD], old)
            give_back()

    def _runs(self) -> Iterator[tuple[RankRun, frozenset[str]]]:
        """Yield what this rank computes in passes of one row, and of many: parts, and the values that leave them."""
        for rows in self.passes.sizes:
            for step in self.passes.steps(rows, rows, folded=False):
                if isinstance(step, ComputeStep) and (run := rank_run(step, self.rank)):
                    yield run, step.leaves

    def _made(self, run: RankRun, leaves: frozenset[str], source: FileSource) -> ShareGraphs:
        turns: Mapping[str, Array] = {}
        for part, _ in run:
            if isinstance(part.kind, Attention):
                if self.backend == ONNXRUNTIME:
                    check_width(self.passes.name, part.kind, self.passes.precision)
                if part.kind.rope is not None:
                    if part.kind.rope not in self._turns:
                        self._turns[part.kind.rope] = turning_tables(part.kind.rope, self.passes.context)
                    turns = self._turns[part.kind.rope]
        words = run[-1][1].get(WORD, Span(0, 1))
        at_once = _words_at_once(run[-1][0], self.passes.precision) if WORD in run[-1][1] else 0
        runs, make = [], run_maker(self.backend)
        for some in tiles(words, at_once):
            own = [(part, {**region, WORD: some} if WORD in region else region) for part, region in run]
            runs.append((some, make(own, leaves | {run[-1][0].writes.name}, source, cache=self.passes.cache)))
            give_back()
        return ShareGraphs(runs, turns)

    def _keep(self, part: Part, heads: Span, before: Share[AnyPasses] | None) -> None:
        kept, passes = part.reads[1].name, self.passes
        assert isinstance(part.kind, Attention)
        if before is not None and kept in before.state and before._heads(kept)[self.rank] == heads:
            self.state[kept] = before.state[kept]
            return
        self.state[kept] = KeptHeads.empty(
            part.kind, heads, sequences=passes.sequences, context=passes.context, cache=passes.cache
        )

    def _heads(self, kept: str) -> Sequence[Span]:
        """Return the query heads of every rank in the layer of some keys and values."""
        return next(heads for name, _, heads in self.passes.kept() if name == kept)

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


def _words_at_once(part: Part, precision: str) -> int:
    """Return how many words are in a graph."""
    _, width = next(tensor.weight.shape for tensor in part.tensors if tensor.axis == WORD)
    return max(1, HEAD_BYTES * 8 // (width * PRECISIONS[precision].of_words.bits))
