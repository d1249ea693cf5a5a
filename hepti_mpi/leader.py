"""Rank 0's side of the main job: what is asked, what is answered, and what it took."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from hepti_mpi import defaults
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.hosts import Place
from hepti_mpi.engine.engine import Engine
from hepti_mpi.engine.stack import PlanOrder, Stack
from hepti_mpi.kernels import embeddings
from hepti_mpi.live.conductor import Conductor
from hepti_mpi.live.member import Member
from hepti_mpi.live.sums import Sums
from hepti_mpi.plan_choice import choose
from hepti_mpi.report import tables
from hepti_mpi.report.alone import (
    BoardAlone,
    Pace,
    alone_line,
    boards_planned_for,
    doubt,
    encoder_alone,
    milliseconds,
    requests_a_second,
    runs_here,
)
from hepti_mpi.report.report import job_report, job_status, predicted_rate, prediction
from hepti_mpi.report.speaker import Speaker
from hepti_mpi.report.watch import Watch, picture
from hepti_mpi.requests.ahead import Ahead
from hepti_mpi.requests.answers import Answer, Kept, Sink, Tally, are_numbers, no_numbers
from hepti_mpi.requests.inputs import Reader, Request, batches_of, most_ahead, read_documents, rows_of
from hepti_mpi.requests.outputs import SUFFIXES, as_they_come, print_answer, write_answers, write_json
from hepti_mpi.requests.service_lines import Complaint, ServiceLines, print_cancelled
from hepti_mpi.sources import Batches, in_turn, together
from solver.base import clock
from solver.base.command import check_path
from solver.base.errors import HeptiError
from solver.base.front import program
from solver.base.phrases import percent
from solver.cluster.cluster import Cluster
from solver.model.precision import PRECISIONS
from solver.model.spec import ModelSpec
from solver.plan.changes import all_bytes
from solver.plan.plan import Plan, Wire
from solver.plan.writing import plan_table
from solver.schedule.encoders.memory import needed_bytes
from solver.systems import planner_of
from weights.file.store import ENCODER, WeightsFile
from weights.formats import weights_path

if TYPE_CHECKING:
    from solver.live.trials import Trials


class Leader(Speaker):
    """Reads, plans, feeds the engine, and reports; on rank 0 only.

    Parameters
    ----------
    options
        The command line, from `cli.parse`.
    group
        All ranks of the job.
    places
        Where each runs.
    """

    def __init__(self, options: argparse.Namespace, group: Group, places: Sequence[Place]) -> None:
        self._options = options
        self._group = group
        self._places = places
        self._serves = options.input == "-"  # answers standard input line by line
        super().__init__()
        self._cluster: Cluster | None = None
        self._complaints: list[str] = []
        self._complained = False
        self._without_numbers: set[str | int] = set()  # requests of which that was said
        self._tally = Tally(serves=self._serves)
        self._writes_hidden = options.output is not None and options.output.suffix == ".npz"
        self._kept = Kept(with_hidden=self._writes_hidden)
        self._busy_s = 0.0  # of what was asked last: of all passes that count
        self._rounding: float | None = None
        self._trials: Trials | None = None  # where batches of other lengths run under others, and several are tried
        self._conductor: Conductor | None = None
        self._stack: Stack | None = None  # as soon as it is loaded
        self._sums: Sums | None = None  # then, too
        self._watch = Watch(self.console) if options.watch else None

    def read(self) -> tuple[Path, ModelSpec, str]:
        """Read what is asked, of which model; return its file, what it is, and its fingerprint.

        Raises
        ------
        HeptiError
            If nothing can be computed, or an output could not be written.
        """
        planner_of(self._options.system)  # here, before hosts are measured
        for path, suffixes in (
            (self._options.output, SUFFIXES),
            (self._options.report, (".json",)),
            (self._options.trace, (".json",)),
        ):
            if path is not None:
                check_path(path, suffixes)
        model = self._options.model
        path = defaults.default_model() if model is None else weights_path(model, ENCODER, self.say)
        with WeightsFile(path) as file:
            self._spec, fingerprint, tokenizer = file.spec, file.fingerprint, file.tokenizer
        by_id, images = not self._serves or self._writes_hidden, self._options.images
        if images is not None and not images.is_dir():
            raise HeptiError(f"there is no folder --images {images}")
        self._ahead = Ahead[Request](self._complain, self._look, most_ahead(self._spec))
        self._lines = ServiceLines(self._ahead.wake)
        complain = self._ahead.complain if self._serves else self._complain
        self._reader = Reader(self._spec, tokenizer, complain, by_id=by_id, images=images)
        self._requests = [] if self._serves else self._read()
        return path.absolute(), self._spec, fingerprint

    @property
    def needs_profile(self) -> bool:
        """Whether nothing says what to plan for; a try-out without a model, on one host, has boards of its own."""
        options = self._options
        return options.cluster is None and options.plan is None and (options.measure or not self._is_try_out)

    @property
    def _is_try_out(self) -> bool:
        """Whether nothing is measured, if no file is given: one host plays all boards of an example."""
        return self._options.model is None and len({place.host for place in self._places}) == 1

    @property
    def _is_here(self) -> bool:
        """Whether what is predicted is for the hosts that run it."""
        return runs_here(self._plan.devices, self._places)

    @property
    def _boards(self) -> str:
        """For which boards seconds are predicted."""
        options = self._options
        if options.cluster is None and options.plan is None and self._is_try_out and not options.measure:
            return f"the example boards of {defaults.EXAMPLE}, not these hosts"
        return boards_planned_for(self._options, here=self._is_here)

    def plan(self, measured: Cluster | None) -> tuple[Plan, ...]:
        """Read or make the plan of the first batch, and those for which ranks hold weights besides, if any.

        `measured` is what to plan for where no file says so.

        Raises
        ------
        HeptiError
            If there is no plan, or it does not fit.
        """
        lengths = [rows_of(batch) for batch in batches_of(self._requests)]
        rows = lengths[0] if lengths else 0
        requests = len(lengths) * (self._options.warmup + self._options.repeat)
        choice = choose(self._options, self._spec, rows, requests, self._group.size, measured, self.say)
        self._plan, self._cluster, self._trials = choice.plan, choice.cluster, choice.trials
        self._choice = choice
        for rows in lengths:
            self._plan_of(rows)  # made before anything waits for it
        return choice.plans

    def needed_bytes(self) -> list[int]:
        """Return the memory that every rank needs for the plans that it holds weights for."""
        spec, plans, precision = self._spec, self._choice.plans, PRECISIONS[self._options.precision]
        held = [all_bytes(spec, plans, rank, precision) for rank in range(self._group.size)]
        needed = needed_bytes(spec, precision, max(plan.rows for plan in plans), held)
        return [math.ceil(own) if weights else 0 for own, weights in zip(needed, held, strict=True)]

    def lead(
        self, stack: Stack, tensors: embeddings.EndTensors, member: Member | None, read_bytes_per_s: Sequence[float]
    ) -> None:
        """Run every batch on all ranks, and answer it; where the plan lives, let it follow what they measure."""
        self._stack, self._sums = stack, Sums(self._group, stack.meter)
        engine = Engine(self._spec, tensors, stack, self._group, self._trials)
        batches = list(batches_of(self._requests))
        # What adapts begins with all bits: the report says what came of it.
        if self._plan.wire not in (Wire.FLOAT32, Wire.ADAPTIVE) and batches:
            self._rounding = _measured_rounding(batches[0], engine)
        with ExitStack() as last, self._watch or nullcontext(), self._sinks() as sinks:
            if member is not None and self._choice.may_change and self._cluster is not None:
                from solver.live.planning import PlanningProcess  # the solvers are for rank 0 alone
                from solver.live.replan import Replanner

                solves = last.enter_context(PlanningProcess())
                replanner = Replanner(
                    self._spec, self._cluster, self._choice.plan, self._choice.spare, read_bytes_per_s, solves,
                    self._choice.solution,
                )  # fmt: skip
                self._conductor = Conductor(self._spec, member, replanner, self._options.replan == "auto", self.say)
                engine.live = self._conductor
                if self._watch:
                    watch = self._watch
                    self._conductor.show = lambda conductor: watch.show(picture(conductor, stack))
            for source, count in self._sources(batches, engine):
                started = clock.now()
                for answer in engine.serve(source, count=count):
                    if self._serves and self._lines.end(answer.line):
                        print_cancelled(answer.entry["id"])
                        continue
                    for take in sinks if self._is_answer(answer) else [self._tally.take]:
                        take(answer)
                self._busy_s = clock.now() - started
        if self._conductor:
            self._plan = stack.plan
        if self._trials and self._trials.several:
            self._plan = self._trials.plan
            # What ranks report is of this plan.
            engine.run_by(PlanOrder(self._plan, self._trials.stays, self._trials.settled))
            self.say(self._trials.line)
        self._sums.close()
        self._group.orders.send(None, self._group.others())

    def _sources(self, batches: Batches, engine: Engine) -> list[tuple[Iterator[Batches], bool]]:
        """Return what the engine is asked, one after the other, and whether it counts in the report."""
        idle, options = lambda: engine.idle, self._options
        if self._serves:
            asked = self._ahead.of(self._reader.standard_input(self._lines))
            batches_there = ([batch] for batch in together(asked, self._ahead.is_there, self._left_out))
            return [(in_turn(batches_there, idle, self._look), True)]
        times = ((options.warmup, False), (options.repeat, True))
        return [(in_turn(repeat(batches, passes), idle), count) for passes, count in times]

    def _left_out(self, request: Request) -> bool:
        return self._lines.leaves_out(request.id, request.line)

    def _look(self) -> None:
        """Answer what has overtaken the requests of standard input."""
        self._lines.tell(self._status)

    def _status(self) -> dict[str, Any]:
        assert self._stack is not None  # lines are read when everything is loaded
        assert self._sums is not None
        replans, replanned = (self._conductor.decisions, self._conductor.replanned) if self._conductor else ((), 0)
        plan, meters = plan_table(self._stack.plan), self._sums.look()
        return job_status(self._spec.name, plan, self._tally, meters, [*replans], replanned)

    @contextmanager
    def _sinks(self) -> Iterator[list[Sink]]:
        """Give what takes every answer; what is kept of standard input's does not grow with them."""
        output, total = self._options.output, (self._options.warmup + self._options.repeat) * len(self._requests)
        if self._serves:
            with as_they_come(output) if output else nullcontext(lambda _: None) as write:
                yield [self._tally.take, write, print_answer]
        else:
            bar = self.progress("computing", total, "requests")
            with nullcontext(lambda _: None) if self._watch else bar as done:
                yield [self._tally.take, self._kept.take, lambda _: done(1)]

    def close(self, ranks: Sequence[dict[str, Any]]) -> int:
        """Write and show what was asked for; return the exit code."""
        options = self._options
        report = job_report(
            self._spec.name, plan_table(self._plan), self._plan.wire, self._tally, ranks, self._places, options
        )
        report |= prediction(self._spec, self._cluster, self._plan, self._tally.rows, self._plan_of)
        report["predicted_for"] = None if report["predicted_seconds"] is None else self._boards
        report["wire_rounding"] = self._rounding
        report["trials"] = self._trials.to_table() if self._trials and self._trials.several else []
        report["replans"] = [*self._conductor.decisions] if self._conductor else []
        report["replans_decided"] = self._conductor.decided if self._conductor else 0
        report["requests_per_s"] = None if self._serves else self._tally.count / self._busy_s
        batches = [[request.rows for request in batch] for batch in batches_of(self._requests)]
        queued = len(batches) > 1 and not self._plan.in_one
        rate = predicted_rate(self._spec, self._cluster, self._plan, batches, self._plan_of)
        report["predicted_requests_per_s"] = rate
        alone = None if self._serves else self._alone(batches, queued=queued)
        report["best_single"] = None if alone is None else asdict(alone)
        answers = self._ranked() if options.query is not None else [*self._kept.by_id.values()]
        if options.output is not None and not self._serves:
            write_answers(options.output, answers)
            self.wrote(len(answers), options.output)
        if options.report is not None:
            write_json(options.report, report)
        if not self._serves:
            console = tables.terminal(stderr=False)
            answered = [request for request in self._requests if request.id not in self._without_numbers]
            if options.query is not None:
                tables.show_ranking(console, self._requests, [answer.entry for answer in answers])
            elif options.output is None and options.random is None and answered:
                tables.show_answers(console, answered, [answer.entry for answer in answers])
            tables.show_ranks(console, report, self._plan, queued=queued)
            if self._rounding is not None:
                size = f"{percent(self._rounding)} of the root mean square of all"
                changed = f"the hidden number that it changes most differs by {size}"
                none = "no hidden number of the first batch travels"
                console.print(f"{self._plan.wire} on the wire: {changed if self._rounding else none}")
            if self._plan.wire is Wire.ADAPTIVE:
                console.print(f"batches sent from stage to stage: {tables.by_bits(ranks) or 'none'}")
            self._judge(console, report, alone, queued=queued)
        return 2 if self._complained else 0

    def _ranked(self) -> list[Answer]:
        """Return the answers by their scores, the best first, as many as are asked for."""
        best = sorted(self._kept.by_id.values(), key=lambda answer: -float(answer.entry["score"]))
        return best[: self._options.top]

    def _is_answer(self, answer: Answer) -> bool:
        """Tell whether an answer has numbers; say it, once a request, where it has none."""
        entry = answer.entry
        told = (entry[name] for name in ("embedding", "logits", "scores") if name in entry)
        if are_numbers(answer.hidden, *map(np.asarray, told)):
            return True
        if self._serves or entry["id"] not in self._without_numbers:
            self._without_numbers.add(entry["id"])
            self._complain(no_numbers(entry["id"], answer.line))
            if not self._serves:
                self.say(f"{program('python -m hepti_mpi')}: {self._complaints[-1]}")
        return False

    def _plan_of(self, rows: int) -> Plan:
        """Return the plan under which batches of so many rows run."""
        return self._plan if self._trials is None else self._trials.lasting(rows)

    def _alone(self, batches: Sequence[Sequence[int]], *, queued: bool) -> BoardAlone | None:
        """Return the best board alone, by the seconds of what the split is judged by, if there is a split."""
        if self._cluster is None or self._group.size == 1:
            return None
        if not queued:
            return encoder_alone(self._spec, self._cluster, round(statistics.median(self._tally.rows)), self._plan.wire)
        requests = sum(map(len, batches))
        alone = encoder_alone(self._spec, self._cluster, round(sum(map(sum, batches)) / len(batches)), self._plan.wire)
        return alone and replace(alone, seconds=alone.seconds * len(batches) / requests)

    def _judge(self, console: Console, report: Mapping[str, Any], alone: BoardAlone | None, *, queued: bool) -> None:
        """Say what one board alone would have taken, and whether what was predicted holds."""
        # Where batches queue, each waits for others besides: it is how many a second that compares.
        pace, show = Pace(report["seconds_median"], report["predicted_seconds"]), milliseconds
        if queued:
            rate = report["predicted_requests_per_s"]
            pace, show = Pace(1 / report["requests_per_s"], 1 / rate if rate else None), requests_a_second
        if self._cluster is not None and self._group.size > 1:
            active = {stage.devices[number] for stage in self._plan.stages for number in stage.active}
            console.print(alone_line(pace, active, alone, self._boards, show, here=self._is_here))
        if note := doubt(pace, self._boards, self._cluster, kept=self.needs_profile, here=self._is_here):
            self.note([note])

    def _complain(self, complaint: Complaint) -> None:
        self._complained = True
        if self._serves:
            self.say(f"{program('python -m hepti_mpi')}: {complaint}")
            self._lines.complain(complaint)
        else:
            self._complaints.append(str(complaint))

    def _read(self) -> list[Request]:
        options = self._options
        if options.query is not None:
            return self._reader.ranked(options.query, read_documents(options.files))
        if options.random is not None:
            return [self._reader.random(options.random)]
        if options.input is None:
            return self._reader.texts(options.text or defaults.default_sentences())
        requests = list(self._reader.file(Path(options.input)))
        if not requests:
            raise HeptiError(self._complaints[0] if self._complaints else f"--input {options.input} is empty")
        for complaint in self._complaints:
            self.say(f"{program('python -m hepti_mpi')}: {complaint}")
        return requests


def _measured_rounding(requests: Sequence[Request], engine: Engine) -> float:
    """Return what thin wires cost: the largest error of a hidden state, of the root mean square of all."""
    exact, rounded = (
        np.concatenate([answer.hidden for answer in engine.serve([[requests]], count=False, exact=exact)])
        for exact in (True, False)
    )
    return float(np.abs(rounded - exact).max() / np.sqrt(np.square(exact).mean()))
