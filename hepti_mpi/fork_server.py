"""Ranks without their imports: this process has imported all that ranks need, and forks one for every client.

    python -m hepti_mpi.fork_server SOCKET

On a quarter of a core of 2024 the imports take 2 of the 5 s until a rank can load its weights, for which a service
waits that has lost a rank. mpirun starts `base/fork_client.py`, which hands its streams, its environment and its words
to this server, and ends as the rank that is forked ends.

SOCKET is the number of a listening socket. An agent connects there, too, with a text instead of streams. Of every rank
that agent is told, in lines, when it begins: the process number of the client, which mpirun knows, and that of the
rank; and when it ends, but by its client's end: the client's, the rank's, and its exit code, or minus the signal. Of
several agents the last to come is told, first of the ranks that are there.

The server ends, and its ranks with it, when an agent sends a line, or when there has been none for `KEPT_S`: a service
that was killed and is started again finds the imports done. It ends when an agent comes whose text is not the first
one's, or when a file that it has imported is another now: that agent starts a new one.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hepti_mpi import __main__ as rank_program
from hepti_mpi.base import fork_client
from hepti_mpi.base.fork_client import CODE, SIZE, STREAMS, peer

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
KEPT_S = 15.0  # systemd waits for 5 until it starts a service again
# All jobs of `__main__`, and what they import only when they are to plan or to compute.
LATE = (
    "hepti_mpi.measure.profile_command", "hepti_mpi.session.cli", "hepti_mpi.session.job", "hepti_mpi.session.leader",
    "hepti_mpi.session.encoder_rank", "hepti_mpi.session.network_rank", "hepti_mpi.session.decoder_rank",
    "hepti_mpi.session.encoder", "hepti_mpi.session.network", "hepti_mpi.session.decoder",
    "hepti_mpi.kernels.int8", "hepti_mpi.kernels.kinds.runs", "hepti_mpi.comm.reserve",
    "numpy.random", "numpy.ma", "solver.programs.planner", "solver.systems.decoders", "solver.live.trials",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RankRequest:
    """What a client asks for.

    Parameters
    ----------
    client
        The way to it.
    number
        Its process number.
    streams, folder
        Descriptors: standard input, output and error, and the folder to be in.
    words, environment
        Of the rank.
    """

    client: socket.socket
    number: int
    streams: Sequence[int]
    folder: int
    words: Sequence[str]
    environment: Mapping[str, str]

    def take_place(self) -> None:
        """Become what the client is, but for its process number."""
        os.fchdir(self.folder)
        for stream, number in zip(self.streams, STREAMS, strict=True):
            os.dup2(stream, number)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv[1:] = self.words

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (*self.streams, self.folder):
            os.close(descriptor)


@dataclass(slots=True)
class ForkedRank:
    """A rank.

    Parameters
    ----------
    number, process
        The process numbers of its client and of itself.
    ended
        A descriptor that becomes readable when it ends.
    client
        The way to who stands for it, None once that is gone.
    """

    number: int
    process: int
    ended: int
    client: socket.socket | None


class ForkServer:
    """Forks a rank for every client, and tells it how the rank ended.

    Parameters
    ----------
    listening
        Where clients connect.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._ranks: list[ForkedRank] = []
        self._agents: list[socket.socket] = []
        self._files = _changed_at()
        self._text: str | None = None  # the first agent's
        self._wanted = True

    def run(self) -> RankRequest | None:
        """Serve until no agent wants it any more; in a process that was forked, return what is asked of it."""
        while self._wanted:
            waiting: list[int | socket.socket] = [self._listening, *self._agents, *(rank.ended for rank in self._ranks)]
            waiting += [rank.client for rank in self._ranks if rank.client is not None]
            ready, _, _ = select.select(waiting, [], [], None if self._agents else KEPT_S)
            if not ready:
                break
            for agent in [agent for agent in self._agents if agent in ready]:
                self._hear(agent)
            for rank in list(self._ranks):
                if rank.ended in ready:
                    self._tell_end(rank)
                elif rank.client in ready:  # it has nothing more to say: it was ended, and means its rank
                    os.kill(rank.process, signal.SIGKILL)
                    rank.client = None
            if self._listening in ready and (request := self._accept()):
                if process := os.fork():
                    self._tell_begin(request, process)
                else:
                    self._let_go(request)
                    return request
        self._listening.close()  # first of all: who finds its agent's connection closed may bind the name
        return None

    def _hear(self, agent: socket.socket) -> None:
        """Take what an agent says: that we are not wanted any more, or, by its end, nothing."""
        try:
            said = agent.recv(1)
        except OSError:
            said = b""
        if said:
            self._wanted = False
        self._agents.remove(agent)
        agent.close()

    def _take_agent(self, agent: socket.socket, text: str) -> None:
        if self._text is None:
            self._text = text
        self._wanted &= text == self._text and _changed_at() == self._files
        self._agents.append(agent)
        for rank in self._ranks if self._wanted else ():
            self._tell(rank.number, rank.process)

    def _tell(self, *numbers: int) -> None:
        for agent in self._agents[-1:]:
            with suppress(OSError):  # it is gone, as the next look finds
                agent.sendall(" ".join(map(str, numbers)).encode() + b"\n")

    def _accept(self) -> RankRequest | None:
        """Take an agent, or return what a client asks for; one that gets no rank is the rank itself."""
        client, _ = self._listening.accept()
        number, user = peer(client)
        if user != os.geteuid():
            return None
        first, given, _, _ = socket.recv_fds(client, SIZE.size, len(STREAMS) + 1)
        if len(first) < SIZE.size:  # it was killed meanwhile
            return None
        (size,) = SIZE.unpack(first)
        asked = json.loads(client.recv(size, socket.MSG_WAITALL))
        if not given:
            self._take_agent(client, asked)
            return None
        *streams, folder = given
        request = RankRequest(client, number, streams, folder, asked["words"], asked["environment"])
        if asked["client"] == fork_client.__file__:
            return request
        request.close()  # of another installation it would be another program
        return None

    def _tell_begin(self, request: RankRequest, process: int) -> None:
        request.close()
        self._tell(request.number, process)
        with suppress(OSError):  # it was killed meanwhile, as the next look finds
            request.client.sendall(b"\n")
        self._ranks.append(ForkedRank(request.number, process, os.pidfd_open(process), request.client))

    def _tell_end(self, rank: ForkedRank) -> None:
        _, status = os.waitpid(rank.process, 0)
        os.close(rank.ended)
        self._ranks.remove(rank)
        if rank.client is not None:
            code = os.waitstatus_to_exitcode(status)
            self._tell(rank.number, rank.process, code)
            with suppress(OSError):  # it was killed in the same moment
                rank.client.sendall(CODE.pack(code))

    def _let_go(self, request: RankRequest) -> None:
        """Close what is the server's: a client learns of its rank's end by the server alone."""
        request.client.close()
        self._listening.close()
        for agent in self._agents:
            agent.close()
        for rank in self._ranks:
            os.close(rank.ended)
            if rank.client is not None:
                rank.client.close()


def _changed_at() -> dict[str, int]:
    """Return when each file that was imported was last changed, in any way, by the clock of its file system."""
    changed = {}
    for module in list(sys.modules.values()):
        if path := getattr(module, "__file__", None):
            with suppress(OSError):
                changed[path] = Path(path).stat().st_ctime_ns
    return changed


def main(number: str) -> None:
    """Import what ranks do, whatever they are asked for; then serve, and where a rank was forked, be that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the service
    rank_program.limit_threads()  # libraries read it when they are imported
    for name in LATE:
        with suppress(ImportError):  # a board that never plans need not have it
            import_module(name)
    # What the garbage collector marks in a rank would be copied from the pages that all share.
    gc.freeze()
    request = ForkServer(socket.socket(fileno=int(number))).run()
    if request is not None:
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # All ranks have the server's command line: by this name, 15 bytes at most, `ps -e` and `top` tell them apart.
        prctl(PR_SET_NAME, f"hepti rank {request.environment.get('PMIX_RANK', '')}".encode())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        request.take_place()
        request.close()
        rank_program.begin()


if __name__ == "__main__":
    main(sys.argv[1])
