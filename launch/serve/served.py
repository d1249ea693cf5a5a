"""A model that is served: its ranks are started, watched, and when they are lost started again on what is left."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launch.serve.clusters import Clusters, kept_path
from launch.serve.journal import Journal
from launch.serve.plans import Plans
from launch.watch.boards import silence
from launch.watch.losses import BadStartError, LossWatch, RanksLostError
from launch.watch.ranks import BAD_INPUT, RankJob
from launch.watch.reserve import PAUSE_S, Reserve
from launch.watch.starter import LOAD_S, Starter
from launch.watch.starts import Needs, Starts
from launch.watch.usable import TellEvent, Usable
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster, write_cluster
from solver.model.spec import typical_rows
from weights.file.store import LANGUAGE_MODEL, NETWORK, TensorFile, WeightsFile

# Encoders and networks are given many requests, which rank 0 batches as they come; a language model those that it
# answers together and the next one, so that no token waits for the way to us and back.
MANY_AT_ONCE = 64
STATUS_S = 1.0
# A board that is back is taken in when nothing is asked. Under steady load that never comes: then after so long, since
# open requests go on behind what they have said anyway.
CALM_S = 30.0
# Ranks that were ready for less than this did not last: behind two such jobs the next start waits, ever longer.
SHORT_S, LONGEST_PAUSE_S = 5.0, 30.0
MOST_SHORT = 2  # such jobs in a row; behind them a board that is to blame is left out
MORE = 1.1  # times the free memory of a board: worth another start where it was short


class BoardsBackError(Exception):
    """Boards are back, and the moment is calm."""


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A weights file, and how it is served.

    Parameters
    ----------
    path
        The same on every board.
    kind
        decoder, encoder or convnet.
    fingerprint
        Of the file.
    rows
        Of a request that an encoder is planned for; None of others.
    """

    path: Path
    kind: str
    fingerprint: str
    rows: int | None = None

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.path.stem


def served_file(path: Path) -> ServedFile:
    """Look what a file holds.

    Raises
    ------
    HeptiError
        If it is no weights file.
    """
    with TensorFile(path) as file:
        kind = {LANGUAGE_MODEL: "decoder", NETWORK: "convnet"}.get(file.kind, "encoder")
        found = ServedFile(path.absolute(), kind, file.fingerprint)
    if kind != "encoder":
        return found
    with WeightsFile(path) as weights:
        return replace(found, rows=typical_rows(weights.spec))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all models of a service share.

    Parameters
    ----------
    starter
        Of ranks on the boards.
    cluster
        What to plan for, devices as the boards are in order; None: measured.
    sequences, context
        Of language models, as for `generate`; None: its own.
    starts
        Who starts now.
    calm
        Whether no model waits for its ranks.
    tell
        Hears what happens.
    """

    starter: Starter
    cluster: Cluster | None
    sequences: int | None
    context: int | None
    starts: Starts
    calm: Callable[[], bool]
    tell: TellEvent


class ServedModel:
    """One model, its journal and its ranks.

    Attributes
    ----------
    name, kind
        As clients call it; decoder, encoder or convnet.
    journal
        The open requests.
    state, reason
        loading, ready, replanning or failed; why it is not ready.
    restarts
        How often ranks were started again, also to take boards in.
    """

    def __init__(self, file: ServedFile, around: Surroundings, most_waiting: int) -> None:
        self.name, self.kind = file.name, file.kind
        at_once = (around.sequences or 1) + 1 if file.kind == "decoder" else MANY_AT_ONCE
        self.journal = Journal(at_once, most_waiting)
        self.state = "loading"
        self.reason: str | None = "the boards are asked for"
        self.restarts = 0
        self.job: RankJob | None = None
        self._file, self._around = file, around
        self._starter = starter = around.starter
        self._beats, self._site = starter.heartbeats, starter.site
        self._clusters = Clusters(starter.site, starter.heartbeats, around.cluster, file.fingerprint, starter.folder)
        self._reserve = Reserve(starter, self.name)
        self._status: dict[str, Any] = {}
        self._planned_for: tuple[str, ...] = ()  # the boards that the ranks are planned for
        self._on: tuple[str, ...] = ()  # those of them that have any
        self._free: Mapping[str, int] = {}  # bytes of memory that they had
        self._given = False  # whether the ranks were given a plan
        words = self._planner_words()
        facts = (file.fingerprint, words, around.cluster, version("hepti"))
        kept = kept_path("plans.json", starter.site, starter.site.boards, *facts)
        self._plans = Plans(words, starter.folder / f"{self.name}-ahead", kept)
        self._own_plan = False  # whether the next ranks are to make their own
        self._boards = Usable(self.name, starter.site, starter.heartbeats, around.tell)
        self._before = {"tokens": 0, "requests": 0, "replanned": 0}  # of jobs that are gone
        self._ready = asyncio.Event()
        self._ready_at = 0.0
        self._asked_at = 0.0
        self._asked = False
        self._short = 0  # lives in a row that were none

    def to_table(self) -> dict[str, Any]:
        """Return how it is, for the page."""
        status = self._status
        plan = status.get("plan")
        counts = {key: before + int(status.get(key) or 0) for key, before in self._before.items()}
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "reason": self.reason,
            "plan": plan,
            "predicted": plan.get("predicted") if isinstance(plan, Mapping) else None,
            "ranks": status.get("ranks", []),
            "replans": status.get("replans", []),
            "restarts": self.restarts,
            "boards": list(self.job.boards) if self.job is not None else [],
            "planned_for": list(self._planned_for) if self.job is not None else [],
            **counts,
        }

    async def run(self) -> None:
        """Serve for ever."""
        await self._boards.all_there()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reserve.run(self._in_reserve))
            await self._lives()

    async def _lives(self) -> None:
        """Start ranks, and when they are lost start them again."""
        while True:
            boards = await self._usable()
            try:
                await self._once(boards)
            except BoardsBackError as back:
                self._becomes("replanning", str(back))
                self._around.tell("planned", f"{self.name}: {back}", None)
            except BadStartError as error:
                if not self._given:
                    await self._refused(boards, str(error))
                self._plans.forget(self._on)  # other programs have taken the memory: there may be another
                self._own_plan = self._given
            except (RanksLostError, HeptiError, OSError) as loss:  # a disk may be full
                self._becomes("replanning", str(loss))
                self._tell_loss(str(loss), getattr(loss, "board", None))
                await self._pause(boards, getattr(loss, "board", None))
            self.restarts += 1

    def _tell_loss(self, why: str, board: str | None) -> None:
        """Tell why the ranks are lost; of a silent board, which is told already, only what follows from it."""
        if board is not None and not self._beats.boards[board].alive:
            follows = f"goes on without {board}" if self._boards.in_time() else "waits: no board answers"
            self._around.tell("planned", f"{self.name} {follows}", None)
        else:
            self._around.tell("fault", f"{self.name}: {why}", board)

    def fail(self, why: str) -> None:
        """Refuse all that is open, and all that will come: there will be no ranks."""
        self._becomes("failed", why)
        self.journal.fail(why)

    async def _usable(self) -> tuple[str, ...]:
        """Wait until boards live that may be used; return them in rank order."""
        while not (boards := self._boards.now()):
            state = self.state if self.state == "loading" else "replanning"
            self._becomes(state, "; ".join(silence(board) for board in self._beats.boards.values() if not board.alive))
            await self._beats.beat()
        return boards

    async def _refused(self, boards: tuple[str, ...], why: str) -> None:
        """Say that the ranks end with bad input, and wait until there are other boards to try, or more free memory."""
        if self._boards.hold_new(self._on, why):
            return
        missing = [board for board in self._site.boards if board not in boards]
        if missing:
            self._becomes("replanning", f"not without {', '.join(missing)}: {why}")
        elif self._ready_at:  # what was enough once may be again
            self._becomes("replanning", why)
        else:
            self.fail(why)
        self._around.tell("fault", f"{self.name}: {self.reason}", None)
        before = self._clusters.free(boards)
        while self._boards.now() in ((), boards):
            await self._beats.beat()
            if any(free > MORE * before[board] for board, free in self._clusters.free(boards).items()):
                return

    async def _pause(self, boards: tuple[str, ...], culprit: str | None) -> None:
        """Wait where ranks end again and again, until there are other boards."""
        lasted = self._ready.is_set() and time.monotonic() - self._ready_at > SHORT_S
        self._short = 0 if lasted else self._short + 1
        if not self._ready.is_set() or self._short > MOST_SHORT:
            self._plans.forget(self._on)
        if not lasted and self._boards.hold_new([culprit] if culprit else self._on, str(self.reason)):
            return
        if culprit and self._short > MOST_SHORT and len(boards) > 1:
            self._boards.hold(culprit, str(self.reason))  # what was good once need not be so for ever
            return
        end = time.monotonic() + min(LONGEST_PAUSE_S, 2.0 ** (self._short - 2)) * (self._short > 2)
        while time.monotonic() < end and self._boards.now() == boards:
            await self._beats.beat()

    async def _once(self, boards: tuple[str, ...]) -> None:
        """Start ranks on boards, and serve until they are lost."""
        self._ready.clear()
        self._on = boards
        job: RankJob | None = None
        hard = True
        life: asyncio.Task[None] | None = None
        ready = asyncio.create_task(self._ready.wait())
        try:
            async with self._around.starts.turn(self.name, self._needs(boards)) as others:
                cluster = await self._clusters.of(boards, self._measure, others)
                self._free = self._clusters.free(boards)
                used = self._on = await self._share_out(boards, cluster)
                self._planned_for = boards
                words = await self._program(used, cluster.only(self._indices(boards, used)))
                self._loads("the ranks load their weights")
                job = self.job = await self._reserve.start(used, words)
                life = asyncio.create_task(self._live(job))
                await asyncio.wait({life, ready}, return_when=asyncio.FIRST_COMPLETED)
            await life
        except asyncio.CancelledError:
            hard = False
            raise
        except (RanksLostError, BoardsBackError) as loss:
            self._becomes("replanning", str(loss))  # now: to end what is left takes seconds
            raise
        finally:
            self.job = None
            ready.cancel()
            if life is not None:
                life.cancel()
                with suppress(BaseException):
                    await life
            if job is not None:
                await self._starter.end(job, hard=hard)
            for key in self._before:
                self._before[key] += int(self._status.get(key) or 0)
            self._status = {}
            self.journal.lost()

    async def _program(self, boards: tuple[str, ...], cluster: Cluster) -> list[str]:
        """Return what every rank runs."""
        ranks = len(cluster.devices)
        words = ["generate"] if self.kind == "decoder" else []
        # Ranks that are refused a plan make their own, and say what is wrong.
        plan = None if self._own_plan else self._plans.of(boards)
        self._given = plan is not None
        if plan is not None:
            words += ["--plan", await self._beats.write(boards[0], f"{self.name}.json", plan)]
        elif self.kind == "decoder":
            words += self._lengths()
        path = await self._tell_cluster(boards, cluster)
        words += ["--model", str(self._file.path), "--input", "-", "--cluster", path]
        # A board that is slow, not lost, gets less to do. Tokens are too short to tell a slow board from a late one: a
        # language model's plan was seen to change for boards that were as ever. Shares of stages do not move.
        in_one = plan is None or len(json.loads(plan).get("stages", ())) < 2
        if ranks > 1 and not self._site.alone and self.kind != "decoder" and in_one:
            words += ["--replan", "auto"]
        return words

    def _planner_words(self) -> list[str]:
        """Return what the planner is asked, as ranks ask it that have no plan."""
        rows = [] if self._file.rows is None else ["--rows", str(self._file.rows)]
        return ["--model", str(self._file.path), *rows, *(self._lengths() if self.kind == "decoder" else [])]

    def _lengths(self) -> list[str]:
        """Return the lengths that a language model is planned for, as far as somebody has said so."""
        around, words = self._around, []
        for name, value in (("--context", around.context), ("--sequences", around.sequences)):
            words += [] if value is None else [name, str(value)]
        return words

    async def _live(self, job: RankJob) -> None:
        """Talk to ranks and watch them, until one of both raises."""
        watch = LossWatch(job, self._beats.boards, self._site.scale)
        parts = (
            self._read(job), self._write(job), self._ask(job), self._watch(job, watch), self._await(job, watch),
            self._plan_ahead(),
        )  # fmt: skip
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in parts:
                    tasks.create_task(part)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _plan_ahead(self) -> None:
        """Make plans for when a board is lost or back, once the ranks answer."""
        await self._ready.wait()
        self._plans.unplanned.clear()
        while not self._site.alone:
            for boards in self._plans.next_boards(self._boards.now()):
                if self._plans.target(boards) is None and not self._around.starts.busy:
                    if (cluster := self._clusters.ahead(boards, self._free)) is not None:
                        await self._plans.make(boards, cluster, ahead=True)
                    if self._plans.used(boards) is None:
                        self._plans.unplanned.add(boards)
            await self._beats.beat()

    def _in_reserve(self) -> set[tuple[str, ...]]:
        """Return on which boards ranks in reserve are wanted."""
        usable = self._boards.now()
        if self.job is None or not self._ready.is_set():  # those that will be taken in a moment
            return {boards for boards in (self._plans.used(usable), usable) if boards in self._reserve.boards}
        wanted = {self.job.boards}
        if any(self._beats.boards[board].suspected for board in self.job.boards):
            wanted.add(self._plans.target(self._boards.in_time()) or ())
        elif not (self._around.calm() and time.monotonic() - self._ready_at > PAUSE_S):
            wanted &= self._reserve.boards
        elif self._boards.back(self._planned_for):
            wanted.add(self._plans.target(usable) or ())
        return wanted - {()}

    def _needs(self, boards: tuple[str, ...]) -> Needs | None:
        """Return what memory the ranks take of these boards, as far as there is a plan."""
        used = self._plans.used(boards)
        return None if used is None else self._plans.needs(used)

    async def _share_out(self, boards: tuple[str, ...], cluster: Cluster) -> tuple[str, ...]:
        """Return which boards have a share, all where the planner finds no plan: the ranks say why."""
        if self._site.alone or len(boards) == 1:
            return boards
        if self._plans.used(boards) is None:
            self._loads("shares are planned")
            await self._plans.make(boards, cluster, ahead=False)
        return self._plans.used(boards) or boards

    def _indices(self, boards: tuple[str, ...], used: tuple[str, ...]) -> Iterable[int]:
        return range(self._site.ranks) if self._site.alone else map(boards.index, used)

    async def _read(self, job: RankJob) -> None:
        async for line in job.lines():
            if "status" in line:
                self._status, self._asked = line, False
                if not self._ready.is_set():
                    self._is_ready(job)
            else:
                self.journal.take(line)

    def _is_ready(self, job: RankJob) -> None:
        self._ready.set()
        self._ready_at = time.monotonic()
        boards = tuple(dict.fromkeys(job.boards))  # alone a machine has several ranks
        self._own_plan = False
        self._plans.keep(boards, json.dumps(self._status["plan"]))
        self._becomes("ready", None)
        kind = "restarted" if self.restarts else "planned"
        self._around.tell(kind, f"{self.name} runs on {', '.join(boards)}", None)

    async def _write(self, job: RankJob) -> None:
        await self._ready.wait()
        while True:
            for line in self.journal.to_send():
                job.send(line)
            await self.journal.wake.wait()

    async def _ask(self, job: RankJob) -> None:
        """Ask rank 0 every second how it is; the first answer means that everything is loaded."""
        number = 0
        while True:
            if not self._asked or number == 0:
                number += 1
                self._asked, self._asked_at = True, time.monotonic()
                job.send({"status": number})
            await asyncio.sleep(STATUS_S)

    async def _await(self, job: RankJob, watch: LossWatch) -> None:
        """Wait for mpirun's end, which is a loss, or bad input."""
        code = await job.ended()
        await self._beats.end_job(job.number)
        if code == BAD_INPUT and not self._ready.is_set():
            raise BadStartError(job.words())
        silent = [name for name in job.boards if not self._beats.boards[name].alive]
        raise watch.killed() or watch.lost(job.words(), silent[0] if silent else job.blamed)

    async def _watch(self, job: RankJob, watch: LossWatch) -> None:
        """Look at every heartbeat for what is lost, and for boards that are back."""
        began = time.monotonic()
        back_at: float | None = None
        while True:
            await self._beats.beat()
            asked_s = time.monotonic() - self._asked_at if self._asked else 0.0
            watch.look(ready=self._ready.is_set(), asked_s=asked_s if self._ready.is_set() else 0.0)
            if not self._ready.is_set():
                if time.monotonic() - began > LOAD_S / self._site.scale:
                    raise RanksLostError(f"the ranks were not ready after {LOAD_S:.0f} s")
                continue
            if time.monotonic() - self._ready_at > SHORT_S:
                self._boards.lasted(job.boards)
            back, target = self._boards.back(self._planned_for), self._plans.target(self._boards.now())
            if back and target == job.boards:  # they would have nothing to do
                self._planned_for = self._boards.now()
                back = []
            if not back:
                back_at = None
                continue
            back_at = time.monotonic() if back_at is None else back_at
            waited_s = time.monotonic() - back_at
            # With ranks in reserve on all of them the answers stand still for half as long: these are waited for, too.
            calm = not self.journal.open or waited_s > CALM_S
            if calm and (self._reserve.is_on(target or ()) or waited_s > 2 * CALM_S):
                raise BoardsBackError(f"taken in: {', '.join(back)}")

    async def _tell_cluster(self, boards: Sequence[str], cluster: Cluster) -> str:
        """Put the cluster file where rank 0 finds it; return its path there."""
        path = self._starter.folder / f"{self.name}.toml"
        write_cluster(cluster, path)
        return await self._beats.write(boards[0], path.name, path.read_text())

    async def _measure(self, boards: tuple[str, ...]) -> str:
        """Measure boards for this model; return the cluster file."""
        self._plans.forget_all()
        self._loads("the boards are measured")
        self._around.tell("measuring", f"{self.name}: measuring {', '.join(boards)}: half a minute", None)
        return await self._starter.measure(self.name, boards, self._file.path)

    def _loads(self, what: str) -> None:
        """Say what is being done at the first start; later ones are for a reason, which stays."""
        self._becomes(*(("loading", what) if self.state == "loading" else ("replanning", self.reason)))

    def _becomes(self, state: str, reason: str | None) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            self._around.tell("", "", None)
