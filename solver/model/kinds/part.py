"""A part: a product over named axes, as in Einstein's sums; the values that it reads and writes, and its tensors.

Along any axis a part can be cut. If its result has that axis, ranks get boxes of the result (of a product L R these are
rows of L, or columns of R); if it has not, they get summands of it (blocks along k). A region, a span of every axis,
says what a rank computes of a part. From it follow what it needs of other values, which rows of every tensor it holds,
and its work. A kind of block states only what this rule cannot know: its parts, how far a span reaches into another
value's axes, and the numbers (`hepti_mpi.kernels.kinds`).

Spans are arrays [..., 2], of start and stop: of one rank, of all ranks, or of all ranks of many plans at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from solver.base.spans import Span
from solver.model.kinds.weight import BLOCK, Weight
from solver.model.precision import FLOAT32, Precision

# Axes, as plans and tables call them. NUMBER is what lies side by side in the unit of another axis, and is never cut.
ROW, HIDDEN, HEAD, KV, FFN, WORD, NUMBER = "rows", "hidden", "heads", "kv heads", "columns", "words", "numbers"
KEY = "keys"  # who keeps which tokens' keys and values; a unit is a rank that keeps some
PAIR = "keys and values"  # of two, side by side
WHOLE = "whole"  # in place of an axis: everyone who takes part computes all of it

Spans = NDArray[np.int64]  # [..., 2]
Region = Mapping[str, Spans]
RankRegion = Mapping[str, Span]  # of one rank
Reaching = Callable[[Region], Spans]


@dataclass(frozen=True, slots=True)
class Value:
    """What lies between parts.

    Parameters
    ----------
    axes, shape
        Of every axis its name and its length in units.
    state
        Whether it lives from pass to pass (keys and values).
    scaled
        Where it travels in few bits: a scale is of what lies along so many of its last axes in a box.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    state: bool = False
    scaled: int = 1


class TensorUse(StrEnum):
    """Where in its block a tensor is used."""

    INTO = "into"  # the first product, which makes what heads or columns are of
    OUT = "out"  # the second, which sums over them
    NORM = "norm"
    RELATIVE = "relative"  # added to scores, by the distance between two rows


@dataclass(frozen=True, slots=True)
class PartTensor:
    """A tensor of a part.

    Parameters
    ----------
    name
        In the weights file, or within its layer.
    axis, units
        What its first dimension is shared out by, and how many units of that it has; "": who has some of the part holds
        all of the tensor.
    """

    name: str
    weight: Weight
    use: TensorUse
    axis: str = ""
    units: int = 1

    @property
    def leaf(self) -> str:
        """Its name within the block: the last two words."""
        return "/".join(self.name.rsplit("/", 2)[-2:])

    @property
    def shape(self) -> tuple[int, ...]:
        """As it lies, where it is float32."""
        return self.weight.shape

    @property
    def everywhere(self) -> bool:
        """Whether all hold it who take part in a layer: norms and last biases, which go with the residual."""
        return not self.axis and len(self.shape) == 1

    def half(self, stream: Residual) -> int:
        """Return which half of its block needs it, 0 or 1."""
        return int(self.use is TensorUse.OUT or (self.use is TensorUse.NORM and stream.sum_norms))

    def rows(self, span: Span) -> Span:
        """Return the rows of its first dimension that some units are."""
        return span.scaled(self.weight.shape[0] // self.units)

    def held_bytes(self, precision: Precision = FLOAT32, units: int | None = None, columns: int | None = None) -> int:
        """Return its bytes as a model's precision holds it; those of so many units, or so many columns, if given."""
        first, *others = self.weight.shape
        first = first if units is None or not self.axis else first // self.units * units
        shape = (first, *(others if columns is None else (columns,)))
        return self.weight.held_in(precision).bytes_of(shape, self.weight.summed)


@dataclass(frozen=True, slots=True)
class Residual:
    """What blocks add to, and how it is normed.

    Parameters
    ----------
    hidden
        H, its width.
    norm, eps
        "rms", or "layer" with shifts, and what is added under the root.
    pre_norms, post_norms, sum_norms
        Whether blocks norm what they read, what they have computed before that is added, and the sum.
    in_blocks
        Whether it is cut in whole blocks of columns, each with a scale where it travels in few bits; else anywhere, and
        what travels of a row has one.
    """

    hidden: int
    norm: str = "rms"
    eps: float = 1e-5
    pre_norms: bool = True
    post_norms: bool = False
    sum_norms: bool = False
    in_blocks: bool = True

    @property
    def unit(self) -> int:
        """How many columns belong together: all of a row not made of blocks."""
        if not self.in_blocks:
            return 1
        return BLOCK if self.hidden % BLOCK == 0 else self.hidden

    def value(self, name: str, rows: int) -> Value:
        """Return so many rows."""
        shape, scaled = (rows, self.hidden // self.unit, self.unit), 1 if self.in_blocks else 2
        return Value(name, (ROW, HIDDEN, NUMBER), shape, scaled=scaled)

    def with_norms(self, name: str, tensors: Iterable[PartTensor]) -> dict[str, PartTensor]:
        """Return the tensors of a block by their leaves, its norms before and after them."""
        before = self.norm_tensors(f"{name}/norm") * self.pre_norms
        after = [
            *self.norm_tensors(f"{name}/post_norm") * self.post_norms,
            *self.norm_tensors(f"{name}/norm") * self.sum_norms,
        ]
        return {tensor.leaf: tensor for tensor in (*before, *tensors, *after)}

    def norm_tensors(self, name: str) -> list[PartTensor]:
        """Return the tensors of a norm."""
        leaves = ("weight", "bias") if self.norm == "layer" else ("weight",)
        return [PartTensor(f"{name}/{leaf}", Weight((self.hidden,)), TensorUse.NORM) for leaf in leaves]


class PartKind(Protocol):
    """A kind of block, as its parts know it: a frozen dataclass."""

    @property
    def axis(self) -> str:
        """What ranks cut its parts along, besides rows; "": a plan says it of each."""

    @property
    def curve(self) -> str:
        """Which measured curve says what its parts take together."""

    def recalled(self, units: Mapping[str, int], rows: int, behind: int) -> float:
        """Return how many columns rows see in all of what is kept, after so many others."""


class NodeKind:
    """A kind of a network's node: ranks cut it as a plan says of its segment, and keep nothing of it."""

    axis: ClassVar[str] = ""
    __slots__ = ()

    def recalled(self, units: Mapping[str, int], rows: int, behind: int) -> float:
        """Return 0: nothing is kept."""
        return 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A product over named axes.

    Parameters
    ----------
    name
        Of its block, followed by its role.
    kind, stream
        Whose part it is.
    role
        Which: a word that no other kind has, by which kernels and cuts are found.
    axes
        All axes of the product, each with its length in units.
    reads, writes
        Values. Of what it reads, axes that it has itself are read where its region is, others whole.
    reach
        By a value's name and an axis of it: where a region reaches, if neither is so.
    cut
        Whether ranks cut it along the axis of its kind; else it is computed where it is read.
    along
        Along what it is cut always, if anything: the axis, the one whose shares a plan says, and how spans of it follow
        from these.
    rounds
        By an axis: what comes out where a region is wanted, if that is more (whole groups of channels).
    sure
        Whether every region that is not empty needs some of every value.
    """

    name: str
    kind: PartKind
    stream: Residual
    role: str
    axes: Mapping[str, int]
    reads: tuple[Value, ...]
    writes: Value
    tensors: tuple[PartTensor, ...] = ()
    reach: Mapping[tuple[str, str], Reaching] = field(default_factory=dict)
    cut: bool = False
    along: tuple[str, str, Callable[[Spans], Spans]] | None = None
    rounds: Mapping[str, Reaching] = field(default_factory=dict)
    sure: bool = False

    @property
    def block(self) -> str:
        """The name of its block."""
        return self.name.rpartition("/")[0]

    @property
    def recalls(self) -> bool:
        """Whether it reads what is kept from pass to pass."""
        return any(value.state for value in self.reads)

    def columns(self, tensor: PartTensor, units: int | None) -> int | None:
        """Return how many columns of a tensor so many units of the stream's columns need; None: all.

        A matrix of a part that has columns of the stream has these as its second dimension.
        """
        if units is None or HIDDEN not in self.axes or len(tensor.shape) < 2:
            return None
        return tensor.shape[1] // self.axes[HIDDEN] * units

    def result(self, region: Region) -> dict[str, Spans]:
        """Return the box of what it writes."""
        value = self.writes
        if region.keys() == set(value.axes):
            return dict(region)
        some = full(region)
        return {
            axis: region[axis] if axis in region else some * whole(length)
            for axis, length in zip(value.axes, value.shape, strict=True)
        }

    def made(self, region: Region) -> Region:
        """Return what comes out where a region is wanted."""
        if not self.rounds:
            return region
        some = full(region)
        return {**region, **{axis: some * rounded(region) for axis, rounded in self.rounds.items()}}

    def needs(self, region: Region) -> dict[str, Region]:
        """Return the box that it needs of every value that it reads."""
        found = dict[str, Region]()
        here: NDArray[np.bool_] | None = None
        for value, same, looks in _looks(self):
            if same:
                found[value.name] = region
                continue
            if here is None:
                here = there(region)
                some = here[..., None].astype(np.int64)
            # Where a region is empty along an axis that it keeps, so is the box.
            box = {axis: region[axis] if keeps else some * self.reached(value, axis, region) for axis, keeps in looks}
            found[value.name] = KnownRegion(box, here if self.sure else None)
        return found

    def reached(self, value: Value, axis: str, region: Region) -> Spans:
        """Return where a region that is not empty reaches along an axis of a value."""
        reach = self.reach.get((value.name, axis))
        spans = reach(region) if reach else region.get(axis)
        return whole(value.shape[value.axes.index(axis)]) if spans is None else spans


@lru_cache(maxsize=1 << 10)
def _looks(part: Part) -> list[tuple[Value, bool, list[tuple[str, bool]]]]:
    """Return of every value that a part reads whether just its region is, and of every axis whether that span is.

    Along axes that a value lacks a region may be empty: then no span of it is kept.
    """
    found = []
    for value in part.reads:
        same = part.axes.keys() == set(value.axes)
        looks = [(axis, same and (value.name, axis) not in part.reach) for axis in value.axes]
        found.append((value, all(keeps for _, keeps in looks), looks))
    return found


def as_they_are(spans: Spans) -> Spans:
    """Return the spans of a part that is cut as its plan says."""
    return spans


@lru_cache(maxsize=256)
def whole(length: int) -> Spans:
    """Return the span of all of an axis."""
    span = np.array([0, length])
    span.flags.writeable = False
    return span


def full(region: Region) -> Spans:
    """Return 1 where a region has something, [..., 1], else 0."""
    return there(region)[..., None].astype(np.int64)


class KnownRegion(dict[str, Spans]):
    """A region that keeps where it has something, [...], once that was asked for."""

    def __init__(self, spans: Region, some: NDArray[np.bool_] | None = None) -> None:
        super().__init__(spans)
        self.some = some


def there(region: Region) -> NDArray[np.bool_]:
    """Return where a region has something, [...]."""
    known = region if isinstance(region, KnownRegion) else None
    if known is not None and known.some is not None:
        return known.some
    found: NDArray[np.bool_] | None = None
    for spans in region.values():
        own = spans[..., 0] < spans[..., 1]
        found = own if found is None else found & own
    assert found is not None
    if known is not None:
        known.some = found
    return found
