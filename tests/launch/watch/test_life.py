"""What a served model does next, by how it is and what has happened."""

from dataclasses import fields, replace
from itertools import product

import pytest

from launch.watch.life import (
    DURING,
    Again,
    AllSilent,
    Answers,
    Begins,
    Comes,
    Doing,
    Ends,
    ForgetPlan,
    Gone,
    KeepPlan,
    Lasts,
    LeaveOut,
    Life,
    Loses,
    RefuseAll,
    Refuses,
    Returns,
    SharedOut,
    Spreads,
    TakeIn,
    Tell,
    after,
)  # fmt: skip

BOARDS = ("a", "b", "c")
FIRST = Life("m")
STARTING = replace(FIRST, doing=Doing.STARTING, planned_for=BOARDS, on=BOARDS)
LOADING = replace(STARTING, doing=Doing.LOADING, given=True)
READY = replace(LOADING, doing=Doing.READY, reason=None, served=True)
GOOD = replace(READY, good=frozenset(BOARDS))  # it has lasted
# Lost once, and started again where `c`, which was gone, is back.
AGAIN = replace(GOOD, doing=Doing.LOADING, first=False, reason="before", restarts=1, good=frozenset("ab"))
LOST = replace(GOOD, doing=Doing.LOST, first=False, reason="it is gone")
# Its third start ends as the two before, and it has never run.
NEVER = replace(FIRST, doing=Doing.LOST, first=False, on=BOARDS, reason="IndexError", lost_for="IndexError", alike=3)
NO_PLAN = "no plan fits: 5 bytes are missing"

# From, what happens; then: what it does, what clients are told, the reason, and what is to be done.
ROWS = {
    "no board answers yet": (FIRST, AllSilent("a is off"), "waiting", "loading", "a is off", []),
    "all boards are silent after a loss": (
        replace(FIRST, first=False), AllSilent("a is off"), "waiting", "replanning", "a is off", [],
    ),
    "boards are there": (FIRST, Begins(BOARDS), "starting", "loading", "the boards are asked for", []),
    "the first start measures": (
        STARTING, Comes(Doing.MEASURING), "measuring", "loading", "the boards are measured",
        [ForgetPlan(()), Tell("measuring", "m: measuring a, b, c: half a minute")],
    ),
    "the first start plans": (STARTING, Comes(Doing.PLANNING), "planning", "loading", "shares are planned", []),
    "the first start loads": (STARTING, Comes(Doing.LOADING), "loading", "loading", "the ranks load their weights", []),
    "a later start keeps its reason": (AGAIN, Comes(Doing.LOADING), "loading", "replanning", "before", []),
    "what never ran ends a third time for one reason": (
        NEVER, Gone(answered=False, lasted=False), "failed", "failed", "it cannot start: IndexError",
        [
            RefuseAll("it cannot start: IndexError"), ForgetPlan(BOARDS),
            Tell("fault", "m: it cannot start: IndexError"),
        ],
    ),
    "its second end is a loss like others": (
        replace(NEVER, alike=2), Gone(answered=False, lasted=False), "waiting", "replanning", "IndexError",
        [Tell("fault", "m: IndexError"), ForgetPlan(BOARDS)],
    ),
    "a silent board may come back": (
        NEVER, Gone(answered=False, lasted=False, culprit="a", silent=True), "waiting", "replanning", "IndexError",
        [Tell("planned", "m goes on without a"), ForgetPlan(BOARDS)],
    ),
    "rank 0 answers": (
        LOADING, Answers(), "ready", "ready", None, [KeepPlan(BOARDS), Tell("planned", "m runs on a, b, c")],
    ),
    "rank 0 answers again": (
        replace(AGAIN, on=("a",)), Answers(), "ready", "ready", None,
        [KeepPlan(("a",)), Tell("restarted", "m runs on a")],
    ),
    "ranks last": (READY, Lasts(), "ready", "ready", None, [TakeIn(frozenset(BOARDS))]),
    "ranks still last": (GOOD, Lasts(), "ready", "ready", None, []),
    "boards are back in a calm moment": (
        GOOD, Returns(("d", "e")), "waiting", "replanning", "taken in: d, e", [Tell("planned", "m: taken in: d, e")],
    ),
    "boards are back that would have nothing to do": (GOOD, Spreads((*BOARDS, "d")), "ready", "ready", None, []),
    "the plan that was given does not fit": (
        LOADING, Refuses(NO_PLAN), "waiting", "loading", "the boards are asked for", [ForgetPlan(BOARDS)],
    ),
    "the model fits nowhere": (
        replace(LOADING, given=False), Refuses(NO_PLAN), "failed", "failed", NO_PLAN,
        [RefuseAll(NO_PLAN), ForgetPlan(BOARDS), Tell("fault", f"m: {NO_PLAN}")],
    ),
    "it does not fit without a board": (
        replace(LOADING, given=False, on=("a",)), Refuses(NO_PLAN, ("b", "c")), "held", "replanning",
        f"not without b, c: {NO_PLAN}", [ForgetPlan(("a",)), Tell("fault", f"m: not without b, c: {NO_PLAN}")],
    ),
    "what fitted once does not fit now": (
        replace(LOADING, given=False, served=True), Refuses(NO_PLAN), "held", "replanning", NO_PLAN,
        [ForgetPlan(BOARDS), Tell("fault", f"m: {NO_PLAN}")],
    ),
    "it does not fit with a board that is new": (
        replace(AGAIN, given=False), Refuses(NO_PLAN), "waiting", "replanning", "before",
        [LeaveOut("c", NO_PLAN), ForgetPlan(BOARDS)],
    ),
    "ranks are lost": (GOOD, Loses("rank 1 is gone"), "lost", "replanning", "rank 1 is gone", []),
    "ranks are lost in the first start": (LOADING, Loses("a is full"), "lost", "replanning", "a is full", []),
    "a rank of ranks that had lasted": (
        LOST, Gone(True, True, "b"), "waiting", "replanning", "it is gone", [Tell("fault", "m: it is gone", "b")],
    ),
    "nobody's fault": (
        LOST, Gone(True, True), "waiting", "replanning", "it is gone", [Tell("fault", "m: it is gone")],
    ),
    "a silent board is told of already": (
        LOST, Gone(True, True, "b", silent=True), "waiting", "replanning", "it is gone",
        [Tell("planned", "m goes on without b")],
    ),
    "all boards are silent": (
        LOST, Gone(True, True, "b", silent=True, others=False), "waiting", "replanning", "it is gone",
        [Tell("planned", "m waits: no board answers")],
    ),
    "ranks that never answered have no plan that is good": (
        LOST, Gone(False, False, "b"), "waiting", "replanning", "it is gone",
        [Tell("fault", "m: it is gone", "b"), ForgetPlan(BOARDS)],
    ),
    "a board that is new is to blame": (
        replace(LOST, good=frozenset("ab")), Gone(False, False, "c"), "waiting", "replanning", "it is gone",
        [Tell("fault", "m: it is gone", "c"), ForgetPlan(BOARDS), LeaveOut("c", "it is gone")],
    ),
    "a board that is new may be to blame": (
        replace(LOST, good=frozenset("ab")), Gone(True, False), "waiting", "replanning", "it is gone",
        [Tell("fault", "m: it is gone"), LeaveOut("c", "it is gone")],
    ),
    "a board that is new is not to blame for another": (
        replace(LOST, good=frozenset("ab")), Gone(True, False, "b"), "waiting", "replanning", "it is gone",
        [Tell("fault", "m: it is gone", "b")],
    ),
    "the second job that does not last": (
        replace(LOST, short=1), Gone(True, False, "b"), "waiting", "replanning", "it is gone",
        [Tell("fault", "m: it is gone", "b")],
    ),
    "a good board is to blame again and again": (
        replace(LOST, short=2), Gone(True, False, "b"), "waiting", "replanning", "it is gone",
        [Tell("fault", "m: it is gone", "b"), ForgetPlan(BOARDS), LeaveOut("b", "it is gone")],
    ),
    "the only board is to blame again and again": (
        replace(LOST, short=2, on=("a",), planned_for=("a",)), Gone(True, False, "a"), "resting", "replanning",
        "it is gone", [Tell("fault", "m: it is gone", "a"), ForgetPlan(("a",))],
    ),
    "ranks end again and again": (
        replace(LOST, short=2), Gone(True, False), "resting", "replanning", "it is gone",
        [Tell("fault", "m: it is gone"), ForgetPlan(BOARDS)],
    ),
    "a failed model may be tried on other boards": (
        replace(LOADING, doing=Doing.FAILED, first=False, reason=NO_PLAN), Again(),
        "waiting", "replanning", NO_PLAN, [],
    ),
    "the service ends": (GOOD, Ends("the end"), "failed", "failed", "the end", [RefuseAll("the end")]),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_a_model_does_next(name):
    life, event, doing, state, reason, actions = ROWS[name]

    then, found = after(life, event)

    assert (then.doing, then.state, then.reason) == (doing, state, reason)
    assert list(found) == actions


# From, what happens, and what else is changed: the rest is as it was.
CHANGES = {
    "a start forgets who had ranks": (replace(LOST, doing=Doing.WAITING), Begins(("a", "b")),
                                      {"planned_for": ("a", "b"), "on": ("a", "b"), "given": False}),
    "boards with a share": (STARTING, SharedOut(("a",), plan=True), {"on": ("a",), "given": True}),
    "their own plan, since ours does not fit": (LOADING, Refuses(NO_PLAN), {"own_plan": True}),
    "ours, since their own does not fit": (replace(LOADING, given=False, own_plan=True, served=True), Refuses(NO_PLAN),
                                           {"own_plan": False}),
    "ranks that answer need no plan of their own": (replace(LOADING, own_plan=True), Answers(), {"own_plan": False}),
    "served for ever": (LOADING, Answers(), {"served": True}),
    "good boards": (replace(READY, on=("a",)), Lasts(), {"good": frozenset("a")}),
    "planned for all that are there": (GOOD, Spreads((*BOARDS, "d")), {"planned_for": (*BOARDS, "d")}),
    "one more restart": (replace(LOST, doing=Doing.WAITING), Again(), {"restarts": 1}),
    "one more job that did not last": (replace(LOST, short=1), Gone(True, False), {"short": 2}),
    "a job that lasted": (replace(LOST, short=5), Gone(True, True), {"short": 0}),
}  # fmt: skip
SHOWN = {"doing", "reason", "first"}  # which the other table has


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_remembered_of_it(name):
    life, event, changed = CHANGES[name]

    then, _ = after(life, event)

    rest = {field.name for field in fields(Life)} - SHOWN - changed.keys() - {"served", "good", "own_plan"}
    assert {key: getattr(then, key) for key in changed} == changed
    assert all(getattr(then, key) == getattr(life, key) for key in rest)


def test_each_rest_is_twice_as_long_as_the_one_before():
    life, rests = LOST, []
    for _ in range(6):
        life, _ = after(replace(life, doing=Doing.LOST), Gone(True, False))
        rests.append(life.rests if life.doing is Doing.RESTING else 0)

    assert rests == [0, 0, 1, 2, 4, 8]


def test_every_event_has_a_row_and_what_cannot_happen_is_no_transition():
    assert {type(event) for _, event, *_ in [*ROWS.values(), *CHANGES.values()]} == DURING.keys()
    for doing, (kind, during) in product(Doing, DURING.items()):
        if doing not in during:
            event = kind.__new__(kind)
            with pytest.raises(AssertionError, match=f"{kind.__name__} while {doing}"):
                after(replace(FIRST, doing=doing), event)


def test_no_way_through_the_table_ends_but_with_the_service():
    """Whatever a model does, there is an event that is possible, and from everything it may become ready again."""
    ways = {doing: set() for doing in Doing}
    for life, event, *_ in ROWS.values():
        for begin in DURING[type(event)] if not isinstance(event, Ends) else ():
            ways[begin].add(after(replace(life, doing=begin), event)[0].doing)
    for begin in Doing:
        found = {begin}
        while more := {end for doing in found for end in ways[doing]} - found:
            found |= more
        assert Doing.READY in found, begin
