"""Where a rank's values lie in a pass: its part in every step, and a place for all that it has of each value.

What a value is on a rank has one place, the hull of all that it computes, has or wants of it: what it computes it
writes where it is read, and what arrives lies where it is needed. Summands have a place of their own. Places are used
again by values that come after the last step that reads or sends them. The engine allocates them, and a price of memory
counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from solver.base.spans import Span
from solver.model.kinds.part import ROW, Part, RankRegion, Value, there
from solver.plan.decoder_plan import ROWS_BY_MPI
from solver.plan.layout import Box, moves
from solver.schedule.regions import box_of, lengths
from solver.schedule.schedule import AnyStep, Called, ComputeStep, ExchangeStep, unfolded

SOCKET_NUMBERS = 1 << 16  # of a message that a socket holds while nobody takes it: 256 KiB

RankRun = tuple[tuple[Part, RankRegion], ...]  # what a rank computes in a step: parts, and its region of each
Used = list[tuple[str, Box]]  # the boxes that a rank has of values, by the names of their places


class Places:
    """Where a rank's values lie.

    Parameters
    ----------
    used
        Of every step the boxes that this rank has of values. A place is free again after the last step that uses it.

    Attributes
    ----------
    boxes
        Of every place what lies there of a value.
    memory
        Of every place in which memory it lies.
    sizes
        Of every memory how many numbers it has.
    """

    def __init__(self, used: Sequence[Used]) -> None:
        self.boxes = joined(pair for step in used for pair in step)
        self.memory: dict[str, int] = {}
        self.sizes: list[int] = []
        last = {name: number for number, step in enumerate(used) for name, _ in step}
        free: list[int] = []
        for number, step in enumerate(used):
            for name in dict.fromkeys(name for name, _ in step):
                if name not in self.memory:
                    self.memory[name] = self._taken(free, self.boxes[name].size)
            free += [self.memory[name] for name in dict.fromkeys(name for name, _ in step) if last[name] == number]

    def _taken(self, free: list[int], size: int) -> int:
        """Return a memory for so many numbers: one that is free, where one has as many."""
        for place, number in enumerate(free):
            if self.sizes[number] == size:
                return free.pop(place)
        self.sizes.append(size)
        return len(self.sizes) - 1

    @property
    def numbers(self) -> int:
        """How many numbers lie in all of them."""
        return sum(self.sizes)


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
    def used(self) -> Used:
        """The boxes that it has of values."""
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
    def used(self) -> Used:
        """The boxes that it has of values."""
        return [*self.reads.items(), *((place, box) for place, _, box in self.written)]


OwnStep = OwnCompute | OwnExchange


def places_of(every: Sequence[tuple[OwnStep, Called]], begins: Value | None) -> Places:
    """Return where a rank's values lie in a pass of these steps, which begins with a value where it has that."""
    given = [] if begins is None else [(begins.name, Box.whole(*begins.shape))]
    return Places([given, *([(called(name), box) for name, box in step.used] for step, called in every)])


def by_sockets(step: ExchangeStep) -> bool:
    """Return whether an exchange goes by connections of our own, not by MPI: where rows are few, and fit a socket."""
    return bool(lengths(step.want[ROW]).max() < ROWS_BY_MPI and step.moved.max() <= SOCKET_NUMBERS)


def arriving(every: Iterable[tuple[OwnStep, Called]], places: Places, coded: Callable[[ExchangeStep], bool]) -> int:
    """Return how many numbers lie where messages arrive that cannot arrive in their places, and where they are coded.

    One exchange runs at a time: messages share such a place that are of one shape, and in the same turn in theirs.
    """
    found: dict[tuple[object, ...], int] = {}
    exchanges = {id(own.step): (own, called) for own, called in every if isinstance(own, OwnExchange)}
    for own, called in exchanges.values():
        of_peers: dict[tuple[int, int], list[Box]] = {}
        for move in moves(*own.step.layouts()):
            if move.receiver == own.rank:
                of_peers.setdefault((move.sender, move.piece), []).append(move.box)
        for turn, (_, parts) in enumerate(sorted(of_peers.items())):
            size = sum(box.size for box in parts)
            key = turn, size, parts[0].shape[-1] if len(parts) == 1 else size
            hull = places.boxes.get(called(own.step.value.name))
            if own.step.partial or len(parts) > 1 or hull is None or not parts[0].lies_together(hull):
                found[key] = size
            if coded(own.step):
                found["coded", *key] = size
    return sum(found.values())


def own_steps(steps: Sequence[AnyStep], rank: int) -> list[tuple[OwnStep, Called]]:
    """Return a rank's part in every step, of every layer, and what values are called there; of `unfolded` steps."""
    own = dict(zip(map(id, steps), _own_parts(steps, rank), strict=True))
    return [(own[id(step)], called) for step, called in unfolded(steps)]


def _own_parts(steps: Sequence[AnyStep], rank: int) -> Iterator[OwnStep]:
    """Yield a rank's part in every step.

    What it computes of some values cannot lie where these are wanted: summands are no part of the sum, and a graph
    writes what lies side by side. It has a place of its own. What nobody reads, the result of a pass, has none.
    """
    exchanges = [step for step in steps if isinstance(step, ExchangeStep)]
    computed = [part for step in steps if isinstance(step, ComputeStep) for part, _ in step.parts]
    read = {value.name for part in computed for value in part.reads} | {step.value.name for step in exchanges}
    summed, apart = {step.value.name for step in exchanges if step.partial}, set[str]()
    for exchange in exchanges:
        have, want = (layout.boxes[rank] for layout in exchange.layouts())
        if exchange.partial or any(own.spans[1:] != other.spans[1:] for own in have for other in want):
            apart.add(exchange.value.name)
    for step in steps:
        if isinstance(step, ComputeStep):
            yield _own_compute(step, rank, apart, read)
            continue
        name = step.value.name
        first = step.partial or name not in summed  # else from where the sum is
        yield OwnExchange(step, rank, f"{name} +" if first and name in apart else name)


def _own_compute(step: ComputeStep, rank: int, apart: Collection[str], read: Collection[str]) -> OwnCompute:
    made = {part.writes.name for part, _ in step.parts}
    reads: list[tuple[str, Box]] = []
    written: list[tuple[str, str, Box]] = []
    for part, region in step.parts:
        needs = part.needs(region)
        for value in part.reads:
            box = box_of(needs[value.name], value.axes, rank)
            if box.size and value.name not in made and not value.state:
                reads.append((value.name, box))
        name, box = part.writes.name, box_of(part.result(region), part.writes.axes, rank)
        if box.size and name in step.leaves and name in read:
            written.append((f"{name} +" if name in apart else name, name, box))
    return OwnCompute(rank_run(step, rank), joined(reads), written)


def rank_run(step: ComputeStep, rank: int) -> RankRun:
    """Return what a rank computes in a step."""
    return tuple(
        (part, {axis: Span(*spans[0, rank].tolist()) for axis, spans in region.items()})
        for part, region in step.parts
        if there(region)[0, rank]
    )
