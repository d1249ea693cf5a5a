"""`python -m launch install`: what a person types and what they see."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.base.tables import show
from launch.doctor.command import add_hosts, asked_hosts, check_hosts, report, show_findings
from launch.install.boards import LookedAt, install_script, receive_script
from launch.install.carry import Board, install, look_at, pack, wheels_folder
from launch.install.model import PushedModel, read_model
from launch.install.screen import MB, BoardScreen
from launch.install.wheels import WheelSet, fetch_command, groups
from launch.start.reach import remote
from solver.base.errors import HeptiError, explained
from solver.base.phrases import counted

ABOUT = """\
Make this environment's like on every board, at the same path, over ssh. A board
needs Python and nothing else, no way to the Internet either: this machine
fetches the wheels. The first board gets what rank 0 needs, the others what
computes.
"""
EXAMPLE = """\
examples:
  hepti install --hosts pi-0,pi-1,pi-2
  hepti install --hostfile pis --dry-run
  hepti install --hostfile pis --wheels wheels    # for an installer of yours
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `install`."""
    parser = subparsers.add_parser(
        "install", help="make the same environment on every board", description=ABOUT, epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(function=_install)
    add_hosts(parser)
    parser.add_argument("--full", action="store_true", help="what rank 0 needs on all boards, for the service")
    parser.add_argument("--model", type=Path, metavar="M.h5", help="also push this weights file to every board")
    parser.add_argument("--dry-run", action="store_true", help="look at the boards, print the commands, run none")
    parser.add_argument(
        "--wheels", type=Path, metavar="DIR", help="put the wheels there, a tar for each kind, and leave the boards"
    )
    parser.add_argument("--agent", default="", metavar="PROGRAM", help="what replaces ssh")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _install(options: argparse.Namespace) -> int:
    environment = own_environment()
    entries = asked_hosts(options)
    hosts = list(dict.fromkeys(entry.host for entry in entries))
    if options.wheels is not None and options.dry_run:
        raise HeptiError("--wheels fetches, --dry-run does nothing: give one")
    model = read_model(options.model) if options.model is not None else None
    boards = asyncio.run(look_at(hosts, options.agent, environment, full=options.full))
    if options.dry_run:
        _print_commands(boards, options, environment, model)
        return int(any(board.trouble for board in boards))
    if options.wheels is not None:
        return _pack_only(boards, options, environment)
    with BoardScreen(hosts) as screen:
        boards = asyncio.run(install(boards, options.agent, environment, screen, model))
    well = [board for board in boards if not board.trouble]
    python = str(environment / "bin" / "python")
    entries = [entry for entry in entries if entry.host in {board.host for board in well}]
    answers, findings = (
        check_hosts(entries, python, options.agent, str(model.path) if model else "") if well else ([], [])
    )
    if options.json:
        print(json.dumps({"boards": [_table(board, environment) for board in boards], **report(answers, findings)}))
    else:
        _show(boards, environment)
        if well:
            show_findings("boards", answers, findings)
    return int(len(well) < len(boards) or bool(findings))


def own_environment() -> Path:
    """Return where this machine's environment is, and so the boards'.

    Raises
    ------
    HeptiError
        If this Python is in no virtual environment.
    """
    if sys.prefix == sys.base_prefix:
        raise HeptiError(
            f"boards get an environment at the same path, and this Python is in none ({sys.prefix}): make one with "
            "python3 -m venv DIR, and install hepti in it"
        )
    return Path(sys.prefix)


def _pack_only(boards: Sequence[Board], options: argparse.Namespace, environment: Path) -> int:
    """Put the sets of boards into a folder of the person's, each with what installs it."""
    well = [board for board in boards if not board.trouble]
    paths = {wheels: options.wheels.absolute() / f"{wheels.name}.tar" for wheels in {board.wheel_set for board in well}}
    if well:
        with explained(f"cannot make {options.wheels}", OSError):
            options.wheels.mkdir(parents=True, exist_ok=True)

    async def pack_all() -> list[str]:
        return await asyncio.gather(*(pack(wheels, path) for wheels, path in paths.items()))

    fingerprints = dict(zip(paths, asyncio.run(pack_all()), strict=True))
    tables = [_table(board, environment) for board in boards]
    for table, board in zip(tables, boards, strict=True):
        if not board.trouble:
            table |= {"wheels": str(paths[board.wheel_set]), "fingerprint": fingerprints[board.wheel_set]}
    if options.json:
        print(json.dumps({"boards": tables}))
    else:
        for board in boards:
            print(f"{board.host}: {board.trouble or paths[board.wheel_set]}")
    return int(len(well) < len(boards))


def _print_commands(
    boards: Sequence[Board], options: argparse.Namespace, environment: Path, model: PushedModel | None
) -> None:
    """Print what would be done; what of it is there and right would be left out."""
    fetched: set[WheelSet] = set()
    for board in boards:
        if board.trouble or board.look.facts["shared"]:
            print(f"# {board.host}: {board.trouble or 'shares the folder of this machine: nothing to do'}")
            continue
        wheels, facts = board.wheel_set, board.look.facts
        folder = wheels_folder(wheels)
        print(f"# {board.host}: {wheels.kind} set, Python {board.look.python} at {facts['python']}, {facts['machine']}")
        if wheels not in fetched:
            print(shlex.join(fetch_command(wheels, folder)))
            fetched.add(wheels)
        push = shlex.join(remote(board.host, options.agent, receive_script(environment)))
        print(f"tar -C {shlex.quote(str(folder))} -c . | {push}")
        print(shlex.join(remote(board.host, options.agent, install_script(facts["python"], environment))))
        if model is not None:
            push = shlex.join(remote(board.host, options.agent, model.receive_script))
            print(f"{push} < {shlex.quote(str(model.path))}")
    where = ["--hostfile", str(options.hostfile)] if options.hostfile else ["--hosts", options.hosts]
    agent = ["--agent", options.agent] if options.agent else []
    print(shlex.join(["hepti", "doctor", *where, *agent]))


def _table(board: Board, environment: Path) -> dict[str, object]:
    look: LookedAt = board.look
    return {
        "host": board.host,
        "trouble": board.trouble,
        "done": board.done,
        "environment": str(environment),
        "python": look.facts.get("python"),
        "size_bytes": board.size_bytes,
        "kernels_bytes": _sizes(board).get("kernels", 0),
        "set": dataclasses.asdict(board.wheel_set) if look.facts else None,
        "shared": look.facts.get("shared", False),
    }


def _sizes(board: Board) -> dict[str, int]:
    """Return the bytes of what may be large on it."""
    return groups(wheels_folder(board.wheel_set)) if board.wheels else {}


def _show(boards: Sequence[Board], environment: Path) -> None:
    rows = []
    for board in boards:
        if board.trouble:
            rows.append([board.host, "-", "-", "-", "-", "-"])
            continue
        kinds = _sizes(board)
        sizes = [f"{kinds[kind] / MB:.0f}" if kind in kinds else "-" for kind in ("kernels", "MPI")]
        rows.append([board.host, board.look.python, board.wheel_set.kind if board.wheels else "this machine's",
                     f"{board.size_bytes / MB:.0f}", *sizes])  # fmt: skip
    show(f"{environment} on every board", ["host", "Python", "set", "MB", "onnxruntime", "MPI"], rows)
    if failed := sum(bool(board.trouble) for board in boards):
        print(f"{counted(failed, 'board')} not installed: mend it, and type the same again", file=sys.stderr)
