"""`DecoderPasses`: what the engine asks of a language model's plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solver.base.spans import Span
from solver.model.decoder import Decoder, embedding_part, named_blocks
from solver.model.kinds.attention import Attention
from solver.model.kinds.part import Value
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import CHUNK_ROWS
from solver.schedule.decoders.steps import CANDIDATES, EXACT_NAMES, HANDED_OUT, begins_with, pass_rows, pass_schedule
from solver.schedule.schedule import AnyStep, ExchangeStep
from solver.schedule.stretches import PassRows


@dataclass(frozen=True, slots=True)
class DecoderPasses:
    """A language model under a plan, as passes; `hepti_mpi.program.share.Passes` says what each of this is."""

    model: Decoder
    plan: DecoderPlan

    @property
    def name(self) -> str:  # noqa: D102
        return self.model.name

    @property
    def precision(self) -> str:  # noqa: D102
        return self.plan.precision

    @property
    def cache(self) -> str:  # noqa: D102
        return self.plan.cache

    @property
    def context(self) -> int:  # noqa: D102
        return self.plan.context

    @property
    def sequences(self) -> int:  # noqa: D102
        return self.plan.sequences

    @property
    def first(self) -> tuple[int, ...]:  # noqa: D102
        return self.plan.begins

    @property
    def sizes(self) -> tuple[int, ...]:  # noqa: D102
        return (1, CHUNK_ROWS) if self.plan.rows_from else (1,)

    def rows(self, rows: int, chosen: int) -> PassRows:  # noqa: D102
        return pass_rows(self.model, self.plan, rows, chosen)

    def steps(self, rows: PassRows, *, folded: bool) -> list[AnyStep]:  # noqa: D102
        every = pass_schedule(self.model, self.plan, rows, folded=folded)
        names = [step.name if isinstance(step, ExchangeStep) else "" for step in every]
        return [*every[names.index(HANDED_OUT) + 1 : names.index(CANDIDATES) if rows.asked.size else None]]

    def coded(self, step: ExchangeStep) -> bool:  # noqa: D102
        return step.name not in EXACT_NAMES

    def given(self, rows: int) -> Value:  # noqa: D102
        return begins_with(embedding_part(self.model, rows), self.plan)

    def kept(self) -> Iterator[tuple[str, Attention, Sequence[Span]]]:  # noqa: D102
        for stage in self.plan.stages:
            for number in range(stage.layers.start, stage.layers.stop):
                for name, kind in named_blocks(self.model.layers[number]).items():
                    if isinstance(kind, Attention):
                        heads = tuple(stage.shares[kind.axis])
                        if stage.keys:
                            kind, heads = (
                                kind.among(stage.dealt),
                                tuple(Span(0, kind.heads * (own > 0)) for own in stage.keys),
                            )
                        yield f"layers/{number}/{name}/cache", kind, heads
