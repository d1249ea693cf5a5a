"""What one rank computes of a segment, piece by piece, as boxes: what its engine makes graphs of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from solver.base.spans import Span
from solver.model.convnet import NOTHING, MapBox
from solver.model.kinds.operator import MAP, PADDED, SUMMED, Operator
from solver.model.kinds.part import Part, Region
from solver.schedule.networks.steps import Regions, SegmentShares
from solver.schedule.schedule import WITH_READER, PlacedPart, Walked, walk


@dataclass(frozen=True, slots=True)
class Reach:
    """What a node computes for a box of its output.

    Parameters
    ----------
    wanted
        That box: what nobody else has of what is needed.
    made
        The box that comes out, which contains it.
    needs
        For every one of the node's values, in order, the box that must be there.
    pads
        Rows above, columns left, rows below, columns right that are padded.
    """

    wanted: MapBox
    made: MapBox
    needs: tuple[MapBox, ...]
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Strip:
    """What of a value a tile takes from its neighbour at a side: all along that side."""

    value: str
    side: str
    box: MapBox

    @property
    def name(self) -> str:
        """Its name among all that one tile takes, or gives."""
        return f"{self.value}:{self.side}"


@dataclass(frozen=True, slots=True)
class Walk:
    """What a rank needs and computes of a run of nodes.

    Parameters
    ----------
    needs
        Of every value within, and of those from before, the box that must be there.
    made
        What every node that is computed at all makes, by its number.
    taken
        What of values within is not made, but taken from neighbours, in the order in which it is left out.
    """

    needs: Mapping[str, MapBox]
    made: Mapping[int, Reach]
    taken: tuple[Strip, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What a rank computes at a time.

    Parameters
    ----------
    boxes
        Of values, what leaves it.
    before
        The values that are there before it.
    walk
        From what is there.
    given
        What other tiles take.
    summed
        Over which input channels, or rows, nodes that add up do, by their outputs: what they make is a summand.
    """

    boxes: Mapping[str, MapBox]
    before: frozenset[str]
    walk: Walk
    given: tuple[Strip, ...] = ()
    summed: Mapping[str, Span] = field(default_factory=dict)

    @property
    def coming(self) -> dict[str, tuple[str, MapBox]]:
        """All that it needs to begin, by its name: of which value which box."""
        return _named({v: box for v, box in self.walk.needs.items() if v in self.before}, self.walk.taken)

    @property
    def going(self) -> dict[str, tuple[str, MapBox]]:
        """All that comes out of it, by its name: of which value which box."""
        return _named(self.boxes, self.given)


def _named(boxes: Mapping[str, MapBox], strips: tuple[Strip, ...]) -> dict[str, tuple[str, MapBox]]:
    named = {value: (value, box) for value, box in boxes.items()}
    return named | {strip.name: (strip.value, strip.box) for strip in strips}


def pieces_of(shares: SegmentShares, rank: int) -> list[Piece]:
    """Return what a rank computes of a segment; of tiles, what passes them on rank 0, and its own."""
    made = shares.compute.made
    count = max((len(spans) for region in made.values() for spans in region.values()), default=0)
    found = [_piece(made, shares.compute.walked, (number, rank)) for number in range(count)]
    if shares.tiles is not None:
        owned = zip(tile_pieces(shares), shares.tiles.owners, strict=True)
        found += [piece for piece, owner in owned if owner == rank]
    return [piece for piece in found if piece.boxes]


def tile_pieces(shares: SegmentShares) -> list[Piece]:
    """Return what all tiles are."""
    tiles = shares.tiles
    assert tiles is not None
    found = []
    for number in range(len(tiles.owners)):
        place = (0, number)
        piece = _piece(tiles.boxes, tiles.walked, place, tiles.needs)
        taken = tuple(Strip(*key, map_box(region, place)) for key, region in tiles.taken.items())
        walked = replace(piece.walk, taken=tuple(strip for strip in taken if strip.box.size))
        found.append(replace(piece, walk=walked))
    given: list[list[Strip]] = [[] for _ in found]
    for piece, beside in zip(found, tiles.beside, strict=True):
        for strip in piece.walk.taken:
            given[beside[strip.side]].append(strip)
    return [replace(piece, given=tuple(own)) for piece, own in zip(found, given, strict=True)]


def walk_back(parts: Sequence[Part], wanted: Mapping[str, MapBox]) -> Walk:
    """Walk parts backwards from boxes that are wanted after them: the receptive field, node by node."""
    group = [PlacedPart(part, WITH_READER) for part in parts]
    boxes = {name: _region(box) for name, box in wanted.items()}
    return _piece(boxes, walk(group, boxes), (0, 0)).walk


def map_box(region: Region, place: tuple[int, int]) -> MapBox:
    """Return a box of a region: of one piece and rank."""
    own = _at(region, place)
    spans = [Span(start, max(start, stop)) for start, stop in (own[axis].tolist() for axis in MAP)]
    return MapBox(*spans) if all(span.size for span in spans) else NOTHING


def _at(region: Region, place: tuple[int, int]) -> Region:
    """Return the spans of one piece and rank, [2]; some are the same for all pieces."""
    number, rank = place
    return {axis: spans[min(number, len(spans) - 1), rank] for axis, spans in region.items()}


def _region(box: MapBox) -> Region:
    return {axis: np.array([[[span.start, span.stop]]]) for axis, span in zip(MAP, box.spans, strict=True)}


def _piece(made: Regions, walked: Walked, place: tuple[int, int], full: Regions | None = None) -> Piece:
    """Return what a rank computes at a time; `full` are needs of values within, of which some is taken."""
    runs, needs = walked
    boxes = {name: map_box(region, place) for name, region in [*needs.items(), *(full or {}).items()]}
    done, summed = dict[int, Reach](), dict[str, Span]()
    for placed, region in runs:
        name, operator, box = placed.part.writes.name, placed.part.kind, map_box(region, place)
        if not (isinstance(operator, Operator) and box.size):
            continue
        boxes = {name: box, **boxes}
        done[operator.number] = _reach(placed.part, operator, _at(region, place), box)
        if placed.axis == SUMMED and placed.partial:
            summed[name] = Span(*_at(region, place)[SUMMED].tolist())
    leaving = {name: map_box(region, place) for name, region in made.items()}
    walk = Walk({name: box for name, box in boxes.items() if box.size}, done)
    return Piece({name: box for name, box in leaving.items() if box.size}, frozenset(needs), walk, summed=summed)


def _reach(part: Part, operator: Operator, region: Region, wanted: MapBox) -> Reach:
    """Return what a node computes for a region of one rank, [2], whose box is wanted."""
    needs = []
    for number, reaches in enumerate(operator.reaches):
        own = {reach.axis: reach(region) for reach in reaches}
        if SUMMED in region and not number:
            own[operator.added_up] = region[SUMMED]
        needs.append(map_box({axis: spans[None, None] for axis, spans in own.items()}, (0, 0)))
    made = map_box({axis: spans[None, None] for axis, spans in part.made(region).items()}, (0, 0))
    if part.role not in PADDED:
        return Reach(wanted, made, tuple(needs))
    (top, bottom), (left, right) = (reach.padded(region).tolist() for reach in operator.reaches[0][1:])
    return Reach(wanted, made, tuple(needs), (top, left, bottom, right))
