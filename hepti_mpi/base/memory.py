"""Memory of this process: what it holds, what becomes of what it frees, on which pages it is."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from solver.base.arrays import Numbers

# Of glibc's mallopt: how much may lie free at the heap's end, and from which size on an allocation is a mapping of its
# own, which the kernel gets back when it is freed.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 30
MAPPED_BYTES, LARGEST_MAPPED_BYTES = 1 << 20, 32 << 20
HUGE_BYTES = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
MADV_COLLAPSE = 25  # at once; of Linux 6.1, and not in Python's mmap
# A bit for every page: this process has one there, which no other maps. What was read and never written has none,
# though mincore finds it in memory: it is the kernel's one page of zeros.
PAGES, OWN_PAGE = Path("/proc/self/pagemap"), np.uint64(1 << 56)


def own_bytes() -> int:
    """Return what this process holds in memory, without what its files lie in."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


def give_back() -> None:
    """Give the kernel back what has been freed, for others' use: glibc keeps it as `keep_freed` says."""
    _glibc("malloc_trim", 0)


def keep_freed() -> None:
    """Let freed arrays serve again instead of going back to the kernel, which would have to clear new ones.

    That costs 5 of the 75 ms of a bert-large layer with 256 rows on one x86 core: its 6000 page faults.
    """
    _glibc("mallopt", M_TRIM_THRESHOLD, KEPT_BYTES)
    _glibc("mallopt", M_MMAP_THRESHOLD, LARGEST_MAPPED_BYTES)


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Give large blocks back as soon as they are freed; then as `keep_freed`.

    For loading: holes that weights leave in the heap once they are packed would be too small for the next ones. Twice
    the weights were resident then, not once.
    """
    _glibc("mallopt", M_MMAP_THRESHOLD, MAPPED_BYTES)
    try:
        yield
    finally:
        keep_freed()


def large_pages() -> None:
    """Move this process's memory onto large pages, where the kernel has such; for a language model that is loaded.

    A token reads all weights once, and for every small page of them the processor looks into tables that other weights
    have driven out of its caches. On one x86 core four layers of llama-3.2-1b in int4 make 65 tokens a second on small
    pages, and 71 on large ones; to move them takes 0.3 s, once. Only memory that has been written as a whole is moved,
    or it would become more; and no file's. Where the kernel refuses, it stays as it is.
    """
    if not HUGE_BYTES.is_file() or not PAGES.is_file():
        return
    large = int(HUGE_BYTES.read_text())
    for line in Path("/proc/self/maps").read_text().splitlines():
        ends, rights, *words = line.split()
        start, stop = (int(end, 16) for end in ends.split("-"))
        start, stop = -(-start // large) * large, stop // large * large
        if rights != "rw-p" or words[3:] not in ([], ["[heap]"]) or start >= stop:
            continue
        pages = np.fromfile(PAGES, np.uint64, (stop - start) // mmap.PAGESIZE, offset=start // mmap.PAGESIZE * 8)
        whole = (pages & OWN_PAGE != 0).reshape(-1, large // mmap.PAGESIZE).all(1)
        for first, last in np.flatnonzero(np.diff(whole, prepend=False, append=False)).reshape(-1, 2).tolist():
            place, size = ctypes.c_void_p(start + first * large), ctypes.c_size_t((last - first) * large)
            for advice in (mmap.MADV_HUGEPAGE, MADV_COLLAPSE):  # so they may be, and so they shall be now
                _glibc("madvise", place, size, advice)


class Lent:
    """An array in pages of its own: whoever reads it where it is can be left with zeros, and the pages go back.

    Parameters
    ----------
    numbers
        What it begins as; copied.

    Attributes
    ----------
    array
        Where it is.
    """

    def __init__(self, numbers: Numbers) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._pages = mmap.mmap(-1, max(numbers.nbytes, 1), flags=flags)
        self.array: Numbers = np.frombuffer(self._pages, numbers.dtype, numbers.size).reshape(numbers.shape)
        self.array[...] = numbers

    def give_back(self) -> None:
        """Give the kernel its pages; the array stays where it is, of zeros."""
        self._pages.madvise(mmap.MADV_DONTNEED)


def _glibc(name: str, *arguments: object) -> None:
    """Call a function that glibc has; other C libraries manage without."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
