"""All ranks as one language model: rank 0 says which new tokens, all compute, and rank 0 learns the likeliest words."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.mpi import Tag
from hepti_mpi.comm.trace import Trace
from hepti_mpi.comm.wires import Coding
from hepti_mpi.engine.load import Preparation, WeightsSource
from hepti_mpi.kernels.kinds.embedding import ReadEmbedding, ReadsRows
from hepti_mpi.program.in_flight import InFlight
from hepti_mpi.program.program import PassShape, Program
from hepti_mpi.program.share import Share
from solver.base import clock
from solver.base.arrays import Array, Numbers
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.passes import DecoderPasses
from solver.schedule.decoders.steps import FACTS, OWN

SMALL_BYTES = 1 << 16  # of what a pass begins with that goes with the word what to compute
# What rank 0 says: let go, a pass, get what another plan needs, go on with it, count from here on.
END, PASS, PREPARE, CHANGE, COUNT = range(5)
KEPT = 8  # passes of other shapes than a token's are made anew when so many others were in between

DecoderShare = Share[DecoderPasses]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The likeliest words after some rows, the likeliest first; of equal ones the lower number.

    Parameters
    ----------
    ids, logits : [rows, n]
        Where a vocabulary has fewer, -1 and -inf.
    log_sum : [rows]
        The logarithm of the sum of exp(logit) over the whole vocabulary; -inf where one candidate was asked for.
    wanted : [rows]
        The logits of words that were asked for besides; empty where none were.
    """

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]
    log_sum: NDArray[np.float64]
    wanted: NDArray[np.float64]

    def last(self) -> Candidates:
        """Return those of the last row alone."""
        return Candidates(self.ids[-1:], self.logits[-1:], self.log_sum[-1:], self.wanted[-1:])


class Ranks:
    """A rank's part in all passes; rank 0 calls `compute`, `prepare`, `change` and `finish`, the others `follow`.

    Parameters
    ----------
    share
        This rank's.
    group, direct, coding
        All ranks, this one's connections to them, and how summands travel.
    source
        Where the weights of another plan come from; None: there is none.
    reads
        On rank 0 where the rows of words come from, of plans under which it has all of the embedding.
    trace
        Records the last pass, where one is asked for.

    Attributes
    ----------
    compute_s
        What this rank has computed.
    pass_s : [p]
        On rank 0, what every rank computed of the last pass with candidates; 0 of one without a share.
    told_s, sent_bytes : [p], passes_s
        On rank 0, what every rank computed of all passes with candidates, what it has sent in its life, and the seconds
        that those passes took.
    """

    def __init__(
        self, share: DecoderShare, group: Group, direct: Direct, coding: Coding, source: WeightsSource | None = None,
        reads: ReadsRows | None = None, trace: Trace | None = None,
    ) -> None:  # fmt: skip
        self._trace = trace
        self._group, self._direct, self._coding = group, direct, coding
        self._preparation = Preparation(source) if source else None
        self._embed = ReadEmbedding(share.passes.model.embedding, reads) if reads else None
        self._coming: DecoderShare | None = None  # of a plan that is prepared
        self.compute_s = 0.0
        self.pass_s, self.told_s, self.sent_bytes = (np.zeros(group.size) for _ in range(3))
        self.passes_s = 0.0
        self._facts = np.zeros(FACTS + share.passes.plan.sequences, np.int64)  # of the pass that rank 0 says
        self._passes: OrderedDict[PassShape, Program | InFlight] = OrderedDict()
        self._use(share)

    def _use(self, share: DecoderShare) -> None:
        self.share = share
        stages = share.passes.plan.stages
        self._begins = share.passes.first
        self._at_work = sorted({rank for stage in stages for rank in stage.ranks})
        self._words = share.passes.plan.words
        self._suppressed = np.array(share.passes.model.suppressed, np.int64)

    def compute(
        self, first: int, tokens: NDArray[np.int64], starts: Sequence[int], *, chosen: int, count: int = 1,
        scales: bool = False, allowed: NDArray[np.bool] | None = None, wanted: NDArray[np.int64] | None = None,
    ) -> Candidates:  # fmt: skip
        """Compute new tokens on all ranks.

        Parameters
        ----------
        first
            The place of the first sequence.
        tokens : [sequences, rows]
            Their new ones.
        starts
            How many tokens are before, of each sequence.
        chosen
            How many of the last rows of each sequence have candidates.
        count
            Of candidates a row.
        scales
            Whether an int8 cache's scales are chosen by these rows; before any that is to be kept.
        allowed : [rows with candidates, vocab]
            Which words may be candidates; None: all. Sums are of these words, too.
        wanted : [rows with candidates]
            Of each row a word whose logit is told, candidate or not; None: there are none.
        """
        started, group, (B, S) = clock.now(), self._group, tokens.shape
        shape = PassShape(first, B, S, B * chosen, scales)
        self._facts[:FACTS] = PASS, first, B, S, shape.chosen, scales, count, allowed is not None, wanted is not None
        self._facts[FACTS : FACTS + B] = starts
        given = self._given(tokens, starts)
        small = given.nbytes <= SMALL_BYTES
        with_rows = np.concatenate([self._facts.view(np.uint8), given.reshape(-1).view(np.uint8)]) if small else None
        for peer in group.others():
            begins = peer in self._begins
            self._direct.send(with_rows if with_rows is not None and begins else self._facts, peer)
            if begins and not small:
                group.post_send(given, peer, Tag.PASS)
            if allowed is not None and (words := self._words[peer]).size:
                self._direct.send(np.packbits(allowed[:, words.slice], axis=1), peer)
            if wanted is not None and self._words[peer].size:
                self._direct.send(wanted, peer)
        own = self._pass(shape)
        if group.rank in self._begins:
            own.given[...] = given
        size = shape.chosen * (1 + 2 * count + (wanted is not None))
        told = {peer: np.empty(OWN + size * (self._words[peer].size > 0)) for peer in self._at_work if chosen}
        seconds = self._run(own, starts)
        if group.rank in told:
            words = self._words[group.rank]
            own_allowed = None if allowed is None else allowed[:, words.slice]
            told[group.rank] = self._told(own, seconds, count, own_allowed, wanted)
        self._direct.exchange([], [own for own in told.items() if own[0] != group.rank]).run()
        group.finish_sending()
        for peer, message in told.items():
            self.pass_s[peer], self.sent_bytes[peer] = message[:OWN]
        if told:
            self.told_s += self.pass_s
            self.passes_s += clock.now() - started
        parts = [told[peer][OWN:] for peer in sorted(told) if self._words[peer].size]
        sums = [part[: shape.chosen] for part in parts]
        until = shape.chosen * (1 + 2 * count)
        best = [part[shape.chosen : until].reshape(shape.chosen, count, 2) for part in parts]
        found = merged([np.empty((shape.chosen, 0, 2)), *best], count, [np.full(shape.chosen, -np.inf), *sums])
        # A word is one rank's; the others say -inf.
        return found if wanted is None else replace(found, wanted=np.max([part[until:] for part in parts], axis=0))

    def _given(self, tokens: NDArray[np.int64], starts: Sequence[int]) -> Array:
        """Return what a pass begins with, [sequences, rows, …]: the stream, or tokens where words are shared out."""
        passes = self.share.passes
        if passes.plan.embedding is not None:  # float32 has all whole numbers below 16 million
            return tokens[..., None].astype(np.float32)
        assert self._embed is not None
        return self._embed(tokens, starts, passes.model.hidden)

    def prepare(self, plan: DecoderPlan, budget_s: float) -> None:
        """Let all ranks get what another plan needs, between passes, which may wait for it; rank 0 calls it.

        Parameters
        ----------
        plan
            Of the same context, sequences, precision and cache.
        budget_s
            For how many seconds each pass.
        """
        self._say(PREPARE)
        self._group.orders.send((plan, budget_s), self._group.others())
        self._prepare(plan, budget_s)

    def _prepare(self, plan: DecoderPlan, budget_s: float) -> None:
        assert self._preparation is not None
        passes = replace(self.share.passes, plan=plan)
        self._coming = Share(passes, self.share.rank, self.share, backend=self.share.backend)
        self._preparation.begin(self._coming.lacking(), budget_s)
        self._preparation.work()

    @property
    def coming(self) -> bool:
        """Whether a plan is being prepared."""
        return self._coming is not None

    def work(self) -> bool:
        """Work on a plan that is prepared; return whether this rank, on rank 0 whether every one, has what it needs."""
        if self._preparation is None or self._coming is None:
            return False
        self._preparation.work()
        return self._preparation.ready

    def change(self, kept: Sequence[int]) -> None:
        """Go on with the plan that was prepared, on all ranks; rank 0 calls it.

        Parameters
        ----------
        kept
            How many tokens of every sequence are in the caches.
        """
        self._say(CHANGE)
        self._group.orders.send(kept, self._group.others())
        self._change(kept)

    def _change(self, kept: Sequence[int]) -> None:
        assert self._coming is not None
        self._passes.clear()
        share, self._coming = self._coming, None
        share.move_state(self.share, kept, self._group)
        self.pass_s[:] = 0
        self._use(share)

    def count(self) -> None:
        """Count from here on, on all ranks, and forget what was counted; rank 0 calls it, between passes."""
        self._say(COUNT)
        self._count()

    def _count(self) -> None:
        self.compute_s = self.passes_s = 0.0
        self.told_s[:] = 0
        self._group.traffic.reset()

    def finish(self) -> None:
        """Let the other ranks go; rank 0 calls it."""
        self._say(END)

    def _say(self, word: int) -> None:
        self._facts[0] = word
        for peer in self._group.others():
            self._direct.send(self._facts, peer)

    def follow(self) -> None:
        """Compute what rank 0 says until it lets this rank go."""
        group, facts = self._group, self._facts
        while True:
            self._direct.receive(facts, 0)
            word, first, B, S, chosen, scales, count, held, asked = (int(fact) for fact in facts[:FACTS])
            if word == END:
                return
            if word == PREPARE:
                self._prepare(*group.orders.take())
                continue
            if word == CHANGE:
                self._change(group.orders.take())
                continue
            if word == COUNT:
                self._count()
                continue
            own = self._pass(PassShape(first, B, S, chosen, bool(scales)))
            if group.rank in self._begins:
                if own.given.nbytes <= SMALL_BYTES:
                    self._direct.receive(own.given, 0)
                else:
                    group.wait_all([group.post_receive(own.given, 0, Tag.PASS)])
            allowed = self._allowed(chosen) if held and self._words[group.rank].size else None
            wanted = self._wanted(chosen) if asked and self._words[group.rank].size else None
            seconds = self._run(own, [int(start) for start in facts[FACTS : FACTS + B]])
            if chosen and group.rank in self._at_work:
                self._direct.send(self._told(own, seconds, count, allowed, wanted), 0)
            self.work()

    def _allowed(self, rows: int) -> NDArray[np.bool]:
        """Return which of this rank's words may be candidates, as rank 0 says."""
        size = self._words[self._group.rank].size
        bits = np.empty((rows, -(-size // 8)), np.uint8)
        self._direct.receive(bits, 0)
        return np.unpackbits(bits, axis=1, count=size).astype(bool)

    def _wanted(self, rows: int) -> NDArray[np.int64]:
        """Return of every row the word whose logit rank 0 asks for."""
        wanted = np.empty(rows, np.int64)
        self._direct.receive(wanted, 0)
        return wanted

    def _run(self, own: Program | InFlight, starts: Sequence[int]) -> float:
        """Run a pass; return what this rank computed of it."""
        traffic = self._group.traffic
        started, waited_s = clock.now(), traffic.wait_s
        traffic.trace = self._trace
        if self._trace is not None:
            self._trace.begin()
        own.run(starts)
        if self._trace is not None:
            self._trace.end()
            traffic.trace = None  # waits for what to compute are in none
        seconds = clock.now() - started - (traffic.wait_s - waited_s)
        self.compute_s += seconds
        return seconds

    def _told(
        self, own: Program | InFlight, seconds: float, count: int, allowed: NDArray[np.bool] | None,
        wanted: NDArray[np.int64] | None,
    ) -> Numbers:  # fmt: skip
        """Return what rank 0 hears of a pass: this rank's seconds and sent bytes, and the candidates among its words.

        Before these of every row the logarithm of the sum of exp(logit), where more than the best is asked for; after
        them the logit of the word that is wanted, -inf where it is another rank's.
        """
        of_rank = np.array([seconds, self._group.traffic.sent_bytes])
        if not own.logits:
            return of_rank
        if allowed is not None:
            own_first = self._words[self._group.rank].start
            for first, logits in own.logits:
                place = first - own_first
                logits[~allowed[:, place : place + logits.shape[1]]] = -np.inf
        for first, logits in own.logits if self._suppressed.size else ():
            here = self._suppressed[(self._suppressed >= first) & (self._suppressed < first + logits.shape[1])]
            logits[:, here - first] = -np.inf
        best = best_of([likeliest(logits, count, first) for first, logits in own.logits], count)
        sums = np.full(len(best), -np.inf)
        if count > 1:
            sums = np.logaddexp.reduce([log_sum(logits) for _, logits in own.logits])
        asked = [] if wanted is None else [logits_of(wanted, own.logits)]
        return np.concatenate([of_rank, sums, best.reshape(-1), *asked])

    def _made(self, shape: PassShape) -> Program | InFlight:
        def program(part: PassShape) -> Program:
            return Program(self.share, part, self._group, self._direct, self._coding)

        parts = self.share.passes.plan.in_flight(shape.sequences)
        return InFlight(shape, parts, program) if len(parts) > 1 else program(shape)

    def _pass(self, shape: PassShape) -> Program | InFlight:
        """Return the pass of a shape, made where it is not among the last ones."""
        if shape not in self._passes:
            if len(self._passes) == KEPT:
                self._passes.popitem(last=False)
            self._passes[shape] = self._made(shape)
        self._passes.move_to_end(shape)
        return self._passes[shape]


def likeliest(logits: Array, count: int, first: int) -> Numbers:
    """Return the candidates among a rank's words, [rows, count, 2]: numbers, the first word's being `first`; logits."""
    found = np.full((len(logits), count, 2), -np.inf)
    if count == 1:
        best = logits.argmax(1)[:, None]  # the first of equal ones
    else:
        some = min(count, logits.shape[1])
        best = np.argpartition(-logits, some - 1, axis=1)[:, :some]
    found[:, : best.shape[1], 0] = best + first
    found[:, : best.shape[1], 1] = logits[np.arange(len(logits))[:, None], best]
    return found


def logits_of(wanted: NDArray[np.int64], parts: Sequence[tuple[int, Array]]) -> Numbers:
    """Return each row's logit of a word, [rows], of some words, each part with its first; -inf of others."""
    found: Numbers = np.full(len(wanted), -np.inf)
    for first, logits in parts:
        (rows,) = np.nonzero((wanted >= first) & (wanted < first + logits.shape[1]))
        found[rows] = logits[rows, wanted[rows] - first]
    return found


def log_sum(logits: Array) -> Numbers:
    """Return the logarithm of the sum of exp(logit) of every row, [rows]."""
    best = logits.max(1, keepdims=True, initial=np.finfo(logits.dtype).min)
    with np.errstate(divide="ignore"):  # of a rank without a word that is allowed
        found: Numbers = (best[:, 0] + np.log(np.exp(logits - best).sum(1, dtype=np.float64))).astype(np.float64)
    return found


def best_of(parts: Sequence[Numbers], count: int) -> Numbers:
    """Return the candidates among those of several parts of the vocabulary, each as of `likeliest`."""
    both = parts[0] if len(parts) == 1 else np.concatenate(parts, 1)
    if both.shape[1] == 1:  # nothing to sort
        return both
    order = np.lexsort((both[:, :, 0], -both[:, :, 1]), axis=1)[:, :count]
    return both[np.arange(len(both))[:, None], order]


def merged(parts: Sequence[Numbers], count: int, sums: Sequence[Numbers]) -> Candidates:
    """Return the candidates among those of all ranks, and the logarithms of their sums together."""
    best = best_of(parts, count)
    ids = np.where(np.isfinite(best[:, :, 1]), best[:, :, 0], -1)
    return Candidates(ids.astype(np.int64), best[:, :, 1], np.logaddexp.reduce(sums), np.empty(0))
