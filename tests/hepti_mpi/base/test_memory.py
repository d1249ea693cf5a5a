"""Memory: large pages for what is in use, and for nothing else."""

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest

from hepti_mpi.base import memory


def on_large_pages(array):
    """Return how many bytes of an array's mapping the kernel has on large pages."""
    place, within = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *words = line.split()
        if "-" in name and not name.endswith(":"):
            start, stop = (int(end, 16) for end in name.split("-"))
            within = start <= place < stop
        elif within and name == "AnonHugePages:":
            return int(words[0]) * 1024
    raise AssertionError("it has no mapping")


def kept_bytes():
    """Return what this process holds without what has been freed, of which glibc may keep as much as arrays here."""
    memory.give_back()
    return memory.own_bytes()


def mapped(size, used):
    """Return an array of pages of its own, of which the first bytes are in use."""
    array = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    array[:used] = np.arange(used, dtype=np.uint8)
    return array


def has_large_pages():
    """Return whether the kernel makes large pages of small ones when it is asked to (Linux 6.1)."""
    if not memory.HUGE_BYTES.is_file():
        return False
    large = int(memory.HUGE_BYTES.read_text())
    array = mapped(2 * large, 2 * large)
    place = -(-array.ctypes.data // large) * large
    return ctypes.CDLL(None).madvise(ctypes.c_void_p(place), ctypes.c_size_t(large), memory.MADV_COLLAPSE) == 0


@pytest.mark.skipif(not has_large_pages(), reason="this kernel makes no large pages of small ones")
def test_what_is_in_use_lies_on_large_pages_and_the_rest_takes_no_memory():
    large = int(memory.HUGE_BYTES.read_text())
    full, begun, zeros = (mapped(8 * large, used) for used in (8 * large, large // 2, 0))
    assert not zeros.any()  # read, so that the kernel's one page of zeros is mapped everywhere
    before = kept_bytes()

    memory.large_pages()

    after = kept_bytes()
    assert np.array_equal(full, np.arange(8 * large, dtype=np.uint8))
    assert np.array_equal(begun[: large // 2], np.arange(large // 2, dtype=np.uint8))
    assert on_large_pages(full[large:]) >= 4 * large
    assert after < before + large


def test_a_kernel_without_large_pages_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "HUGE_BYTES", tmp_path / "none")
    monkeypatch.setattr(memory, "_glibc", lambda *_: pytest.fail("asked for nothing"))

    memory.large_pages()
