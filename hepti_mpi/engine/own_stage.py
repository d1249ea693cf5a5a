"""A rank's part in layers of an encoder's batches: its steps, its places, and what graphs take of these.

It is counted in stretches of rows, so that batches whose rows are cut alike have it in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hepti_mpi.engine.binding import block_of, box_of, grouped, named, sub_block_of
from hepti_mpi.engine.layers import BlockKernels, Roles
from solver.base.spans import Span
from solver.model.kinds.attention import FULL_CONTEXTS, Attention
from solver.model.kinds.join import Join
from solver.model.kinds.part import HEAD, HIDDEN, KV, ROW, Part, RankRegion, Spans, Value
from solver.plan.layout import Box
from solver.schedule.encoders.placing import StageParts
from solver.schedule.places import OwnCompute, OwnStep, Places, Used, own_steps, places_of
from solver.schedule.regions import box_of as box_of_rank
from solver.schedule.schedule import Called


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """Rows of a place that lie side by side.

    Parameters
    ----------
    place
        Which of those that a step uses; negative: an array of the step's own.
    rows, whole
        In stretches: which rows, and all of the place.
    width
        Columns of a row.
    """

    place: int
    rows: Span
    whole: Span
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """Parts of which there is one graph, or contexts, all of whose arrays are rows side by side.

    Parameters
    ----------
    part, region, roles
        The first of them, this rank's region of it in stretches, and the roles of all.
    refs
        What comes out; what goes in; of contexts then keys and values, of a join what it adds to.
    """

    part: Part
    region: RankRegion
    roles: Roles
    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OwnStage:
    """A rank's part in layers of batches whose rows are cut alike, which are counted in stretches; found once for all.

    Parameters
    ----------
    every
        Its part in every step, and what values are called there.
    given, left
        The boxes of values with which it begins, and ends.
    places
        Where values lie.
    known, alikes, kinds, named
        As of `recipes`, `alike` and `blocks`, of steps that have been asked for.
    """

    every: Sequence[tuple[OwnStep, Called]]
    given: Used
    left: Used
    places: Places
    known: dict[tuple[OwnCompute, tuple[object, ...]], Sequence[Recipe] | None] = field(default_factory=dict)
    alikes: dict[OwnCompute, int] = field(default_factory=dict)
    kinds: dict[tuple[object, ...], int] = field(default_factory=dict)
    named: dict[tuple[OwnCompute, Called], Sequence[str]] = field(default_factory=dict)

    def alike(self, step: OwnCompute) -> int:
        """Return what tells what is computed in a step from others, but for names: a number."""
        if step not in self.alikes:
            run = tuple((part.role, part.kind, part.stream, *region.items()) for part, region in step.run)
            names = [name for name, _ in step.used]
            comes = names.index(step.as_comes) if step.as_comes in names else None
            kind = run, comes, tuple(box for _, box in step.used)
            self.alikes[step] = self.kinds.setdefault(kind, len(self.kinds))
        return self.alikes[step]

    def blocks(self, step: OwnCompute, called: Called) -> Sequence[str]:
        """Return the names of the blocks whose parts are computed in a step; of sub-blocks of the first one."""
        if (step, called) not in self.named:
            first = ((sub_block_of(part, region), part) for part, region in step.run)
            names = dict.fromkeys(block_of(named(called(part.name), number)) for number, part in first)
            self.named[step, called] = tuple(names)
        return self.named[step, called]

    def recipes(
        self, step: OwnCompute, called: Called, graphs: tuple[object, ...], kernels: Mapping[str, BlockKernels]
    ) -> Sequence[Recipe] | None:
        """Return which arrays a step's graphs take, where all lie in rows side by side; None: some do not."""
        if (step, graphs) not in self.known:
            self.known[step, graphs] = self._recipes(step, called, kernels)
        return self.known[step, graphs]

    def _recipes(
        self, step: OwnCompute, called: Called, kernels: Mapping[str, BlockKernels]
    ) -> Sequence[Recipe] | None:
        if any(sub_block_of(part, region) is not None for part, region in step.run):
            return None
        lies = {name: number for number, name in enumerate(step.reads)}
        lies |= {name: len(step.reads) + number for number, (_, name, _) in enumerate(step.written)}
        hulls = [self.places.boxes[called(name)] for name, _ in step.used]
        own: dict[str, tuple[int, Box]] = {}  # of values that are read within the step alone

        def ref(value: Value, region: RankRegion) -> Ref | None:
            box = box_of(value, region)
            if value.name in lies:
                place, hull = lies[value.name], hulls[lies[value.name]]
            else:
                place, hull = own.setdefault(value.name, (-1 - len(own), box))
            if box.spans[1:] != hull.spans[1:]:
                return None
            return Ref(place, box.spans[0], hull.spans[0], math.prod(box.shape[1:]))

        found: list[Recipe] = []
        for start, roles, avoids in grouped(step.run, lambda name: kernels[block_of(called(name))]):
            (first, begins), (last, ends) = step.run[start], step.run[start + len(roles) - 1]
            refs = [ref(last.writes, ends), ref(first.reads[0 if first.role == FULL_CONTEXTS else -1], begins)]
            if first.role == FULL_CONTEXTS:
                keys = first.reads[1]
                (seen,) = first.needs({axis: _spans_of(span) for axis, span in begins.items()})[keys.name][ROW].tolist()
                assert isinstance(first.kind, Attention)
                refs.append(ref(keys, {ROW: Span(*seen), KV: first.kind.kv_span(begins[HEAD])}))
            elif last.role == Join.name:
                refs.append(ref(last.reads[0], ends))
            if avoids or None in refs:
                return None
            found.append(Recipe(first, begins, roles, tuple(own for own in refs if own is not None)))
        return found

    @classmethod
    def of(cls, parts: StageParts, rank: int) -> OwnStage:
        """Find it."""
        given, left = (
            [
                (name, box_of_rank(region, tuple(region), rank))
                for name, region in sorted(every.items(), key=lambda own: HIDDEN in own[1])  # the stream the last
            ]
            for every in ({name: region for name, (_, region) in parts.given.items()}, parts.left)
        )
        steps = own_steps(parts.steps(), rank, [name for name, _ in left], equal=False)
        return cls(steps, given, left, places_of(steps, given, left=left))


def _spans_of(span: Span) -> Spans:
    return np.array([[span.start, span.stop]])
