"""Answers to prompts, token by token: what rank 0 does with all ranks as one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hepti_mpi.decoding.ranks import Candidates, Ranks
from hepti_mpi.requests.answer_text import AnswerText
from hepti_mpi.requests.answers import CANCELLED
from hepti_mpi.requests.lookup import History, Lookup, Proposal
from hepti_mpi.requests.prompts import Prompt, Wishes
from hepti_mpi.requests.sampling import CANDIDATES, choose
from solver.base import clock
from solver.cluster.curves import Floats
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import CHUNK_ROWS
from weights.inputs.tokenize import PromptTokenizer

GUESSED_ROWS = (1, 2, 4, 8)  # of passes that are timed, for what proposals cost
TIMES = 3  # each
SAMPLE = 128  # tokens by which an int8 cache's scales are chosen

Follow = Callable[[Floats, float, int, int], DecoderPlan | None]

WITHOUT_NUMBERS = "no numbers"  # how an answer ends where the model computes NaN or infinite numbers


@dataclass(slots=True, eq=False)
class TextAnswer:
    """An answer as it comes.

    Parameters
    ----------
    prompt
        What it continues.
    text
        Its tokens and text so far.
    wishes
        How it is to be answered.
    known
        How many tokens of the prompt were in the cache already.
    started, first_at, ended
        When it began, when its first token was there, and when its last one; by the clock of `solver.base.clock`.
    logprob, likeliest
        Of the last token the logarithm of its probability, and the likeliest ones in its place with theirs, where the
        wishes have them.
    told_prompt
        The same of the prompt's tokens after the first, where the wishes have them.
    """

    prompt: Prompt
    text: AnswerText
    wishes: Wishes
    started: float
    known: int = 0
    first_at: float = 0.0
    ended: float = 0.0
    logprob: float | None = None
    likeliest: Sequence[tuple[int, float]] = ()
    told_prompt: list[tuple[float, Sequence[tuple[int, float]]]] = field(default_factory=list)

    @property
    def greedy(self) -> bool:
        """Whether always the likeliest token is taken."""
        return self.wishes.sampling.greedy

    @property
    def candidates(self) -> int:
        """How many candidates its tokens are chosen, and told, among."""
        logprobs = self.wishes.logprobs
        if not self.greedy:
            return CANDIDATES
        return 1 if logprobs is None else max(2, logprobs)  # of one there is no sum of all

    def take(self, token: int) -> str:
        """Take the next token; return the text that it lets out."""
        grammar = self.wishes.grammar
        if grammar is None:
            return self.text.take(token)
        grammar.take(token)
        text = self.text.take(token, completes=grammar.ended and grammar.complete)
        if grammar.ended and self.text.finish_reason is None:
            self.text.finish_reason = "length"  # it has grown beyond what the grammar can follow
        return text

    @property
    def first_s(self) -> float:
        """Seconds from the prompt to the first token."""
        return self.first_at - self.started

    @property
    def decode_s(self) -> float:
        """Seconds of all tokens but the first."""
        return self.ended - self.first_at


@dataclass(slots=True, eq=False)
class _Place:
    """Room for a sequence in the caches: the tokens whose keys and values are there, and who uses it."""

    number: int
    kept: list[int] = field(default_factory=list)
    answer: TextAnswer | None = None
    history: History | None = None
    random: np.random.Generator | None = None
    used_at: float = 0.0


class Generation:
    """Answers prompts, as many at a time as there is room for.

    Parameters
    ----------
    model, ranks
        The model, and all ranks as one.
    tokenizer
        Makes text of tokens; None: answers are token ids.
    usual
        How prompts are answered that do not say it.
    speculates
        Whether tokens that followed the same ones before are tried together (`requests.lookup`); never where tokens
        are drawn, or several sequences share a pass.
    follows
        Hears of every token that was made alone what every rank computed [p], the seconds that it took, how many stand
        before it, and how many are still asked for; returns the plan to go on with, if it is another.
    """

    def __init__(
        self,
        model: Decoder,
        ranks: Ranks,
        tokenizer: PromptTokenizer | None,
        usual: Wishes,
        *,
        speculates: bool,
        follows: Follow | None = None,
    ) -> None:
        self._model, self._ranks = model, ranks
        self._tokenizer, self._usual = tokenizer, usual
        plan = ranks.share.passes.plan
        self._context, self._follows = plan.context, follows
        self._places = [_Place(number) for number in range(plan.sequences)]
        if plan.cache == "int8":
            self._choose_scales()
        self._speculates = speculates and usual.sampling.greedy
        self._lookup: Lookup | None = None  # until something is found to be guessed: to time passes may take seconds

    def answer(
        self,
        prompts: Iterable[Prompt],
        said: Callable[[TextAnswer, str], object] = lambda answer, text: None,
        *,
        is_there: Callable[[], bool] = lambda: True,
        look: Callable[[], object] = lambda: None,
        gone: Callable[[Prompt], bool] = lambda prompt: False,
    ) -> Iterator[TextAnswer]:
        """Yield the answers to prompts, each as it ends; `said` hears every piece of text.

        A prompt is taken as soon as there is room, and it `is_there`: answers on their way do not wait for one that
        a person has yet to write. `look` is called between passes; whoever asked has `gone` if nobody waits for the
        answer any more.
        """
        self._look, self._gone = look, gone
        waiting = iter(prompts)
        more = True
        while more or any(place.answer for place in self._places):
            look()
            for place in self._places:
                if place.answer is not None and gone(place.answer.prompt):
                    place.answer.text.finish_reason = CANCELLED
                    yield self._ended(place)
            free = [place for place in self._places if place.answer is None]
            if more and free and (len(free) == len(self._places) or is_there()):
                prompt = next(waiting, None)
                if prompt is None:
                    more = False
                else:
                    self._begin(prompt, free, said)
            elif len(free) < len(self._places):
                self._step(said)
            for place in self._places:
                if place.answer is not None and place.answer.text.finish_reason is not None:
                    yield self._ended(place)

    def forget(self) -> None:
        """Forget what is in the caches: answers to the same prompts take as long as they did; between answers only."""
        for place in self._places:
            place.kept.clear()

    def _ended(self, place: _Place) -> TextAnswer:
        """Return a place's answer, which has ended, and free the place."""
        assert place.answer is not None
        answer, place.answer = place.answer, None
        answer.ended = place.used_at = clock.now()
        return answer

    def _change(self) -> None:
        """Go on with the plan that was prepared; what is in the caches goes with it."""
        self._ranks.change([len(place.kept) for place in self._places])
        if self._lookup is not None and (seconds := self._measured()):
            self._lookup.measured(seconds)

    def _begin(self, prompt: Prompt, free: Sequence[_Place], said: Callable[[TextAnswer, str], object]) -> None:
        """Take a prompt, and make the first token of its answer: of the tokens in a cache only what differs is new."""
        wishes = prompt.wishes or self._usual
        stream = None if self._tokenizer is None else self._tokenizer.stream(prompt.tokens)
        # The last token of an answer is not computed: it needs no room.
        tokens = min(wishes.ending.tokens, self._context - len(prompt.tokens) + 1)
        text = AnswerText(stream, replace(wishes.ending, tokens=tokens))
        answer = TextAnswer(prompt, text, wishes, clock.now())
        random = wishes.sampling.generator()
        for token in wishes.said:
            answer.take(token)
            if not answer.greedy:
                random.random()  # as `choose` drew for this token
        before = (*prompt.tokens, *wishes.said)
        # The place that has most of it; where none has any, the one that was used least lately.
        place = max(free, key=lambda place: (_common(place.kept, before), -place.used_at))
        place.answer, place.random = answer, random
        if text.finish_reason is not None:  # all was said before
            answer.first_at = clock.now()
            return
        # The last token is computed in any case: the first answer token comes after it.
        known = min(_common(place.kept, before), len(before) - 1)
        tells = wishes.prompt_logprobs is not None
        known = 0 if tells else known  # what is not computed has no probability
        answer.known = known
        del place.kept[known:]
        place.history = History(before) if self._speculates else None
        best = (self._telling if tells else self._behind)(place, before[known:], answer)
        if best is not None:
            self._take(place, best, 0, said)
        answer.first_at = clock.now()

    def _behind(self, place: _Place, tokens: Sequence[int], answer: TextAnswer) -> Candidates | None:
        """Compute tokens after those that a place has, chunk by chunk; return the candidates after the last.

        None where nobody waits for the answer any more.
        """
        best = None
        for start in range(0, len(tokens), CHUNK_ROWS):
            self._look()
            if self._gone(answer.prompt):
                return None
            chunk = tokens[start : start + CHUNK_ROWS]
            last = start + len(chunk) == len(tokens)
            best = self._pass([place], [chunk], chosen=int(last), count=answer.candidates)
        return best

    def _telling(self, place: _Place, tokens: Sequence[int], answer: TextAnswer) -> Candidates | None:
        """Compute tokens from the first on as `_behind`, and tell how likely each of the prompt is after the others.

        As many at a time as guesses are: the plan has memory for their logits.
        """
        best, most = None, answer.wishes.prompt_logprobs or 0
        for start in range(0, len(tokens), GUESSED_ROWS[-1]):
            self._look()
            if self._gone(answer.prompt):
                return None
            chunk = tokens[start : start + GUESSED_ROWS[-1]]
            following = np.array([*tokens[start + 1 : start + 1 + len(chunk)], 0][: len(chunk)], np.int64)
            count = max(answer.candidates, most, 2)  # of one there is no sum of all
            best = self._pass([place], [chunk], chosen=len(chunk), count=count, wanted=following)
            for row in range(min(len(chunk), len(answer.prompt.tokens) - 1 - start)):
                top = zip(best.ids[row].tolist(), (best.logits[row] - best.log_sum[row]).tolist(), strict=True)
                logprob = float(best.wanted[row] - best.log_sum[row])
                answer.told_prompt.append((logprob, [(word, chance) for word, chance in top if word >= 0][:most]))
        assert best is not None
        return best.last()

    def _step(self, said: Callable[[TextAnswer, str], object]) -> None:
        """Make the next token of every answer on its way; of one alone also several, where they were guessed."""
        active = [place for place in self._places if place.answer is not None]
        first = active[0].answer
        assert first is not None
        lookup = None
        if len(active) == 1 and self._speculates and first.greedy and first.wishes.grammar is None:
            lookup = self._lookup = self._lookup or self._first_lookup(active[0])
        started, behind = clock.now(), len(active[0].kept)
        if lookup is not None:
            alone = self._guess(active[0], lookup, said)
        else:
            self._step_all(active, said)
            alone = len(active) == 1
        seconds = clock.now() - started
        if self._ranks.coming:
            if self._ranks.work():
                self._change()
        elif self._follows is not None and alone:
            asked = first.text.most - len(first.text.tokens)
            plan = self._follows(self._ranks.pass_s, seconds, behind, asked)
            if plan is not None:  # until all have what it needs, a token takes twice as long at most
                self._ranks.prepare(plan, seconds)

    def _step_all(self, active: Sequence[_Place], said: Callable[[TextAnswer, str], object]) -> None:
        """Make one token of every answer on its way."""
        first, last = active[0].number, active[-1].number
        places = self._places[first : last + 1]
        # A place between them that nobody uses computes something after what it keeps, which nobody reads.
        chunks = [[place.answer.text.tokens[-1] if place.answer else 0] for place in places]
        count = max(place.answer.candidates for place in active if place.answer)
        best = self._pass(places, chunks, chosen=1, count=count)
        for row, place in enumerate(places):
            if place.answer is not None:
                self._take(place, best, row, said)
            else:
                place.kept.pop()

    def _first_lookup(self, place: _Place) -> Lookup | None:
        """Return what decides about guesses, once there is one, and room for passes that are timed."""
        assert place.history is not None
        if len(place.kept) + GUESSED_ROWS[-1] > self._context or not place.history.propose(1).tokens:
            return None
        return Lookup(self._measured())

    def _guess(self, place: _Place, lookup: Lookup, said: Callable[[TextAnswer, str], object]) -> bool:
        """Compute the last token and those that may follow it; take what the model says, as far as it was guessed.

        Return whether it was one token.
        """
        assert place.answer is not None
        assert place.history is not None
        text = place.answer.text
        room = min(text.most - len(text.tokens), self._context - len(place.kept)) - 1
        proposal = lookup.propose(place.history)
        proposal = Proposal(proposal.tokens[: max(room, 0)], proposal.match)
        behind, rows = len(place.kept), [text.tokens[-1], *proposal.tokens]
        best = self._pass([place], [rows], chosen=len(rows), count=place.answer.candidates)
        right = 0
        for row, guessed in enumerate([*proposal.tokens, None]):
            self._take(place, best, row, said)
            if text.finish_reason is not None or text.tokens[-1] != guessed:
                break
            right += 1
        del place.kept[behind + 1 + right :]
        lookup.learn(proposal, right)
        return not proposal.tokens

    def _take(self, place: _Place, best: Candidates, row: int, said: Callable[[TextAnswer, str], object]) -> None:
        """Choose the next token of an answer among the candidates of a row."""
        answer = place.answer
        assert answer is not None
        assert place.random is not None
        known = best.ids[row] >= 0
        ids, logits = best.ids[row][known], best.logits[row][known]
        if not (known.any() and np.isfinite(logits).all()) or np.isnan(best.log_sum[row]):
            answer.text.finish_reason = WITHOUT_NUMBERS
            return
        token = choose(ids, logits.astype(np.float32), answer.wishes.sampling, place.random)
        if (logprobs := answer.wishes.logprobs) is not None:
            told = dict(zip(ids.tolist(), (logits - best.log_sum[row]).tolist(), strict=True))
            answer.logprob, answer.likeliest = told[token], [*told.items()][:logprobs]
        text = answer.take(token)
        if place.history is not None:
            place.history.extend([token])
        said(answer, text)

    def _pass(
        self, places: Sequence[_Place], chunks: Sequence[Sequence[int]], *, chosen: int, count: int = 1,
        wanted: NDArray[np.int64] | None = None,
    ) -> Candidates:  # fmt: skip
        """Compute equally many new tokens of consecutive places."""
        starts = [min(len(place.kept), self._context - len(chunk)) for place, chunk in zip(places, chunks, strict=True)]
        grammars = [place.answer.wishes.grammar if place.answer else None for place in places]
        allowed = None
        if chosen and any(grammars):
            every = np.ones(self._model.vocab, bool)
            allowed = np.array([every if grammar is None else grammar.allowed for grammar in grammars])
        for place, chunk, start in zip(places, chunks, starts, strict=True):
            place.kept[start:] = chunk
        return self._ranks.compute(
            places[0].number, np.array(chunks), starts, chosen=chosen, count=count, allowed=allowed, wanted=wanted
        )

    def _choose_scales(self) -> None:
        """Choose an int8 cache's scales by a sample: what begins a text, and words from everywhere in the vocabulary.

        The same sample always, so that answers do not depend on what was asked before.
        """
        rows = min(SAMPLE, self._context)
        tokens = [number * self._model.vocab // rows for number in range(rows)]
        tokens[0] = self._model.bos or 0
        self._ranks.compute(0, np.array([tokens]), [0], chosen=0, scales=True)

    def _measured(self) -> dict[int, float]:
        """Return the seconds of passes over one row and over a few, in the middle of TIMES each.

        They are computed after the sequence that has most room, and forgotten.
        """
        place = min(self._places, key=lambda place: len(place.kept))
        behind = len(place.kept)
        found = {}
        for rows in GUESSED_ROWS:
            times = []
            for _ in range(TIMES * (behind + rows <= self._context)):
                started = clock.now()
                self._pass([place], [[0] * rows], chosen=rows)
                times.append(clock.now() - started)
                del place.kept[behind:]
            if times:
                found[rows] = sorted(times)[TIMES // 2]
        return found


def _common(kept: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    for number, (one, other) in enumerate(zip(kept, tokens, strict=False)):
        if one != other:
            return number
    return min(len(kept), len(tokens))
