"""A schedule of a pass, compiled for a rank: buffers, graphs bound to them, exchanges, and calls in a row.

Nothing is decided while a pass runs. What a value is on this rank has one place, the hull of all that it computes, has
or wants of it: what it computes it writes where it is read, and what arrives lies where it is needed. Summands have a
place of their own. Places are used again by values that come after the last step that reads or sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.transfer import InBox, Item, RankExchange
from hepti_mpi.comm.wires import EXACT, Coding
from hepti_mpi.program.share import Passes, RankRun, Share, key_of, rank_run
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.attention import GroupedAttention
from solver.model.kinds.part import ROW, Part, Value
from solver.plan.decoder_plan import ROWS_BY_MPI
from solver.plan.layout import Box
from solver.schedule.regions import boxes, lengths
from solver.schedule.schedule import AnyStep, ComputeStep, ExchangeStep


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


class Places:
    """Where a rank's values lie.

    Parameters
    ----------
    used
        Of every step the boxes that this rank has of values, by their names. A place is free again after the last step
        that uses it.
    """

    def __init__(self, used: Sequence[Sequence[tuple[str, Box]]]) -> None:
        self._boxes: dict[str, Box] = {}
        self._arrays: dict[str, Numbers] = {}
        last: dict[str, int] = {}
        self._boxes.update(_joined(pair for step in used for pair in step))
        last.update((name, number) for number, step in enumerate(used) for name, _ in step)
        free: list[Numbers] = []
        for number, step in enumerate(used):
            for name in dict.fromkeys(name for name, _ in step):
                if name not in self._arrays:
                    self._arrays[name] = _taken(free, self._boxes[name])
            ended = dict.fromkeys(name for name, _ in step if last[name] == number)
            free += [self._arrays[name].reshape(-1, copy=False) for name in ended]

    def view(self, name: str, box: Box) -> Numbers:
        """Return where a box of a value lies."""
        return self._arrays[name][box.within(self._boxes[name])]

    def whole(self, name: str) -> Numbers:
        """Return all that there is of a value."""
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays


def _joined(pairs: Iterable[tuple[str, Box]]) -> dict[str, Box]:
    """Return of every value the least box that contains all of its own."""
    found: dict[str, Box] = {}
    for name, box in pairs:
        found[name] = _hull(found[name], box) if name in found else box
    return found


def _hull(one: Box, other: Box) -> Box:
    """Return the least box that contains two."""
    pairs = zip(one.spans, other.spans, strict=True)
    return Box(tuple(Span(min(a.start, b.start), max(a.stop, b.stop)) for a, b in pairs))


def _taken(free: list[Numbers], box: Box) -> Numbers:
    """Return a place for a box: one that is free, where one has its size."""
    for number, place in enumerate(free):
        if place.size == box.size:
            return free.pop(number).reshape(box.shape, copy=False)
    return np.zeros(box.shape, np.float32)


def exchange_calls(
    step: ExchangeStep, pieces: Sequence[InBox], places: Sequence[InBox], group: Group, direct: Direct, coding: Coding,
    *, equal: bool,
) -> list[Callable[[], object]]:  # fmt: skip
    """Return the calls of a rank's part in an exchange: by connections of our own where rows are few, else by MPI.

    Parameters
    ----------
    pieces, places
        What this rank has, and wants, and where it lies.
    equal
        Whether all ranks go on with what travelled.
    """
    if not pieces and not places:
        return []
    have, want = step.layouts()
    exchange = RankExchange(group, [Item(have, want, pieces, places)], coding, equal=equal)
    if lengths(step.want[ROW]).max() < ROWS_BY_MPI:
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
        steps = share.passes.steps(B * S, shape.chosen)
        self._summed = {step.value.name for step in steps if isinstance(step, ExchangeStep) and step.partial}
        self._apart = self._values_apart(steps)
        given = share.passes.given(B * S)
        begins = [(given.name, Box.whole(*given.shape))] if share.rank in share.passes.first else []
        self._places = Places([begins, *(list(self._used(step)) for step in steps)])
        for number, step in enumerate(steps):
            if isinstance(step, ComputeStep):
                if run := rank_run(step, share.rank):
                    self._compute(step, run)
            else:
                after = steps[number + 1] if number + 1 < len(steps) else None
                last = not (isinstance(after, ExchangeStep) and after.value == step.value)
                self._exchange(step, coding if share.passes.coded(step) else EXACT, equal=last)
        self.stream = np.zeros((B, S, int(np.prod(given.shape[1:]))), np.float32)
        if begins:
            self.stream = self._places.whole(given.name).reshape(self.stream.shape, copy=False)

    def run(self, starts: Sequence[int]) -> None:
        """Compute; `starts` says for each sequence how many tokens are before the new ones."""
        rows = self._shape.rows
        self._last[:] = starts
        self._last += rows - 1
        self._total[0] = max(starts) + rows
        self._places_of_rows[:] = np.array(starts)[:, None] + np.arange(rows)
        for call in self._calls:
            call()

    def _values_apart(self, steps: Sequence[AnyStep]) -> set[str]:
        """Return the values of which what this rank computes cannot lie where it is wanted.

        Summands are no part of the sum, and a graph writes what lies side by side: all of the axes but the first.
        """
        found, rank = set(), self._share.rank
        exchanges = [step for step in steps if isinstance(step, ExchangeStep)]
        for step in exchanges:
            have, want = step.layouts()
            if step.partial:
                found.add(step.value.name)
            for own, other in ((own, other) for own in have.boxes[rank] for other in want.boxes[rank]):
                if own.spans[1:] != other.spans[1:]:
                    found.add(step.value.name)
        return found

    def _used(self, step: AnyStep) -> Iterator[tuple[str, Box]]:
        """Yield which boxes of which values this rank has in a step; logits have places of their own."""
        rank = self._share.rank
        if isinstance(step, ExchangeStep):
            have, want = step.layouts()
            yield from ((self._source(step), box) for box in have.boxes[rank])
            yield from ((step.value.name, box) for box in want.boxes[rank])
            return
        yield from self._read(step)
        yield from ((name, box) for name, _, box in self._written(step))

    def _read(self, step: ComputeStep) -> Iterator[tuple[str, Box]]:
        """Yield what this rank needs of values from before a computation."""
        made = {part.writes.name for part, _ in step.parts}
        for part, region in step.parts:
            needs = part.needs(region)
            for value in part.reads:
                box = boxes(needs[value.name], value.axes)[self._share.rank]
                if box.size and value.name not in made and not value.state:
                    yield value.name, box

    def _written(self, step: ComputeStep) -> Iterator[tuple[str, Value, Box]]:
        """Yield what leaves a computation on this rank: the name of its place, the value, and which box."""
        for part, region in step.parts:
            value = part.writes
            box = boxes(part.result(region), value.axes)[self._share.rank]
            if box.size and value.name in step.leaves:
                yield f"{value.name} +" if value.name in self._apart else value.name, value, box

    def _source(self, step: ExchangeStep) -> str:
        """Return the name of the place of what this rank sends: of sums' second step that of the sum."""
        name, first = step.value.name, step.partial or step.value.name not in self._summed
        return f"{name} +" if name in self._apart and first else name

    def _compute(self, step: ComputeStep, run: RankRun) -> None:
        """Bind what computes a step."""
        share, shape = self._share, self._shape
        graphs = share.graphs[key_of(run)]
        attends = next((part for part, _ in run if part.role == "contexts"), None)
        arrays: dict[str, Numbers] = {}
        results: dict[str, Numbers] = {}
        for name, box in _joined(self._read(step)).items():
            arrays[name] = self._rows(name, box, attends)
        for name, value, box in self._written(step):
            results[value.name] = self._rows(name, box, attends)
        scaled = None
        if attends is not None:
            inputs, outputs, scaled = self._state(attends)
            arrays |= {**inputs, **graphs.turns}
            results |= outputs
        for words, own_run in graphs.runs:
            own = dict(results)
            if run[-1][0].role == "logits":
                logits = np.zeros((1, shape.chosen, words.size), np.float32)
                self.logits.append((words.start, logits[0]))
                own = {run[-1][0].writes.name: logits}
            if not own:  # it is computed for others, who need it no more
                continue
            call = own_run.bound({name: arrays[name] for name in own_run.inputs}, own)
            self._calls += [call, scaled, call] if scaled else [call]  # by what it has made its scales are chosen

    def _rows(self, name: str, box: Box, attends: Part | None) -> Numbers:
        """Return rows as graphs have them: those of attention by sequence."""
        view = self._places.view(name, box)
        by = (self._shape.sequences, self._shape.rows) if attends is not None else (1, len(view))
        return view.reshape(*by, -1, copy=False)

    def _state(self, part: Part) -> tuple[dict[str, Numbers], dict[str, Numbers], Callable[[], object] | None]:
        """Return what attention takes and gives besides rows, and what chooses its cache's scales."""
        shape, kept = self._shape, self._share.state[part.reads[1].name]
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
        assert isinstance(part.kind, GroupedAttention)
        width = kept.kv.size * kept.cache[0].shape[-1]
        keys, values = (np.empty((shape.sequences, shape.rows, width), np.float32) for _ in "kv")
        outputs |= {"keys": keys, "values": values}
        return inputs, outputs, partial(kept.scale, keys, values, part.kind.rope)

    def _exchange(self, step: ExchangeStep, coding: Coding, *, equal: bool) -> None:
        """Bind an exchange, where this rank has part in it."""
        rank = self._share.rank
        have, want = step.layouts()
        pieces = [(box, self._places.view(self._source(step), box)) for box in have.boxes[rank]]
        places = [(box, self._places.view(step.value.name, box)) for box in want.boxes[rank]]
        self._calls += exchange_calls(step, pieces, places, self._group, self._direct, coding, equal=equal)
