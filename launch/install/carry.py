"""Carry an installation out: ask the boards, fetch wheels, push and install, all boards at the same time."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from launch.base.shell import carry
from launch.install.boards import LookedAt, install_script, look_script, looked_at, receive_script, size_script
from launch.install.model import HELD, OTHER, PushedModel
from launch.install.screen import MB, BoardScreen, sent
from launch.install.wheels import (
    CONSTRAINTS,
    INSTALLER,
    SUMS,
    WheelSet,
    complete,
    constraints,
    fetch_command,
    folder_name,
    is_current,
    least_python,
    to_install,
)
from launch.start.reach import remote
from solver.base.cache import cache_folder
from solver.base.command import whole_file
from solver.base.errors import HeptiError

LOOK_S = 60.0
# 150 MB through 10 Mbit/s take two minutes; pip unpacks them to a slow card in some more.
LONG_S = 3600.0
UNREACHED = (
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Name or service not known",
)
PIECE = 1 << 18
BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class Board:
    """A board on its way.

    Parameters
    ----------
    look
        What it answered, or what is wrong with it.
    full
        Whether it gets what rank 0 needs.
    done
        What was done, in words.
    size_bytes
        Of its environment; 0: not known.
    wheels
        The SHA-256 of its set, by name.
    """

    look: LookedAt
    full: bool
    done: str = ""
    size_bytes: int = 0
    wheels: Mapping[str, str] | None = None

    @property
    def host(self) -> str:
        """Its name."""
        return self.look.host

    @property
    def trouble(self) -> str:
        """What is wrong with it."""
        return self.look.trouble

    @property
    def wheel_set(self) -> WheelSet:
        """What it takes."""
        return self.look.wheel_set(full=self.full)

    def lacks(self, wheels: Mapping[str, str]) -> dict[str, str]:
        """Return what of a set is not installed."""
        installed = self.look.facts["installed"]
        return {name: digest for name, digest in wheels.items() if installed.get(name) != digest}

    def failed(self, trouble: str) -> Board:
        """Return it with what went wrong."""
        return replace(self, look=replace(self.look, trouble=trouble))


@contextmanager
def seen(environment: Path) -> Iterator[str]:
    """Give the name of a file in our environment: a board that has it there shares our folder."""
    token = f".hepti-install-{os.getpid()}"
    (environment / token).touch()
    try:
        yield token
    finally:
        (environment / token).unlink(missing_ok=True)


async def look_at(hosts: Sequence[str], agent: str, environment: Path, *, full: bool) -> list[Board]:
    """Ask all hosts; the first one, where rank 0 is, or all take the full set."""
    wanted = [*least_python(), *sys.version_info[:2]]
    with seen(environment) as token:
        script = look_script(environment, token)
        answers = await asyncio.gather(*(carry(remote(host, agent, script), timeout_s=LOOK_S) for host in hosts))
    return [
        Board(looked_at(host, answer, environment, wanted), full or number == 0)
        for number, (host, answer) in enumerate(zip(hosts, answers, strict=True))
    ]


def wheels_folder(wheels: WheelSet) -> Path:
    """Return where a set is kept here."""
    return cache_folder() / "wheels" / folder_name(wheels)


async def fetch(wheels: WheelSet, folder: Path) -> dict[str, str]:
    """Fetch a set, where it is not there yet, and add our own packages; return the sums of its files.

    Raises
    ------
    HeptiError
        If pip cannot.
    """
    if not is_current(folder):
        part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        part.mkdir(parents=True)
        try:
            (part / CONSTRAINTS).write_text(constraints())
            code, out, error = await carry(fetch_command(wheels, part), timeout_s=LONG_S)
            if code:
                words = (error or out).splitlines()
                if any(sign in line for line in words for sign in UNREACHED):
                    raise HeptiError("cannot fetch wheels: this machine does not reach the package index of its pip")
                said = [line for line in words if line.startswith("ERROR:")] or words or [f"exit code {code}"]
                raise HeptiError(
                    f"cannot fetch wheels for Python {wheels.python} on {wheels.machine} in the versions of this "
                    f"machine: {' '.join(said[0].removeprefix('ERROR:').split())}"
                )
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return complete(folder)


async def pack(wheels: WheelSet, path: Path) -> str:
    """Write a set, and what installs it, as one tar; return the fingerprint of the set, the SHA-256 of its list."""
    found = await fetch(wheels, wheels_folder(wheels))
    sums = wheels_folder(wheels) / SUMS
    with whole_file(path) as part, part.open("wb") as file:
        file.writelines(_tar([*(wheels_folder(wheels) / name for name in found), sums, INSTALLER]))
    return hashlib.sha256(sums.read_bytes()).hexdigest()


async def install(
    boards: Sequence[Board], agent: str, environment: Path, screen: BoardScreen, model: PushedModel | None = None
) -> list[Board]:
    """Make the environments of boards that nothing is wrong with, all at the same time; return how it ended.

    A `model` is pushed to each, too.
    """
    fetching = {
        wheels: asyncio.create_task(fetch(wheels, wheels_folder(wheels)))
        for wheels in {board.wheel_set for board in boards if not board.trouble and not board.look.facts["shared"]}
    }

    async def one(board: Board) -> Board:
        if not board.trouble:
            try:
                board = await _install(board, agent, environment, screen, fetching)
                if model is not None:
                    board = await _push(board, agent, model, screen)
            except HeptiError as error:
                board = board.failed(str(error))
        screen.done(board.host, board.trouble or board.done)
        return board

    try:
        return await asyncio.gather(*map(one, boards))
    finally:
        for task in fetching.values():
            task.cancel()
        await asyncio.gather(*fetching.values(), return_exceptions=True)


async def _push(board: Board, agent: str, model: PushedModel, screen: BoardScreen) -> Board:
    """Push a weights file, or what is not there of it."""
    screen.doing(board.host, f"looks for {model.path.name}")
    word, *there = (await _run(board, agent, model.look_script)).splitlines()[-1].split()
    if word == OTHER:
        raise HeptiError(f"{model.path} is another file there: move it away, or give it another name here")
    if word == HELD:
        return replace(board, done=f"{board.done}; has {model.path.name}")
    begin = int(there[0])
    screen.doing(board.host, f"sends {model.path.name}, {model.size / MB:.0f} MB", model.size)
    screen.carried(board.host, begin)
    await _run(board, agent, model.receive_script, model.rest(begin, lambda count: screen.carried(board.host, count)))
    return replace(board, done=f"{board.done}; got {model.path.name}, {(model.size - begin) / MB:.0f} MB")


async def _install(
    board: Board, agent: str, environment: Path, screen: BoardScreen,
    fetching: Mapping[WheelSet, asyncio.Task[dict[str, str]]],
) -> Board:  # fmt: skip
    if board.look.facts["shared"]:
        size_bytes = await _size(board, agent, size_script(environment))
        return replace(board, done="shares this machine's folder: nothing to do", size_bytes=size_bytes)
    wheels, folder = board.wheel_set, wheels_folder(board.wheel_set)
    screen.doing(board.host, f"waits for the {wheels.kind} set for Python {wheels.python}, {wheels.machine}")
    found = await asyncio.shield(fetching[wheels])
    lacking = board.lacks(to_install(found))
    if not lacking:
        size_bytes = await _size(board, agent, size_script(environment))
        return replace(board, done="was right already", size_bytes=size_bytes, wheels=found)
    held = board.look.facts["held"]
    tools = {name: digest for name, digest in found.items() if name not in to_install(found)}
    paths = [folder / name for name, digest in (lacking | tools).items() if held.get(name) != digest]
    paths += [folder / SUMS, INSTALLER]
    size = sum(path.stat().st_size for path in paths)
    if size > board.look.facts["free_bytes"]:
        raise HeptiError(f"{board.look.facts['folder']} has {board.look.facts['free_bytes'] / MB:.0f} MB free, the "
                         f"wheels alone take {size / MB:.0f} MB: make room there")  # fmt: skip
    screen.doing(board.host, sent(len(paths), size), size)
    stream = _tar(paths, lambda count: screen.carried(board.host, count))
    await _run(board, agent, receive_script(environment), stream)
    screen.doing(board.host, f"installs {len(lacking)} of {len(to_install(found))} wheels")
    size_bytes = await _size(board, agent, install_script(board.look.facts["python"], environment))
    done = f"installed {len(lacking)} of {len(to_install(found))} wheels"
    return replace(board, done=done, size_bytes=size_bytes, wheels=found)


async def _size(board: Board, agent: str, script: str) -> int:
    """Run a script that ends with the words of `du`; return the bytes."""
    return 1024 * int((await _run(board, agent, script)).strip().splitlines()[-1].split()[0])


async def _run(board: Board, agent: str, script: str, source: Iterable[bytes] = ()) -> str:
    code, out, error = await carry(remote(board.host, agent, script), source, LONG_S)
    if code:
        raise HeptiError(" ".join((error or out).strip().splitlines()[-1:]) or f"exit code {code}")
    return out


def _tar(paths: Sequence[Path], carried: Callable[[int], object] = lambda count: None) -> Iterator[bytes]:
    """Yield files as a tar, piece by piece."""
    for path in paths:
        entry = tarfile.TarInfo(path.name)
        entry.size, entry.mode = path.stat().st_size, 0o644
        yield entry.tobuf()
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                yield piece
                carried(len(piece))
        yield bytes(-entry.size % BLOCK)
    yield bytes(2 * BLOCK)
