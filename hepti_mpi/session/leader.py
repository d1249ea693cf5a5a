"""Rank 0's side of a job: what is asked, under which plan, what is answered, and what it took; whatever the model."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from typing import Any

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.hosts import Place
from hepti_mpi.report.alone import alone_line, boards_planned_for, doubt, other_kernels, runs_here
from hepti_mpi.report.report import job_report, job_status
from hepti_mpi.requests.answers import Answer, Sink, Tally
from hepti_mpi.requests.outputs import as_they_come, at_the_end, print_answer, write_json, writing
from hepti_mpi.requests.service_lines import print_cancelled
from hepti_mpi.session import defaults
from hepti_mpi.session.cli import check_kind
from hepti_mpi.session.desk import FrontDesk
from hepti_mpi.session.kind import ModelKind, OpenedModel
from solver.base import clock
from solver.base.command import check_path
from solver.base.errors import HeptiError
from solver.base.phrases import counted
from solver.cluster.cluster import Cluster
from solver.cluster.named import find_cluster
from weights.file.store import LANGUAGE_MODEL, NETWORK

# So many requests stay in memory where they are computed several times; images have some 150 KiB to 1 MiB each.
KEPT = 100


class NothingAnsweredError(Exception):
    """There is no answer: a file of them is not to be written."""


class Leader(FrontDesk):
    """Reads, plans, lets all ranks compute, answers and reports.

    Parameters
    ----------
    options, group, places
        As `FrontDesk` has them.
    kind
        What the model is, in the words of `weights.file.store`.

    Attributes
    ----------
    kind
        What differs by that.
    """

    def __init__(self, options: argparse.Namespace, group: Group, places: Sequence[Place], kind: str) -> None:
        super().__init__(options, group, places)
        self._known_as = kind
        self.kind: ModelKind = kind_of(kind, self)
        self._tally = Tally(serves=self.serves)
        self._kept: Sequence[Any] = ()  # requests of the pass before
        self._busy_s = 0.0  # of all passes that count
        self._written = 0  # answers

    @property
    def answered(self) -> int:
        """How many requests that count were answered."""
        return self._tally.count

    def read(self) -> OpenedModel | None:
        """Read what is asked, of which model; return None if all of it was refused, and that is told.

        Raises
        ------
        HeptiError
            If nothing can be computed, or an output could not be written.
        """
        options = self.options
        check_kind(options, self._known_as, self.kind.reads)
        json_only = (".json",)
        files = ((options.output, self.kind.suffixes), (options.report, json_only), (options.trace, json_only))
        for path, suffixes in files:
            if path is not None:
                check_path(path, suffixes)
        return self.kind.open()

    @property
    def needs_profile(self) -> bool:
        """Whether nothing says what to plan for; a try-out has boards of its own."""
        return self.options.cluster is None and self.options.plan is None and not self._is_example

    @property
    def _is_example(self) -> bool:
        options = self.options
        told = options.cluster is not None or options.plan is not None or options.measure
        return self.kind.is_try_out and not told

    def plan(self, measured: Cluster | None) -> Sequence[Any]:
        """Read or make the plan, in front, and those for which ranks hold weights besides.

        `measured` is what to plan for where no file says so.

        Raises
        ------
        HeptiError
            If there is no plan, or it does not fit.
        """
        asked, ranks, cluster = self.options.cluster, self.group.size, measured
        left: Sequence[str] = ()
        if asked is not None:
            whole = find_cluster(asked)
            cluster, left = whole.first(ranks, asked), whole.names[ranks:]
        plans = self.kind.plan(cluster)
        if left:  # told when nothing is refused any more
            devices = f"{len(whole.names)} devices in {asked}"
            self.note([f"{counted(ranks, 'rank')}, {devices}: without {', '.join(left)}"])
        return plans

    def needed_bytes(self) -> list[int]:
        """Return the memory that every rank needs for the plans that it holds weights for."""
        return self.kind.needed_bytes()

    @property
    def asks_much(self) -> bool:
        """Whether so much is asked that it pays to move weights onto large pages."""
        return self.kind.asks_much

    def kernels_note(self, backend: str) -> list[str]:
        """Return what to say of predictions that are for other kernels than `backend`, which computes here."""
        cluster = self.kind.cluster
        measured = [self.kind.measured(device) for device in cluster.devices] if cluster is not None else []
        if None in measured:
            return []
        return other_kernels(self.options, cluster, backend, measured=all(measured))

    def lead(self, rank: Any) -> None:
        """Let all ranks compute what is asked, and answer it; then let them go. `rank` is rank 0's own part."""
        options, passes = self.options, self.options.warmup + self.options.repeat
        with suppress(NothingAnsweredError), ExitStack() as last:
            self.kind.begin(rank, last)
            takers, done = last.enter_context(self._takers()), last.enter_context(self._bar(passes))
            for number in range(passes):
                counts, shows, started = number >= options.warmup, number == passes - 1, clock.now()
                for answer in self.kind.answers(self._asked(number), counts=counts, shows=shows):
                    if self._is_answer(answer):
                        for take in takers if shows and answer.told else ():
                            take(answer)
                    done(1)
                self._busy_s += (clock.now() - started) * counts
            if self._nothing_asked:
                raise NothingAnsweredError
        self.kind.end()

    def _is_answer(self, answer: Answer) -> bool:
        """Tell whether there is an answer, and end its request; count it, in any case but that it is cancelled."""
        if self.serves and self.lines.end(answer.line) and not answer.says_cancelled:
            print_cancelled(answer.entry["id"])
            return False
        self._tally.take(answer)
        if self.kind.has_numbers(answer):
            return True
        self.refuse_answer(answer)
        return False

    @property
    def _nothing_asked(self) -> bool:
        """Whether a file had no request that could be computed."""
        return self.options.input is not None and not (self.serves or self._tally.count)

    def _asked(self, number: int) -> Iterable[Any]:
        """Return the requests of a pass over all of them."""
        self.again = number > 0
        if self._kept:
            return self._kept
        return self._keeping() if self.options.warmup + self.options.repeat > 1 else self.kind.requests()

    def _keeping(self) -> Iterator[Any]:
        """Yield requests, and keep them for the next pass, where they are not too many."""
        read = []
        for request in self.kind.requests():
            yield request
            read += [request] * (self.kind.count <= KEPT)
        self._kept = read

    @contextmanager
    def _takers(self) -> Iterator[Sequence[Sink]]:
        """Give what takes the answers of the last pass: the file, standard output, the person at the terminal."""
        output = self.options.output
        found: list[Sink] = [print_answer if self.serves else self.kind.show]
        if output is None:
            yield found
            return
        into = as_they_come if self.serves else at_the_end if self.kind.keeps else writing
        with into(output) as write:

            def count(answer: Answer) -> None:
                write(answer)
                self._written += 1

            yield [count, *found]

    @contextmanager
    def _bar(self, passes: int) -> Iterator[Any]:
        """Give what is called for every answer; a bar goes on where nothing else is shown meanwhile."""
        shows = self.kind.silent and not (self.serves or self.options.watch)
        bar = self.progress("computing", passes * self.kind.count, self.kind.unit)
        with bar if shows else nullcontext(lambda _: None) as done:
            yield done

    def status(self) -> dict[str, Any]:
        """Return what the job says of itself."""
        decisions, _, changed = self.kind.decisions
        kind = self.kind
        found = job_status(kind.name, kind.table, self._tally, kind.meters(), decisions, changed)
        return found | dict(kind.more_status())

    def close(self, ranks: Sequence[dict[str, Any]]) -> int:
        """Write and show what was asked for; return the exit code.

        Raises
        ------
        HeptiError
            If there was nothing to compute.
        """
        options, kind = self.options, self.kind
        if self._nothing_asked:
            if self.complained:
                return 2
            raise HeptiError(f"--input {options.input} is empty")
        report = self._report(ranks)
        if options.report is not None:
            write_json(options.report, report)
        if options.output is not None and not self.serves:
            self.wrote(self._written, options.output)
        if self._tally.count and not self.serves:
            kind.tables(report, ranks)
            self._judge(report)
        return 2 if self.complained else 0

    def _report(self, ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        kind, tally = self.kind, self._tally
        decisions, decided, _ = kind.decisions
        report = job_report(kind.name, kind.table, kind.wire, tally, ranks, self.places, self.options)
        report |= kind.predicted(tally)
        predicted = report["predicted_seconds"], report["predicted_requests_per_s"]
        report["predicted_for"] = self._boards if any(predicted) else None
        report["replans"], report["replans_decided"], report["trials"] = [*decisions], decided, [*kind.trials]
        report["requests_per_s"] = None if self.serves or not self._busy_s else tally.count / self._busy_s
        self._alone = None
        if kind.cluster is not None and self.group.size > 1 and tally.count and not self.serves:
            self._alone = kind.alone(tally)
        report["best_single"] = None if self._alone is None else asdict(self._alone)
        return report | dict(kind.facts())

    @property
    def _is_here(self) -> bool:
        """Whether what is predicted is for the hosts that run it."""
        return runs_here(self.kind.plan_devices, self.places)

    @property
    def _boards(self) -> str:
        """For which boards seconds are predicted."""
        if self._is_example:
            return f"the example boards of {defaults.EXAMPLE}, not these hosts"
        return boards_planned_for(self.options, here=self._is_here)

    def _judge(self, report: Mapping[str, Any]) -> None:
        """Say what one board alone would have taken, and whether what was predicted holds."""
        kind = self.kind
        if (found := kind.pace(report)) is None:
            return
        pace, show = found
        if kind.cluster is not None and self.group.size > 1:
            line = alone_line(pace, kind.active, self._alone, self._boards, show, here=self._is_here)
            kind.out.print(line)
        if note := doubt(pace, self._boards, kind.cluster, kept=self.needs_profile, here=self._is_here):
            self.note([note])


def kind_of(kind: str, desk: FrontDesk) -> ModelKind:
    """Return rank 0's part of a kind of model; what only others need is not imported."""
    if kind == NETWORK:
        from hepti_mpi.session.network import NetworkKind

        return NetworkKind(desk)
    if kind == LANGUAGE_MODEL:
        from hepti_mpi.session.decoder import DecoderKind

        return DecoderKind(desk)
    from hepti_mpi.session.encoder import EncoderKind

    return EncoderKind(desk)
