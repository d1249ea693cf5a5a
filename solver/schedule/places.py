"""Where a rank's values lie in a pass: its part in every step, and a place for all that it has of each value.

What a value is on a rank has one place, the hull of all that it computes, has or wants of it: what it computes it
writes where it is read, and what arrives lies where it is needed. Summands have a place of their own. Places are used
again by values that come after the last step that reads or sends them. The engine allocates them, and a price of memory
counts them.

Of a network a place is what one graph takes or leaves: a graph reads what lies side by side, and rows of a map do not
(`solver.schedule.networks.memory`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import itemgetter
from typing import Protocol

from solver.base.arrays import FLOAT_BYTES
from solver.base.spans import Span
from solver.model.kinds.part import Part, RankRegion, there
from solver.plan.decoder_plan import ROWS_BY_MPI
from solver.plan.layout import Box, Layout, Move, moves
from solver.plan.plan import Wire
from solver.plan.routes import Route
from solver.schedule.regions import box_of
from solver.schedule.schedule import AnyStep, Called, ComputeStep, ExchangeStep, unfolded
from solver.schedule.stretches import Stretches

SOCKET_NUMBERS = 1 << 16  # of a message that a socket holds while nobody takes it: 256 KiB

RankRun = tuple[tuple[Part, RankRegion], ...]  # what a rank computes in a step: parts, and its region of each
Used = Sequence[tuple[str, Box]]  # the boxes that a rank has of values, by the names of their places


class Places:
    """Where a rank's values lie.

    Parameters
    ----------
    used
        Of every step the boxes that this rank has of values. A place is free again after the last step that uses it.
    pixels
        The places whose numbers are bytes.

    Attributes
    ----------
    boxes
        Of every place what lies there of a value, in rows.
    memory
        Of every place in which memory it lies.
    sizes
        Of every memory how many numbers of four bytes it has.
    """

    def __init__(self, used: Sequence[Used], pixels: Collection[str] = ()) -> None:
        boxes, self.pixels = joined(pair for step in used for pair in step), pixels
        self._hulls = [*dict.fromkeys(boxes.values())]  # those that there are, each once
        numbers = {box: number for number, box in enumerate(self._hulls)}
        self._hull = {name: numbers[box] for name, box in boxes.items()}
        every = [dict(step) for step in used]
        last = {name: number for number, names in enumerate(every) for name in names}
        # Of every step the places that it uses, and those of them that none after it does.
        self._turns = [(names, [name for name in names if last[name] == turn]) for turn, names in enumerate(every)]
        self._kinds: dict[tuple[object, ...], OwnExchange] = {}  # the first of those that are alike
        self._alike: dict[OwnExchange, OwnExchange] = {}
        self._in_rows: dict[OwnExchange, OwnExchange] = {}
        self._stretches: Stretches | None = None
        self._lie()

    def stretched(self, stretches: Stretches) -> Places:
        """Return where the same values lie whose boxes have been counted in stretches."""
        found = copy(self)
        found._stretches, found._hulls = stretches, [*map(stretches.box, self._hulls)]
        found._in_rows = {}
        found._lie()
        return found

    def box(self, box: Box) -> Box:
        """Return a box as it was counted, in rows."""
        return box if self._stretches is None else self._stretches.box(box)

    def exchange(self, own: OwnExchange) -> OwnExchange:
        """Return an exchange as it was counted, in rows; of those that are alike one, which is the same for all."""
        if own not in self._alike:
            self._alike[own] = self._kinds.setdefault(own.kind, own)
        first = self._alike[own]
        if self._stretches is None:
            return first
        if first not in self._in_rows:
            self._in_rows[first] = first.stretched(self._stretches)
        return self._in_rows[first]

    def lies(self, name: str) -> tuple[int, int]:
        """Return what tells a place from others: its memory, and by a number what lies there of the value."""
        return self.memory[name], self._hull[name]

    def _lie(self) -> None:
        self.boxes = {name: self._hulls[number] for name, number in self._hull.items()}
        self.memory: dict[str, int] = {}
        self.sizes: list[int] = []
        sizes, free = [box.size for box in self._hulls], list[int]()
        for names, last in self._turns:
            for name in names:
                if name not in self.memory:
                    size = sizes[self._hull[name]]
                    self.memory[name] = self._taken(free, -(-size // FLOAT_BYTES) if name in self.pixels else size)
            free += [self.memory[name] for name in last]

    def _taken(self, free: list[int], size: int) -> int:
        """Return a memory for so many numbers: the least free one that has as many, or the largest, which grows.

        Of equal ones the first: so places of alike layers lie in the same ones again after few layers.
        """
        if not free:
            self.sizes.append(size)
            return len(self.sizes) - 1
        enough = [number for number in free if self.sizes[number] >= size]
        found = min(enough, key=lambda own: (self.sizes[own], own)) if enough else max(free, key=self.sizes.__getitem__)
        free.remove(found)
        self.sizes[found] = max(self.sizes[found], size)
        return found

    @property
    def numbers(self) -> int:
        """How many numbers of four bytes lie in all of them."""
        return sum(self.sizes)


def joined(pairs: Iterable[tuple[str, Box]]) -> dict[str, Box]:
    """Return of every value the least box that contains all of its own."""
    found: dict[str, Box] = {}
    for name, box in pairs:
        own = found.get(name)
        found[name] = box if own is None or own is box or own == box else _hull(own, box)
    return found


def _hull(one: Box, other: Box) -> Box:
    """Return the least box that contains two."""
    pairs = zip(one.spans, other.spans, strict=True)
    return Box(tuple(Span(min(a.start, b.start), max(a.stop, b.stop)) for a, b in pairs))


class OwnStep(Protocol):
    """A rank's part in a step."""

    @property
    def used(self) -> Used:
        """The boxes that it has of values, by the names of their places."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnItem:
    """A value in an exchange, as a rank has it.

    Parameters
    ----------
    have, want, moves
        What all ranks have, and want; and who sends whom what.
    pieces, places
        This rank's boxes of `have`, in their order, and what it wants, each with the place where it lies; "": it is
        empty, and lies nowhere. Several places may want the same.
    """

    have: Layout
    want: Layout
    moves: Sequence[Move]
    pieces: Used
    places: Used

    def stretched(self, stretches: Stretches) -> OwnItem:
        """Return it with rows in place of stretches."""
        pieces, places = ([(name, stretches.box(box)) for name, box in own] for own in (self.pieces, self.places))
        moved = [replace(move, box=stretches.box(move.box)) for move in self.moves]
        return OwnItem(stretches.layout(self.have), stretches.layout(self.want), moved, pieces, places)


@dataclass(frozen=True, slots=True, eq=False)
class OwnExchange:
    """A rank's part in an exchange, or in several that are one: what goes from a piece to a rank is one message.

    Parameters
    ----------
    steps
        The exchanges.
    items
        Of every value.
    by_rows
        Whether numbers that lie as they travel are sent from there, and rows have scales of their own; else what is
        sent is a copy.
    ahead
        Whether receives are posted before the computation ahead of it, of which each piece is sent once it is done.
    equal
        Whether all ranks go on with what travelled.
    route
        How what several ranks get alike comes to them.
    """

    steps: tuple[ExchangeStep, ...]
    items: tuple[OwnItem, ...]
    by_rows: bool = True
    ahead: bool = False
    equal: bool = False
    route: Route = Route.DIRECT

    @property
    def kind(self) -> tuple[object, ...]:
        """What tells it from others, but for the names of values."""
        items = tuple(
            (item.have, item.want, *(tuple(box for _, box in own) for own in (item.pieces, item.places)))
            for item in self.items
        )
        return items, self.by_rows, self.ahead, self.equal, self.route, self.scaled

    @property
    def scaled(self) -> int:
        """Along how many of a value's last axes a scale is of what travels in few bits; 0: a message has one."""
        return self.steps[0].value.scaled if self.by_rows else 0

    @property
    def by_sockets(self) -> bool:
        """Whether it goes by connections of our own, not by MPI: where rows are few."""
        return self.by_rows and all(by_sockets(item.want, item.moves) for item in self.items)

    def stretched(self, stretches: Stretches) -> OwnExchange:
        """Return it with rows in place of stretches."""
        return replace(self, items=tuple(item.stretched(stretches) for item in self.items))

    @property
    def used(self) -> Used:
        """The boxes that it has of values."""
        return [own for item in self.items for own in (*item.pieces, *item.places) if own[0]]


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
    as_comes
        As of the step.
    """

    run: RankRun
    reads: Mapping[str, Box]
    written: Sequence[tuple[str, str, Box]]
    as_comes: str = ""

    @property
    def used(self) -> Used:
        """The boxes that it has of values."""
        return [*self.reads.items(), *((place, box) for place, _, box in self.written)]


def places_of(
    every: Sequence[tuple[OwnStep, Called]], given: Used = (), pixels: Collection[str] = (), *, stays: bool = False,
    left: Used = (),
) -> Places:  # fmt: skip
    """Return where a rank's values lie in a pass of these steps, which begins with some; those may stay to its end.

    Those that are left stay, too.

    Where messages may arrive before a computation, their places are taken from then on. What a rank sends stays where
    it is as long as it computes with what comes, as that comes.
    """
    used: list[list[tuple[str, Box]]] = [[*given]]
    since = 1  # the last exchange
    leaving: list[tuple[str, Box]] = []  # what the last step sends
    for step, called in every:
        used.append([(called(name), box) for name, box in step.used])
        if isinstance(step, OwnCompute):
            used[-1] += leaving if step.as_comes else []
        elif isinstance(step, OwnExchange):
            if step.ahead:
                used[since] += [(called(name), box) for item in step.items for name, box in item.places]
            since = len(used)
            leaving = [(called(name), box) for item in step.items for name, box in item.pieces if name]
            continue
        leaving = []
    return Places([*used, [*(given if stays else ()), *left]], pixels)


def by_sockets(want: Layout, moved: Iterable[Move]) -> bool:
    """Return whether a value goes by connections of our own, not by MPI: where rows are few, and fit a socket."""
    sent: dict[tuple[int, int], int] = {}
    for move in moved:
        pair = move.sender, move.receiver
        sent[pair] = sent.get(pair, 0) + move.box.size
    rows = (box.spans[0].size for own in want.boxes for box in own)
    return max(rows, default=0) < ROWS_BY_MPI and max(sent.values(), default=0) <= SOCKET_NUMBERS


def arriving(
    every: Iterable[tuple[OwnStep, Called]], rank: int, places: Places, wire: Callable[[ExchangeStep], Wire]
) -> int:
    """Return the bytes of where messages arrive that cannot arrive in their places, and of where they are coded.

    One exchange runs at a time: messages share such a place that are of one shape, and in the same turn in theirs.

    Parameters
    ----------
    wire
        How the numbers of an exchange travel; pixels travel as they are.
    """
    found: dict[tuple[object, ...], int] = {}
    exchanges = {id(own): (own, called) for own, called in every if isinstance(own, OwnExchange)}
    for own, called in exchanges.values():
        of_peers: dict[tuple[int, int, bool], list[tuple[OwnItem, Box]]] = {}
        for item in own.items:
            pixels = any(called(name) in places.pixels for name, _ in item.places)
            for move in item.moves:
                if move.receiver == rank:
                    of_peers.setdefault((move.sender, move.piece, pixels), []).append((item, move.box))
        for turn, ((_, _, pixels), parts) in enumerate(sorted(of_peers.items(), key=itemgetter(0))):
            size = sum(box.size for _, box in parts)
            width = math.prod(parts[0][1].shape[-own.scaled :]) if len(parts) == 1 and own.scaled else size
            key = turn, size, width, pixels
            if not _arrives_in_place(parts, called, places):
                found[key] = size if pixels else FLOAT_BYTES * size
            coded = Wire.FLOAT32 if pixels else wire(own.steps[0])
            if coded is not Wire.FLOAT32:
                found["coded", *key] = size // width * coded.row_bytes(width)
    return sum(found.values())


def _arrives_in_place(parts: Sequence[tuple[OwnItem, Box]], called: Called, places: Places) -> bool:
    """Return whether a message is all of what one place wants of a value, side by side."""
    (item, box), *others = parts
    touched = [(name, own) for name, own in item.places if own.touches(box)]
    if others or item.have.partial or len(touched) != 1:
        return False
    name, own = touched[0]
    return box.intersect(own) == box and box.lies_together(places.boxes[called(name)])


def own_steps(
    steps: Sequence[AnyStep], rank: int, left: Collection[str] = (), *, equal: bool = True
) -> list[tuple[OwnCompute | OwnExchange, Called]]:
    """Return a rank's part in every step, of every layer, and what values are called there; of `unfolded` steps.

    Parameters
    ----------
    left
        The values that are read when all is done.
    equal
        Whether all ranks go on with what travelled.
    """
    own = dict(zip(map(id, steps), _own_parts(steps, rank, left, equal=equal), strict=True))
    return [(part, called) for step, called in unfolded(steps) for part in own[id(step)]]


def _own_parts(
    steps: Sequence[AnyStep], rank: int, left: Collection[str], *, equal: bool
) -> Iterator[Sequence[OwnCompute | OwnExchange]]:
    """Yield a rank's part in every step; of a computation one a piece.

    What it computes of some values cannot lie where these are wanted: summands are no part of the sum, and a graph
    writes what lies side by side. It has a place of its own. What nobody reads, the result of a pass of a language
    model, has none.
    """
    exchanges = [step for step in steps if isinstance(step, ExchangeStep)]
    computed = [part for step in steps if isinstance(step, ComputeStep) for part, _ in step.parts]
    read = {value.name for part in computed for value in part.reads} | {step.value.name for step in exchanges}
    read.update(left)
    made = {part.writes.name for part in computed}
    apart, arrived = set[str](), dict[str, tuple[Box, ...]]()
    needed = _needed(steps, rank)
    for exchange in exchanges:
        own_boxes, wanted = (layout.boxes[rank] for layout in exchange.layouts())
        unlike = any(own.spans[1:] != other.spans[1:] for own in own_boxes for other in wanted)
        # What is read of it besides what is exchanged lies where it was computed.
        name = exchange.value.name
        if exchange.partial or (unlike and name in made and _within(needed.get(name), wanted)):
            apart.add(name)
    for step, after in zip_longest(steps, steps[1:]):
        if isinstance(step, ComputeStep):
            yield [_own_compute(step, rank, apart, read, piece) for piece in range(len(step.parts_by_piece))]
            continue
        name = step.value.name
        have, want = step.layouts()
        # What has been exchanged before lies where it came, also a sum.
        came = arrived.get(name, ())
        pieces_of_rank = [
            (f"{name} +" if name in apart and not _within(box, came) else name, box) for box in have.boxes[rank]
        ]
        places = [(name, box) for box in want.boxes[rank]]
        arrived[name] = (*came, *want.boxes[rank])
        item = OwnItem(have, want, moves(have, want), pieces_of_rank, places)
        goes_on = isinstance(after, ExchangeStep) and after.value == step.value
        yield [OwnExchange((step,), (item,), ahead=len(step.have) > 1, equal=equal and not goes_on, route=step.route)]


def _needed(steps: Sequence[AnyStep], rank: int) -> dict[str, Box]:
    """Return of every value what a rank's computations need."""
    return joined(
        (value.name, box_of(needs[value.name], value.axes, rank))
        for step in steps
        if isinstance(step, ComputeStep)
        for parts in step.parts_by_piece
        for part, region in parts
        if there(region)[0, rank]
        for needs in [part.needs(region)]
        for value in part.reads
    )


def _within(box: Box | None, wanted: Sequence[Box]) -> bool:
    """Return whether one of some boxes contains a box."""
    return box is None or any(box.intersect(own) == box for own in wanted)


def _own_compute(step: ComputeStep, rank: int, apart: Collection[str], read: Collection[str], piece: int) -> OwnCompute:
    made = {part.writes.name for part, _ in step.parts}
    reads: list[tuple[str, Box]] = []
    written: list[tuple[str, str, Box]] = []
    for part, region in step.parts_by_piece[piece]:
        needs = part.needs(region)
        for value in part.reads:
            box = box_of(needs[value.name], value.axes, rank)
            if box.size and value.name not in made and not value.state:
                reads.append((value.name, box))
        name, box = part.writes.name, box_of(part.result(region), part.writes.axes, rank)
        if box.size and name in step.leaves and name in read:
            written.append((f"{name} +" if name in apart else name, name, box))
    return OwnCompute(rank_run(step, rank, piece), joined(reads), written, step.as_comes)


def rank_run(step: ComputeStep, rank: int, piece: int = 0) -> RankRun:
    """Return what a rank computes in a step, or in one of its pieces."""
    return tuple(
        (part, {axis: Span(*spans[0, rank].tolist()) for axis, spans in region.items()})
        for part, region in step.parts_by_piece[piece]
        if there(region)[0, rank]
    )
