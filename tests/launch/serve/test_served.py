"""A served model without ranks: how long it rests, and when it takes boards in that are back."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from launch.serve.served import ServedModel, Surroundings, served_file
from launch.watch.boards import Heartbeats
from launch.watch.life import Doing
from launch.watch.site import Site
from launch.watch.timing import Timing

BOARDS = ("a", "b")
TIMING = replace(Timing().faster(100), calm_s=30.0)


@pytest.fixture
def model(tiny, tmp_path, monkeypatch):
    """Return a model on two boards that live."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    site = Site(BOARDS, 2)
    beats = Heartbeats(site, "service", "token", tmp_path, print, TIMING)
    for board in beats.boards.values():
        board.alive, board.facts = True, {"free_bytes": 100}
    starter = SimpleNamespace(heartbeats=beats, site=site, folder=tmp_path)
    return ServedModel(served_file(tiny.path), Surroundings(starter, None, None, None, None, lambda: True, print), 8)


def rests(model, doing, change=lambda: None, **life):
    """Return whether a model still rests a while after a change, and end that."""
    model.life = replace(model.life, doing=doing, **life)

    async def scenario():
        model._beats._beat = asyncio.Event()  # of this loop
        resting = asyncio.create_task(model._rest(BOARDS))
        await asyncio.sleep(0)
        change()
        done, _ = await asyncio.wait({resting}, timeout=0.2)
        resting.cancel()
        return not [task.result() for task in done]

    return asyncio.run(scenario())


def lose(model, *boards):
    for board in boards:
        model._beats.boards[board].alive = False


@pytest.mark.parametrize("doing", [Doing.HELD, Doing.FAILED])
def test_what_is_refused_waits_for_other_boards_or_for_more_free_memory(model, doing):
    free = model._beats.boards["a"].facts

    assert rests(model, doing)
    assert rests(model, doing, lambda: free.update(free_bytes=105)), "a little more is no reason for a start"
    assert not rests(model, doing, lambda: free.update(free_bytes=150))
    assert rests(model, doing, lambda: lose(model, *BOARDS)), "no board is no other board"
    model._beats.boards["b"].alive = True
    assert not rests(model, doing)


def test_a_rest_ends_with_its_time_or_with_other_boards(model):
    long = {"short": 50}  # up to the longest

    assert not rests(model, Doing.RESTING, short=3)
    model._beats.timing = replace(TIMING, longest_pause_s=60.0)
    assert rests(model, Doing.RESTING, **long)
    assert not rests(model, Doing.RESTING, lambda: lose(model, "b"), **long)


def test_boards_that_are_back_are_taken_in_when_nothing_is_asked_or_after_long(model):
    at = TIMING.calm_s

    def reserved(boards):
        model.reserve.jobs = {boards: SimpleNamespace(code=None)}

    reserved(BOARDS)
    assert model._may_take_in(BOARDS, 0.0)
    request = model.journal.submit({"tokens": [1]})
    assert not model._may_take_in(BOARDS, at - 1)
    assert model._may_take_in(BOARDS, at + 1)
    request.cancel()
    reserved(("a",))  # ranks in reserve on all of them are waited for, too
    assert not model._may_take_in(BOARDS, 2 * at - 1)
    assert model._may_take_in(BOARDS, 2 * at + 1)


def test_ranks_are_kept_in_reserve_also_without_a_board_that_is_late(model):
    """They are there when its silence counts."""
    boards = model._beats.boards
    model.life = replace(model.life, doing=Doing.READY, planned_for=BOARDS)
    model._talk = SimpleNamespace(job=SimpleNamespace(boards=BOARDS), ready_s=1.0)
    model.programs.plans.unplanned = {BOARDS, ("a",)}
    for board in boards.values():
        board.seen_at = time.monotonic() + 60  # it has just been heard

    assert model._in_reserve() == {BOARDS}
    boards["b"].seen_at -= 120
    assert model._in_reserve() == {BOARDS, ("a",)}
    model.life = replace(model.life, doing=Doing.LOST)
    model.reserve.jobs = {BOARDS: SimpleNamespace(code=None)}
    assert model._in_reserve() == {BOARDS}, "what will be taken in a moment stays"
