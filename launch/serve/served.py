"""A model that is served: its ranks are started, watched, and when they are lost started again on what is left.

What it does next says `launch/watch/life.py`; here it is done.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launch.serve.clusters import Clusters, kept_path
from launch.serve.journal import Journal
from launch.serve.plans import Plans
from launch.watch import life
from launch.watch.boards import silence
from launch.watch.life import Doing, Life
from launch.watch.losses import BadStartError, LossWatch, RanksLostError
from launch.watch.ranks import BAD_INPUT, RankJob
from launch.watch.reserve import Reserve
from launch.watch.starter import Starter
from launch.watch.starts import Needs, Starts
from launch.watch.usable import TellEvent, Usable
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster, write_cluster
from solver.model.spec import typical_rows
from weights.file.store import LANGUAGE_MODEL, NETWORK, TensorFile, WeightsFile

COUNTED = ("tokens", "requests", "replanned")

# Encoders and networks are given many requests, which rank 0 batches as they come; a language model those that it
# answers together and the next one, so that no token waits for the way to us and back.
MANY_AT_ONCE = 64
MORE = 1.1  # times the free memory of a board: worth another start where it was short


class BoardsBackError(Exception):
    """These boards are back, and the moment is calm."""


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


class Programs:
    """What the ranks of one model run: the boards are measured, shares planned, and both put where rank 0 finds them.

    Parameters
    ----------
    file, around
        The model, and what it shares with others.

    Attributes
    ----------
    clusters, plans
        What is known of the boards, and what is planned for them.
    """

    def __init__(self, file: ServedFile, around: Surroundings) -> None:
        self._file, self._around, self._starter = file, around, around.starter
        site, folder = around.starter.site, around.starter.folder
        words = self._planner_words()
        facts = (file.fingerprint, words, around.cluster, version("hepti"))
        self.clusters = Clusters(site, around.starter.heartbeats, around.cluster, file.fingerprint, folder)
        self.plans = Plans(words, folder / f"{file.name}-ahead", kept_path("plans.json", site, site.boards, *facts))
        self._free: Mapping[str, int] = {}  # bytes of memory that the boards had before the ranks of now

    async def share_out(
        self, boards: tuple[str, ...], cluster: Cluster, planning: Callable[[], None]
    ) -> tuple[str, ...]:
        """Return which boards have a share, all where the planner finds no plan: the ranks say why."""
        self._free = self.clusters.free(boards)
        if self._starter.site.alone or len(boards) == 1:
            return boards
        if self.plans.used(boards) is None:
            planning()
            await self.plans.make(boards, cluster, ahead=False)
        return self.plans.used(boards) or boards

    def part(self, cluster: Cluster, boards: tuple[str, ...], used: tuple[str, ...]) -> Cluster:
        """Return the devices of the boards with a share."""
        site = self._starter.site
        return cluster.only(range(site.ranks) if site.alone else map(boards.index, used))

    def needs(self, boards: tuple[str, ...]) -> Needs | None:
        """Return what memory the ranks take of these boards, as far as there is a plan."""
        used = self.plans.used(boards)
        return None if used is None else self.plans.needs(used)

    async def words(self, boards: Sequence[str], cluster: Cluster, plan: str | None) -> list[str]:
        """Return what every rank runs; without a plan they make their own."""
        name, beats = self._file.name, self._starter.heartbeats
        words = ["generate"] if self._file.kind == "decoder" else []
        if plan is not None:
            words += ["--plan", await beats.write(boards[0], f"{name}.json", plan)]
        elif self._file.kind == "decoder":
            words += self._lengths()
        path = self._starter.folder / f"{name}.toml"
        write_cluster(cluster, path)
        there = await beats.write(boards[0], path.name, path.read_text())
        words += ["--model", str(self._file.path), "--input", "-", "--cluster", there]
        # A board that is slow, not lost, gets less to do. Tokens are too short to tell a slow board from a late one: a
        # language model's plan was seen to change for boards that were as ever. Shares of stages do not move.
        in_one = plan is None or len(json.loads(plan).get("stages", ())) < 2
        if len(cluster.devices) > 1 and not self._starter.site.alone and self._file.kind != "decoder" and in_one:
            words += ["--replan", "auto"]
        return words

    async def plan_ahead(self, usable: Callable[[], tuple[str, ...]]) -> None:
        """Make plans for when a board is lost or back."""
        self.plans.unplanned.clear()
        while not self._starter.site.alone:
            for boards in self.plans.next_boards(usable()):
                if self.plans.target(boards) is None and not self._around.starts.busy:
                    if (cluster := self.clusters.ahead(boards, self._free)) is not None:
                        await self.plans.make(boards, cluster, ahead=True)
                    if self.plans.used(boards) is None:
                        self.plans.unplanned.add(boards)
            await self._starter.heartbeats.beat()

    def _planner_words(self) -> list[str]:
        """Return what the planner is asked, as ranks ask it that have no plan."""
        rows = [] if self._file.rows is None else ["--rows", str(self._file.rows)]
        return ["--model", str(self._file.path), *rows, *(self._lengths() if self._file.kind == "decoder" else [])]

    def _lengths(self) -> list[str]:
        """Return the lengths that a language model is planned for, as far as somebody has said so."""
        around, words = self._around, []
        for name, value in (("--context", around.context), ("--sequences", around.sequences)):
            words += [] if value is None else [name, str(value)]
        return words


class Talk:
    """What a service and the ranks of one job say to each other, until they are lost.

    Parameters
    ----------
    job
        The ranks.
    journal
        What they are asked.
    starter
        Who has started them.

    Attributes
    ----------
    status
        How rank 0 was when it was asked last.
    ready
        Set by its first answer, which means that everything is loaded.
    """

    def __init__(self, job: RankJob, journal: Journal, starter: Starter) -> None:
        self.job, self._journal, self._starter = job, journal, starter
        self._beats, self._timing = starter.heartbeats, starter.heartbeats.timing
        self._watch = LossWatch(job, self._beats.boards, starter.site.scale, self._timing)
        self.status: dict[str, Any] = {}
        self.ready = asyncio.Event()
        self._ready_at = self._asked_at = 0.0
        self._asked = False

    @property
    def ready_s(self) -> float:
        """Seconds since the ranks are ready; 0 before."""
        return time.monotonic() - self._ready_at if self.ready.is_set() else 0.0

    @property
    def lasted(self) -> bool:
        """Whether they have been ready for long enough."""
        return self.ready_s > self._timing.short_s

    async def run(self, *others: Coroutine[None, None, None]) -> None:
        """Talk to ranks and watch them, and do what else is to be done meanwhile, until something raises."""
        # In a task of its own: up to Python 3.11.2 a task whose group one of its parts has ended counts as cancelled
        # from then on, and its next timeout raises CancelledError, of which no group hears.
        await asyncio.create_task(self._parts(*others))

    async def _parts(self, *others: Coroutine[None, None, None]) -> None:
        parts = (self._read(), self._write(), self._ask(), self._look(), self._await(), *others)
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in parts:
                    tasks.create_task(part)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _read(self) -> None:
        async for line in self.job.lines():
            if "status" in line:
                self.status, self._asked = line, False
                if not self.ready.is_set():
                    self._ready_at = time.monotonic()
                    self.ready.set()
            else:
                self._journal.take(line)

    async def _write(self) -> None:
        await self.ready.wait()
        while True:
            for line in self._journal.to_send():
                self.job.send(line)
            await self._journal.wake.wait()

    async def _ask(self) -> None:
        """Ask rank 0 every second how it is."""
        number = 0
        while True:
            if not self._asked:
                number += 1
                self._asked, self._asked_at = True, time.monotonic()
                self.job.send({"status": number})
            await asyncio.sleep(self._timing.status_s)

    async def _await(self) -> None:
        """Wait for mpirun's end, which is a loss, or bad input."""
        code = await self.job.ended()
        await self._beats.end_job(self.job.number)
        if code == BAD_INPUT and not self.ready.is_set():
            raise BadStartError(self.job.words())
        silent = [name for name in self.job.boards if not self._beats.boards[name].alive]
        raise self._watch.killed() or self._watch.lost(self.job.words(), silent[0] if silent else self.job.blamed)

    async def _look(self) -> None:
        """Look at every heartbeat for what is lost."""
        began, load_s = time.monotonic(), self._timing.load_s
        while True:
            await self._beats.beat()
            ready = self.ready.is_set()
            self._watch.look(ready=ready, asked_s=time.monotonic() - self._asked_at if self._asked and ready else 0.0)
            if not ready and time.monotonic() - began > load_s / self._starter.site.scale:
                raise RanksLostError(f"the ranks were not ready after {load_s:.0f} s")


class ServedModel:
    """One model, its journal and its ranks.

    Attributes
    ----------
    name, kind
        As clients call it; decoder, encoder or convnet.
    journal
        The open requests.
    life
        How it is.
    reserve
        Its ranks in reserve.
    programs
        What its ranks run.
    """

    def __init__(self, file: ServedFile, around: Surroundings, most_waiting: int) -> None:
        self.name, self.kind = file.name, file.kind
        at_once = (around.sequences or 1) + 1 if file.kind == "decoder" else MANY_AT_ONCE
        self.journal = Journal(at_once, most_waiting)
        self.life = Life(file.name)
        self.reserve = Reserve(around.starter, self.name)
        self.programs = Programs(file, around)
        self._file, self._around = file, around
        self._beats = around.starter.heartbeats
        self._boards = Usable(self.name, around.starter.site, self._beats, around.tell)
        self._talk: Talk | None = None
        self._before: Counter[str] = Counter()  # what jobs that are gone have counted

    @property
    def state(self) -> str:
        """One of loading, ready, replanning and failed."""
        return self.life.state

    @property
    def reason(self) -> str | None:
        """Why it is not ready."""
        return self.life.reason

    @property
    def job(self) -> RankJob | None:
        """Its ranks, where there are any."""
        return self._talk.job if self._talk is not None else None

    def to_table(self) -> dict[str, Any]:
        """Return how it is, for the page."""
        talk = self._talk
        status = talk.status if talk is not None else {}
        plan = status.get("plan")
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "reason": self.reason,
            "plan": plan,
            "predicted": plan.get("predicted") if isinstance(plan, Mapping) else None,
            "ranks": status.get("ranks", []),
            "replans": status.get("replans", []),
            "restarts": self.life.restarts,
            "boards": list(talk.job.boards) if talk is not None else [],
            "planned_for": list(self.life.planned_for) if talk is not None else [],
            **{key: self._before[key] + int(status.get(key) or 0) for key in COUNTED},
        }

    async def run(self) -> None:
        """Serve for ever."""
        await self._boards.all_there()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reserve.run(self._in_reserve))
            while True:
                boards = await self._usable()
                self.happens(life.Begins(boards))
                await self._once(boards)
                await self._rest(boards)
                self.happens(life.Again())

    def happens(self, event: life.LifeEvent) -> None:
        """Do what is to be done after an event."""
        before = self.life
        self.life, actions = life.after(before, event)
        if (before.state, before.reason) != (self.state, self.reason):
            self._around.tell("", "", None)
        for action in actions:
            self._do(action)

    def _do(self, action: life.Action) -> None:
        plans = self.programs.plans
        match action:
            case life.Tell(kind, sentence, board):
                self._around.tell(kind, sentence, board)
            case life.KeepPlan(boards):
                assert self._talk is not None
                plans.keep(boards, json.dumps(self._talk.status["plan"]))
            case life.ForgetPlan(boards):
                plans.forget(boards) if boards else plans.forget_all()
            case life.LeaveOut(board, why):
                self._boards.hold(board, why)
            case life.TakeIn(good):
                self._boards.release(good)
            case life.RefuseAll(why):
                self.journal.fail(why)

    async def _usable(self) -> tuple[str, ...]:
        """Wait until boards live that may be used; return them in rank order."""
        while not (boards := self._boards.now()):
            why = "; ".join(silence(board) for board in self._beats.boards.values() if not board.alive)
            self.happens(life.AllSilent(why))
            await self._beats.beat()
        return boards

    async def _rest(self, boards: tuple[str, ...]) -> None:
        """Wait for other boards where the ranks refuse these, or for more free memory; a while where they end again."""
        timing, before = self._beats.timing, self.programs.clusters.free(boards)
        end = time.monotonic() + min(timing.longest_pause_s, timing.pause_s * self.life.rests)
        while self.life.doing is Doing.RESTING and time.monotonic() < end and self._boards.now() == boards:
            await self._beats.beat()
        while self.life.doing in (Doing.HELD, Doing.FAILED) and self._boards.now() in ((), boards):
            await self._beats.beat()
            if any(free > MORE * before[board] for board, free in self.programs.clusters.free(boards).items()):
                return

    async def _once(self, boards: tuple[str, ...]) -> None:
        """Start ranks on boards, and serve until they are lost."""
        try:
            await self._serve(boards)
        except BoardsBackError as back:
            self.happens(life.Returns(back.args))
            await self._end(hard=True)
        except BadStartError as error:
            await self._end(hard=True)
            missing = tuple(board for board in self._beats.boards if board not in boards)
            self.happens(life.Refuses(str(error), missing))
        except (RanksLostError, HeptiError, OSError) as loss:  # a disk may be full
            lasted, answered = self._talk is not None and self._talk.lasted, self.life.doing is Doing.READY
            self.happens(life.Loses(str(loss)))  # now: to end what is left takes seconds
            await self._end(hard=True)
            culprit: str | None = getattr(loss, "board", None)
            silent = culprit is not None and not self._beats.boards[culprit].alive
            others = bool(self._boards.in_time())
            self.happens(life.Gone(answered, lasted, culprit, silent=silent, others=others))
        finally:
            await self._end(hard=False)

    async def _serve(self, boards: tuple[str, ...]) -> None:
        """Start ranks on boards, in their turn until they are ready, and talk to them until they are lost."""
        programs = self.programs
        async with AsyncExitStack() as turn:
            others = await turn.enter_async_context(self._around.starts.turn(self.name, programs.needs(boards)))
            cluster = await programs.clusters.of(boards, self._measure, others)
            used = await programs.share_out(boards, cluster, lambda: self.happens(life.Comes(Doing.PLANNING)))
            # Ranks that are refused a plan make their own, and say what is wrong.
            plan = None if self.life.own_plan else programs.plans.of(used)
            self.happens(life.SharedOut(used, plan is not None))
            words = await programs.words(used, programs.part(cluster, boards, used), plan)
            self.happens(life.Comes(Doing.LOADING))
            job = await self.reserve.start(used, words)
            talk = self._talk = Talk(job, self.journal, self._around.starter)
            await talk.run(self._plan_ahead(talk), self._follow(talk, turn))

    async def _end(self, *, hard: bool) -> None:
        """End what is left of the ranks; what they had to answer waits again."""
        talk, self._talk = self._talk, None
        if talk is None:
            return
        await self._around.starter.end(talk.job, hard=hard)
        self._before.update({key: int(talk.status.get(key) or 0) for key in COUNTED})
        self.journal.lost()

    async def _measure(self, boards: tuple[str, ...]) -> str:
        """Measure boards for this model; return the cluster file."""
        self.happens(life.Comes(Doing.MEASURING))
        return await self._around.starter.measure(self.name, boards, self._file.path)

    async def _plan_ahead(self, talk: Talk) -> None:
        await talk.ready.wait()
        await self.programs.plan_ahead(self._boards.now)

    async def _follow(self, talk: Talk, turn: AsyncExitStack) -> None:
        """See the ranks become ready, and last, and boards that are back."""
        await talk.ready.wait()
        self.happens(life.Answers())
        await turn.aclose()
        back_at: float | None = None
        while True:
            await self._beats.beat()
            if talk.lasted:
                self.happens(life.Lasts())
            back, target = self._boards.back(self.life.planned_for), self.programs.plans.target(self._boards.now())
            if back and target == talk.job.boards:  # they would have nothing to do
                self.happens(life.Spreads(self._boards.now()))
                back = []
            now = time.monotonic()
            back_at = (now if back_at is None else back_at) if back else None
            if back_at is not None and self._may_take_in(target or (), now - back_at):
                raise BoardsBackError(*back)

    def _may_take_in(self, target: tuple[str, ...], waited_s: float) -> bool:
        """Return whether the moment is calm, or was long enough not.

        With ranks in reserve on all of them the answers stand still for half as long: these are waited for, too.
        """
        calm_s = self._beats.timing.calm_s
        calm = not self.journal.open or waited_s > calm_s
        return calm and (self.reserve.is_on(target) or waited_s > 2 * calm_s)

    def _in_reserve(self) -> set[tuple[str, ...]]:
        """Return on which boards ranks in reserve are wanted."""
        usable, plans, talk = self._boards.now(), self.programs.plans, self._talk
        if talk is None or self.life.doing is not Doing.READY:  # those that will be taken in a moment
            return {boards for boards in (plans.used(usable), usable) if boards in self.reserve.boards}
        wanted = {talk.job.boards}
        if any(self._beats.boards[board].suspected for board in talk.job.boards):
            wanted.add(plans.target(self._boards.in_time()) or ())
        elif not (self._around.calm() and talk.ready_s > self._beats.timing.reserve_pause_s):
            wanted &= self.reserve.boards
        elif self._boards.back(self.life.planned_for):
            wanted.add(plans.target(usable) or ())
        return wanted - {()}
