"""Rank 0's side of the main job with a convolutional network: which images, under which plan, and what they show."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.hosts import Place
from hepti_mpi.defaults import READ_BYTES_PER_S
from hepti_mpi.engine.network import HeldPlans, HoldPlan, ImageOrder, PreparePlan
from hepti_mpi.live.sums import Sums
from hepti_mpi.network_flow import ImageFlow
from hepti_mpi.report import tables
from hepti_mpi.report.alone import (
    BoardAlone,
    Pace,
    alone_line,
    boards_planned_for,
    doubt,
    images_a_second,
    milliseconds,
    network_alone,
    other_kernels,
    runs_here,
)
from hepti_mpi.report.network_report import show_network
from hepti_mpi.report.report import job_report, job_status
from hepti_mpi.report.speaker import Speaker
from hepti_mpi.report.watch import Watch, network_picture
from hepti_mpi.requests.ahead import Ahead
from hepti_mpi.requests.answers import Answer, Tally, are_numbers, no_numbers
from hepti_mpi.requests.outputs import SUFFIXES, as_they_come, print_answer, write_json, writing
from hepti_mpi.requests.picture_answers import as_answers, picture_answer, print_picture_answer
from hepti_mpi.requests.pictures import PictureReader, PictureRequest
from hepti_mpi.requests.service_lines import Complaint, ServiceLines
from solver.base import clock
from solver.base.arrays import Array
from solver.base.command import check_path
from solver.base.errors import HeptiError
from solver.base.front import program
from solver.base.phrases import counted
from solver.cluster.cluster import PROGRAM_BYTES, Cluster
from solver.cluster.named import find_cluster
from solver.model.convnet import ConvNet
from solver.plan.file import check_plan, read_plan, sent_as
from solver.plan.plan import WIRES
from solver.plan.segments import THROUGHPUT, SegmentPlan
from solver.plan.writing import plan_table
from solver.schedule.networks.memory import memory_of
from solver.schedule.networks.segment_steps import net_setting, predicted, weights_of
from solver.systems import DEFAULT
from weights.file.networks import NetworkFile
from weights.file.store import NETWORK
from weights.formats import weights_path

if TYPE_CHECKING:
    from solver.live.network_replan import NetworkFollower
    from solver.live.turns import Turns
    from solver.systems.convnets.hepti_throughput import Replicas

# Options that say nothing of a network: what they are where nobody gives them, and why not.
REFUSED: Mapping[str, tuple[Any, str]] = {
    "text": (None, "reads images: give --input"),
    "precision": ("float32", "computes in float32: leave it out"),
}
# So many images, of some 150 KiB to 1 MiB each, stay in memory where they are computed several times.
KEPT = 100
Take = Callable[[dict[str, Any], Mapping[str, Array]], object]  # of an answer and the network's outputs


class NothingAnsweredError(Exception):
    """There is no answer: a file of them is not to be written."""


class NetworkLeader(Speaker):
    """Reads, plans, feeds the ranks, and answers; on rank 0 only.

    Parameters
    ----------
    options
        The command line, from `cli.parse`.
    group
        All ranks of the job.
    """

    def __init__(self, options: argparse.Namespace, group: Group) -> None:
        self._options, self._group = options, group
        self._serves = options.input == "-"  # answers standard input line by line
        super().__init__()
        self._ahead = Ahead[PictureRequest](self._complain, self._look)
        self._lines = ServiceLines(self._ahead.wake)
        self._complained, self._complains = False, True
        self._tally = Tally(serves=self._serves)
        self._kept: list[PictureRequest] = []
        self._busy_s = 0.0  # of all passes that count
        self._held: HeldPlans | None = None  # as soon as it is loaded
        self._sums: Sums | None = None  # then, too
        self._cluster: Cluster | None = None
        self._follower: NetworkFollower | None = None  # where the plan may change
        self._changes: list[dict[str, Any]] = []
        self._turns: Turns[SegmentPlan] | None = None  # where several plans may be tried
        self._replicas: Replicas | None = None  # where several compute images side by side
        self._watch = Watch(self.console) if options.watch else None

    def read(self) -> tuple[Path, ConvNet, str]:
        """Read the network, and what is asked of it; return its file, what it says, and its fingerprint.

        Raises
        ------
        HeptiError
            If nothing can be computed, or an output could not be written.
        """
        options = self._options
        for path, suffixes in ((options.output, SUFFIXES), (options.report, (".json",)), (options.trace, (".json",))):
            if path is not None:
                check_path(path, suffixes)
        model = weights_path(options.model, NETWORK, self.say)
        with NetworkFile(model) as file:
            self._net, fingerprint = file.net, file.fingerprint
        check_options(options, self._net)
        by_id = not self._serves or (options.output is not None and options.output.suffix == ".npz")
        self._reader = PictureReader(self._net, self._ahead.complain, by_id=by_id, images=options.images)
        in_files = not self._serves and options.random is None
        self._count = self._reader.count(Path(options.input)) if in_files else 1
        return model.absolute(), self._net, fingerprint

    @property
    def needs_profile(self) -> bool:
        """Whether nothing says what to plan for."""
        return self._options.cluster is None and self._options.plan is None

    def plan(self, measured: Cluster | None) -> tuple[SegmentPlan, ...]:
        """Read or make the plan, in front, and those that are tried besides.

        `measured` is what to plan for where no file says so.

        Raises
        ------
        HeptiError
            If there is no plan, or it does not fit.
        """
        options, ranks = self._options, self._group.size
        cluster = measured
        left: Sequence[str] = ()
        if options.cluster is not None:
            whole = find_cluster(options.cluster)
            cluster, left = whole.first(ranks, options.cluster), whole.names[ranks:]
        self._cluster = cluster
        plans = self._plans = self._planned(cluster)
        if left:  # told when nothing is refused any more
            left_out = ", ".join(left)
            self.note(
                [f"{counted(ranks, 'rank')}, {len(whole.names)} devices in {options.cluster}: without {left_out}"]
            )
        return plans

    def _planned(self, cluster: Cluster | None) -> tuple[SegmentPlan, ...]:
        """Return what `plan` returns, by what is known of the boards."""
        options, ranks = self._options, self._group.size
        if options.plan is not None:
            self._plan = plan_of_file(options, self._net, ranks, cluster)
            self.note([f"{options.plan}: {text}" for text in self._plan.unheeded(self._net)])
        elif options.system == THROUGHPUT:
            from solver.systems.convnets.hepti_throughput import solve_replicas  # the solvers are for rank 0 alone

            assert cluster is not None
            self._replicas = solve_replicas(self._net, cluster, options.wire)
            self._plan = self._replicas.plans[0]
            return self._replicas.plans
        else:
            from solver.systems.convnets import plan_network  # the solvers are for rank 0 alone

            assert cluster is not None
            self._plan = plan_network(options.system, self._net, cluster, options.wire)
            self._plan.check(self._net, ranks)
        if options.plan is not None or cluster is None or options.replan != "off" or options.system != DEFAULT:
            return (self._plan,)
        return self._tried(cluster)

    def _tried(self, cluster: Cluster) -> tuple[SegmentPlan, ...]:
        """Return the plan, and those that are tried besides: where that is asked for, or enough images come."""
        from solver.live.fewer_devices import networks_to_try, words_of  # the solvers are for rank 0 alone
        from solver.live.turns import NO_OTHER, TURNS, Turns, pays

        options, plans = self._options, [self._plan]
        images = 0 if self._serves else self._count * (options.warmup + options.repeat)
        if options.plan_by == "measure" or (options.plan_by is None and images > 2 * TURNS):
            plans = networks_to_try(self._net, cluster, self._plan)
        if options.plan_by is None:
            read_bytes = max(
                map(sum, zip(*(weights_of(self._net, plan) for plan in plans[1:]), strict=True)), default=0
            )
            if not pays([plan.predicted_s for plan in plans], read_bytes / READ_BYTES_PER_S, images):
                plans = [self._plan]
        if len(plans) > 1:
            self._turns = Turns(plans, words_of)
        elif options.plan_by == "measure":
            self.note([NO_OTHER])
        return tuple(plans)

    def kernels_note(self, backend: str) -> list[str]:
        """Return what to say of predictions that are for other kernels than `backend`, which computes here."""
        cluster = self._cluster
        measured = cluster is not None and all(device.nodes is not None for device in cluster.devices)
        return other_kernels(self._options, cluster, backend, measured=measured)

    def needed_bytes(self) -> list[int]:
        """Return the memory that every rank needs for the plans that it holds weights for."""
        held = zip(*(memory_of(self._net, plan) for plan in self._plans), strict=True)
        active = {0, *(rank for plan in self._plans for rank in plan.active)}
        return [sum(own) + PROGRAM_BYTES if rank in active else 0 for rank, own in enumerate(held)]

    def lead(self, held: HeldPlans) -> None:
        """Compute every image on all ranks, and answer it; then let them go."""
        self._held, self._sums = held, Sums(self._group, held.of(0).meter)
        self._follow_devices()
        takes, watch = self._takers(), self._watch or nullcontext()
        with self._progress() as done, suppress(NothingAnsweredError), takes as takers, watch:
            passes = self._options.warmup + self._options.repeat
            for number in range(passes):
                counts, started = number >= self._options.warmup, clock.now()
                for entry, outputs in self._answers(self._requests(number), held, counts=counts):
                    for take in takers if number == passes - 1 else ():
                        take(entry, outputs)
                    done(1)
                if counts:
                    self._busy_s += clock.now() - started
            if not (self._tally.count or self._serves):
                raise NothingAnsweredError
        if self._turns is not None:
            self._plan = self._turns.plan
            self.say(self._turns.line)
        self._sums.close()
        self._group.orders.send(None, self._group.others())

    def _follow_devices(self) -> None:
        """Let the plan follow the devices, where it may change."""
        if self._options.replan == "off" or self._group.size == 1:
            return
        assert self._cluster is not None  # --replan beside a --plan needs one, and all else is planned for one
        from solver.live.network_replan import NetworkFollower  # the solvers are for rank 0 alone

        changes = self._options.replan == "auto"
        self._follower = NetworkFollower(self._net, self._cluster, self._plan, changes=changes)

    def _change(self, held: HeldPlans) -> None:
        """Change the plan on all ranks, if what the last image took says so."""
        order = self._after_trials() if self._follower is None else self._followed(held)
        while order is not None:
            self._group.orders.send(order, self._group.others())
            held.change(order)
            order = self._prepared(held) if isinstance(order, PreparePlan) else None

    def _after_trials(self) -> HoldPlan | None:
        """Return the order to hold the fastest plan alone, if the last image was the last to be tried."""
        if self._turns is None or self._turns.settled:
            return None
        self._turns.took(self._image_s, self._turns.plans[self._turns.number].predicted_s)
        return HoldPlan(self._turns.number) if self._turns.settled else None

    def _followed(self, held: HeldPlans) -> PreparePlan | HoldPlan | None:
        """Return the order to prepare another plan, if what ranks computed says so, or to hold one that all have."""
        assert self._follower is not None
        told = dict(self._group.reports.take() for _ in self._group.others())
        if len(held.all) > 1:
            held.preparation.work()
            return self._prepared(held)
        compute_s = [told.get(rank, self._own_s) for rank in range(self._group.size)]
        change = self._follower.took(compute_s, self._image_s)
        if change is not None:
            self._changes.append(change.to_table(self._tally.count))
            self.say(change.line)
        if self._watch:
            lines = [entry["line"] for entry in self._changes]
            self._watch.show(network_picture(self._net, self._follower, compute_s, self._image_s, lines))
        return PreparePlan(change.plan, change.before_s) if change is not None and change.taken else None

    def _prepared(self, held: HeldPlans) -> HoldPlan | None:
        """Return the order to hold the plan that was prepared, if all have what it needs."""
        if not held.preparation.ready:
            return None
        self._plan = held.all[-1].plan
        return HoldPlan(len(held.all) - 1)

    def close(self, ranks: Sequence[dict[str, Any]], places: Sequence[Place]) -> int:
        """Write and show what was asked for; return the exit code.

        Raises
        ------
        HeptiError
            If there was nothing to compute.
        """
        options = self._options
        if not (self._tally.count or self._serves):
            if self._complained:
                return 2
            raise HeptiError(f"--input {options.input} is empty")
        plan = plan_table(self._plan, self._net)
        report = job_report(self._net.name, plan, self._plan.wire, self._tally, ranks, places, options)
        report["predicted_seconds"] = self._plan.predicted.seconds if self._plan.predicted else None
        report["replans"] = self._changes
        report["trials"] = [] if self._turns is None else self._turns.to_table()
        here = runs_here(self._plan.devices, places)
        boards = boards_planned_for(options, here=here)
        report["predicted_for"] = None if self._plan.predicted is None else boards
        report["requests_per_s"] = None if self._serves else self._tally.count / self._busy_s
        report["predicted_requests_per_s"] = None
        plans: Sequence[SegmentPlan] = (self._plan,)
        if self._replicas is not None:
            plans = self._replicas.plans
            report["predicted_requests_per_s"], report["predicted_for"] = self._replicas.images_per_s, boards
            report["predicted_seconds"] = None
            report["replicas"] = self._replica_tables(plans)
        alone = None
        if self._cluster is not None and self._group.size > 1 and not self._serves:
            alone = network_alone(self._net, self._cluster, self._plan.wire)
        report["best_single"] = None if alone is None else asdict(alone)
        if options.report is not None:
            write_json(options.report, report)
        if options.output is not None and not self._serves:
            self.wrote(self._tally.count // options.repeat, options.output)
        if not self._serves:
            console = tables.terminal(stderr=False)
            show_network(console, report, self._net, plans)
            self._judge(console, report, alone, boards, here=here)
        return 2 if self._complained else 0

    def _judge(
        self, console: Console, report: Mapping[str, Any], alone: BoardAlone | None, boards: str, *, here: bool
    ) -> None:
        """Say what one board alone would have taken, and whether what was predicted holds."""
        pace, show = Pace(report["seconds_median"], report["predicted_seconds"]), milliseconds
        if self._replicas is not None:  # which compute images side by side
            pace = Pace(1 / report["requests_per_s"], 1 / report["predicted_requests_per_s"])
            show = images_a_second
        if self._cluster is not None and self._group.size > 1:
            plans = (self._plan,) if self._replicas is None else self._replicas.plans
            active = {plan.devices[rank] for plan in plans for rank in plan.active}
            console.print(alone_line(pace, active, alone, boards, show, here=here))
        if note := doubt(pace, boards, self._cluster, kept=self.needs_profile, here=here):
            self.note([note])

    def _requests(self, number: int) -> Iterator[PictureRequest]:
        """Yield the images of a pass over all of them; while one is computed the next is read."""
        if self._kept:
            yield from self._kept
            return
        options, source = self._options, self._reader
        if self._serves:
            requests = source.standard_input(self._lines)
        elif options.random is not None:
            requests = iter([source.random(options.random)])
        else:
            requests = source.file(Path(options.input))
        self._complains = number == 0  # once of what is read again
        keeps = options.warmup + options.repeat > 1 and self._count <= KEPT
        read = []
        for request in self._ahead.of(requests):
            yield request
            read += [request] * keeps
        self._kept = read

    def _answers(
        self, requests: Iterator[PictureRequest], held: HeldPlans, *, counts: bool
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Array]]]:
        """Yield the answer to every image, and the network's outputs; the plan may change after each."""
        if self._replicas is not None:
            is_there = self._ahead.is_there if self._serves else lambda: True
            flow = ImageFlow(held, self._group).answered(requests, is_there, self._left_out, counts=counts)
            for request, found, seconds in flow:
                if not self._left_out(request) and self._is_answer(request, found, seconds, counts=counts):
                    yield self._entry(request, found, seconds, counts=counts), found
            return
        for request in requests:
            if self._left_out(request):
                continue
            outputs = self._computed(request, held, counts=counts)
            if not self._left_out(request) and self._is_answer(request, outputs, self._image_s, counts=counts):
                yield self._entry(request, outputs, self._image_s, counts=counts), outputs
            self._change(held)

    def _computed(self, request: PictureRequest, held: HeldPlans, *, counts: bool) -> Mapping[str, Array]:
        """Compute an image on all ranks; return the network's outputs."""
        started, number = clock.now(), 0
        if self._turns is not None and not self._turns.settled:
            number = self._turns.number
        order = ImageOrder(counts, tell=self._follower is not None, number=number)
        self._group.orders.send(order, self._group.others())
        share = held.of(number)
        share.image[...] = request.pixels
        self._own_s = share.run(counts=counts)
        self._image_s = clock.now() - started
        return share.outputs

    def _is_answer(
        self, request: PictureRequest, outputs: Mapping[str, Array], seconds: float, *, counts: bool
    ) -> bool:
        """Tell whether outputs are numbers; where not, count the image all the same, and say it."""
        if are_numbers(*outputs.values()):
            return True
        entry = {"id": request.id, "seconds": seconds}
        self._tally.take(Answer(entry, np.empty(0, np.float32), counts=counts))
        self._complain(no_numbers(request.id, request.line))
        return False

    def _entry(
        self, request: PictureRequest, outputs: Mapping[str, Array], seconds: float, *, counts: bool
    ) -> dict[str, Any]:
        """Return an image's answer, and count it; its request ends with it."""
        self._lines.end(request.line)
        entry = picture_answer(self._net, request.id, seconds, outputs, request.frame)
        self._tally.take(Answer(entry, np.empty(0, np.float32), counts=counts))
        return entry

    def _complain(self, complaint: Complaint) -> None:
        self._complained = True
        if self._complains:
            self.say(f"{program('python -m hepti_mpi')}: {complaint}")
        if self._serves:
            self._lines.complain(complaint)

    def _left_out(self, request: PictureRequest) -> bool:
        return self._lines.leaves_out(request.id, request.line)

    def _look(self) -> None:
        """Answer what has overtaken the images of standard input."""
        self._lines.tell(self._status)

    def _status(self) -> dict[str, Any]:
        assert self._held is not None  # lines are read when everything is loaded
        assert self._sums is not None
        plan = plan_table(self._plan, self._net)
        replanned = sum(change["taken"] for change in self._changes)
        found = job_status(self._net.name, plan, self._tally, self._sums.look(), self._changes, replanned)
        return found | ({} if self._replicas is None else {"replicas": self._replica_tables(self._replicas.plans)})

    def _replica_tables(self, plans: Sequence[SegmentPlan]) -> list[dict[str, Any]]:
        return [plan_table(plan, self._net) for plan in plans]

    @contextmanager
    def _takers(self) -> Iterator[Sequence[Take]]:
        """Give what takes the answers of the last pass: the file, standard output, the person at the terminal."""
        output = self._options.output
        found: list[Take] = []
        shown: list[dict[str, Any]] = []
        show = partial(print_picture_answer, tables.terminal(stderr=False))
        if self._serves:
            found.append(lambda entry, _: print_answer(Answer(entry, np.empty(0, np.float32))))
        elif output is None and self._options.random is None:
            found.append(lambda entry, _: shown.append(entry) if self._watch else show(entry))
        if output is None:
            yield found
            for entry in shown:  # not through the picture of devices
                show(entry)
            return
        with as_they_come(output) if self._serves else writing(output) as write:

            def write_all(entry: dict[str, Any], outputs: Mapping[str, Array]) -> None:
                for answer in as_answers(entry, outputs, output.suffix):
                    write(answer)

            yield [write_all, *found]

    @contextmanager
    def _progress(self) -> Iterator[Callable[[int], object]]:
        """Give what is called for every image; a bar goes on where no answers are printed meanwhile."""
        options = self._options
        silent = not self._serves and not self._watch and (options.output is not None or options.random is not None)
        total = (options.warmup + options.repeat) * self._count
        bar = self.progress("computing", total, "images")
        with bar if silent else nullcontext(lambda _: None) as done:
            yield done


def check_options(options: argparse.Namespace, net: ConvNet) -> None:
    """Refuse options that say nothing of a network.

    Raises
    ------
    HeptiError
        Naming the first of them, or what is missing.
    """
    for name, (usual, why) in REFUSED.items():
        if getattr(options, name) != usual:
            raise HeptiError(f"--{name.replace('_', '-')}: {net.name} {why}")
    if options.wire not in (None, *WIRES):
        raise HeptiError(f"{options.wire} on the wire: {net.name} sends {', '.join(WIRES)}")
    if options.plan is None:
        from solver.systems.convnets import planner_of  # the solvers are for rank 0 alone

        if options.system == THROUGHPUT and options.trace is not None:
            raise HeptiError(f"--trace is of one image: leave out --system {THROUGHPUT}")
        if options.system != THROUGHPUT:
            planner_of(options.system)  # here, before hosts are measured
    if options.images is not None and not options.images.is_dir():
        raise HeptiError(f"there is no folder --images {options.images}")
    if options.random is None and options.input is None:
        raise HeptiError(f"{net.name} reads images: give --input FILE or FOLDER, or --random 0")
    if options.random is not None and options.random < 0:
        raise HeptiError(f"--random is {options.random}, {net.name} takes any number from 0 on")


def plan_of_file(options: argparse.Namespace, net: ConvNet, ranks: int, cluster: Cluster | None) -> SegmentPlan:
    """Read the plan file; a wire that is asked for goes before the plan's, and what a cluster file says before both.

    Raises
    ------
    HeptiError
        If it does not fit the network or the number of ranks.
    """
    plan = sent_as(read_plan(options.plan, SegmentPlan, net), options.wire)
    check_plan(options.plan, plan, net, ranks)
    return plan if cluster is None else predicted(net_setting(net, cluster), plan)
