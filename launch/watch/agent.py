"""A board's heartbeat: one line of JSON a second on standard output: its memory, CPU, temperature, and our ranks on it.

    python3 agent.py SERVICE TOKEN [PYTHON RANKS]

It needs the standard library and `solver.cluster.board` alone, so that it can be sent to a board over ssh. A process is
a rank of ours by the variable HEPTI_SERVE in its environment: SERVICE/TOKEN/JOB. Orders come as lines of JSON on
standard input, one a second at least, and each is answered by a heartbeat at once, which echoes `n`:

    {"n": 7, "keep": [3], "next": 4}                 kills ranks of all jobs below 4 but 3, and of all other tokens
    {"n": 8, …, "write": "cluster.toml", "text": …}  a file in the agent's folder
    {"n": 9, …, "read": "cluster.toml"}              the heartbeat has its text
    {"n": 10, …, "last": true}                       the service ends, and means to

With PYTHON, that of the ranks, and how many RANKS run at once on the board for one model, it keeps a fork server there
(`hepti_mpi/fork_server.py`), whose name is SERVICE: a rank that this one forks is known by its client. It is there yet
for the next agent of the same service, except after an order that was the last.

When the service is gone (end of input) or silent, the agent kills what the service left on the board, and ends.
"""

# What is imported here counts: on one x86 core json, signal and socket take 10 ms of CPU after Python's 7, and
# pathlib, tempfile, shutil, glob and typing would take 12 more.
# ruff: noqa: PTH102, PTH105, PTH107, PTH110, PTH112, PTH115, PTH118, PTH123, PTH208

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from solver.cluster.board import capped, contents, groups, memory, names, table, temperature, text, throttled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Told = dict[str, Any]

MARK = "HEPTI_SERVE"
BEAT_S = 1.0
LATE_S = 1.5  # orders come every second, and are answered: only where one is late a heartbeat goes without
SETTLED_S = 5.0  # after which a process has its own environment, also on a busy board
# Without an order for so long there is no service any more, or no way to it: it has given this board up long before.
ORPHANED_S = 15
# mpirun is told to end by the kernel when the service dies, and ends its ranks itself, in order.
GRACE_S = 2.0
KILLED_SHOWN = 8
DYING_S = 1.0  # of a process that was killed: one that waits for a disk takes longer
THROTTLED_S = 10.0
THROTTLED_NOW = 0xF  # too little voltage, capped, throttled, too warm
TICKS = os.sysconf("SC_CLK_TCK")
# In memory: a full disk is no reason not to start again. mpirun's daemon has its files there, too.
SHARED_MEMORY = "/dev/shm"
FOLDER = "hepti-serve-"  # and service, an agent's token, process number, and what makes it the only one
DAEMON = "prted."  # and its process number: its folder
SEGMENT = "sm_segment."  # of MPI: a file that ranks of one board share, who is killed leaves it behind


class Marked:
    """The processes of a service on this board.

    A process is looked at until SETTLED_S after it was first seen, or known to be a rank: between fork and exec it has
    its parent's environment, so that a rank looks like mpirun, and mpirun like no process of ours.
    """

    def __init__(self, service: str) -> None:
        self.service = service
        self.network = _link("/proc/self/ns/net")
        self.seen: dict[int, float] = {}  # process number -> when it was first seen
        self.found: dict[int, tuple[str, int, int | None]] = {}  # process number -> token, job, rank
        self.forked: dict[int, int] = {}  # process number of a fork server's client -> of its rank
        self.killed: list[Told] = []  # job, rank and signal of ranks that were killed, not by us

    def look(self) -> None:
        """Find new processes, forget those that are gone."""
        now = time.monotonic()
        numbers = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for number in self.found.keys() - numbers:
            del self.found[number]
            self.forked.pop(number, None)
        self.seen = {number: self.seen.get(number, now) for number in numbers}
        for number, seen in self.seen.items():
            if now - seen < SETTLED_S and self.found.get(number, ("", 0, None))[2] is None:
                self._look_at(number)

    def _look_at(self, number: int) -> None:
        words = contents(f"/proc/{number}/environ").decode(errors="replace").split("\0")
        variables = dict(word.split("=", 1) for word in words if "=" in word)
        parts = variables.get(MARK, "").split("/")
        # In a lab all hosts share their process numbers, but not their network.
        if len(parts) == 3 and parts[0] == self.service and _link(f"/proc/{number}/ns/net") == self.network:
            rank = variables.get("PMIX_RANK") or variables.get("OMPI_COMM_WORLD_RANK")
            self.found[number] = (parts[1], int(parts[2]), None if rank is None else int(rank))

    def take(self, client: int, process: int, code: int | None = None) -> None:
        """Take what a fork server tells of a rank: it has begun, or, with its exit code, ended."""
        if code is None:
            self.look()
            self.forked[client] = process
        elif code < 0 and client in self.found:
            _, job, rank = self.found[client]
            self.killed = [*self.killed[1 - KILLED_SHOWN :], {"job": job, "rank": rank, "signal": -code}]

    def kill(self, token: str, keep: Sequence[int], following: int, *, others: bool) -> None:
        """Kill all whose job is below `following` and not kept; and those of other tokens.

        It waits until they have let go of their memory, which the next ranks are planned for.
        """
        killed = []
        for number, (whose, job, _) in list(self.found.items()):
            if (job < following and job not in keep) if whose == token else others:
                for process in {number, self.forked.pop(number, number)}:
                    with suppress(OSError):  # it has just ended by itself
                        os.kill(process, signal.SIGKILL)
                    killed.append(process)
                del self.found[number]
        end = time.monotonic() + DYING_S
        while any(_fields(number)[:1] not in ([], ["Z"]) for number in killed) and time.monotonic() < end:
            time.sleep(0.01)
        for number in killed:  # mpirun's daemon on a board has its files there, and cannot remove them any more
            _remove(os.path.join(SHARED_MEMORY, f"{DAEMON}{number}"))

    def states(self) -> list[Told]:
        """Return pid, job, rank, state and CPU seconds of every rank; what a rank has started, as to plan, is none."""
        told = []
        ranks = {number for number, (*_, rank) in self.found.items() if rank is not None} | {*self.forked.values()}
        for number, (_, job, rank) in self.found.items():
            process = self.forked.get(number, number)
            fields = _fields(process)
            if rank is not None and fields and int(fields[1]) not in ranks:
                cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
                told.append({"pid": process, "job": job, "rank": rank, "state": fields[0], "cpu_s": cpu_s})
        return told


class Gauges:
    """What this board tells of itself."""

    def __init__(self) -> None:
        self.throttled_at = -THROTTLED_S
        self.was_throttled: bool | None = None
        self.cpu = (time.monotonic(), 0.0)
        self.groups = capped()
        self.cores = _quota_cores()

    def read(self, ranks: Sequence[Told]) -> Told:
        """Return memory, CPU, temperature, throttling, and how many processes were killed for want of memory."""
        free, total = memory(self.groups)
        return {
            "free_bytes": free,
            "total_bytes": total,
            "cpu_percent": self._cpu_percent(ranks),
            "temperature_c": temperature(),
            "throttled": self._throttled(),
            "oom_kills": self._oom_kills(),
        }

    def _cpu_percent(self, ranks: Sequence[Told]) -> float:
        """Return how busy the board is; under a quota, as in a lab, what our ranks take of it."""
        now = time.monotonic()
        if self.cores is not None:
            busy, cores = float(sum(rank["cpu_s"] for rank in ranks)), self.cores
        else:
            counts = [int(word) for word in text("/proc/stat").split("\n", 1)[0].split()[1:9]]
            busy, cores = (sum(counts) - counts[3] - counts[4]) / TICKS, os.cpu_count() or 1
        before, was = self.cpu
        self.cpu = now, busy
        if now - before < BEAT_S / 2:  # an answer between two heartbeats
            self.cpu = before, was
        seconds = max(now - before, BEAT_S / 2)
        return round(min(100.0, max(0.0, 100 * (busy - was) / (seconds * cores))), 1) if was else 0.0

    def _throttled(self) -> bool | None:
        now = time.monotonic()
        if now - self.throttled_at >= THROTTLED_S:
            self.throttled_at = now
            word = throttled()
            self.was_throttled = None if word is None else bool(word & THROTTLED_NOW)
        return self.was_throttled

    def _oom_kills(self) -> int:
        kills = 0
        for group, _ in self.groups:
            for name in ("memory.events", "memory.oom_control"):
                kills += int(table(os.path.join(group, name)).get("oom_kill", 0))
        return kills or int(table("/proc/vmstat").get("oom_kill", 0)) * (not self.groups)


def _quota_cores() -> float | None:
    """Return the cores of the narrowest CPU quota that we are under, None without one."""
    found = []
    ordinary = os.sched_getscheduler(0) == os.SCHED_OTHER
    names = ("cfs_quota", "cfs_period") if ordinary else ("rt_runtime", "rt_period")
    for group, _ in groups("cpu"):
        words = text(os.path.join(group, "cpu.max")).split()
        words = words or [text(os.path.join(group, f"cpu.{name}_us")).strip() for name in names]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            found.append(int(words[0]) / int(words[1]))
    return min(found) if found else None


def _fields(number: int) -> list[str]:
    """Return what the kernel says of a process, its state first; nothing where it is gone."""
    return text(f"/proc/{number}/stat").rpartition(")")[2].split()


def _remove(folder: str) -> None:
    """Remove a folder and what is in it, if it is there."""
    if os.path.isdir(folder):
        from shutil import rmtree  # a board that nobody has left anything on need not import it

        rmtree(folder, ignore_errors=True)


def sweep(where: str) -> None:
    """Remove what this user's dead have left: folders of agents, services and daemons, by the process number in them.

    And MPI's files, whose names have none, where no process has them open.
    """
    _sweep_segments(where)
    for name in names(where):
        folder = os.path.join(where, name)
        number = ""
        if name.startswith(DAEMON):
            number = name[len(DAEMON) :]
        elif name.startswith(FOLDER):
            number = name.rsplit("-", 2)[1]
        if number.isdigit() and not os.path.exists(f"/proc/{number}"):
            with suppress(OSError):
                if os.lstat(folder).st_uid == os.geteuid():
                    _remove(folder)


def _sweep_segments(where: str) -> None:
    """Remove this user's files of MPI that no process has open, as whoever makes one does first, or in its memory."""
    left = set()
    for path in (os.path.join(where, name) for name in names(where) if name.startswith(SEGMENT)):
        with suppress(OSError):
            if os.lstat(path).st_uid == os.geteuid():
                left.add(path)
    for process in (f"/proc/{name}" for name in names("/proc") if left and name.isdigit()):
        left.difference_update(_link(f"{process}/fd/{number}") for number in names(f"{process}/fd"))
        left.difference_update(line.split(maxsplit=5)[-1] for line in text(f"{process}/maps").splitlines())
    for path in left:
        with suppress(OSError):
            os.remove(path)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Forks:
    """The board's fork server: one that is there already, or else a new one.

    Attributes
    ----------
    told
        A connection that says which ranks it has forked; None without a server.
    """

    def __init__(self, service: str, python: str = "", ranks: str = "1") -> None:
        self.name = f"\0{service}"
        self.python, self.ranks = python, ranks
        self.lines = b""
        self.own = False  # whether we have started it
        self.told: socket.socket | None = (self._met() or self._started()) if python else None

    def _met(self) -> socket.socket | None:
        """Return the way to the server that listens, None where none does."""
        text = json.dumps(f"{self.python} {self.ranks}").encode()
        connection = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            connection.connect(self.name)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * 4)
            if int.from_bytes(credentials[4:8], sys.byteorder) == os.geteuid():
                connection.sendall(len(text).to_bytes(4, "big") + text)
                return connection
        connection.close()
        return None

    def _started(self) -> socket.socket | None:
        self.own = True
        nothing = os.open(os.devnull, os.O_RDWR)  # a rank that it cannot fork says itself what is wrong
        try:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(self.name)
                listening.listen()
                listening.set_inheritable(True)
                words = [self.python, "-P", "-m", "hepti_mpi.fork_server", str(listening.fileno())]
                streams = [(os.POSIX_SPAWN_DUP2, nothing, number) for number in range(3)]
                # By which a rank knows how many threads are its own.
                environment = {**os.environ, "OMPI_COMM_WORLD_LOCAL_SIZE": self.ranks}
                os.posix_spawn(self.python, words, environment, file_actions=streams)
                return self._met()
        except OSError:
            return None
        finally:
            os.close(nothing)

    def take(self) -> list[list[int]]:
        """Return the lines that it has told."""
        assert self.told is not None
        data = b""
        with suppress(OSError):  # it has not read what we said
            data = self.told.recv(4096)
        if not data:
            self.told.close()
            self.told = None if self.own else self._started()  # of another program, or it was about to end
        *lines, self.lines = (self.lines + data).split(b"\n")
        return [[int(word) for word in line.split()] for line in lines]

    def end(self) -> None:
        """End the server: nobody comes after us."""
        if self.told is not None:
            with suppress(OSError):
                self.told.sendall(b"\n")


class Agent:
    """Takes orders and beats."""

    def __init__(self, service: str, token: str, *server: str) -> None:
        self.token = token
        self.following = 0  # the next job's number, as the last order has it
        self.marked = Marked(service)
        self.gauges = Gauges()
        self.forks = Forks(service, *server)
        self.last = False
        self.orders = b""
        self.watched: dict[int, int] = {}  # rank's process number -> a descriptor that becomes readable when it ends
        where = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else os.environ.get("TMPDIR", "/tmp")
        sweep(where)
        self.folder = os.path.join(where, f"{FOLDER}{service}-{token}-{os.getpid()}-{time.monotonic_ns()}")
        os.mkdir(self.folder, 0o700)

    def run(self) -> None:
        """Beat until the service is gone."""
        signal.signal(signal.SIGALRM, lambda *_: self.leave(0.0))
        signal.alarm(ORPHANED_S)
        self.beat({})
        due = time.monotonic() + BEAT_S
        while True:
            wait_s = max(0.0, due - time.monotonic())
            told = -1 if self.forks.told is None else self.forks.told.fileno()
            ready, _, _ = select.select([0, *self.watched.values(), *([told] if told >= 0 else [])], [], [], wait_s)
            if told in ready:
                for line in self.forks.take():
                    self.marked.take(*line)
            if 0 in ready:
                self.take()
                due = time.monotonic() + LATE_S
            elif ready or time.monotonic() >= due:
                self.beat({})
                due = time.monotonic() + BEAT_S

    def take(self) -> None:
        """Obey the orders that have come."""
        data = os.read(0, 1 << 20)
        if not data:
            self.leave(GRACE_S)
        signal.alarm(ORPHANED_S)
        *lines, self.orders = (self.orders + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            self.marked.look()
            self.following = order["next"]
            self.last = "last" in order
            # Of a service that is dead: its name is ours.
            self.marked.kill(self.token, order["keep"], self.following, others=True)
            answer: Told = {"n": order["n"]}
            try:
                if "write" in order:
                    path = os.path.join(self.folder, order["write"])
                    with open(path + ".part", "w") as file:
                        file.write(order["text"])
                    os.replace(path + ".part", path)
                if "read" in order:
                    with open(os.path.join(self.folder, order["read"])) as file:
                        answer["text"] = file.read()
            except OSError as error:
                answer["error"] = f"{error.filename}: {error.strerror}"
            self.beat(answer)

    def beat(self, answer: Told) -> None:
        """Tell how the board is."""
        self.marked.look()
        ranks = self.marked.states()
        self.watch([rank["pid"] for rank in ranks])
        line = dict(self.gauges.read(ranks), folder=self.folder, ranks=ranks, killed=self.marked.killed, **answer)
        try:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        except OSError:
            self.leave(GRACE_S)

    def watch(self, numbers: Sequence[int]) -> None:
        """Be woken when one of these processes ends; older kernels and Pythons tell with the next heartbeat."""
        for number in self.watched.keys() - set(numbers):
            os.close(self.watched.pop(number))
        for number in set(numbers) - self.watched.keys():
            with suppress(AttributeError, OSError):
                self.watched[number] = os.pidfd_open(number)

    def leave(self, grace_s: float) -> None:
        """Kill what the service left here, and end.

        Not what it started when it did not hear us any more, nor what the next service of its name has started.
        """
        end = time.monotonic() + grace_s
        self.marked.look()
        while self.marked.found and time.monotonic() < end:
            time.sleep(0.05)
            self.marked.look()
        self.marked.kill(self.token, [], self.following, others=False)
        if self.last:
            self.forks.end()
        _remove(self.folder)
        os._exit(0)


if __name__ == "__main__":
    # A terminal's Ctrl-C is for the service, which then ends our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Agent(*sys.argv[1:]).run()
