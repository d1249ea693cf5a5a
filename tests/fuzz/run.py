"""`python -m tests.fuzz.run`: damages every kind of file and line that strangers give us, and reads it.

What reads it may refuse it with one line, or take it. A traceback, a process that dies and one that hangs are failures:
each is named with its seed. Reading runs in a process of its own, with a limit on its memory.
"""

import argparse
import io
import multiprocessing
import resource
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np

from solver.base.errors import HeptiError
from tests.fuzz.subjects import SUBJECTS

HANG_S = 30.0
LIMIT_BYTES = 6 << 30  # of a reader's address space
FAILURES = 10  # of a subject: then enough is known


def try_once(subject, good, folder, seed):
    """Damage and read once; return what is wrong with the reader, if anything."""
    damaged = subject.damage(good, np.random.default_rng(seed))
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            subject.read(damaged, folder)
    except HeptiError as error:
        if not str(error).strip() or "\n" in str(error):
            return f"the complaint is not one line: {error!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"it prints {printed.getvalue()!r}" if printed.getvalue() else None


def _work(name, good, folder, seeds, now, found):
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    subject = SUBJECTS[name]
    for seed in seeds:
        now.value = seed
        trouble = try_once(subject, good, Path(folder), seed)
        if trouble:
            found.put((seed, trouble))
    now.value = -1


def failures(name, count, first=0):
    """Read so many damaged ones of a subject; return what went wrong, as lines."""
    context = multiprocessing.get_context("spawn")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        good = SUBJECTS[name].good(Path(folder))
        SUBJECTS[name].read(good, Path(folder))  # what is not damaged is taken
        start = first
        while start < first + count and len(lines) < FAILURES:
            now, found = context.Value("q", start), context.Queue()
            worker = context.Process(target=_work, args=(name, good, folder, range(start, first + count), now, found))
            worker.start()
            hangs = _watch(worker, now)
            worker.kill()
            worker.join()
            while not found.empty():
                seed, trouble = found.get()
                lines.append(f"{name}, seed {seed}: {trouble}")
            if now.value < 0:
                break
            lines.append(f"{name}, seed {now.value}: {'hangs' if hangs else f'dies with {worker.exitcode}'}")
            start = now.value + 1
    return lines


def _watch(worker, now):
    """Wait until a worker ends; return whether it stood still instead."""
    last, since = now.value, time.monotonic()
    while worker.is_alive():
        worker.join(0.2)
        if now.value != last:
            last, since = now.value, time.monotonic()
        elif time.monotonic() - since > HANG_S:
            return True
    return False


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", default=[*SUBJECTS], metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--count", type=int, default=100_000, help="of damaged ones, each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one (default: %(default)s)")
    options = parser.parse_args()
    wrong = 0
    for name in options.subjects:
        started = time.monotonic()
        lines = failures(name, options.count, options.seed)
        wrong += len(lines)
        print("\n".join([f"{name}: {options.count}, {time.monotonic() - started:.0f} s", *lines]), flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
