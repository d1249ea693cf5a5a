"""Rank 0's side of `generate`: what is asked, under which plan, and what a person sees of the answers."""

from __future__ import annotations

import argparse
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.hosts import Place
from hepti_mpi.decoding.cli import CACHE, SYSTEM, answer_tokens
from hepti_mpi.decoding.generation import WITHOUT_NUMBERS, Follow, Generation, TextAnswer
from hepti_mpi.decoding.ranks import Ranks
from hepti_mpi.decoding.report import answer_entry, run_report, show_run, speed
from hepti_mpi.defaults import default_chat
from hepti_mpi.kernels.kinds.embedding import ReadsRows
from hepti_mpi.report.alone import (
    Pace,
    alone_line,
    boards_planned_for,
    decoder_alone,
    doubt,
    other_kernels,
    runs_here,
    tokens_a_second,
)
from hepti_mpi.report.speaker import Speaker
from hepti_mpi.report.tables import TEXT_SHOWN
from hepti_mpi.requests.ahead import Ahead
from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.answers import LAST, NO_NUMBERS, no_numbers
from hepti_mpi.requests.answers import Answer as Entry
from hepti_mpi.requests.outputs import as_they_come, print_answer, print_text, write_json, writing
from hepti_mpi.requests.prompts import Prompt, PromptReader, Wishes
from hepti_mpi.requests.sampling import CANDIDATES, Sampling
from hepti_mpi.requests.service_lines import Complaint, ServiceLines, print_line
from hepti_mpi.requests.stdin import read_lines
from solver.base.command import check_path
from solver.base.errors import HeptiError
from solver.base.front import program
from solver.base.phrases import counted, excerpt, printable
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.cluster.named import find_cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.plan import Wire
from solver.schedule.decoders.asked import CONTEXT, PROMPT, TokenRequest
from solver.schedule.decoders.memory import check_memory, rank_memory
from weights.decoders.file import DecoderFile
from weights.file.store import LANGUAGE_MODEL
from weights.formats import weights_path
from weights.inputs.templates import ChatTemplate
from weights.inputs.tokenize import PromptTokenizer

if TYPE_CHECKING:
    from solver.live.turns import Turns

TakeAnswer = Callable[[Entry], object]
NOTHING = np.empty(0, np.float32)  # answers in words have no hidden states
IDS_SHOWN = 60  # letters of the ids of answers that were cut
# So many passes save on large pages what moving weights there takes. Of llama-3.2-1b in int4 on two x86 cores, whose
# pages were fragmented, that was 0.65 s, and 1.9 ms of 26 a token. Both go with the bytes of weights.
MANY_PASSES = 340


class DecoderLeader(Speaker):
    """Reads, plans, asks all ranks, and answers; on rank 0 only.

    Parameters
    ----------
    options
        The command line, from `cli.parse`.
    group
        All ranks of the job.
    """

    def __init__(self, options: argparse.Namespace, group: Group) -> None:
        self._options, self._group = options, group
        self._serves = options.input == "-"
        super().__init__()
        self._complained = False
        self._ahead = Ahead[Prompt](self._refuse, self._look)
        self._lines = ServiceLines(self._ahead.wake)
        self._made = 0  # tokens
        self._count = 0  # answers
        # Of a run that serves the last ones: it may serve for weeks.
        self._answers: deque[dict[str, Any]] = deque(maxlen=LAST if self._serves else None)
        self._cluster: Cluster | None = None
        self._changes: list[dict[str, Any]] = []
        self._turns: Turns[DecoderPlan] | None = None  # where several plans are tried

    def read(self) -> tuple[Path, Decoder, str, str]:
        """Read the model, and what is asked of it; return its file, what it is, in which precision, its fingerprint.

        Raises
        ------
        HeptiError
            If nothing can be answered, or an output could not be written.
        """
        from solver.systems.decoders import planner_of

        options = self._options
        planner_of(options.system or SYSTEM)  # here, before hosts are measured
        for path, suffix in ((options.output, ".jsonl"), (options.report, ".json")):
            if path is not None:
                check_path(path, (suffix,))
        options.model = options.model or default_chat()
        path = weights_path(options.model, LANGUAGE_MODEL, self.say)
        self._file = file = DecoderFile(path)
        self._model = model = file.model
        if options.context is not None and options.context > model.positions:
            raise HeptiError(f"--context is {options.context}, {model.name} has {model.positions} positions")
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
        if self._tokenizer is None and (options.prompt or options.chat or options.stop):
            raise HeptiError(f"{options.model} came without a tokenizer: give --input with lines of tokens")
        template = None
        if file.chat_template is not None:
            template = ChatTemplate(file.chat_template, file.special)
        if options.chat and template is None:
            raise HeptiError(f"{options.model} came without a chat template: give --prompt or --input")
        complain = self._ahead.complain if self._serves else self._complain
        defaults = file.generation
        temperature = defaults.get("temperature", 0.0) if options.temperature is None else options.temperature
        top_p = defaults.get("top_p", 1.0) if options.top_p is None else options.top_p
        top_k = min(int(defaults.get("top_k", 0)), CANDIDATES)
        drawing = [name for name in ("top_p", "seed") if getattr(options, name) is not None]
        if not temperature and drawing:
            name = drawing[0].replace("_", "-")
            raise HeptiError(f"--{name} is for what is drawn, at temperature 0 nothing is: give --temperature, too")
        ending = Ending(answer_tokens(options), () if options.ignore_eos else model.eos, options.stop)
        self._usual = Wishes(ending, Sampling(temperature, top_p, top_k, options.seed))
        self._reader = PromptReader(
            model, self._context, self._tokenizer, template, complain, self._usual, by_id=not self._serves
        )
        self._prompts: list[Prompt] | None = None
        if options.prompt:
            self._prompts = self._reader.texts(options.prompt)
        elif options.input is not None and not self._serves:
            self._prompts = list(self._reader.file(Path(options.input)))
            if not self._prompts and not self._complained:
                raise HeptiError(f"--input {options.input} is empty")
        return path.absolute(), model, file.precision, file.fingerprint

    @property
    def reads(self) -> ReadsRows:
        """Where rows of the embedding come from."""
        return self._file

    @property
    def answers_nothing(self) -> bool:
        """Whether every line of the file that is asked was refused, each with what is wrong with it."""
        return self._prompts is not None and not self._prompts

    @property
    def asks_much(self) -> bool:
        """Whether so many tokens may be made that it pays to move weights onto large pages, of one that serves always.

        Three answers of 24 tokens by llama-3.2-1b in the lab took 37 s with it from start to end, and 33 s without.
        """
        if self._prompts is None:
            return True
        tokens = sum((prompt.wishes or self._usual).ending.tokens for prompt in self._prompts)
        return tokens >= MANY_PASSES * self._plan.sequences

    @property
    def needs_profile(self) -> bool:
        """Whether nothing says what to plan for."""
        return self._options.cluster is None and self._options.plan is None

    def plan(self, measured: Cluster | None) -> DecoderPlan:
        """Read or make the plan; `measured` is what to plan for where no file says so.

        Raises
        ------
        HeptiError
            If there is no plan, or it does not fit.
        """
        options, ranks, model, plan = self._options, self._group.size, self._model, self._given
        cluster = measured
        left: Sequence[str] = ()
        if options.cluster is not None:
            whole = find_cluster(options.cluster)
            cluster = whole.first(ranks, options.cluster)
            left = whole.names[ranks:]
        self._cluster = cluster
        if plan is None:
            from solver.systems.decoders import plan_decoder

            assert cluster is not None
            plan = plan_decoder(options.system or SYSTEM, model, cluster, self.asked)
            plan.check(model, ranks)
        elif cluster is not None:
            check_memory(model, cluster, plan)
        if left:  # told when nothing is refused any more
            self.note([f"{counted(ranks, 'rank')}, {len(whole.names)} devices: without {', '.join(left)}"])
        self._plan = plan
        return plan

    def kernels_note(self, backend: str) -> list[str]:
        """Return what to say of predictions that are for other kernels than `backend`, which computes here."""
        cluster = self._cluster
        measured = cluster is not None and all(device.decoder is not None for device in cluster.devices)
        return other_kernels(self._options, cluster, backend, measured=measured)

    def needed_bytes(self) -> list[int]:
        """Return the memory that every rank needs for the plan."""
        return [needs.total for needs in rank_memory(self._model, self._plan)]

    def _read_plan(self) -> DecoderPlan:
        """Read the plan that is given; what the command line says goes before what it says."""
        from solver.plan.file import check_plan, read_plan, sent_as

        options = self._options
        plan = read_plan(options.plan, DecoderPlan, self._model)
        if plan.precision != self._file.precision:
            raise HeptiError(f"{options.plan} is for {plan.precision}, {options.model} is {self._file.precision}")
        said = {name: getattr(options, name) for name in ("context", "sequences", "cache")}
        said = {name: value for name, value in said.items() if value is not None}
        plan = sent_as(replace(plan, predicted=None, **said) if said else plan, options.wire)
        check_plan(options.plan, plan, self._model, self._group.size)
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

    def lead(self, ranks: Ranks, load_s: float) -> None:
        """Answer everything on all ranks; `load_s` is what loading took."""
        self._ranks = ranks
        with ExitStack() as last:
            self._answer_all(self._follows(load_s, last))

    def _answer_all(self, follows: Follow | None) -> None:
        options = self._options
        generation = Generation(
            self._model, self._ranks, self._tokenizer, self._usual,
            speculates=options.lookup == "auto" and self._plan.sequences == 1, follows=follows,
        )  # fmt: skip
        if options.chat:
            self._chat(generation)
            return
        with self._takers() as takers:
            for answer in self._answered(generation):
                if answer.text.finish_reason == WITHOUT_NUMBERS:
                    told = no_numbers(answer.prompt.id, answer.prompt.line)
                    (self._refuse if self._serves else self._complain)(told)
                    continue
                entry = answer_entry(answer)
                self._answers.append({**entry, "prompt_logprobs": None})  # which may be long, and no report has it
                self._count += 1
                self._lines.end(answer.prompt.line)
                for take in takers:
                    take(Entry(entry, NOTHING))
                if options.prompt:
                    self._ends(answer)

    def _follows(self, load_s: float, last: ExitStack) -> Follow | None:
        """Return what lets the plan follow the devices, or what is measured of several, where it may change.

        `last` ends what it began.
        """
        options = self._options
        if options.plan_by == "measure":
            return self._tries()
        if options.replan == "off" or self._group.size == 1:
            return None
        assert self._cluster is not None  # --replan goes with no --plan, and all else is planned for a cluster
        from solver.live.decoder_replan import TokenFollower  # the solvers are for rank 0 alone
        from solver.live.planning import PlanningProcess

        changes, solves = options.replan == "auto", last.enter_context(PlanningProcess())
        follower = TokenFollower(self._model, self._cluster, self.asked, self._plan, load_s, solves, changes=changes)

        def follow(compute_s: Floats, seconds: float, behind: int, to_come: int) -> DecoderPlan | None:
            change = follower.came(compute_s.tolist(), seconds, behind, to_come)
            if change is None:
                return None
            self._changes.append(change.to_table(len(self._answers)))
            self.say(change.line)
            return change.plan if change.taken else None

        return follow

    def _tries(self) -> Follow | None:
        """Return what lets the first tokens be made by several plans; None where there is one."""
        from solver.live.fewer_devices import decoders_to_try, words_of  # the solvers are for rank 0 alone
        from solver.live.turns import NO_OTHER, Turns
        from solver.schedule.decoders.cost import setting_of, token_seconds

        assert self._cluster is not None  # it goes with no --plan, and all else is planned for a cluster
        turns = Turns(decoders_to_try(self._model, self._cluster, self.asked, self._plan), words_of, tokens=True)
        if not turns.several:
            self.note([NO_OTHER])
            return None
        self._turns, setting = turns, setting_of(self._model, self._cluster, self._plan)

        def follow(compute_s: Floats, seconds: float, behind: int, to_come: int) -> DecoderPlan | None:
            if turns.settled:
                return None
            number = turns.number
            turns.took(seconds, token_seconds(setting, turns.plans[number], behind))
            return turns.plans[turns.number] if turns.number != number else None

        return follow

    def close(self, told: Sequence[dict[str, Any]], places: Sequence[Place]) -> int:
        """Write and show what was asked for; return the exit code."""
        from solver.plan.writing import plan_table

        options, model = self._options, self._model
        plan = self._plan = self._ranks.share.passes.plan
        table = plan_table(plan, model)
        predicted = self._predicted()
        here = runs_here(plan.devices, places)
        boards = boards_planned_for(options, here=here)
        trials = [] if self._turns is None else self._turns.to_table()
        report = {"replans": self._changes, "trials": trials, "predicted_for": boards if predicted else None}
        report |= run_report(model, plan, table, self._answers, predicted, told, places)
        self._file.close()
        if options.report is not None:
            write_json(options.report, report)
        if options.output is not None and not self._serves:
            self.wrote(len(self._answers), options.output)
        if options.input is not None and not self._serves:
            self._tell_cut()
        if self._turns is not None:
            self.say(self._turns.line)
        if self._answers and not self._serves:
            show_run(self.console, report, model, plan)
            self._judge(report, boards, here=here)
        return 2 if self._complained else 0

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
            self.say(f"[{counted(len(ids), 'answer')} cut at {counted(tokens, 'token')}: {few}]")

    def _judge(self, report: Mapping[str, Any], boards: str, *, here: bool) -> None:
        """Say what one board alone would have taken, and whether what was predicted holds."""
        plan, speed, predicted = self._plan, report["tokens_per_s_median"], report["predicted"]
        # Of several at a time each waits for the others.
        if self._cluster is None or self._group.size == 1 or plan.sequences > 1 or not (speed and predicted):
            return
        pace = Pace(1 / speed, predicted["token_s"])
        alone = decoder_alone(self._model, self._cluster, self.asked, self._median_behind())
        active = {plan.devices[rank] for rank in plan.active}
        self.console.print(alone_line(pace, active, alone, boards, tokens_a_second, here=here))
        if note := doubt(pace, boards, self._cluster, kept=self.needs_profile, here=here):
            self.note([note])

    def _median_behind(self) -> int:
        """Return how many tokens stand before one in the middle of the median answer."""
        prompt = int(statistics.median(entry["prompt_tokens"] for entry in self._answers))
        return prompt + int(statistics.median(len(entry["new_tokens"]) for entry in self._answers)) // 2

    @property
    def _at_a_time(self) -> int:
        """How many sequences had a token in a pass, where all had work."""
        return min(self._plan.sequences, len(self._answers))

    def _predicted(self) -> Mapping[str, float] | None:
        """Return what the plan was predicted to take for prompts and answers as long as the median ones."""
        if self._cluster is None or not self._answers:
            return None
        from solver.schedule.decoders.cost import first_seconds, setting_of, token_seconds

        setting = setting_of(self._model, self._cluster, self._plan)
        prompt = int(statistics.median(entry["prompt_tokens"] for entry in self._answers))
        return {
            "token_s": token_seconds(setting, self._plan, self._median_behind(), self._at_a_time),
            "first_s": first_seconds(setting, self._plan, prompt),
        }

    def _answered(self, generation: Generation) -> Iterator[TextAnswer]:
        """Yield the answers to what is asked, each as it ends."""
        if self._prompts is None:
            asked = self._ahead.of(self._reader.standard_input(self._lines))
            gone = lambda prompt: self._lines.is_cancelled(prompt.line)
            return generation.answer(asked, self._streams, is_there=self._ahead.is_there, look=self._look, gone=gone)
        if self._options.prompt and self._plan.sequences == 1:
            return generation.answer(self._prompts, self._says)
        return generation.answer(self._prompts)  # several at a time would come mixed up

    def _streams(self, answer: TextAnswer, text: str) -> None:
        """Print a token of an answer as a line, where the prompt wishes it."""
        self._made += 1
        if not answer.wishes.stream:
            return
        line: dict[str, Any] = {"id": answer.prompt.id, "token": answer.text.tokens[-1], "text": text}
        if answer.wishes.logprobs is not None:
            line |= {"logprob": answer.logprob, "top": answer.likeliest}
        print_line(line)

    def _look(self) -> None:
        """Answer what has overtaken prompts on standard input."""
        self._lines.tell(self._status)

    def _status(self) -> dict[str, Any]:
        """Return what a program may want to know of this run."""
        from solver.plan.writing import plan_table

        ranks, plan = self._ranks, self._ranks.share.passes.plan
        each = zip(plan.devices, ranks.told_s.tolist(), ranks.sent_bytes.tolist(), strict=True)
        return {
            "model": self._model.name,
            "plan": plan_table(plan, self._model),
            "requests": self._count,
            "tokens": self._made,
            "ranks": [
                {
                    "rank": rank,
                    "device": device,
                    "compute_s": compute_s,
                    "wait_s": max(ranks.passes_s - compute_s, 0.0),
                    "sent_bytes": int(sent),
                }
                for rank, (device, compute_s, sent) in enumerate(each)
            ],
            "replans": self._changes,
            "replanned": sum(change["taken"] for change in self._changes),
        }

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
            self.say(f"[cut at {counted(len(answer.text.tokens), 'token')}]")

    def _is_cut(self, answer: TextAnswer) -> bool:
        """Return whether an answer would have gone on, and nobody asked for just so many tokens."""
        return answer.text.finish_reason == "length" and not self._options.ignore_eos

    def _chat(self, generation: Generation) -> None:
        """Answer what a person says, line by line, until there is nothing more."""
        messages: list[dict[str, str]] = []
        self.say("say something; an empty line or Ctrl-D ends the conversation")
        self._asks()
        for line in read_lines():
            text = line.decode(errors="replace").strip()
            if not text:
                break
            messages.append({"role": "user", "content": text})
            try:
                prompt = self._reader.conversation(messages)
            except HeptiError as error:
                self._complain(str(error))
                messages.pop()
                self._asks()
                continue
            for answer in generation.answer([prompt], lambda answer, text: print_text(text)):
                print_text("\n")
                if answer.text.finish_reason == WITHOUT_NUMBERS:
                    self._complain(NO_NUMBERS)
                    messages.pop()
                    continue
                self._answers.append(answer_entry(answer))
                messages.append({"role": "assistant", "content": answer.text.text})
                said = speed(answer)
                rate = f"{said:.1f} tokens a second, " if said else ""
                cut = f", cut at {counted(len(answer.text.tokens), 'token')}" if self._is_cut(answer) else ""
                self.say(f"[{rate}the first after {answer.first_s:.2f} s{cut}]")
            self._asks()

    def _asks(self) -> None:
        if self.console.is_terminal:
            self.console.print("> ", end="", markup=False)

    def _complain(self, complaint: Complaint | str) -> None:
        self._complained = True
        self.say(f"{program('python -m hepti_mpi generate')}: {complaint}")

    def _refuse(self, complaint: Complaint) -> None:
        """Tell a person, and the program that asked, what is wrong with a line of standard input."""
        self._complain(complaint)
        self._lines.complain(complaint)

    @contextmanager
    def _takers(self) -> Iterator[Sequence[TakeAnswer]]:
        """Give what takes answers: the file, standard output, and a bar where nothing else shows them."""
        options = self._options
        found: list[TakeAnswer] = []
        if self._serves or (options.input is not None and options.output is None):
            found.append(print_answer)
        if options.output is None:
            yield found
            return
        with as_they_come(options.output) if self._serves else writing(options.output) as write:
            if self._serves or options.prompt:
                yield [write, *found]
                return
            bar = self.progress("answering", len(self._prompts or ()), "answers")
            with bar as done:
                yield [write, lambda entry: done(1), *found]
