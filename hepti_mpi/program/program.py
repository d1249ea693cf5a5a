"""A schedule of a pass, compiled for a rank: buffers, graphs bound to them, exchanges, and calls in a row.

Nothing is decided while a pass runs. What a value is on this rank has one place, the hull of all that it computes, has
or wants of it: what it computes it writes where it is read, and what arrives lies where it is needed. Summands have a
place of their own. Places are used again by values that come after the last step that reads or sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.exchange import InBox, Item, RankExchange
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.wires import EXACT, Coding
from hepti_mpi.program.share import Passes, RankRun, Share, key_of, rank_run
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.attention import Attention
from solver.model.kinds.part import ROW, Part
from solver.plan.decoder_plan import ROWS_BY_MPI
from solver.plan.layout import Box
from solver.schedule.regions import boxes, lengths
from solver.schedule.schedule import AnyStep, Called, ComputeStep, ExchangeStep, unfolded


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
        self._boxes = joined(pair for step in used for pair in step)
        self._arrays: dict[str, Numbers] = {}
        last = {name: number for number, step in enumerate(used) for name, _ in step}
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


def joined(pairs: Iterable[tuple[str, Box]]) -> dict[str, Box]:
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
    exchange = RankExchange.of(group, [Item(*step.layouts(), pieces, places)], coding, equal=equal)
    if lengths(step.want[ROW]).max() < ROWS_BY_MPI:
        return [exchange.over(direct)]
    return [exchange.run, group.finish_sending]  # places are written again in this pass


@dataclass(frozen=True, slots=True, eq=False)
class OwnExchange:
    """A rank's part in an exchange.

    Parameters
    ----------
    source
        The name of the place from which this rank sends.
    """

    step: ExchangeStep
    rank: int
    source: str

    @property
    def used(self) -> list[tuple[str, Box]]:
        """The boxes that it has of values, by the names of their places."""
        places = zip((self.source, self.step.value.name), self.step.layouts(), strict=True)
        return [(name, box) for name, layout in places for box in layout.boxes[self.rank]]


@dataclass(frozen=True, slots=True, eq=False)
class OwnCompute:
    """What a rank computes in a step.

    Parameters
    ----------
    run
        The parts, and its region of each.
    reads
        What it needs of values from before.
    written
        What leaves it: the name of its place, of its value, and which box.
    """

    run: RankRun
    reads: Mapping[str, Box]
    written: Sequence[tuple[str, str, Box]]

    @property
    def used(self) -> list[tuple[str, Box]]:
        """The boxes that it has of values, by the names of their places."""
        return [*self.reads.items(), *((place, box) for place, _, box in self.written)]


def _own_parts(steps: Sequence[AnyStep], rank: int) -> Iterator[OwnCompute | OwnExchange]:
    """Yield a rank's part in every step.

    What it computes of some values cannot lie where these are wanted: summands are no part of the sum, and a graph
    writes what lies side by side. It has a place of its own.
    """
    exchanges = [step for step in steps if isinstance(step, ExchangeStep)]
    summed, apart = {step.value.name for step in exchanges if step.partial}, set[str]()
    for exchange in exchanges:
        have, want = (layout.boxes[rank] for layout in exchange.layouts())
        if exchange.partial or any(own.spans[1:] != other.spans[1:] for own in have for other in want):
            apart.add(exchange.value.name)
    for step in steps:
        if isinstance(step, ComputeStep):
            yield _own_compute(step, rank, apart)
            continue
        name = step.value.name
        first = step.partial or name not in summed  # else from where the sum is
        yield OwnExchange(step, rank, f"{name} +" if first and name in apart else name)


def _own_compute(step: ComputeStep, rank: int, apart: Collection[str]) -> OwnCompute:
    made = {part.writes.name for part, _ in step.parts}
    reads: list[tuple[str, Box]] = []
    written: list[tuple[str, str, Box]] = []
    for part, region in step.parts:
        needs = part.needs(region)
        for value in part.reads:
            box = boxes(needs[value.name], value.axes)[rank]
            if box.size and value.name not in made and not value.state:
                reads.append((value.name, box))
        name, box = part.writes.name, boxes(part.result(region), part.writes.axes)[rank]
        if box.size and name in step.leaves:
            written.append((f"{name} +" if name in apart else name, name, box))
    return OwnCompute(rank_run(step, rank), joined(reads), written)


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
        own = dict(zip(map(id, steps), _own_parts(steps, share.rank), strict=True))
        every = [(own[id(step)], called) for step, called in unfolded(steps)]
        given = share.passes.given(B * S)
        begins = [(given.name, Box.whole(*given.shape))] if share.rank in share.passes.first else []
        self._places = Places([begins, *([(called(name), box) for name, box in step.used] for step, called in every)])
        self._exchanges: dict[tuple[int, ...], list[Callable[[], object]]] = {}  # by what they are, and their arrays
        for number, (step, called) in enumerate(every):
            if isinstance(step, OwnCompute):
                self._compute(step, called)
            else:
                after = every[number + 1][0] if number + 1 < len(every) else None
                last = not (isinstance(after, OwnExchange) and after.step.value == step.step.value)
                self._exchange(step, called, coding if share.passes.coded(step.step) else EXACT, equal=last)
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

    def _compute(self, step: OwnCompute, called: Called) -> None:
        """Bind what computes a step."""
        if not step.run:
            return
        share, shape, last = self._share, self._shape, step.run[-1][0]
        graphs = share.graphs[key_of(step.run, called)]
        attends = next((part for part, _ in step.run if part.role == "contexts"), None)
        arrays = {called(name): self._rows(called(name), box, attends) for name, box in step.reads.items()}
        results = {called(name): self._rows(called(place), box, attends) for place, name, box in step.written}
        scaled = None
        if attends is not None:
            inputs, outputs, scaled = self._state(attends, called)
            arrays |= {**inputs, **graphs.turns}
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

    def _rows(self, name: str, box: Box, attends: Part | None) -> Numbers:
        """Return rows as graphs have them: those of attention by sequence."""
        view = self._places.view(name, box)
        by = (self._shape.sequences, self._shape.rows) if attends is not None else (1, len(view))
        return view.reshape(*by, -1, copy=False)

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
            [(box, self._places.view(called(name), box)) for box in layout.boxes[step.rank]]
            for name, layout in zip(names, step.step.layouts(), strict=True)
        )
        key = id(step), *(array.ctypes.data for _, array in (*pieces, *places))
        if key not in self._exchanges:
            self._exchanges[key] = exchange_calls(
                step.step, pieces, places, self._group, self._direct, coding, equal=equal
            )
        self._calls += self._exchanges[key]
