"""What a plan does with a model, as a flat list: exchanges, and computations of runs of parts.

A placed part is cut along an axis, or computed as a whole by a crew; a part between it and what it reads is computed
where it is read. Parts go into one computation for as long as every rank has what the next one needs: what a rank
computes of each is found by walking backwards from what it leaves. Where a rank has not what it needs, the computation
ends, and the exchange that brings it stands before the next one. So kinds of blocks never name an exchange.

The steps follow from cuts and crews; where each rank's spans begin and end are arrays over plans and ranks. The solver
prices this list (`solver.schedule.turns`), the engine compiles it (`hepti_mpi.program`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from solver.base.spans import Span
from solver.model.kinds.part import HIDDEN, NUMBER, ROW, WHOLE, Part, Region, Spans, Value, there, whole
from solver.plan.layout import Layout, moves
from solver.plan.plan import Wire
from solver.plan.routes import Route
from solver.schedule.regions import Lengths, boxes, cut_in_pieces, hull, lengths, overlaps, volume, within
from solver.schedule.stretches import SumRows, shared_alike

WITH_READER = "with its reader"  # in place of an axis: a part is computed where it is read
LAYERS = "layers"  # the first word of what belongs to one
NOWHERE = Span(0, 0)  # of layers: a step that belongs to none


@dataclass(frozen=True, eq=False)
class PlacedPart:
    """A part, and who computes what of it.

    Parameters
    ----------
    axis
        What it is cut along, or `WHOLE` or `WITH_READER`.
    spans : [n, p, 2]
        Of that axis; of `WHOLE` [0, 1) of those who take part; of `WITH_READER` nothing.
    rows
        Those of its rows that anybody reads; None: all.
    begins
        Whether a computation begins with it: a computation is one graph, and graphs are to have some size.
    stage, share
        Of the plan: whose spans it has, and what these are called there, if not as the axis.
    widens
        Whether ranks compute what they read of it in the same computation: more than their own (halos), or some of it.
    also
        Further axes that it is cut along at once, and their spans [n, p, 2]: ranks have tiles.
    ahead
        Whether what it reads is brought as soon as it is there, with what is exchanged then, and not when it is read.
    as_comes
        Whether ranks compute with what each of the others sends as it comes, with their own first.
    tiles, groups
        In which pieces it is made, each of which others get once it is done: the tiles of rows [..., 2], [tiles, ...,
        2] with empty ones the last (None: all at once), of summands those of others' rows before own ones; or so many
        of the axis.
    route
        How what it needs comes to ranks.
    avoids : [n, p]
        Who does without what it reads of others: keys and values; None: nobody.
    """

    part: Part
    axis: str
    spans: Spans | None = None
    rows: Span | None = None
    begins: bool = False
    stage: int = 0
    share: str = ""
    widens: bool = False
    also: Mapping[str, Spans] = field(default_factory=dict)
    ahead: bool = False
    as_comes: bool = False
    tiles: Callable[[Spans], Spans] | None = None
    groups: int = 1
    route: Route = Route.DIRECT
    avoids: NDArray[np.bool_] | None = None

    def cut(self, spans: Mapping[tuple[int, str], Spans]) -> PlacedPart:
        """Return it with these spans of its stage and axis, if there are any."""
        found = spans.get((self.stage, self.share or self.axis))
        if found is not None and self.part.along is not None:
            found = self.part.along[2](found)
        return self if found is None else replace(self, spans=found)

    @property
    def row_count(self) -> int:
        """How many of its rows anybody reads."""
        return self.part.axes[ROW] if self.rows is None else self.rows.size

    @cached_property
    def own(self) -> Region:
        """What every rank computes of it by the plan."""
        assert self.spans is not None
        cut = {self.axis: self.spans, **self.also}
        some = np.logical_and.reduce([lengths(spans) > 0 for spans in cut.values()])
        taking = some[..., None].astype(np.int64)
        found = {axis: cut[axis] if axis in cut else self._all(axis) * taking for axis in self.part.axes}
        if self.axis == ROW and self.rows is not None:
            found[ROW] = np.clip(self.spans, self.rows.start, self.rows.stop)
        return found

    @cached_property
    def box(self) -> Region:
        """What every rank has of its result by the plan."""
        return self.part.result(self.own)

    def computing(self, box: Region) -> Region:
        """Return what has to be computed for a box of the result."""
        if box.keys() == self.part.axes.keys():
            return box
        taking = there(box)[..., None].astype(np.int64)

        def of(axis: str) -> Spans:
            return (self.own[axis] if axis == self.axis or axis in self.also else self._all(axis)) * taking

        return {axis: box[axis] if axis in box else of(axis) for axis in self.part.axes}

    def _all(self, axis: str) -> Spans:
        if axis == ROW and self.rows is not None:
            return np.array([self.rows.start, self.rows.stop])
        return whole(self.part.axes[axis])

    @property
    def in_tiles(self) -> bool:
        """Whether it is a sum over what ranks have, made in pieces."""
        return self.tiles is not None and self.axis not in (WHOLE, *self.part.writes.axes)

    @cached_property
    def partial(self) -> bool:
        """Whether ranks get summands."""
        if {self.axis, *self.also}.issubset((WHOLE, *self.part.writes.axes)):
            return False
        if not self.also:
            return bool((there(self.own).sum(-1) > 1).any())
        common = overlaps(self.box, self.box)
        return bool((common.sum((-2, -1)) > volume(self.box).sum(-1)).any())


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerStep:
    """What steps have in common.

    Parameters
    ----------
    run, layers
        The layers that it stands for, as of `schedule`, and those after which it is done.
    """

    run: Span = NOWHERE
    layers: Span = NOWHERE

    @property
    def repeats(self) -> int:
        """How often it is done."""
        return max(self.run.size, 1)


@dataclass(frozen=True, eq=False)
class ExchangeStep(LayerStep):
    """Every rank gets what it wants of a value; of summands the sum.

    Parameters
    ----------
    name
        In tables.
    have
        What ranks have, in the order in which it is made.
    want
        What they want.
    partial
        Whether what they have are summands.
    route
        How it travels.
    """

    name: str
    value: Value
    have: tuple[Region, ...]
    want: Region
    partial: bool = False
    route: Route = Route.DIRECT

    @cached_property
    def lies(self) -> tuple[bytes, ...]:
        """What tells it from other exchanges of values of this shape: who has and wants what."""
        return tuple(spans.tobytes() for region in (*self.have, self.want) for spans in region.values())

    @cached_property
    def moved(self) -> Lengths:
        """How many numbers rank i sends rank j, [n, i, j]."""
        return np.asarray(self.by_piece.sum(0))

    @cached_property
    def by_piece(self) -> Lengths:
        """How many numbers of each piece of what it has rank i sends rank j, [pieces, n, i, j]."""
        found = self._common(self.want)
        if not self.partial and (found.sum((0, -2)) > volume(self.want)).any():  # several have the same
            found = np.stack([self._chosen(plan) for plan in range(found.shape[1])], 1)
        ranks = np.arange(found.shape[-1])
        found[..., ranks, ranks] = 0
        return found

    def _common(self, want: Region) -> Lengths:
        """Return how much rank i has of what rank j wants along some axes, by piece, [pieces, n, i, j]."""
        if len(self.have) == 1:
            return overlaps({axis: self.have[0][axis] for axis in want}, want)[None]
        have = {axis: np.stack([own[axis] for own in self.have]) for axis in want}
        return overlaps(have, {axis: spans[None] for axis, spans in want.items()})

    @property
    def rows(self) -> Lengths:
        """Rows of a piece that rank i sends rank j, [pieces, n, i, j]: each has a scale where bits are few."""
        last = self.value.axes[-self.value.scaled :]
        if last == (NUMBER,):
            return self.by_piece // self.value.shape[-1]
        return self.by_piece // np.maximum(self._common({axis: self.want[axis] for axis in last}), 1)

    def wire_bytes(self, wire: Wire) -> Lengths:
        """Return how many bytes of each piece rank i sends rank j, [pieces, n, i, j]."""
        found = self.by_piece * wire.bits // 8
        return found + self.rows * wire.scale_bytes if wire.scale_bytes else found

    @property
    def coded(self) -> Lengths:
        """How many numbers rank i codes, [n, i]: what several ranks get alike of a piece, once."""
        alike = []
        for axis, spans in self.want.items():
            one = np.stack([own[axis] for own in self.have])[..., :, None, :]
            other = spans[..., None, :, :]
            start, stop = np.maximum(one[..., 0], other[..., 0]), np.minimum(one[..., 1], other[..., 1])
            alike += [end[..., :, None] == end[..., None, :] for end in (start, stop)]
        ranks = np.arange(self.by_piece.shape[-1])
        # The same as what a rank before j gets, which is not i itself.
        before = np.logical_and.reduce(alike) & (ranks < ranks[:, None]) & (ranks != ranks[:, None, None])
        return np.asarray(np.where(before.any(-1), 0, self.by_piece).sum((0, -1)))

    def layouts(self, plan: int = 0) -> tuple[Layout, Layout]:
        """Return what ranks have and want under one of the plans; once found, it is kept."""
        if plan not in self._layouts:
            self._layouts[plan] = self._laid_out(plan)
        return self._layouts[plan]

    @cached_property
    def _layouts(self) -> dict[int, tuple[Layout, Layout]]:
        return {}

    def _laid_out(self, plan: int) -> tuple[Layout, Layout]:
        having = [boxes(own, self.value.axes, plan) for own in self.have]
        pieces = tuple(tuple(box for box in own if box.size) for own in zip(*having, strict=True))
        return Layout(pieces, self.partial), Layout.of(boxes(self.want, self.value.axes, plan))

    def _chosen(self, plan: int) -> Lengths:
        """Return what ranks send each other of which piece where several have the same, [pieces, i, j]."""
        have, want = self.layouts(plan)
        found = np.zeros((len(self.have), have.ranks, have.ranks), np.int64)
        some = [np.flatnonzero(own) for own in np.stack([there(own)[plan] for own in self.have]).T]
        for move in moves(have, want):
            found[some[move.sender][move.piece], move.sender, move.receiver] += move.box.size
        return found


@dataclass(frozen=True, eq=False)
class ComputeStep(LayerStep):
    """A run of parts.

    Parameters
    ----------
    placed
        The parts, and who computes what of them.
    leaves
        The names of the values that are read after it.
    pieces
        Of those, what every rank makes piece by piece, [pieces, n, p, 2], where it does not make all at once.
    as_comes
        The name of the value that is exchanged before it, with which ranks compute as it comes from each of the others,
        with their own first; "": they begin when all is there, as with what is made in pieces.
    """

    placed: tuple[PlacedPart, ...]
    leaves: frozenset[str] = frozenset()
    pieces: Mapping[str, Region] | None = None
    as_comes: str = ""

    @cached_property
    def walked(self) -> Walked:
        """The placed parts, with the region that every rank computes of each; and what is needed from before."""
        return walk(self.placed, self.made)

    @cached_property
    def made(self) -> Mapping[str, Region]:
        """What leaves it."""
        return _made(self.placed, self.leaves) if self.pieces is None else self.pieces

    @cached_property
    def parts(self) -> tuple[tuple[Part, Region], ...]:
        """The parts, and the region that every rank computes of each."""
        return tuple((own.part, region) for own, region in self.walked[0])

    @cached_property
    def parts_by_piece(self) -> Sequence[tuple[tuple[Part, Region], ...]]:
        """The same of every piece; of a computation without pieces, of all of it."""
        if self.pieces is None:
            return [self.parts]
        (count, *_), *_ = (spans.shape for region in self.pieces.values() for spans in region.values())
        return [tuple((part, _piece(region, piece)) for part, region in self.parts) for piece in range(count)]

    def cut(self, spans: Mapping[tuple[int, str], Spans]) -> ComputeStep:
        """Return it with other spans, of every stage and axis."""
        return replace(self, placed=tuple(own.cut(spans) for own in self.placed))


AnyStep = ExchangeStep | ComputeStep
Walked = tuple[list[tuple[PlacedPart, Region]], dict[str, Region]]
Called = Callable[[str], str]  # what a value or a part is called
Summed = Callable[[Span, int], SumRows]  # how a sum of rows is made that so many ranks want alike


def schedule(
    layers: Sequence[tuple[Span, Sequence[PlacedPart]]],
    given: Mapping[str, tuple[Value, Region]],
    summed: Summed,
    names: Mapping[str, str],
    left: Mapping[str, Region] | None = None,
) -> tuple[AnyStep, ...]:
    """Return what ranks do.

    Parameters
    ----------
    layers
        Parts in order, those of a layer together. Where its layers are several, all are alike and like the one before:
        the parts are of the first of them, and its steps are done as often (`unfolded`).
    given
        The values that are there at the beginning, and who has what of them.
    summed
        How sums are made.
    names
        What exchanges are called, by their value's name.
    left
        The values that ranks are to have in the end, and who what of them; None: as it is made, of what nobody reads.
    """
    parts = [placed for _, own in layers for placed in own]
    last_use = {value.name: number for number, placed in enumerate(parts) for value in placed.part.reads}
    last_use |= dict.fromkeys(left or (), len(parts))
    builder = _Builder(summed, names, last_use)
    builder.ahead = [(number, placed) for number, placed in enumerate(parts) if placed.ahead]
    for name, (value, own) in given.items():
        builder.values[name], builder.have[name] = value, (own,)
    number = 0
    for builder.layers, some in layers:
        done = len(builder.steps)
        for placed in some:
            builder.add(number, placed)
            number += 1
        if len(builder.steps) == done and builder.layers.size:  # a computation has some layer, or less
            builder.close(number)
    builder.layers = NOWHERE
    builder.close(number, left)
    for name, box in (left or {}).items():
        builder.bring(name, box)
    return tuple(builder.steps)


@dataclass(slots=True)
class _Builder:
    summed: Summed
    names: Mapping[str, str]
    last_use: Mapping[str, int]  # of a value: which part reads it last
    values: dict[str, Value] = field(default_factory=dict)
    have: dict[str, tuple[Region, ...]] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)  # sums of which ranks may each make some
    steps: list[AnyStep] = field(default_factory=list)
    group: list[PlacedPart] = field(default_factory=list)  # the computation that is open
    waiting: list[PlacedPart] = field(default_factory=list)  # parts that are computed with their reader
    layers: Span = NOWHERE  # of the parts that are added
    made_in: dict[str, Span] = field(default_factory=dict)  # of a value: the layers of its part
    ahead: list[tuple[int, PlacedPart]] = field(default_factory=list)  # what is brought early, and where it is read
    pieces: dict[str, tuple[Region, ...]] = field(default_factory=dict)  # of a value that is made so

    def add(self, number: int, placed: PlacedPart) -> None:
        self.values[placed.part.writes.name] = placed.part.writes
        self.made_in[placed.part.writes.name] = self.layers
        self.waiting.append(placed)
        if placed.axis == WITH_READER:
            return
        needs = walk(self.waiting, {placed.part.writes.name: placed.box})[1] if self.group else {}
        if placed.begins or self._lacks(needs):
            self.close(number - len(self.waiting) + 1, needs)  # the first part that waits
        self.group += self.waiting
        self.waiting = []

    def _lacks(self, needs: Mapping[str, Region]) -> bool:
        """Return whether a rank has not what the parts that wait need of the computation that is open."""
        made = {own.part.writes.name: own for own in self.group if own.axis != WITH_READER}
        return any(
            name in made and (made[name].partial or not within(box, made[name].box).all())
            for name, box in needs.items()
        )

    def close(self, number: int, then: Mapping[str, Region] | None = None) -> None:
        """End the computation that is open: bring what it needs, and say who computes what of its parts.

        Parameters
        ----------
        then
            What is needed next.
        """
        placed = [own for own in self.group if own.axis != WITH_READER]
        live = [own for own in placed if self.last_use.get(own.part.writes.name, number) >= number]
        leaves = frozenset(own.part.writes.name for own in live)
        runs, needs = walk(self.group, _made(self.group, leaves))
        route = next((own.route for own in placed), Route.DIRECT)
        for name, box in (self._early(number) if runs else {}).items():
            read = needs.get(name)
            if read is not None and (within(read, box) | within(box, read)).all():
                needs[name] = hull(read, box)
            elif self.bring(name, box) and read is not None:  # it goes on from there
                self.have[name] = (box,)
        for name, box in needs.items():
            self.bring(name, box, route)
        if runs:
            last = runs[-1][0].part.writes.name
            run, made = self._when(last)
            pieces = _in_pieces(live, then or {}, self._sums) if all(own.widens for own in placed) else None
            comes = self._comes(needs) if placed[0].as_comes and pieces is None else ""
            step = ComputeStep(tuple(own for own, _ in runs), leaves, pieces, comes, run=run, layers=made)
            if pieces is None:
                step.__dict__["walked"] = runs, needs  # it is known
            self.steps.append(step)
            for name, some in (pieces or {}).items():
                self.pieces[name] = tuple(_piece(some, piece) for piece in range(len(next(iter(some.values())))))
        for own in live:
            self.have[own.part.writes.name] = (own.box,)
            if own.partial:
                self.partial.add(own.part.writes.name)
            if own.partial or own.in_tiles:
                self.shared.add(own.part.writes.name)
        self.group = []

    def _early(self, number: int) -> dict[str, Region]:
        """Return what parts from this one on need of values that are there, if it is to be brought early."""
        while self.ahead and self.ahead[0][0] < number:
            del self.ahead[0]
        if not self.ahead:
            return {}
        placed = self.ahead[0][1]
        needs = placed.part.needs(placed.own)
        return {name: box for name, box in needs.items() if name in self.have and name not in self.partial}

    def _comes(self, needs: Mapping[str, Region]) -> str:
        """Return which value has just been exchanged, of those that a computation needs."""
        last = self.steps[-1] if self.steps else None
        return last.value.name if isinstance(last, ExchangeStep) and last.value.name in needs else ""

    def bring(self, name: str, want: Region, route: Route = Route.DIRECT) -> bool:
        """Add the exchanges after which every rank has its box of a value; return whether some have it not yet."""
        value, have, partial = self.values[name], self.have[name], name in self.partial
        if not partial and np.logical_or.reduce([within(want, own) for own in have]).all():
            return False
        run, made = self._when(name)
        sums = self._sums(want) if name in self.shared and HIDDEN in want else None
        having = self.pieces.pop(name, have)
        for step in exchanges(self.names.get(name, name), value, having, want, partial=partial, between=sums):
            self.steps.append(replace(step, run=run, layers=made, route=Route.DIRECT if partial else route))
        self.have[name] = (want,) if partial else (*have, want)
        self.partial.discard(name)
        self.shared.discard(name)
        return True

    def _sums(self, want: Region) -> Region | None:
        """Return who adds up what of a sum first, where it is made in two steps.

        It is made in one where a single rank wants it, or not all want it alike; under all plans, or under none.
        """
        found = {axis: spans.copy() for axis, spans in want.items()}
        crews, of_plan = np.unique(there(want), axis=0, return_inverse=True)
        in_two = []
        for number, crew in enumerate(crews):
            plans, (ranks,) = np.flatnonzero(of_plan.reshape(-1) == number), crew.nonzero()
            own = {axis: spans[np.ix_(plans, ranks)] for axis, spans in want.items()}
            alike = all((own[axis] == own[axis][0, 0]).all() for axis in (ROW, HIDDEN))
            some = alike and len(ranks) > 1
            rows = self.summed(Span(*own[ROW][0, 0].tolist()), len(ranks)) if some else None
            in_two.append(rows is not None)
            if rows is not None:
                for axis, spans in added(own, rows).items():
                    found[axis][np.ix_(plans, ranks)] = spans
        if any(in_two) != all(in_two):
            raise ValueError("under some of these plans a sum is made in one step, under others in two")
        return found if all(in_two) else None

    def _when(self, name: str) -> tuple[Span, Span]:
        """Return the layers at hand, and those after which something is done with a value."""
        made = self.made_in.get(name, NOWHERE)
        if made.size and made != self.layers:  # before the layers at hand
            made = Span(made.stop - 1, made.stop - 1 + max(self.layers.size, 1))
        return self.layers, made


def unfolded(steps: Iterable[AnyStep]) -> Iterator[tuple[AnyStep, Called]]:
    """Yield the steps of every layer, and what its values and parts are called there.

    In a step that stands for several layers, names are of the first of them and of the two before; after it, names of
    the first one and of the one before are those of the last two.
    """
    after: dict[int, int] = {}  # by how much numbers of layers are higher
    for run, some in groupby(steps, key=lambda step: step.run if step.run.size > 1 else NOWHERE):
        once = list(some)
        for later in range(max(run.size, 1)):
            moving = Span(max(run.start - 2, 0), run.start + 1) if run.size else NOWHERE
            called = cache(partial(_in_layer, dict(after), moving, later))
            yield from ((step, called) for step in once)
        if run.size:
            after |= {run.start - 1: run.size - 1, run.start: run.size - 1}


def _in_layer(higher: Mapping[int, int], moving: Span, later: int, name: str) -> str:
    """Return a name in a later layer: `layers/N/…`, where numbers are so much higher, and some of these move on."""
    first, *others = name.split("/")
    if first != LAYERS:
        return name
    number = int(others[0])
    number += higher.get(number, 0)
    number += later * (moving.start <= number < moving.stop)
    return "/".join((LAYERS, str(number), *others[1:]))


def exchanges(
    name: str, value: Value, have: tuple[Region, ...], want: Region, *, partial: bool, between: Region | None = None
) -> list[ExchangeStep]:
    """Return the steps after which every rank has what it wants; of a sum two where ranks add up parts first."""
    if between is None:
        return [ExchangeStep(name, value, have, want, partial)]
    return [ExchangeStep(name, value, have, between, partial), ExchangeStep(name, value, (between,), want)]


def _all_want_the_same(want: Region) -> bool:
    """Return whether several ranks want something of a value, all of them the same."""
    some = there(want)
    first = some.argmax(-1)[..., None, None]
    same = ((spans == np.take_along_axis(spans, first, -2)).all(-1) | ~some for spans in want.values())
    return bool(some.sum(-1).max() > 1 and np.logical_and.reduce(list(same)).all())


def _piece(region: Region, piece: int) -> Region:
    """Return a piece of a region; all of one that is not in pieces."""
    return {axis: spans[piece] if spans.ndim > 3 else spans for axis, spans in region.items()}


def _in_pieces(
    live: Sequence[PlacedPart], then: Mapping[str, Region], sums: Callable[[Region], Region | None]
) -> dict[str, Region] | None:
    """Return the pieces in which ranks make all that leaves a computation, [pieces, n, p, 2]; None: it is not made so.

    Parameters
    ----------
    then
        What is needed next.
    """
    found = dict[str, Region]()
    for own in live:
        name = own.part.writes.name
        if own.in_tiles and name in then:
            found[name] = _along(own.box, ROW, _for_others(own, then[name], sums))
        elif own.groups > 1:
            found[name] = _along(own.box, own.axis, cut_in_pieces(own.own[own.axis], np.array(own.groups)))
        elif own.axis == ROW and own.tiles is not None:
            found[name] = _along(own.box, ROW, own.tiles(own.own[ROW]))
    if len(found) < len(live) or max((len(region[ROW]) for region in found.values()), default=1) == 1:
        return None
    rows = [region[ROW] for region in found.values()]
    return found if all(np.array_equal(rows[0], others) for others in rows) else None


def _along(box: Region, axis: str, pieces: Spans) -> Region:
    """Return a box cut along an axis in every rank's pieces, [pieces, n, p, 2]."""
    some = lengths(pieces)[..., None] > 0
    return {each: pieces if each == axis else spans * some for each, spans in box.items()}


def _for_others(placed: PlacedPart, want: Region, sums: Callable[[Region], Region | None]) -> Spans:
    """Return the rows of summands in the order in which a rank makes them, [pieces, n, p, 2].

    They are the tiles of the ranks after it, then of those before it; its own rows are the last, at once.
    """
    takes = there(placed.box)[..., None]
    if _all_want_the_same(want):
        if (between := sums(want)) is None:  # all of them at once
            return np.asarray((want[ROW] * there(want)[..., None]).max(-2, keepdims=True) * takes)[None]
        want = between
    assert placed.tiles is not None
    own = want[ROW] * there(want)[..., None]
    tiles, ranks = placed.tiles(own), own.shape[-2]
    after = (np.arange(ranks)[:, None] + np.arange(1, ranks)) % ranks  # of rank i the others, [p, p - 1]
    others = np.moveaxis(tiles[..., after, :], -2, 0).reshape(-1, *own.shape)
    return _first_those_there(np.concatenate([others, own[None]]) * takes)


def _first_those_there(pieces: Spans) -> Spans:
    """Return pieces, [pieces, ..., 2], with empty ones after all others, and only as many as anyone has."""
    empty = lengths(pieces) == 0
    order = np.argsort(empty, axis=0, kind="stable")[: int((~empty).sum(0).max())]
    return np.take_along_axis(pieces, order[..., None], 0)


def _made(group: Sequence[PlacedPart], leaves: Collection[str]) -> dict[str, Region]:
    """Return what is wanted of a computation: what leaves it, and what is computed with values that are kept."""
    kept = {own.part.block for own in group if own.part.writes.state}
    return {
        own.part.writes.name: own.box
        for own in group
        if own.axis != WITH_READER and (own.part.writes.name in leaves or own.part.block in kept)
    }


def walk(
    group: Sequence[PlacedPart], wanted: Mapping[str, Region], left: Callable[[Part, Region], Region] | None = None
) -> Walked:
    """Walk backwards from boxes that are wanted: return what is computed of parts, and what is needed from before.

    Parameters
    ----------
    left
        What is left to compute of a part's box, where others have some of it already.
    """
    need, runs = dict(wanted), []
    for placed in reversed(group):
        box = need.pop(placed.part.writes.name, None)
        if box is None:
            continue
        box = left(placed.part, box) if left else box
        region = placed.computing(box) if placed.widens or placed.axis == WITH_READER else placed.own
        runs.append((placed, region))
        for name, reach in placed.part.needs(region).items():
            need[name] = hull(need[name], reach) if name in need else reach
    return runs[::-1], need


def added(want: Region, rows: tuple[Span, ...]) -> Region:
    """Return who adds up which part of a sum that ranks want alike: these rows each, or as many columns as each other.

    Ranks that want nothing of it add up nothing.
    """
    found, (ranks,) = {axis: spans.copy() for axis, spans in want.items()}, there(want)[0].nonzero()
    axis, shares = ROW, rows
    if not rows:
        axis, shares = HIDDEN, shared_alike(Span(*want[HIDDEN][0, ranks[0]].tolist()), len(ranks))
    found[axis][:, ranks] = [(own.start, own.stop) for own in shares]
    return found


def read_rows(parts: Sequence[PlacedPart], wanted: Mapping[str, Span]) -> list[PlacedPart]:
    """Return parts with the rows that anybody reads, from those that are wanted of values; without parts nobody reads.

    What is kept for later passes is made of all rows, and so is what is computed with it.
    """
    need, found = dict(wanted), []
    kept, keeping = set[str](), False
    for placed in parts:
        keeping = keeping or placed.part.writes.state
        if keeping:
            kept.add(placed.part.name)
        keeping = keeping and placed.axis == WITH_READER
    for placed in reversed(parts):
        rows = need.get(placed.part.writes.name)
        if placed.part.name in kept:
            rows = None
        elif rows is None or not rows.size:
            continue
        found.append(placed if rows is None else replace(placed, rows=rows))
        every = Span(0, placed.part.axes[ROW]) if rows is None else rows
        for value in placed.part.reads:
            before = need.get(value.name, every)
            need[value.name] = Span(min(before.start, every.start), max(before.stop, every.stop))
    return found[::-1]
