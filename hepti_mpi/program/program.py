"""A schedule of a pass, compiled for a rank: buffers, graphs bound to them, exchanges, and calls in a row.

Nothing is decided while a pass runs. Where values lie says `solver.schedule.places`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.exchange import InBox, Item, RankExchange
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.messages import Rooms
from hepti_mpi.comm.wires import EXACT, Coding
from hepti_mpi.program.share import Passes, Share, key_of
from hepti_mpi.program.state import SharedTokens
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span, tiles
from solver.model.kinds.attention import SEEN_ROWS, Attention
from solver.model.kinds.part import Part
from solver.plan.layout import Box
from solver.schedule.places import OwnCompute, OwnExchange, Places, by_sockets, own_steps, places_of
from solver.schedule.schedule import Called, ExchangeStep


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


class Memory:
    """Where a rank's values lie.

    Parameters
    ----------
    places
        What lies where.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self.arrays = [np.zeros(size, np.float32) for size in places.sizes]

    def view(self, name: str, box: Box) -> Numbers:
        """Return where a box of a value lies."""
        return self.whole(name)[box.within(self._places.boxes[name])]

    def whole(self, name: str) -> Numbers:
        """Return all that there is of a value."""
        array = self.arrays[self._places.memory[name]]
        return array.reshape(self._places.boxes[name].shape, copy=False)


def exchange_calls(
    step: ExchangeStep, pieces: Sequence[InBox], places: Sequence[InBox], group: Group, direct: Direct, coding: Coding,
    *, equal: bool, rooms: Rooms | None = None,
) -> list[Callable[[], object]]:  # fmt: skip
    """Return the calls of a rank's part in an exchange: by connections of our own where rows are few, else by MPI.

    Parameters
    ----------
    pieces, places
        What this rank has, and wants, and where it lies.
    equal
        Whether all ranks go on with what travelled.
    rooms
        As of `RankExchange`.
    """
    if not pieces and not places:
        return []
    exchange = RankExchange.of(group, [Item(*step.layouts(), pieces, places)], coding, equal=equal, rooms=rooms)
    if by_sockets(step):
        return [exchange.over(direct)]
    return [exchange.run, group.finish_sending]  # places are written again in this pass


class Program:
    """A rank's part in passes of one shape; it may run any number of times.

    Attributes
    ----------
    stream : [sequences, rows, H]
        What goes in: on ranks of the first stage the embedded tokens, to be written before `run`.
    logits
        What comes out: of some words each their first and [chosen, words]; nothing on ranks without words.
    """

    def __init__(self, share: Share[Passes], shape: PassShape, group: Group, direct: Direct, coding: Coding) -> None:
        self._share, self._shape, self._group, self._direct = share, shape, group, direct
        B, S = shape.sequences, shape.rows
        self._last = np.zeros(B, np.int32)
        self._total = np.zeros(1, np.int32)
        self._places_of_rows = np.zeros((B, S), np.int64)
        self.logits: list[tuple[int, Array]] = []
        self._calls: list[Callable[[], object]] = []
        steps = share.passes.steps(B * S, shape.chosen, folded=True)
        every, given = own_steps(steps, share.rank), share.passes.given(B * S)
        begins = given if share.rank in share.passes.first else None
        self._memory = Memory(places_of(every, begins))
        self._rooms: Rooms = {}
        self._exchanges: dict[tuple[int, ...], list[Callable[[], object]]] = {}  # by what they are, and their arrays
        for number, (step, called) in enumerate(every):
            if isinstance(step, OwnCompute):
                self._compute(step, called)
            else:
                after = every[number + 1][0] if number + 1 < len(every) else None
                last = not (isinstance(after, OwnExchange) and after.step.value == step.step.value)
                self._exchange(step, called, coding if share.passes.coded(step.step) else EXACT, equal=last)
        self.stream = np.zeros((B, S, int(np.prod(given.shape[1:]))), np.float32)
        if begins is not None:
            self.stream = self._memory.whole(given.name).reshape(self.stream.shape, copy=False)

    def run(self, starts: Sequence[int]) -> None:
        """Compute; `starts` says for each sequence how many tokens are before the new ones."""
        rows = self._shape.rows
        self._last[:] = starts
        self._last += rows - 1
        self._total[0] = max(starts) + rows
        self._places_of_rows[:] = np.array(starts)[:, None] + np.arange(rows)
        for call in self._calls:
            call()

    def _compute(self, step: OwnCompute, called: Called) -> None:
        """Bind what computes a step."""
        if not step.run:
            return
        share, shape, last = self._share, self._shape, step.run[-1][0]
        graphs = share.graphs[key_of(step.run, called)]
        attends = next((part for part, _ in step.run if part.recalls), None)
        turns = any("places" in own_run.inputs for _, own_run in graphs.runs)
        by = shape.sequences if attends is not None or turns else 1
        arrays = {called(name): self._rows(called(name), box, by) for name, box in step.reads.items()}
        results = {called(name): self._rows(called(place), box, by) for place, name, box in step.written}
        if attends is not None and self._attends_to_some(step, called, arrays, results):
            return
        arrays |= {"places": self._places_of_rows, **graphs.turns}
        scaled = None
        if attends is not None:
            inputs, outputs, scaled = self._state(attends, called)
            arrays |= inputs
            results |= outputs
        for words, own_run in graphs.runs:
            own = dict(results)
            if last.role == "logits":
                logits = np.zeros((1, shape.chosen, words.size), np.float32)
                self.logits.append((words.start, logits[0]))
                own = {last.writes.name: logits}
            if not own:  # it is computed for others, who need it no more
                continue
            call = own_run.bound({name: arrays[name] for name in own_run.inputs}, own)
            self._calls += [call, scaled, call] if scaled else [call]  # by what it has made its scales are chosen

    @property
    def taken_bytes(self) -> int:
        """What its values take, and what arrives of them, once it has run."""
        return sum(array.nbytes for array in (*self._memory.arrays, *self._rooms.values()))

    def _rows(self, name: str, box: Box, sequences: int) -> Numbers:
        """Return rows as graphs have them: those of attention by sequence."""
        view = self._memory.view(name, box)
        return view.reshape(sequences, len(view) // sequences, -1, copy=False)

    def _attends_to_some(
        self, step: OwnCompute, called: Called, arrays: dict[str, Numbers], results: Mapping[str, Numbers]
    ) -> bool:
        """Bind what attends to the tokens that this rank keeps, some rows at a time, where tokens are shared out."""
        share, shape, ((keeps, _), (part, _), *_) = self._share, self._shape, step.run
        if not (isinstance(part.kind, Attention) and part.kind.dealt):
            return False
        kept, new = share.state[called(keeps.writes.name)], arrays[called(keeps.reads[0].name)]
        sequences = Span(shape.first, shape.first + shape.sequences)
        tokens = SharedTokens.of(part.kind, kept, sequences, new, self._last, scales=shape.scales and bool(kept.scales))
        self._calls.append(tokens.keep)
        ((_, own_run),) = share.graphs[key_of(step.run, called)].runs
        if results:  # else nobody reads more than is kept
            for rows in tiles(Span(0, shape.rows), SEEN_ROWS):
                inputs, outputs = (
                    {name: own[:, rows.slice] for name, own in some.items()} for some in (arrays, results)
                )
                inputs = {**tokens.whole, **{name: own[:, rows.slice] for name, own in tokens.by_row.items()}, **inputs}
                self._calls.append(own_run.bound({name: inputs[name] for name in own_run.inputs}, outputs))
        return True

    def _state(
        self, part: Part, called: Called
    ) -> tuple[dict[str, Numbers], dict[str, Numbers], Callable[[], object] | None]:
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

    def _exchange(self, step: OwnExchange, called: Called, coding: Coding, *, equal: bool) -> None:
        """Bind an exchange, where this rank has part in it; once, where others go from and to the same places."""
        names = step.source, step.step.value.name
        pieces, places = (
            [(box, self._memory.view(called(name), box)) for box in layout.boxes[step.rank]]
            for name, layout in zip(names, step.step.layouts(), strict=True)
        )
        key = id(step), *(array.ctypes.data for _, array in (*pieces, *places))
        if key not in self._exchanges:
            self._exchanges[key] = exchange_calls(
                step.step, pieces, places, self._group, self._direct, coding, equal=equal, rooms=self._rooms
            )
        self._calls += self._exchanges[key]
