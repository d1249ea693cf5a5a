"""mpirun as a service starts it: fake ranks on one machine; when one ends, or it is told to end, all end.

What it would run is not looked at but for its words; `FAKE_MPIRUN_HANGS` makes it deaf to SIGTERM.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from launch.watch.starter import CLIENT

RANK = Path(__file__).with_name("fake_rank.py")


def main(words):
    ranks = int(words[words.index("-np") + 1])
    hostfile = Path(words[words.index("--hostfile") + 1])
    hosts = [line.split()[0] for line in hostfile.read_text().splitlines()]
    name, _, value = words[words.index("-x") + 1].partition("=")
    program = words[words.index(CLIENT[-1]) + 2 :]
    if os.environ.get("FAKE_NO_DAEMON") in hosts:
        print(f"A daemon failed to report back\n  Remote host:   {os.environ['FAKE_NO_DAEMON']}", file=sys.stderr)
        sys.exit(213)
    processes = []
    for rank in range(ranks):
        host = hosts[rank % len(hosts)]
        environment = {**os.environ, name: value, "PMIX_RANK": str(rank), "FAKE_HOST": host, "FAKE_RANKS": str(ranks)}
        stdin = None if rank == 0 else subprocess.DEVNULL
        processes.append(
            subprocess.Popen([sys.executable, RANK, *program], env=environment, stdin=stdin, process_group=0)
        )
    if "FAKE_MPIRUN_HANGS" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        code, left = 0, ranks
        while code == 0 and left:
            number, status = os.wait()
            code, left = os.waitstatus_to_exitcode(status), left - 1
        if code < 0:
            rank = [process.pid for process in processes].index(number)
            host = hosts[rank % len(hosts)]
            print(
                f"prterun noticed that process rank {rank} with PID {number} on node {host} exited on\n"
                f"signal {-code} (Killed).",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            code = 128 - code
        sys.exit(code)
    finally:
        for process in processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
