"""All models of a service, its boards, and what has happened to them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from launch.serve.served import ServedFile, ServedModel, Surroundings
from launch.watch.agent import FOLDER, sweep
from launch.watch.boards import Heartbeats, states
from launch.watch.life import Ends
from launch.watch.site import Site
from launch.watch.starter import Starter
from launch.watch.starts import Starts
from launch.watch.timing import Timing
from solver.base.cache import cache_folder
from solver.cluster.cluster import Cluster

EVENTS = 50


class Supervisor:
    """Keeps the models of a service running on its boards.

    Parameters
    ----------
    site
        The boards.
    files
        The models.
    service
        Its name on the boards: what runs there under it from before is ended.
    cluster, sequences, context
        As `Surroundings` has them.
    most_waiting
        Requests that may wait, of each model.
    timing
        How long is waited for what.

    Attributes
    ----------
    models
        By name.
    changed
        Notified whenever the state is another, but not for every heartbeat.
    """

    def __init__(
        self,
        site: Site,
        files: Sequence[ServedFile],
        service: str,
        *,
        cluster: Cluster | None = None,
        sequences: int | None = None,
        context: int | None = None,
        most_waiting: int = 64,
        timing: Timing | None = None,
    ) -> None:
        self.changed = asyncio.Condition()
        self._ending = False
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._event_number = 0
        self._notices: set[asyncio.Task[None]] = set()
        log_folder = cache_folder() / "serve" / service
        with suppress(OSError):  # on a full disk there is no log
            log_folder.mkdir(parents=True, exist_ok=True)
        self._folder = _fresh_folder(service)
        self._beats = Heartbeats(site, service, uuid.uuid4().hex[:8], self._folder, self._board_event, timing)
        starter = Starter(site, self._beats, self._folder, log_folder)
        self._starts = Starts(self._beats)
        around = Surroundings(starter, cluster, sequences, context, self._starts, self._calm, self._event)
        self.models: Mapping[str, ServedModel] = {file.name: ServedModel(file, around, most_waiting) for file in files}

    def state(self) -> dict[str, Any]:
        """Return how everything is, as JSON."""
        jobs = {model.job.number: model.job.boards for model in self.models.values() if model.job is not None}
        return {
            "version": metadata.version("hepti"),
            "models": [model.to_table() for model in self.models.values()],
            "boards": states(self._beats.boards, jobs),
            "events": list(self._events),
            "ending": self._ending,
        }

    async def run(self) -> None:
        """Run until cancelled; then nothing of it is left on any board that can be reached."""
        beats = asyncio.create_task(self._beats.run())
        try:
            async with asyncio.TaskGroup() as tasks:
                for model in self.models.values():
                    tasks.create_task(model.run())
                tasks.create_task(_forward(beats))
        finally:
            self._ending = True
            await self._notify()
            for model in self.models.values():
                model.happens(Ends("the service is ending"))
            # After the models: their ranks are ended over the heartbeats' way.
            beats.cancel()
            with suppress(BaseException):
                await beats
            shutil.rmtree(self._folder, ignore_errors=True)

    def _calm(self) -> bool:
        """Return whether no model waits for its ranks."""
        states = {model.state for model in self.models.values()}
        return states <= {"ready", "failed"} and not self._starts.busy

    def _board_event(self, kind: str, board: str, sentence: str) -> None:
        self._event(kind, sentence, board)

    def _event(self, kind: str, sentence: str, board: str | None = None) -> None:
        if kind:
            # Who follows goes by the number: a clock that is set may go back.
            self._event_number += 1
            event: dict[str, Any] = {"number": self._event_number, "at": time.time(), "kind": kind, "text": sentence}
            self._events.append(event if board is None else event | {"board": board})
        notice = asyncio.get_running_loop().create_task(self._notify())
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def service_name(port: int) -> str:
    """Return the name of the service at a port of this machine: of two there can be only one at a time."""
    machine = Path("/etc/machine-id")
    known = machine.read_text() if machine.exists() else ""
    facts = (socket.gethostname(), known, Path("/proc/self/ns/net").readlink(), os.geteuid(), port)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _fresh_folder(service: str) -> Path:
    """Return an empty folder for mpirun and ssh, once those are removed that dead services have left.

    In memory where there is such a place: on a full disk nothing would start again.
    """
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    sweep(str(place))
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER}{service}-{os.getpid()}-", dir=place))


async def _forward(task: asyncio.Task[None]) -> None:
    """Raise here what a task raises that outlives us."""
    await asyncio.shield(task)
