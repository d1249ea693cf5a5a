"""A board is suspected by how evenly its own heartbeats come, and lost by silence alone."""

import random
import time

from launch.watch.boards import WatchedBoard
from launch.watch.timing import Gaps, Timing

TIMING = Timing()


def suspicions(gaps_s):
    """Return how often a board is suspected that beats after these gaps, and how often by `suspect_s` alone."""
    board = WatchedBoard("pi-0", TIMING)
    board.alive = True
    now = time.monotonic() - sum(gaps_s)
    board.heard(now)
    found = 0
    for gap_s in gaps_s:
        found += gap_s > board.suspected_s
        now += gap_s
        board.heard(now)
    return found, sum(gap_s > TIMING.suspect_s for gap_s in gaps_s)


def test_a_board_that_beats_evenly_is_suspected_as_soon_as_ever():
    rng = random.Random(1)

    board = WatchedBoard("pi-0", TIMING)
    board.alive = True
    for number in range(100):
        board.heard(number + rng.uniform(0, 0.2))

    assert board.suspected_s == TIMING.suspect_s


def test_a_board_that_beats_unevenly_is_suspected_seldom():
    """As one with a tenth of its CPU: every third heartbeat takes two to three seconds."""
    rng = random.Random(2)

    found, before = suspicions(
        [rng.uniform(2, 3) if rng.random() < 1 / 3 else rng.uniform(0.2, 1.2) for _ in range(900)]
    )

    assert before > 250
    assert found < before / 20


def test_it_is_forgotten_in_seconds():
    board = WatchedBoard("pi-0", TIMING)
    board.alive = True
    board.heard(0.0)
    board.heard(3.0)
    assert board.suspected_s > TIMING.suspect_s
    for number in range(10):
        board.heard(4.0 + number)

    assert board.suspected_s == TIMING.suspect_s


def test_what_is_suspected_is_so_before_it_is_lost():
    gaps = Gaps(1.0)
    for _ in range(50):
        gaps.take(10.0)
        gaps.take(0.0)
    board = WatchedBoard("pi-0", TIMING)
    board.gaps = gaps

    assert gaps.late_s > TIMING.silence_s == board.suspected_s


def test_how_long_it_was_gone_is_no_gap():
    board = WatchedBoard("pi-0", TIMING)
    board.heard(0.0)
    board.heard(500.0)  # not alive meanwhile
    board.alive = True
    board.heard(501.0)

    assert board.suspected_s == TIMING.suspect_s
