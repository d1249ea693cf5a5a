"""Encoders, on rank 0: texts and images in, embeddings, labels and rankings out; batches go through the engine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hepti_mpi.engine.engine import Engine
from hepti_mpi.engine.stack import PlanOrder
from hepti_mpi.live.conductor import Conductor
from hepti_mpi.live.sums import Sums
from hepti_mpi.report import tables
from hepti_mpi.report.alone import BoardAlone, Pace, encoder_alone, milliseconds, requests_a_second
from hepti_mpi.report.report import predicted_rate, prediction
from hepti_mpi.report.watch import Watch, picture
from hepti_mpi.requests.answers import Answer, Tally, are_numbers
from hepti_mpi.requests.inputs import Reader, Request, batches_of, most_ahead, read_documents, rows_of
from hepti_mpi.requests.outputs import SUFFIXES
from hepti_mpi.session import defaults
from hepti_mpi.session.desk import FrontDesk
from hepti_mpi.session.encoder_rank import EncoderRank
from hepti_mpi.session.kind import ModelKind, OpenedModel, Show
from hepti_mpi.session.plan_choice import choose
from solver.base.errors import HeptiError
from solver.base.phrases import percent
from solver.cluster.cluster import Cluster, Device
from solver.model.precision import FLOAT32, PRECISIONS
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


class EncoderKind(ModelKind):
    """What a session asks of an encoder, on rank 0."""

    reads = ("text", "images", "precision")
    suffixes = SUFFIXES
    keeps = True
    unit = "requests"
    silent = True
    _model: ModelSpec
    _plan: Plan

    def __init__(self, desk: FrontDesk) -> None:
        super().__init__(desk)
        self._rounding: float | None = None
        self._trials: Trials | None = None  # where batches of other lengths run under others, and several are tried
        self._conductor: Conductor | None = None
        self._shown: list[Answer] = []
        self._ended = False

    @property
    def is_try_out(self) -> bool:
        """Whether one host plays all boards of an example."""
        return self._options.model is None and len({place.host for place in self._desk.places}) == 1

    def open(self) -> OpenedModel | None:
        """Open the model, and read what is asked of it."""
        options, desk = self._options, self._desk
        options.precision = options.precision or FLOAT32.name
        planner_of(options.system)  # here, before hosts are measured
        path = defaults.default_model() if options.model is None else weights_path(options.model, ENCODER, desk.say)
        with WeightsFile(path) as file:
            self._model, fingerprint, tokenizer = file.spec, file.fingerprint, file.tokenizer
        by_id = not desk.serves or (options.output is not None and options.output.suffix == ".npz")
        images = options.images
        if images is not None and not images.is_dir():
            raise HeptiError(f"there is no folder --images {images}")
        desk.hear(most_ahead(self._model))
        complain = desk.ahead.complain if desk.serves else desk.complain
        self._reader = Reader(self._model, tokenizer, complain, by_id=by_id, images=images)
        self._requests = [] if desk.serves else self._read()
        if not (desk.serves or self._requests):
            if desk.complained:
                return None
            raise HeptiError(f"--input {options.input} is empty")
        self.count = len(self._requests)
        return OpenedModel(path.absolute(), self._model, options.precision, fingerprint)

    def _read(self) -> list[Request]:
        options = self._options
        if options.query is not None:
            return self._reader.ranked(options.query, read_documents(options.files))
        if options.random is not None:
            return [self._reader.random(options.random)]
        if options.input is None:
            return self._reader.texts(options.text or defaults.default_sentences())
        return list(self._reader.file(Path(options.input)))

    def plan(self, cluster: Cluster | None) -> Sequence[Plan]:
        """Read or make the plan of the first batch, and those for which ranks hold weights besides, if any."""
        desk, options = self._desk, self._options
        lengths = [rows_of(batch) for batch in batches_of(self._requests)]
        rows = lengths[0] if lengths else 0
        requests = len(lengths) * (options.warmup + options.repeat)
        choice = choose(options, self._model, rows, requests, desk.group.size, cluster, desk.say)
        self._plan, self.cluster, self._trials = choice.plan, choice.cluster, choice.trials
        self._choice = choice
        for rows in lengths:
            self._plan_of(rows)  # made before anything waits for it
        return choice.plans

    def needed_bytes(self) -> list[int]:
        """Return the memory that every rank needs for the plans that it holds weights for."""
        spec, plans, precision = self._model, self._choice.plans, PRECISIONS[self._options.precision]
        held = [all_bytes(spec, plans, rank, precision) for rank in range(self._desk.group.size)]
        needed = needed_bytes(spec, precision, max(plan.rows for plan in plans), held)
        return [math.ceil(own) if weights else 0 for own, weights in zip(needed, held, strict=True)]

    def measured(self, device: Device) -> bool | None:
        """Return None: what is declared of boards is of any backend."""
        return None

    def begin(self, rank: EncoderRank, last: ExitStack) -> None:
        """Take rank 0's part; where the plan lives, let it follow what all ranks measure."""
        desk, options, self._stack = self._desk, self._options, rank.stack
        self._sums = Sums(desk.group, rank.stack.meter)
        self._engine = Engine(self._model, rank.tensors, rank.stack, desk.group, self._trials)
        # What adapts begins with all bits: the report says what came of it.
        if self._plan.wire not in (Wire.FLOAT32, Wire.ADAPTIVE) and self._requests:
            self._rounding = _measured_rounding(next(batches_of(self._requests)), self._engine)
        watch = last.enter_context(Watch(desk.console)) if options.watch else None
        if rank.member is not None and self._choice.may_change and self.cluster is not None:
            from solver.live.planning import PlanningProcess  # the solvers are for rank 0 alone
            from solver.live.replan import Replanner

            solves = last.enter_context(PlanningProcess())
            replanner = Replanner(
                self._model, self.cluster, self._choice.plan, self._choice.spare, rank.read_bytes_per_s, solves,
                self._choice.solution,
            )  # fmt: skip
            conductor = Conductor(self._model, rank.member, replanner, options.replan == "auto", desk.say)
            self._conductor = self._engine.live = conductor
            if watch:
                conductor.show = lambda conductor: watch.show(picture(conductor, self._stack))

    def requests(self) -> Iterable[Request]:
        """Return what is asked."""
        desk = self._desk
        return desk.ahead.of(self._reader.standard_input(desk.lines)) if desk.serves else self._requests

    def answers(self, requests: Iterable[Request], *, counts: bool, shows: bool) -> Iterator[Answer]:
        """Compute requests in batches; those of a file are all waiting, of standard input those that are there."""
        desk, engine = self._desk, self._engine
        if desk.serves:
            batches = ([batch] for batch in together(requests, desk.ahead.is_there, desk.left_out))
            return engine.serve(in_turn(batches, lambda: engine.idle, desk.look), count=counts)
        answers = engine.serve([list(batches_of(requests))], count=counts)
        return answers if self._options.query is None else self._ranked(answers)

    def _ranked(self, answers: Iterable[Answer]) -> Iterator[Answer]:
        """Yield answers by their scores, the best first; only as many are told as are asked for."""
        found = list(answers)
        yield from (answer for answer in found if not self.has_numbers(answer))
        best = sorted(filter(self.has_numbers, found), key=lambda answer: -float(answer.entry["score"]))
        for place, answer in enumerate(best):
            yield replace(answer, told=self._options.top is None or place < self._options.top)

    def has_numbers(self, answer: Answer) -> bool:
        """Tell whether what was computed are numbers."""
        told = (answer.entry[name] for name in ("embedding", "logits", "scores") if name in answer.entry)
        return are_numbers(answer.hidden, *map(np.asarray, told))

    def show(self, answer: Answer) -> None:
        """Keep an answer for the table."""
        options = self._options
        if options.query is not None or (options.output is None and options.random is None):
            self._shown.append(replace(answer, hidden=answer.hidden[:0].copy()))  # not its whole batch

    def end(self) -> None:
        """Let the other ranks go, under the plan that stays."""
        group, self._ended = self._desk.group, True
        self._plan = self._stack.plan if self._conductor else self._plan
        if self._trials and self._trials.several:
            self._plan = self._trials.plan
            # What ranks report is of this plan.
            self._engine.run_by(PlanOrder(self._plan, self._trials.stays, self._trials.settled))
            self._desk.say(self._trials.line)
        self._sums.close()
        group.orders.send(None, group.others())

    @property
    def table(self) -> dict[str, Any]:
        """Return the plan as its file has it: the one that runs now, and in the end the one that stays."""
        return plan_table(self._plan if self._ended else self._stack.plan)

    @property
    def active(self) -> Collection[str]:
        """Return the devices that compute."""
        return {stage.devices[number] for stage in self._plan.stages for number in stage.active}

    @property
    def trials(self) -> Sequence[Mapping[str, Any]]:
        """Return the plans that were tried in turn."""
        return self._trials.to_table() if self._trials and self._trials.several else []

    @property
    def decisions(self) -> tuple[Sequence[Mapping[str, Any]], int, int]:
        """Return the last decisions about the plan, how many there were, and how many have changed it."""
        found = self._conductor
        return ([*found.decisions], found.decided, found.replanned) if found else ([], 0, 0)

    def meters(self) -> Mapping[int, Mapping[str, float]]:
        """Return what ranks did so far."""
        return {rank: meter.to_table() for rank, meter in self._sums.look().items()}

    @property
    def _batches(self) -> list[list[int]]:
        """The rows of every request, batch by batch."""
        return [[request.rows for request in batch] for batch in batches_of(self._requests)]

    @property
    def _queued(self) -> bool:
        """Whether batches wait for others: it is how many a second that compares, then."""
        return len(self._batches) > 1 and not self._plan.in_one

    def predicted(self, tally: Tally) -> dict[str, Any]:
        """Return what was predicted for the median request, and how many a second."""
        rate = predicted_rate(self._model, self.cluster, self._plan, self._batches, self._plan_of)
        found = prediction(self._model, self.cluster, self._plan, tally.rows, self._plan_of)
        return found | {"predicted_requests_per_s": rate}

    def alone(self, tally: Tally) -> BoardAlone | None:
        """Return the best board alone, by the seconds of what the split is judged by."""
        assert self.cluster is not None
        if not self._queued:
            return encoder_alone(self._model, self.cluster, round(statistics.median(tally.rows)), self._plan.wire)
        rows = [sum(batch) for batch in self._batches]
        alone = encoder_alone(self._model, self.cluster, round(sum(rows) / len(rows)), self._plan.wire)
        return alone and replace(alone, seconds=alone.seconds * len(rows) / len(self._requests))

    def facts(self) -> Mapping[str, Any]:
        """Return what thin wires cost."""
        return {"wire_rounding": self._rounding}

    def tables(self, report: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> None:
        """Show what was answered, and who computed what."""
        console, entries = self.out, [answer.entry for answer in self._shown]
        if self._options.query is not None:
            tables.show_ranking(console, self._requests, entries)
        elif entries:
            by_id = {request.id: request for request in self._requests}
            tables.show_answers(console, [by_id[entry["id"]] for entry in entries], entries)
        tables.show_ranks(console, report, self._plan, queued=self._queued)
        if self._rounding is not None:
            size = f"{percent(self._rounding)} of the root mean square of all"
            changed = f"the hidden number that it changes most differs by {size}"
            none = "no hidden number of the first batch travels"
            console.print(f"{self._plan.wire} on the wire: {changed if self._rounding else none}")
        if self._plan.wire is Wire.ADAPTIVE:
            console.print(f"batches sent from stage to stage: {tables.by_bits(ranks) or 'none'}")

    def pace(self, report: Mapping[str, Any]) -> tuple[Pace, Show] | None:
        """Return what the split took."""
        if not self._queued:
            return Pace(report["seconds_median"], report["predicted_seconds"]), milliseconds
        # Each waits for others besides: it is how many a second that compares.
        rate = report["predicted_requests_per_s"]
        return Pace(1 / report["requests_per_s"], 1 / rate if rate else None), requests_a_second

    def _plan_of(self, rows: int) -> Plan:
        """Return the plan under which batches of so many rows run."""
        return self._plan if self._trials is None else self._trials.lasting(rows)


Batches = Sequence[Sequence[Request]]


def in_turn(
    turns: Iterable[Batches], idle: Callable[[], bool], look: Callable[[], object] = lambda: None
) -> Iterator[Batches]:
    """Give batches that run together when those before them are answered; the engine asks again after every step.

    `look` is called between steps meanwhile.
    """
    for batches in turns:
        yield batches
        while not idle():
            look()
            yield ()


def together(
    asked: Iterable[Request], is_there: Callable[[], bool], left_out: Callable[[Request], bool]
) -> Iterator[list[Request]]:
    """Yield requests in order, together up to BATCH_ROWS rows, but none waits for one that is not there yet.

    Parameters
    ----------
    asked
        The requests; it may wait for the next one.
    is_there
        Whether it would not, the end included.
    left_out
        Whether a request is not to be computed; asked as the last thing.
    """
    for batch in batches_of(asked, is_there):
        if wanted := [request for request in batch if not left_out(request)]:
            yield wanted


def _measured_rounding(requests: Sequence[Request], engine: Engine) -> float:
    """Return what thin wires cost: the largest error of a hidden state, of the root mean square of all."""
    exact, rounded = (
        np.concatenate([answer.hidden for answer in engine.serve([[requests]], count=False, exact=exact)])
        for exact in (True, False)
    )
    return float(np.abs(rounded - exact).max() / np.sqrt(np.square(exact).mean()))
