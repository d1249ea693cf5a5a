"""Convolutional networks, on rank 0: images in; labels, boxes, or just what was computed, out; one at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hepti_mpi.engine.image_flow import ImageFlow
from hepti_mpi.engine.network import HoldPlan, ImageOrder, PreparePlan
from hepti_mpi.live.sums import Sums
from hepti_mpi.report.alone import BoardAlone, Pace, images_a_second, milliseconds, network_alone
from hepti_mpi.report.network_report import network_shares, show_network
from hepti_mpi.report.watch import Watch, follower_picture
from hepti_mpi.requests.answers import NOTHING, Answer, Tally, are_numbers
from hepti_mpi.requests.outputs import SUFFIXES
from hepti_mpi.requests.picture_answers import picture_answer, print_picture_answer
from hepti_mpi.requests.pictures import PictureReader, PictureRequest
from hepti_mpi.session.defaults import READ_BYTES_PER_S
from hepti_mpi.session.desk import FrontDesk
from hepti_mpi.session.kind import ModelKind, OpenedModel, Show
from hepti_mpi.session.network_rank import NetworkRank
from solver.base import clock
from solver.base.arrays import Array
from solver.base.errors import HeptiError
from solver.cluster.cluster import PROGRAM_BYTES, Cluster, Device
from solver.model.convnet import ConvNet
from solver.model.precision import FLOAT32
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


class NetworkKind(ModelKind):
    """What a session asks of a convolutional network, on rank 0."""

    reads = ("images",)
    suffixes = SUFFIXES
    unit = "images"
    _model: ConvNet
    _plan: SegmentPlan

    def __init__(self, desk: FrontDesk) -> None:
        super().__init__(desk)
        self._follower: NetworkFollower | None = None  # where the plan may change
        self._turns: Turns[SegmentPlan] | None = None  # where several plans may be tried
        self._replicas: Replicas | None = None  # where several compute images side by side
        self._watch: Watch | None = None
        self._shown: list[Mapping[str, Any]] = []

    def open(self) -> OpenedModel:
        """Open the network, and count what is asked of it."""
        options, desk = self._options, self._desk
        model = weights_path(options.model, NETWORK, desk.say)
        with NetworkFile(model) as file:
            self._model, fingerprint = file.net, file.fingerprint
        self._check_options()
        by_id = not desk.serves or (options.output is not None and options.output.suffix == ".npz")
        self._reader = PictureReader(self._model, desk.ahead.complain, by_id=by_id, images=options.images)
        in_files = not desk.serves and options.random is None
        self.count = self._reader.count(Path(options.input)) if in_files else 1
        return OpenedModel(model.absolute(), self._model, FLOAT32.name, fingerprint)

    def _check_options(self) -> None:
        """Refuse what the network cannot do, or what is missing."""
        options, net = self._options, self._model
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

    def plan(self, cluster: Cluster | None) -> Sequence[SegmentPlan]:
        """Read or make the plan, in front, and those that are tried besides, or compute beside it."""
        options, net, ranks, self.cluster = self._options, self._model, self._desk.group.size, cluster
        self._plans: Sequence[SegmentPlan]
        if options.plan is not None:
            # A wire that is asked for goes before the plan's, and what a cluster file says before both.
            plan = sent_as(read_plan(options.plan, SegmentPlan, net), options.wire)
            check_plan(options.plan, plan, net, ranks)
            self._desk.note([f"{options.plan}: {text}" for text in plan.unheeded(net)])
            self._plans = (plan if cluster is None else predicted(net_setting(net, cluster), plan),)
        elif options.system == THROUGHPUT:
            from solver.systems.convnets.hepti_throughput import solve_replicas  # the solvers are for rank 0 alone

            assert cluster is not None
            self._replicas = solve_replicas(net, cluster, options.wire)
            self._plans = self._replicas.plans
        else:
            from solver.systems.convnets import plan_network  # the solvers are for rank 0 alone

            assert cluster is not None
            plan = plan_network(options.system, net, cluster, options.wire)
            plan.check(net, ranks)
            stays = options.replan != "off" or options.system != DEFAULT
            self._plans = (plan,) if stays else self._tried(cluster, plan)
        self._plan = self._plans[0]
        return self._plans

    def _tried(self, cluster: Cluster, plan: SegmentPlan) -> Sequence[SegmentPlan]:
        """Return the plan, and those that are tried besides: where that is asked for, or enough images come."""
        from solver.live.fewer_devices import networks_to_try, words_of  # the solvers are for rank 0 alone
        from solver.live.turns import NO_OTHER, TURNS, Turns, pays

        options, plans = self._options, [plan]
        images = 0 if self._desk.serves else self.count * (options.warmup + options.repeat)
        if options.plan_by == "measure" or (options.plan_by is None and images > 2 * TURNS):
            plans = networks_to_try(self._model, cluster, plan)
        if options.plan_by is None:
            read_bytes = max(
                map(sum, zip(*(weights_of(self._model, plan) for plan in plans[1:]), strict=True)), default=0
            )
            if not pays([plan.predicted_s for plan in plans], read_bytes / READ_BYTES_PER_S, images):
                plans = [plan]
        if len(plans) > 1:
            self._turns = Turns(plans, words_of)
        elif options.plan_by == "measure":
            self._desk.note([NO_OTHER])
        return plans

    def needed_bytes(self) -> list[int]:
        """Return the memory that every rank needs for the plans that it holds weights for."""
        held = zip(*(memory_of(self._model, plan) for plan in self._plans), strict=True)
        active = {0, *(rank for plan in self._plans for rank in plan.active)}
        return [sum(own) + PROGRAM_BYTES if rank in active else 0 for rank, own in enumerate(held)]

    def measured(self, device: Device) -> bool | None:
        """Return whether a device was measured for networks."""
        return device.nodes is not None

    def begin(self, rank: NetworkRank, last: ExitStack) -> None:
        """Take rank 0's part, and let the plan follow the devices, where it may change."""
        desk, options, self._held = self._desk, self._options, rank.held
        self._sums = Sums(desk.group, self._held.of(0).meter)
        self._watch = last.enter_context(Watch(desk.console)) if options.watch else None
        if options.replan != "off" and desk.group.size > 1:
            assert self.cluster is not None  # --replan beside a --plan needs one, and all else is planned for one
            from solver.live.network_replan import NetworkFollower  # the solvers are for rank 0 alone

            changes = options.replan == "auto"
            self._follower = NetworkFollower(self._model, self.cluster, self._plan, changes=changes)

    def requests(self) -> Iterable[PictureRequest]:
        """Return the images; while one is computed the next is read."""
        desk, options = self._desk, self._options
        if desk.serves:
            return desk.ahead.of(self._reader.standard_input(desk.lines))
        if options.random is not None:
            return [self._reader.random(options.random)]
        return desk.ahead.of(self._reader.file(Path(options.input)))

    def answers(self, requests: Iterable[PictureRequest], *, counts: bool, shows: bool) -> Iterator[Answer]:
        """Compute one image after the other, after each of which the plan may change; or deal them out to replicas."""
        desk = self._desk
        if self._replicas is not None:
            is_there = desk.ahead.is_there if desk.serves else lambda: True
            flow = ImageFlow(self._held, desk.group).answered(requests, is_there, desk.left_out, counts=counts)
            for request, found, seconds in flow:
                yield self._answer(request, found, seconds, counts=counts)
            return
        for request in requests:
            if desk.left_out(request):
                continue
            outputs = self._computed(request, counts=counts)
            yield self._answer(request, outputs, self._image_s, counts=counts)
            self._change()

    def _computed(self, request: PictureRequest, *, counts: bool) -> Mapping[str, Array]:
        """Compute an image on all ranks; return the network's outputs."""
        started, number, group = clock.now(), 0, self._desk.group
        if self._turns is not None and not self._turns.settled:
            number = self._turns.number
        group.orders.send(ImageOrder(counts, tell=self._follower is not None, number=number), group.others())
        share = self._held.of(number)
        share.image[...] = request.pixels
        self._own_s = share.run(counts=counts)
        self._image_s = clock.now() - started
        return share.outputs

    def _answer(self, request: PictureRequest, outputs: Mapping[str, Array], seconds: float, *, counts: bool) -> Answer:
        entry: dict[str, Any] = {"id": request.id, "seconds": seconds}
        if are_numbers(*outputs.values()):
            entry = picture_answer(self._model, request.id, seconds, outputs, request.frame)
        return Answer(entry, NOTHING, counts=counts, line=request.line, outputs=outputs)

    def _change(self) -> None:
        """Change the plan on all ranks, if what the last image took says so."""
        group = self._desk.group
        order = self._after_trials() if self._follower is None else self._followed()
        while order is not None:
            group.orders.send(order, group.others())
            self._held.change(order)
            order = self._prepared() if isinstance(order, PreparePlan) else None

    def _after_trials(self) -> HoldPlan | None:
        """Return the order to hold the fastest plan alone, if the last image was the last to be tried."""
        if self._turns is None or self._turns.settled:
            return None
        self._turns.took(self._image_s, self._turns.plans[self._turns.number].predicted_s)
        return HoldPlan(self._turns.number) if self._turns.settled else None

    def _followed(self) -> PreparePlan | HoldPlan | None:
        """Return the order to prepare another plan, if what ranks computed says so, or to hold one that all have."""
        assert self._follower is not None
        group, held = self._desk.group, self._held
        told = dict(group.reports.take() for _ in group.others())
        if len(held.all) > 1:
            held.preparation.work()
            return self._prepared()
        compute_s = [told.get(rank, self._own_s) for rank in range(group.size)]
        change = self._follower.took(compute_s, self._image_s)
        if change is not None:
            self._changes.append(change.to_table(self._desk.answered))
            self._desk.say(change.line)
        if self._watch:
            lines = [entry["line"] for entry in self._changes]
            shares_of = lambda rank: network_shares(self._model, self._plan, rank)
            self._watch.show(
                follower_picture(self._follower, compute_s, self._image_s, lines, ("segments", "work"), shares_of)
            )
        return PreparePlan(change.plan, change.before_s) if change is not None and change.taken else None

    def _prepared(self) -> HoldPlan | None:
        """Return the order to hold the plan that was prepared, if all have what it needs."""
        if not self._held.preparation.ready:
            return None
        self._plan = self._held.all[-1].plan
        return HoldPlan(len(self._held.all) - 1)

    def has_numbers(self, answer: Answer) -> bool:
        """Tell whether what was computed are numbers."""
        return are_numbers(*answer.outputs.values())

    @property
    def silent(self) -> bool:
        """Whether no answers are printed meanwhile."""
        return self._options.output is not None or self._options.random is not None

    def show(self, answer: Answer) -> None:
        """Print an answer; not through the picture of devices."""
        if self._watch and not self.silent:
            self._shown.append(answer.entry)
        elif not self.silent:
            print_picture_answer(self.out, answer.entry)

    def end(self) -> None:
        """Let the other ranks go."""
        group = self._desk.group
        if self._turns is not None:
            self._plan = self._turns.plan
            self._desk.say(self._turns.line)
        self._sums.close()
        group.orders.send(None, group.others())

    @property
    def table(self) -> dict[str, Any]:
        """Return the plan as its file has it."""
        return plan_table(self._plan, self._model)

    @property
    def _at_work(self) -> Sequence[SegmentPlan]:
        """The plans that compute side by side."""
        return (self._plan,) if self._replicas is None else self._replicas.plans

    @property
    def active(self) -> Collection[str]:
        """Return the devices that compute."""
        return {plan.devices[rank] for plan in self._at_work for rank in plan.active}

    def meters(self) -> Mapping[int, Mapping[str, float]]:
        """Return what ranks did so far."""
        return {rank: meter.to_table() for rank, meter in self._sums.look().items()}

    def more_status(self) -> Mapping[str, Any]:
        """Return the plans that compute side by side."""
        return self.facts()

    def facts(self) -> Mapping[str, Any]:
        """Return the plans that compute side by side."""
        if self._replicas is None:
            return {}
        return {"replicas": [plan_table(plan, self._model) for plan in self._replicas.plans]}

    def predicted(self, tally: Tally) -> dict[str, Any]:
        """Return what was predicted for an image, or of replicas how many a second."""
        if self._replicas is not None:
            return {"predicted_seconds": None, "predicted_requests_per_s": self._replicas.images_per_s}
        seconds = self._plan.predicted.seconds if self._plan.predicted else None
        return {"predicted_seconds": seconds, "predicted_requests_per_s": None}

    def alone(self, tally: Tally) -> BoardAlone | None:
        """Return the best board alone."""
        assert self.cluster is not None
        return network_alone(self._model, self.cluster, self._plan.wire)

    def tables(self, report: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> None:
        """Show the answers that waited, and who computed what."""
        for entry in self._shown:
            print_picture_answer(self.out, entry)
        show_network(self.out, report, self._model, self._at_work)

    def pace(self, report: Mapping[str, Any]) -> tuple[Pace, Show] | None:
        """Return what the split took."""
        if self._replicas is None:
            return Pace(report["seconds_median"], report["predicted_seconds"]), milliseconds
        return Pace(1 / report["requests_per_s"], 1 / report["predicted_requests_per_s"]), images_a_second
