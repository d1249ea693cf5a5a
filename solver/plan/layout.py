"""How a value lies on the ranks, and the one question of all communication: who sends whom what.

A layout says of a value what every rank has: boxes, or summands of boxes. All-gather, reduce-scatter, all-reduce, halo,
re-partition, columns that come together, a hand-over between stages, weights and caches that move are all
`moves(have, want)`. The even case has names in the literature: `Shard`, `Replicate` and `Partial` of PyTorch's DTensor,
split, broadcast and partial-value of OneFlow (arXiv 2110.15032). Here boxes are uneven and may be empty, and an
exchange follows from what is needed, not from a placement that is annotated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from solver.base.errors import HeptiError
from solver.base.spans import Span


@dataclass(frozen=True, slots=True)
class Box:
    """A span of every axis of a value; empty where one of them is."""

    spans: tuple[Span, ...]

    @classmethod
    def whole(cls, *lengths: int) -> Box:
        """Return all of a value of this shape."""
        return cls(tuple(Span(0, length) for length in lengths))

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of every axis."""
        return tuple(span.size for span in self.spans)

    @property
    def size(self) -> int:
        """How many numbers."""
        size = 1
        for span in self.spans:
            size *= span.stop - span.start
        return size

    def touches(self, other: Box) -> bool:
        """Return whether there is something that both have."""
        for one, two in zip(self.spans, other.spans, strict=True):
            if one.start >= two.stop or two.start >= one.stop or one.start == one.stop or two.start == two.stop:
                return False
        return True

    def intersect(self, other: Box) -> Box:
        """Return what both have."""
        return Box(tuple([one.intersect(two) for one, two in zip(self.spans, other.spans, strict=True)]))

    def within(self, other: Box) -> tuple[slice, ...]:
        """Return this box as an index into the array of `other`, which contains it."""
        return tuple(one.within(two).slice for one, two in zip(self.spans, other.spans, strict=True))

    def lies_together(self, other: Box) -> bool:
        """Return whether its numbers lie side by side in the array of `other`, which contains it."""
        first = next((axis for axis, span in enumerate(self.spans) if span.size > 1), len(self.spans))
        return self.spans[first + 1 :] == other.spans[first + 1 :]

    def minus(self, other: Box) -> list[Box]:
        """Return what is left without another, as disjoint boxes."""
        if not self.touches(other):
            return [self] if self.size else []
        common = self.intersect(other)
        left, spans = [], list(self.spans)
        for axis, (own, cut) in enumerate(zip(self.spans, common.spans, strict=True)):
            for start, stop in ((own.start, cut.start), (cut.stop, own.stop)):
                if start < stop:
                    left.append(Box((*spans[:axis], Span(start, stop), *spans[axis + 1 :])))
            spans[axis] = cut
        return left


Boxes = tuple[Box, ...]


def without(boxes: Iterable[Box], others: Iterable[Box]) -> list[Box]:
    """Return what is left of boxes without others."""
    left = list(boxes)
    for other in others:
        left = [rest for box in left for rest in box.minus(other)]
    return left


def disjoint(boxes: Iterable[Box]) -> list[Box]:
    """Return the same numbers, each in one box."""
    found: list[Box] = []
    for box in boxes:
        found += without([box] if box.size else [], found)
    return found


@dataclass(frozen=True, slots=True)
class Layout:
    """What every rank has of a value, or wants.

    Parameters
    ----------
    boxes
        Of every rank, in the order in which they are made. Several ranks may have the same numbers.
    partial
        Whether they are summands: the value is the sum of what all ranks have of a number.
    """

    boxes: tuple[Boxes, ...]
    partial: bool = False

    @classmethod
    def of(cls, boxes: Iterable[Box | None], *, partial: bool = False) -> Layout:
        """Return the layout where every rank has one box, or none."""
        return cls(tuple((box,) if box is not None and box.size else () for box in boxes), partial)

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.boxes)

    @property
    def shared(self) -> bool:
        """Whether several ranks have some number."""
        every = [box for own in self.boxes for box in disjoint(own)]
        return sum(box.size for box in every) > sum(box.size for box in disjoint(every))


@dataclass(frozen=True, slots=True)
class Move:
    """A box that a rank sends another; it lies in the sender's `piece`-th box."""

    sender: int
    receiver: int
    box: Box
    piece: int


@lru_cache(maxsize=256)
def moves(have: Layout, want: Layout) -> tuple[Move, ...]:
    """Return all that is sent so that every rank has what it wants.

    A rank gets once what it wants and has not, from the next rank after it that has it; of summands it gets all.
    Messages between two ranks are in the order in which they are sent.

    Raises
    ------
    HeptiError
        If a rank wants what nobody has.
    """
    found = []
    for receiver, wanted in enumerate(want.boxes):
        left = disjoint(wanted)
        for step in range(have.ranks if left else 0):
            sender = (receiver + step) % have.ranks
            for piece, own in enumerate(have.boxes[sender]):
                common = [box.intersect(own) for box in left if box.touches(own)]
                if sender != receiver:
                    found += [Move(sender, receiver, box, piece) for box in common]
                if common and not have.partial:
                    left = without(left, [own])
            if not left:
                break
        if left and not (have.partial and _given(have, left)):
            raise HeptiError(f"rank {receiver} wants {_text(left[0])}, nobody has it")
    return tuple(found)


def _given(have: Layout, wanted: Sequence[Box]) -> bool:
    """Return whether there is a summand of all numbers."""
    return not without(wanted, [box for own in have.boxes for box in own])


def _text(box: Box) -> str:
    return " x ".join(f"[{span.start}, {span.stop})" for span in box.spans)
