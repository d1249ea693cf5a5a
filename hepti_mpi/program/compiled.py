"""A rank's part in a schedule, compiled: places in memory, exchanges between them, and calls in a row.

Nothing is decided while they run. Where values lie says `solver.schedule.places`. What computes a step is the family's;
all else is here: what is sent when, where it comes from and where it arrives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby, zip_longest
from operator import itemgetter

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.exchange import InBox, Item, RankExchange
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.messages import RankMessages, Rooms, rank_messages
from hepti_mpi.comm.wires import Coding
from solver.base.arrays import Numbers
from solver.plan.layout import Box
from solver.schedule.places import OwnCompute, OwnExchange, OwnStep, Places, Used
from solver.schedule.schedule import Called

CompiledCall = Callable[[], object]


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
        """Return where a box of a value lies; of an empty one, which lies nowhere, an array of its shape."""
        box = self._places.box(box)
        if not box.size:
            return np.empty(box.shape, np.float32)
        return self.whole(name)[box.within(self._places.boxes[name])]

    def whole(self, name: str) -> Numbers:
        """Return all that there is of a value."""
        box, array = self._places.boxes[name], self.arrays[self._places.memory[name]]
        numbers: Numbers = array.view(np.uint8) if name in self._places.pixels else array
        return numbers[: box.size].reshape(box.shape, copy=False)


class Compiled(ABC):
    """A rank's part in a schedule; it may run any number of times.

    Parameters
    ----------
    every
        Its part in every step, and what values are called there.
    places
        Where they lie.
    group
        All ranks.
    direct
        This rank's connections to them; None: nothing goes by these.
    """

    def __init__(
        self, every: Sequence[tuple[OwnStep, Called]], places: Places, group: Group, direct: Direct | None = None
    ) -> None:
        self._group, self._direct, self._memory, self._places = group, direct, Memory(places), places
        self._rooms: Rooms = {}
        # By one of those that are alike: as its numbers travel, and where its places lie; and by what its numbers are.
        self._exchanges: dict[tuple[object, ...], BoundExchange] = {}
        self._messages: dict[tuple[object, ...], RankMessages] = {}
        self._blocks = [
            (name, [call for _, call in own]) for name, own in groupby(self._compiled(every), key=itemgetter(0))
        ]

    @abstractmethod
    def _computing(
        self, step: OwnStep, called: Called, comes: RankExchange | None
    ) -> Iterable[tuple[str, CompiledCall]]:
        """Bind what computes a step; give the calls, each with its name in traces, "" if it is not in them.

        Parameters
        ----------
        comes
            What arrives meanwhile, and is taken to its end; mostly nothing does.
        """

    def _makes(self, step: OwnStep, called: Called, exchange: OwnExchange, its: Called) -> bool:
        """Return whether a computation makes a piece of what is exchanged next, where values are called so."""
        return True

    @abstractmethod
    def _coding(self, step: OwnExchange) -> Coding:
        """Return how the numbers of an exchange travel."""

    def _run(self) -> None:
        """Run all calls."""
        for name, calls in self._blocks:
            self._run_block(name, calls)

    def _run_block(self, name: str, calls: Iterable[CompiledCall]) -> None:
        """Run the calls of a block; "": of none."""
        trace = self._group.traffic.trace
        with trace.block(name) if trace is not None and name else nullcontext():
            for call in calls:
                call()

    @property
    def taken_bytes(self) -> int:
        """What its values take, and what arrives of them, once it has run."""
        return sum(array.nbytes for array in (*self._memory.arrays, *self._rooms.values()))

    def _compiled(self, every: Sequence[tuple[OwnStep, Called]]) -> Iterator[tuple[str, CompiledCall]]:
        """Yield all calls, each with the name of the computation to which it belongs.

        Where receives are posted ahead, each piece is sent once it is computed: the exchange that follows has begun.
        """
        own = [(step, called) for step, called in every if isinstance(step, OwnExchange)]
        exchanges = iter([(self._exchange(step, called), step, called) for step, called in own])
        none = None, None, str
        (following, then, its), posted, sent = next(exchanges, none), False, 0
        comes: BoundExchange | None = None  # what the computation at hand begins with while it arrives
        for (step, called), (after, _) in zip_longest(every, every[1:], fillvalue=(None, str)):
            assert step is not None
            if isinstance(step, OwnExchange):
                comes = following if isinstance(after, OwnCompute) and after.as_comes else None
                ending = following.ending(sent, posted=posted, comes=comes is not None) if following else ()
                yield from (("", call) for call in ending)
                (following, then, its), posted, sent = next(exchanges, none), False, 0
                continue
            ahead, name = following if following and following.own.ahead else None, ""
            post = [ahead.exchange.post] if ahead and not posted else []
            posted = posted or bool(post)
            if comes is None:
                yield from ((name, call) for call in post)
            for name, call in self._computing(step, called, comes.exchange if comes else None):
                yield name, partial(self._group.traffic.compute, call)
            if comes is not None:  # one exchange runs at a time: messages share where they arrive
                last = [comes.exchange.sent] if comes.own.by_rows else []
                yield from ((name, call) for call in (*last, *post))
            comes = None
            if ahead and then and sent < ahead.exchange.pieces and self._makes(step, called, then, its):
                yield name, partial(ahead.exchange.send, sent)
                sent += 1

    def _exchange(self, step: OwnExchange, called: Called) -> BoundExchange | None:
        """Bind an exchange, where this rank has part in it; once, where others go from and to the same places."""
        if not step.used:
            return None
        own, coding = self._places.exchange(step), self._coding(step)
        key = (own, coding, *(self._places.lies(called(name)) for name, _ in step.used))
        if key not in self._exchanges:
            self._exchanges[key] = self._bound(own, coding, step, called)
        return self._exchanges[key]

    def _bound(self, own: OwnExchange, coding: Coding, step: OwnExchange, called: Called) -> BoundExchange:
        """Bind one of alike exchanges to the places of a step."""

        def lie(real: Used, used: Used) -> list[InBox]:
            return [(box, self._memory.view(called(name), of)) for (_, box), (name, of) in zip(real, used, strict=True)]

        items = [
            Item(real.have, real.want, lie(real.pieces, item.pieces), lie(real.places, item.places))
            for real, item in zip(own.items, step.items, strict=True)
        ]
        layouts = [item.layouts for item in items]
        what = own, *(some.kind for some in layouts)
        if what not in self._messages:
            self._messages[what] = rank_messages(self._group.rank, layouts, step.route)
        exchange = RankExchange(
            self._group, self._messages[what], [item.arrays for item in items], coding,
            scaled=step.scaled, equal=step.equal, rooms=self._rooms,
        )  # fmt: skip
        return BoundExchange(own, exchange, self._direct)


class BoundExchange:
    """An exchange between a rank's places.

    These are written again in the pass: where it sends from there, it ends when that has left.

    Parameters
    ----------
    own, exchange
        The rank's part, and what runs it.
    direct
        As of `Compiled`.
    """

    def __init__(self, own: OwnExchange, exchange: RankExchange, direct: Direct | None) -> None:
        self.own, self.exchange = own, exchange
        self._at_once: list[CompiledCall] = [exchange.run]
        if direct is not None and own.by_sockets:
            self._at_once = [exchange.over(direct)]
        elif own.by_rows:
            self._at_once.append(exchange.sent)

    def ending(self, sent: int, *, posted: bool = False, comes: bool = False) -> list[CompiledCall]:
        """Return the calls after which all is here.

        Parameters
        ----------
        sent
            How many pieces have been sent already.
        posted
            Whether receives have been posted already.
        comes
            Whether what arrives is taken by what is computed next: then all that is left to do is sent.
        """
        exchange = self.exchange
        if not (posted or comes):
            return self._at_once
        calls: list[CompiledCall] = [] if posted else [exchange.post]
        calls += [partial(exchange.send, piece) for piece in range(sent, exchange.pieces)]
        if not comes:
            calls += [exchange.finish, *([exchange.sent] if self.own.by_rows else [])]
        return calls
