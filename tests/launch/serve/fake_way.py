"""The way to fake boards: what a service starts there runs here, and only as long as the board is plugged in.

    fake_way.py mpirun …       fake ranks
    fake_way.py ssh … BOARD COMMAND

A board is unplugged while there is a file of its name in the folder FAKE_UNPLUGGED.
"""

import os
import runpy
import shlex
import sys
from pathlib import Path

if __name__ == "__main__":
    program, *words = sys.argv[1:]
    if program == "mpirun":
        sys.argv[1:] = words
        runpy.run_path(str(Path(__file__).with_name("fake_mpirun.py")), run_name="__main__")
    else:
        *_, board, command = words
        if (Path(os.environ["FAKE_UNPLUGGED"]) / board).exists():
            sys.exit(f"ssh: connect to host {board} port 22: No route to host")
        os.environ["FAKE_HOST"] = board
        # Without its fork server: what would fork fake ranks has nothing to import.
        words = shlex.split(command)[:-2]
        os.execvp(words[0], words)
