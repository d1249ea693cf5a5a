"""Language models, on rank 0: prompts and conversations in, text out; an answer takes many passes."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group

from hepti_mpi.decoding.generation import WITHOUT_NUMBERS, Follow, Generation, TextAnswer
from hepti_mpi.decoding.report import answer_entry, share_columns, shares_of, show_run, speed
from hepti_mpi.report.alone import BoardAlone, Pace, decoder_alone, tokens_a_second
from hepti_mpi.report.tables import TEXT_SHOWN
from hepti_mpi.report.watch import Watch, follower_picture
from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.answers import LAST, NOTHING, Answer, Tally
from hepti_mpi.requests.outputs import print_answer, print_text
from hepti_mpi.requests.prompts import Prompt, PromptReader, Wishes
from hepti_mpi.requests.sampling import CANDIDATES, Sampling
from hepti_mpi.requests.service_lines import Complaint, print_line
from hepti_mpi.requests.stdin import read_lines
from hepti_mpi.session.cli import CACHE, FOR_WORDS, NOTHING_ASKED, answer_tokens
from hepti_mpi.session.decoder_rank import DecoderRank
from hepti_mpi.session.defaults import default_chat
from hepti_mpi.session.desk import FrontDesk
from hepti_mpi.session.kind import ModelKind, OpenedModel, Show
from solver.base import clock
from solver.base.errors import HeptiError
from solver.base.phrases import counted, excerpt, printable
from solver.cluster.cluster import Cluster, Device
from solver.cluster.curves import Floats
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.file import check_plan, read_plan, sent_as
from solver.plan.plan import WIRES, Wire
from solver.plan.writing import plan_table
from solver.schedule.decoders.asked import CONTEXT, PROMPT, TokenRequest
from solver.schedule.decoders.cost import first_seconds, setting_of, token_seconds
from solver.schedule.decoders.memory import check_memory, rank_memory
from weights.decoders.file import DecoderFile
from weights.file.store import LANGUAGE_MODEL
from weights.formats import weights_path
from weights.inputs.templates import ChatTemplate
from weights.inputs.tokenize import PromptTokenizer

if TYPE_CHECKING:
    from solver.live.decoder_replan import TokenFollower
    from solver.live.turns import Turns

IDS_SHOWN = 60  # letters of the ids of answers that were cut
DRAWN_S = 0.25  # from picture to picture: to draw one takes longer than a token of a small model
# So many passes save on large pages what moving weights there takes. Of llama-3.2-1b in int4 on two x86 cores, whose
# pages were fragmented, that was 0.65 s, and 1.9 ms of 26 a token. Both go with the bytes of weights.
MANY_PASSES = 340


class DecoderKind(ModelKind):
    """What a session asks of a language model, on rank 0."""

    reads = ("prompt", "chat", *FOR_WORDS)
    suffixes = (".jsonl",)
    unit = "answers"
    _model: Decoder
    _plan: DecoderPlan

    def __init__(self, desk: FrontDesk) -> None:
        super().__init__(desk)
        self._made = 0  # tokens
        # Of answers that count; of a run that serves the last ones: it may serve for weeks.
        self._answers: deque[dict[str, Any]] = deque(maxlen=LAST if desk.serves else None)
        self._turns: Turns[DecoderPlan] | None = None  # where several plans are tried
        self._watch: Watch | None = None
        self._drawn_at = -math.inf
        self._shown: list[Answer] = []  # those that wait until nothing is drawn any more

    def open(self) -> OpenedModel | None:
        """Open the model, and read what is asked of it."""
        from solver.systems.decoders import planner_of  # the solvers are for rank 0 alone

        options, desk = self._options, self._desk
        if not (options.prompt or options.chat or options.input or options.random is not None):
            raise HeptiError(NOTHING_ASKED)
        planner_of(options.system)  # here, before hosts are measured
        options.model = options.model or default_chat()
        path = weights_path(options.model, LANGUAGE_MODEL, desk.say)
        self._file = file = DecoderFile(path)
        self._model = model = file.model
        if options.context is not None and options.context > model.positions:
            raise HeptiError(f"--context is {options.context}, {model.name} has {model.positions} positions")
        if options.wire not in (None, *WIRES):
            raise HeptiError(f"{options.wire} on the wire: {model.name} sends {', '.join(WIRES)}")
        self._given = None if options.plan is None else self._read_plan()
        self._context = options.context or (self._given.context if self._given else min(CONTEXT, model.positions))
        if options.tokens is not None and options.tokens > self._context:
            more = (
                "a longer --context" if self._context < model.positions else f"a model of more than {model.positions}"
            )
            raise HeptiError(
                f"--tokens is {options.tokens}, the context has room for {self._context}, the prompt's among them: ask "
                f"for fewer, or give {more}"
            )
        self._tokenizer = None if file.tokenizer is None else PromptTokenizer(file.tokenizer)
        if self._tokenizer is None and (options.prompt or options.chat or options.stop or ()):
            raise HeptiError(f"{options.model} came without a tokenizer: give --input with lines of tokens")
        template = None
        if file.chat_template is not None:
            template = ChatTemplate(file.chat_template, file.special)
        if options.chat and template is None:
            raise HeptiError(f"{options.model} came without a chat template: give --prompt or --input")
        complain = desk.ahead.complain if desk.serves else desk.complain
        defaults = file.generation
        temperature = defaults.get("temperature", 0.0) if options.temperature is None else options.temperature
        top_p = defaults.get("top_p", 1.0) if options.top_p is None else options.top_p
        top_k = min(int(defaults.get("top_k", 0)), CANDIDATES)
        drawing = [name for name in ("top_p", "seed") if getattr(options, name) is not None]
        if not temperature and drawing:
            name = drawing[0].replace("_", "-")
            raise HeptiError(f"--{name} is for what is drawn, at temperature 0 nothing is: give --temperature, too")
        ending = Ending(answer_tokens(options), () if options.ignore_eos else model.eos, options.stop or ())
        self._usual = Wishes(ending, Sampling(temperature, top_p, top_k, options.seed))
        self._reader = PromptReader(
            model, self._context, self._tokenizer, template, complain, self._usual, by_id=not desk.serves
        )
        self._prompts: list[Prompt] = []
        if options.prompt:
            self._prompts = self._reader.texts(options.prompt)
        elif options.random is not None:
            self._prompts = [self._reader.random(options.random)]
        elif options.input is not None and not desk.serves:
            self._prompts = list(self._reader.file(Path(options.input)))
            if not self._prompts:
                if desk.complained:
                    return None
                raise HeptiError(f"--input {options.input} is empty")
        self.count = len(self._prompts)
        return OpenedModel(path.absolute(), model, file.precision, file.fingerprint)

    @property
    def asks_much(self) -> bool:
        """Whether so many tokens may be made that it pays to move weights onto large pages, of one that serves always.

        Three answers of 24 tokens by llama-3.2-1b in the lab took 37 s with it from start to end, and 33 s without.
        """
        if not self._prompts:
            return True
        tokens = sum((prompt.wishes or self._usual).ending.tokens for prompt in self._prompts)
        much: bool = tokens * (self._options.warmup + self._options.repeat) >= MANY_PASSES * self._plan.sequences
        return much

    def plan(self, cluster: Cluster | None) -> Sequence[DecoderPlan]:
        """Read or make the plan."""
        model, plan, self.cluster = self._model, self._given, cluster
        if plan is None:
            from solver.systems.decoders import plan_decoder  # the solvers are for rank 0 alone

            assert cluster is not None
            plan = plan_decoder(self._options.system, model, cluster, self.asked)
            plan.check(model, self._desk.group.size)
        elif cluster is not None:
            check_memory(model, cluster, plan)
        self._plan = plan
        return (plan,)

    def needed_bytes(self) -> list[int]:
        """Return the memory that every rank needs for the plan."""
        return [needs.total for needs in rank_memory(self._model, self._plan)]

    def measured(self, device: Device) -> bool | None:
        """Return whether a device was measured for language models."""
        return device.decoder is not None

    def _read_plan(self) -> DecoderPlan:
        """Read the plan that is given; what the command line says goes before what it says."""
        options = self._options
        plan = read_plan(options.plan, DecoderPlan, self._model)
        if plan.precision != self._file.precision:
            raise HeptiError(f"{options.plan} is for {plan.precision}, {options.model} is {self._file.precision}")
        said = {name: getattr(options, name) for name in ("context", "sequences", "cache")}
        said = {name: value for name, value in said.items() if value is not None}
        plan = sent_as(replace(plan, predicted=None, **said) if said else plan, options.wire)
        check_plan(options.plan, plan, self._model, self._desk.group.size)
        return plan

    @property
    def asked(self) -> TokenRequest:
        """What to plan for: prompts that are known, answers as long as they may be; all else as a given plan says."""
        options, given = self._options, self._given
        lengths = [len(prompt.tokens) for prompt in self._prompts or ()]
        prompt = min(int(statistics.median(lengths)) if lengths else PROMPT, max(self._context - 1, 1))
        return TokenRequest(
            prompt=prompt,
            tokens=max(min(answer_tokens(options), self._context - prompt), 1),
            context=self._context,
            sequences=given.sequences if given else options.sequences or 1,
            precision=self._file.precision,
            cache=given.cache if given else options.cache or CACHE,
            wire=given.wire if given else options.wire or Wire.FLOAT32,
        )

    def begin(self, rank: DecoderRank, last: ExitStack) -> None:
        """Take rank 0's part, and let the plan follow the devices, where it may change."""
        options = self._options
        self._watch = last.enter_context(Watch(self._desk.console)) if options.watch else None
        self._ranks = rank.run_by(self._file)
        self._generation = Generation(
            self._model, self._ranks, self._tokenizer, self._usual,
            speculates=options.lookup != "off" and self._plan.sequences == 1, follows=self._follows(rank.load_s, last),
        )  # fmt: skip
        self._counts = options.warmup == 0

    def _follows(self, load_s: float, last: ExitStack) -> Follow | None:
        """Return what lets the plan follow the devices, or what is measured of several, where it may change.

        `last` ends what it began.
        """
        options = self._options
        if options.plan_by == "measure":
            return self._tries()
        if options.replan == "off" or self._desk.group.size == 1:
            return None
        assert self.cluster is not None  # --replan beside a --plan needs one, and all else is planned for a cluster
        from solver.live.decoder_replan import TokenFollower  # the solvers are for rank 0 alone
        from solver.live.planning import PlanningProcess

        changes, solves = options.replan == "auto", last.enter_context(PlanningProcess())
        follower = TokenFollower(self._model, self.cluster, self.asked, self._plan, load_s, solves, changes=changes)

        def follow(compute_s: Floats, seconds: float, behind: int, to_come: int) -> DecoderPlan | None:
            change = follower.came(compute_s.tolist(), seconds, behind, to_come)
            if change is not None:
                self._changes.append(change.to_table(len(self._answers)))
                self._desk.say(change.line)
            if self._watch and clock.now() - self._drawn_at > DRAWN_S:
                self._drawn_at = clock.now()
                self._watch.show(self._picture(follower, compute_s, seconds))
            return change.plan if change is not None and change.taken else None

        return follow

    def _picture(self, follower: TokenFollower, compute_s: Floats, seconds: float) -> Group:
        plan, lines = self._ranks.share.passes.plan, [entry["line"] for entry in self._changes]
        shares = partial(shares_of, plan)
        return follower_picture(follower, compute_s.tolist(), seconds, lines, share_columns(plan), shares)

    def _tries(self) -> Follow | None:
        """Return what lets the first tokens be made by several plans; None where there is one."""
        from solver.live.fewer_devices import decoders_to_try, words_of  # the solvers are for rank 0 alone
        from solver.live.turns import NO_OTHER, Turns

        assert self.cluster is not None  # it goes with no --plan, and all else is planned for a cluster
        turns = Turns(decoders_to_try(self._model, self.cluster, self.asked, self._plan), words_of, tokens=True)
        if not turns.several:
            self._desk.note([NO_OTHER])
            return None
        self._turns, setting = turns, setting_of(self._model, self.cluster, self._plan)

        def follow(compute_s: Floats, seconds: float, behind: int, to_come: int) -> DecoderPlan | None:
            if turns.settled:
                return None
            number = turns.number
            turns.took(seconds, token_seconds(setting, turns.plans[number], behind))
            return turns.plans[turns.number] if turns.number != number else None

        return follow

    def requests(self) -> Iterable[Prompt]:
        """Return what is asked."""
        desk = self._desk
        if self._options.chat:
            return self._conversation()
        return desk.ahead.of(self._reader.standard_input(desk.lines)) if desk.serves else self._prompts

    def answers(self, requests: Iterable[Prompt], *, counts: bool, shows: bool) -> Iterator[Answer]:
        """Answer prompts, as many at a time as the plan has sequences."""
        desk, options, generation = self._desk, self._options, self._generation
        says = shows and options.prompt and not self._watch
        if counts and not self._counts:
            self._ranks.count()
            self._counts = True
        generation.forget()  # else the prompts of an earlier pass would take no time
        if desk.serves:
            gone = lambda prompt: desk.lines.is_cancelled(prompt.line)
            found = generation.answer(requests, self._streams, is_there=desk.ahead.is_there, look=desk.look, gone=gone)
        elif options.chat:
            found = generation.answer(requests, lambda answer, text: print_text(text))
        elif says and self._plan.sequences == 1:
            found = generation.answer(requests, self._says)
        else:
            found = generation.answer(requests)  # several at a time would come mixed up
        for answer in found:
            entry = answer_entry(answer)
            if counts and answer.text.finish_reason != WITHOUT_NUMBERS:
                self._answers.append({**entry, "prompt_logprobs": None})  # which may be long, and no report has it
            if options.chat:
                self._heard(answer)
            elif says and answer.text.finish_reason != WITHOUT_NUMBERS:
                self._ends(answer)
            yield Answer(entry, NOTHING, counts=counts, line=answer.prompt.line)

    def has_numbers(self, answer: Answer) -> bool:
        """Tell whether what was computed are numbers."""
        return bool(answer.entry["finish_reason"] != WITHOUT_NUMBERS)

    @property
    def silent(self) -> bool:
        """Whether answers go to a file alone, or are of random tokens."""
        return self._options.random is not None or (
            self._options.input is not None and self._options.output is not None
        )

    def show(self, answer: Answer) -> None:
        """Print the answer to a line of a file; others are printed as they come, if nothing is drawn meanwhile."""
        if self._watch and not self.silent:
            self._shown.append(answer)
        elif self._options.input is not None and self._options.output is None:
            print_answer(answer)

    def end(self) -> None:
        """Let the other ranks go."""
        self._plan = self._ranks.share.passes.plan
        self._ranks.finish()
        self._file.close()
        if self._turns is not None:
            self._desk.say(self._turns.line)

    @property
    def table(self) -> dict[str, Any]:
        """Return the plan as its file has it."""
        return plan_table(self._ranks.share.passes.plan, self._model)

    @property
    def active(self) -> Collection[str]:
        """Return the devices that compute."""
        return {self._plan.devices[rank] for rank in self._plan.active}

    def meters(self) -> Mapping[int, Mapping[str, float]]:
        """Return what ranks did so far; they tell it with every token."""
        ranks = self._ranks
        each = zip(ranks.told_s.tolist(), ranks.sent_bytes.tolist(), strict=True)
        return {
            rank: {"compute_s": told_s, "wait_s": max(ranks.passes_s - told_s, 0.0), "sent_bytes": int(sent)}
            for rank, (told_s, sent) in enumerate(each)
        }

    def more_status(self) -> Mapping[str, Any]:
        """Return how many tokens were made, those of answers on their way among them."""
        return {"tokens": self._made}

    def predicted(self, tally: Tally) -> dict[str, Any]:
        """Return what the plan was predicted to take for prompts and answers as long as the median ones."""
        found: dict[str, Any] = {"predicted": None, "predicted_seconds": None, "predicted_requests_per_s": None}
        if self.cluster is None or not self._answers:
            return found
        setting = setting_of(self._model, self.cluster, self._plan)
        prompt = int(statistics.median(entry["prompt_tokens"] for entry in self._answers))
        tokens = int(statistics.median(len(entry["new_tokens"]) for entry in self._answers))
        at_a_time = min(self._plan.sequences, self.count or len(self._answers))
        token_s = token_seconds(setting, self._plan, self._median_behind(), at_a_time)
        first_s = first_seconds(setting, self._plan, prompt)
        found["predicted"] = {"token_s": token_s, "first_s": first_s}
        if at_a_time == 1:  # else each waits for the others' prompts
            found["predicted_seconds"] = first_s + (tokens - 1) * token_s
        return found

    def alone(self, tally: Tally) -> BoardAlone | None:
        """Return the best board for a token of the median answer; of several at a time each waits for the others."""
        assert self.cluster is not None
        if self._plan.sequences > 1 or not self._answers:
            return None
        return decoder_alone(self._model, self.cluster, self.asked, self._median_behind())

    def facts(self) -> Mapping[str, Any]:
        """Return what was asked of tokens, and how fast they came."""
        plan, answers = self._plan, self._answers
        speeds = [entry["tokens_per_s"] for entry in answers if entry["tokens_per_s"]]
        seconds: dict[str | int, list[float]] = {}
        for entry in answers:
            seconds.setdefault(entry["id"], []).append(entry["seconds"])
        last = {entry["id"]: {key: value for key, value in entry.items() if key != "text"} for entry in answers}
        return {
            "precision": plan.precision,
            "cache": plan.cache,
            "context": plan.context,
            "sequences": plan.sequences,
            "requests": [last[name] | {"seconds": values} for name, values in seconds.items()],
            "tokens_per_s_median": statistics.median(speeds) if speeds else None,
            "first_s_median": statistics.median([entry["first_s"] for entry in answers]) if answers else None,
        }

    @property
    def out(self) -> Console:
        """Return where tables go: standard output has the text."""
        return self._desk.console

    def tables(self, report: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> None:
        """Show the answers that waited, say which were cut, and who computed what."""
        for answer in self._shown:
            print_answer(answer)
        if self._options.input is not None:
            self._tell_cut()
        if self._answers:
            show_run(self.out, report, self._model, self._plan)

    def pace(self, report: Mapping[str, Any]) -> tuple[Pace, Show] | None:
        """Return what a token took; of several sequences at a time each waits for the others."""
        speed, predicted = report["tokens_per_s_median"], report["predicted"]
        if self._plan.sequences > 1 or not (speed and predicted):
            return None
        return Pace(1 / speed, predicted["token_s"]), tokens_a_second

    def _tell_cut(self) -> None:
        """Say which answers of a file would have gone on, by their ids there."""
        if self._options.ignore_eos:
            return
        cut: dict[int, list[str]] = {}  # by their tokens
        for entry in self._answers:
            if entry["finish_reason"] == "length":
                cut.setdefault(len(entry["new_tokens"]), []).append(str(entry["id"]))
        for tokens, ids in cut.items():
            few = printable(excerpt(", ".join(ids), IDS_SHOWN))
            self._desk.say(f"[{counted(len(ids), 'answer')} cut at {counted(tokens, 'token')}: {few}]")

    def _median_behind(self) -> int:
        """Return how many tokens stand before one in the middle of the median answer."""
        prompt = int(statistics.median(entry["prompt_tokens"] for entry in self._answers))
        return prompt + int(statistics.median(len(entry["new_tokens"]) for entry in self._answers)) // 2

    def _streams(self, answer: TextAnswer, text: str) -> None:
        """Print a token of an answer as a line, where the prompt wishes it."""
        self._made += 1
        if not answer.wishes.stream:
            return
        line: dict[str, Any] = {"id": answer.prompt.id, "token": answer.text.tokens[-1], "text": text}
        if answer.wishes.logprobs is not None:
            line |= {"logprob": answer.logprob, "top": answer.likeliest}
        print_line(line)

    def _says(self, answer: TextAnswer, text: str) -> None:
        """Print the text of a prompt's answer as it comes."""
        if len(answer.text.tokens) == 1:
            self._begins(answer)
        print_text(text)

    def _begins(self, answer: TextAnswer) -> None:
        """Print which prompt is answered, where there are several."""
        if len(self._options.prompt) > 1:
            asked = printable(excerpt(answer.prompt.text, TEXT_SHOWN))
            print_text(f"[{answer.prompt.id}] {asked}\n")

    def _ends(self, answer: TextAnswer) -> None:
        """End a prompt's answer on the terminal."""
        if self._plan.sequences > 1:
            self._begins(answer)
            print_text(answer.text.text)
        print_text("\n\n" if len(self._options.prompt) > 1 else "\n")
        if self._is_cut(answer):
            self._desk.say(f"[cut at {counted(len(answer.text.tokens), 'token')}]")

    def _is_cut(self, answer: TextAnswer) -> bool:
        """Return whether an answer would have gone on, and nobody asked for just so many tokens."""
        return answer.text.finish_reason == "length" and not self._options.ignore_eos

    def _conversation(self) -> Iterator[Prompt]:
        """Yield what a person says, line by line, with all that was said before, until there is nothing more."""
        desk, self._messages = self._desk, list[dict[str, str]]()
        desk.say("say something; an empty line or Ctrl-D ends the conversation")
        self._waits()
        for number, line in enumerate(read_lines(), start=1):
            text = line.decode(errors="replace").strip()
            if not text:
                return
            self._messages.append({"role": "user", "content": text})
            try:
                prompt = self._reader.conversation(self._messages, number)
            except HeptiError as error:
                desk.complain(Complaint(str(error)))
                self._messages.pop()
            else:
                yield prompt
            self._waits()

    def _heard(self, answer: TextAnswer) -> None:
        """End an answer in a conversation, which goes on after it."""
        print_text("\n")
        if answer.text.finish_reason == WITHOUT_NUMBERS:
            self._messages.pop()
            return
        self._messages.append({"role": "assistant", "content": answer.text.text})
        said = speed(answer)
        rate = f"{said:.1f} tokens a second, " if said else ""
        cut = f", cut at {counted(len(answer.text.tokens), 'token')}" if self._is_cut(answer) else ""
        self._desk.say(f"[{rate}the first after {answer.first_s:.2f} s{cut}]")

    def _waits(self) -> None:
        """Show a person that it is their turn."""
        if self.out.is_terminal:
            self.out.print("> ", end="", markup=False)
