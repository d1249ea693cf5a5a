"""Where a service's ranks run: boards of a hostfile, hosts of a lab, or this machine alone; as commands, run by others.

A lab's hosts are reached over the lab's own network, from an address on its switch that stands for the machine that
the service runs on: a host whose cable is cut is silent.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.base.sent import sent
from launch.base.shell import Command
from launch.start.mpirun import mpirun_command
from launch.start.reach import SSH, is_here
from launch.watch.agent import MARK

AGENT = Path(__file__).with_name("agent.py")
# The agent needs the standard library alone: to look for packages may take more than all else that it does.
BARE = ("-I", "-S")
# Reads its program from standard input, as long as it is told, and leaves there what comes after it.
BOOT = "import os\ns=b''\nwhile len(s)<{0}:\n c=os.read(0,{0}-len(s))\n if not c:raise SystemExit\n s+=c\nexec(s)"


@dataclass(frozen=True, slots=True)
class Site:
    """Boards, and how programs are started on them.

    Parameters
    ----------
    boards
        Names as mpirun and ssh know them, in rank order: one rank each, but on this machine alone.
    ranks
        How many there are where all boards live.
    enter
        What stands before a command that talks to the boards: into a lab's network.
    scale
        Of the lab: at a small one everything takes longer.
    alone
        Whether the only board is this machine.
    """

    boards: tuple[str, ...]
    ranks: int
    enter: Command = ()
    scale: float = 1.0
    alone: bool = False

    def board_of(self, boards: Sequence[str], rank: int) -> str:
        """Return which of the boards in use a rank runs on: mpirun deals them in turn."""
        return boards[rank % len(boards)]

    def rank_count(self, boards: Sequence[str]) -> int:
        """Return how many ranks run on these boards."""
        return self.ranks if self.alone else len(boards)

    def devices(self, boards: Sequence[str]) -> tuple[int, ...]:
        """Return which of all ranks' devices, those of all boards, the ranks on these boards are."""
        return tuple(range(self.ranks)) if self.alone else tuple(self.boards.index(board) for board in boards)

    def mpirun(self, boards: Sequence[str], hostfile: Path, mark: str, program: Sequence[str]) -> Command:
        """Return the command that starts `program` on these boards; it ends when we do, however that is."""
        words = ["-x", f"{MARK}={mark}", *program]
        command = mpirun_command(self.rank_count(boards), len(boards), hostfile, None, words)
        return ["setpriv", "--pdeathsig", "TERM", "--", *self.enter, *command]

    def hostfile_text(self, boards: Sequence[str]) -> str:
        """Return the hostfile for these boards."""
        slots = self.ranks if self.alone else 1
        return "".join(f"{board} slots={slots}\n" for board in boards)

    def agent(self, board: str, service: str, token: str, folder: Path) -> tuple[Command, bytes]:
        """Return the command that starts a board's agent, and what goes to its standard input first.

        Its log-in is shared, by a socket in the folder.
        """
        words = [service, token, sys.executable, str(self.ranks if self.alone else 1)]
        program = sent(AGENT).encode()
        python = [*BARE, "-u", "-c", BOOT.format(len(program)), *words]
        if self.alone or (not self.enter and is_here(board)):
            return [sys.executable, *python], program
        far = ["python3", *python]
        return [*self.enter, *SSH, "-o", "ControlMaster=auto", *shared(folder), "--", board, shlex.join(far)], program


def shared(folder: Path) -> Command:
    """Return ssh's options for a board where an agent is logged in: 0.03 s instead of 0.24 on 0.38 of a core of 2024.

    Where there is no agent, ssh logs in itself.
    """
    return ["-o", f"ControlPath={folder}/%C"]
