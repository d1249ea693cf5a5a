"""A rank's share of a language model under a plan: what computes its runs of parts, and its keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hepti_mpi.base.memory import give_back
from hepti_mpi.comm.group import Group
from hepti_mpi.kernels.backends import ONNXRUNTIME, run_maker
from hepti_mpi.kernels.kinds.heads import check_width, turning_tables
from hepti_mpi.kernels.kinds.held import PartRun, RankRegion
from hepti_mpi.program.source import FileSource, Reads
from hepti_mpi.program.state import HeadsLayout, KeptHeads, move_heads
from solver.base.arrays import Array
from solver.base.spans import Span, tiles
from solver.model.decoder import Decoder
from solver.model.kinds.attention import GroupedAttention, Rope
from solver.model.kinds.part import HEAD, ROW, WORD, Part
from solver.model.kinds.weight import PRECISIONS
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import CHUNK_ROWS
from solver.schedule.decoders.steps import pass_schedule
from solver.schedule.regions import there
from solver.schedule.schedule import ComputeStep

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


def key_of(run: RankRun) -> RunKey:
    """Return what tells a graph from others: one serves any rows."""
    return tuple((part.name, *(own for own in region.items() if own[0] != ROW)) for part, region in run)


@dataclass(frozen=True, slots=True, eq=False)
class ShareGraphs:
    """What computes a run, one but where words are many: of each its words; and the turning tables of its heads."""

    runs: Sequence[tuple[Span, PartRun]]
    turns: Mapping[str, Array]


class Share:
    """A rank's share of a language model.

    Parameters
    ----------
    model, plan, rank
        The model, who has what, and whose share this is.
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
        self, model: Decoder, plan: DecoderPlan, rank: int, reads: Reads, before: Share | None = None, *,
        backend: str = ONNXRUNTIME,
    ) -> None:  # fmt: skip
        self.model, self.plan, self.rank, self.backend = model, plan, rank, backend
        self.graphs: dict[RunKey, ShareGraphs] = {}
        self.state: dict[str, KeptHeads] = {}
        self._turns: dict[Rope, Mapping[str, Array]] = {} if before is None else before._turns
        source, old = FileSource(plan.precision, reads), before
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
        for rows in (1, CHUNK_ROWS):
            for step in pass_schedule(self.model, self.plan, rows, rows):
                if isinstance(step, ComputeStep) and (run := rank_run(step, self.rank)):
                    yield run, step.leaves

    def _made(self, run: RankRun, leaves: frozenset[str], source: FileSource) -> ShareGraphs:
        turns: Mapping[str, Array] = {}
        for part, _ in run:
            if isinstance(part.kind, GroupedAttention):
                if self.backend == ONNXRUNTIME:
                    check_width(self.model.name, part.kind, self.plan.precision)
                if part.kind.rope is not None:
                    if part.kind.rope not in self._turns:
                        self._turns[part.kind.rope] = turning_tables(part.kind.rope, self.plan.context)
                    turns = self._turns[part.kind.rope]
        words = run[-1][1].get(WORD, Span(0, 1))
        runs, make = [], run_maker(self.backend)
        for some in tiles(words, self._words_at_once):
            own = [(part, {**region, WORD: some} if WORD in region else region) for part, region in run]
            runs.append((some, make(own, leaves | {run[-1][0].writes.name}, source, cache=self.plan.cache)))
            give_back()
        return ShareGraphs(runs, turns)

    @property
    def _words_at_once(self) -> int:
        bits = PRECISIONS[self.plan.precision].of_words.bits
        return max(1, HEAD_BYTES * 8 // (self.model.hidden * bits))

    def _keep(self, part: Part, heads: Span, before: Share | None) -> None:
        kept, plan = part.reads[1].name, self.plan
        assert isinstance(part.kind, GroupedAttention)
        if before is not None and kept in before.state and before._heads(kept)[self.rank] == heads:
            self.state[kept] = before.state[kept]
            return
        self.state[kept] = KeptHeads.empty(
            part.kind, heads, sequences=plan.sequences, context=plan.context, cache=plan.cache
        )

    def _heads(self, kept: str) -> Sequence[Span]:
        """Return the query heads of every rank in the layer of some keys and values."""
        layer = int(kept.split("/")[1])
        return next(tuple(stage.heads) for stage in self.plan.stages if layer in range(*_ends(stage.layers)))

    def move_state(self, before: Share, kept: Sequence[int], group: Group) -> None:
        """Bring keys and values of all sequences from where they lie under the plan before; a step of all ranks.

        Parameters
        ----------
        kept
            How many tokens of every sequence there are.
        """
        for number, layer in enumerate(self.model.layers):
            name = f"layers/{number}/attention/cache"
            lie = tuple(HeadsLayout(layer.attention, own._heads(name)) for own in (before, self))
            have, want = before.state.get(name), self.state.get(name)
            move_heads(group, (lie[0], lie[1]), have, want, kept, scales=self.plan.cache == "int8")


def _ends(span: Span) -> tuple[int, int]:
    return span.start, span.stop
