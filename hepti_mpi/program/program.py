"""A language model's pass, compiled for a rank: what attention keeps is bound to its graphs, and words have logits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.exchange import RankExchange
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.wires import EXACT, Coding
from hepti_mpi.kernels.kinds.held import Known
from hepti_mpi.program.compiled import Compiled, CompiledCall
from hepti_mpi.program.share import Passes, Share, ShareGraphs
from hepti_mpi.program.state import SharedTokens
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span, tiles
from solver.model.kinds.attention import SEEN_ROWS, Attention
from solver.model.kinds.part import Part
from solver.plan.layout import Box
from solver.schedule.places import OwnCompute, OwnExchange, OwnStep
from solver.schedule.schedule import Called


@dataclass(frozen=True, slots=True)
class PassShape:
    """What a pass computes.

    Parameters
    ----------
    first, sequences
        Consecutive places of sequences, each with its own cache.
    rows
        New tokens of each; more than one only of one sequence.
    chosen
        How many rows have logits: the last of each sequence, all of one, or none.
    """

    first: int
    sequences: int
    rows: int
    chosen: int
    scales: bool = False  # whether an int8 cache's scales are chosen by its rows


class Program(Compiled):
    """A rank's part in passes of one shape; it may run any number of times.

    Attributes
    ----------
    given : [sequences, rows, …]
        What a pass begins with, on ranks that get it: to be written before `run`.
    logits
        What comes out: of some words each their first and [chosen, words]; nothing on ranks without words.
    """

    def __init__(self, share: Share[Passes], shape: PassShape, group: Group, direct: Direct, coding: Coding) -> None:
        self._share, self._shape, self._wire = share, shape, coding
        self._views: dict[tuple[object, ...], Numbers] = {}  # rows as graphs have them, by where they lie
        self._known: Known = {}
        B, S = shape.sequences, shape.rows
        self._last = np.zeros(B, np.int32)
        self._total = np.zeros(1, np.int32)
        self._places_of_rows = np.zeros((B, S), np.int64)
        self.logits: list[tuple[int, Array]] = []
        rows, stretches = share.passes.rows(B * S, shape.chosen).in_stretches()
        self._own = own = share.own_pass(rows)
        super().__init__(own.every, own.places.stretched(stretches), group, direct)
        given = own.given
        self.given = np.zeros((B, S, math.prod(given.shape[1:])), np.float32)
        if share.rank in share.passes.first:
            self.given = self._memory.whole(given.name).reshape(self.given.shape, copy=False)

    def run(self, starts: Sequence[int]) -> None:
        """Compute; `starts` says for each sequence how many tokens are before the new ones."""
        rows = self._shape.rows
        self._last[:] = starts
        self._last += rows - 1
        self._total[0] = max(starts) + rows
        self._places_of_rows[:] = np.array(starts)[:, None] + np.arange(rows)
        self._run()

    def _coding(self, step: OwnExchange) -> Coding:
        return self._wire if any(map(self._share.passes.coded, step.steps)) else EXACT

    def _computing(
        self, step: OwnStep, called: Called, comes: RankExchange | None
    ) -> Iterable[tuple[str, CompiledCall]]:
        assert isinstance(step, OwnCompute)
        return (("", call) for call in self._calls(step, called))

    def _calls(self, step: OwnCompute, called: Called) -> list[CompiledCall]:
        calls: list[CompiledCall] = []
        if not step.run:
            return calls
        shape, last = self._shape, step.run[-1][0]
        own_run = self._own.run_of(step, called, self._share.graphs)
        by = shape.sequences if own_run.by_sequence else 1
        arrays = {name: self._rows(name, box, by) for name, box in own_run.reads}
        results = {name: self._rows(place, box, by) for place, name, box in own_run.written}
        attends, graphs = own_run.attends, own_run.graphs
        if attends is not None and isinstance(attends.kind, Attention) and attends.kind.dealt:
            return self._attending_to_some(step, attends.kind, called, graphs, arrays, results)
        arrays |= {"places": self._places_of_rows, **graphs.turns}
        scaled = None
        if attends is not None:
            inputs, outputs, scaled = self._state(attends, called)
            arrays |= inputs
            results |= outputs
        for words, graph in graphs.runs:
            own = dict(results)
            if last.role == "logits":
                logits = np.zeros((1, shape.chosen, words.size), np.float32)
                self.logits.append((words.start, logits[0]))
                own = {last.writes.name: logits}
            if not own:  # it is computed for others, who need it no more
                continue
            call = graph.bound({name: arrays[name] for name in graph.inputs}, own, self._known)
            calls += [call, scaled, call] if scaled else [call]  # by what it has made its scales are chosen
        return calls

    def _rows(self, name: str, box: Box, sequences: int) -> Numbers:
        """Return rows as graphs have them: those of attention by sequence. Layers that are alike have the same."""
        key = self._places.lies(name), box, sequences
        if key not in self._views:
            view = self._memory.view(name, box)
            self._views[key] = view.reshape(sequences, len(view) // sequences, -1, copy=False)
        return self._views[key]

    def _attending_to_some(
        self, step: OwnCompute, attention: Attention, called: Called, graphs: ShareGraphs,
        arrays: Mapping[str, Numbers], results: Mapping[str, Numbers],
    ) -> list[CompiledCall]:  # fmt: skip
        """Bind what attends to the tokens that this rank keeps, some rows at a time, where tokens are shared out."""
        share, shape, (keeps, _) = self._share, self._shape, step.run[0]
        kept, new = share.state[called(keeps.writes.name)], arrays[called(keeps.reads[0].name)]
        sequences = Span(shape.first, shape.first + shape.sequences)
        tokens = SharedTokens.of(attention, kept, sequences, new, self._last, scales=shape.scales and bool(kept.scales))
        calls: list[CompiledCall] = [tokens.keep]
        ((_, graph),) = graphs.runs
        if results:  # else nobody reads more than is kept
            for rows in tiles(Span(0, shape.rows), SEEN_ROWS):
                inputs, outputs = (
                    {name: own[:, rows.slice] for name, own in some.items()} for some in (arrays, results)
                )
                inputs = {**tokens.whole, **{name: own[:, rows.slice] for name, own in tokens.by_row.items()}, **inputs}
                calls.append(graph.bound({name: inputs[name] for name in graph.inputs}, outputs, self._known))
        return calls

    def _state(self, part: Part, called: Called) -> tuple[dict[str, Numbers], dict[str, Numbers], CompiledCall | None]:
        """Return what attention takes and gives besides rows, and what chooses its cache's scales."""
        shape, kept = self._shape, self._share.state[called(part.reads[1].name)]
        inputs: dict[str, Numbers] = {"last": self._last, "total": self._total, "places": self._places_of_rows}
        outputs: dict[str, Numbers] = {}
        for number, cache in enumerate(kept.cache):
            own = cache[shape.first : shape.first + shape.sequences]
            name = f"{'kv'[number % 2]}{number // 2}"
            inputs[name], outputs[f"{name}'"] = own, own
            if kept.scales:
                inputs[f"{name}.scale"] = kept.scales[number]
        if not (kept.scales and shape.scales):
            return inputs, outputs, None
        assert isinstance(part.kind, Attention)
        width = kept.kv.size * kept.cache[0].shape[-1]
        keys, values = (np.empty((shape.sequences, shape.rows, width), np.float32) for _ in "kv")
        outputs |= {"keys": keys, "values": values}
        return inputs, outputs, partial(kept.scale, keys, values, part.kind.rope)
