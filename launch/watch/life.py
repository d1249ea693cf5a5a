"""What a served model does next: how it is and what has happened give how it is then, and what is to be done.

A pure table: nothing here waits, starts or asks anything. `DURING` says which event is possible when, `after` what
comes of it. A start goes from waiting over measuring, planning and loading to ready; a loss from ready to lost, and,
once what is left is ended, to resting or to the next start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

Names = tuple[str, ...]  # of boards, in rank order
MOST_SHORT = 2  # jobs in a row that did not last; after them a board that is to blame is left out
MOST_ALIKE = 2  # starts of a model that never ran which may end for one reason: a third will do no better


class Doing(StrEnum):
    """What a model does."""

    WAITING = "waiting"  # for boards that may be used
    STARTING = "starting"  # it waits for its turn
    MEASURING = "measuring"
    PLANNING = "planning"
    LOADING = "loading"
    READY = "ready"
    LOST = "lost"  # what is left of its ranks is being ended
    RESTING = "resting"  # its ranks end again and again
    HELD = "held"  # its ranks refuse these boards: it waits for others, or for more free memory
    FAILED = "failed"  # as held, but it never was ready: requests are refused


@dataclass(frozen=True, slots=True)
class Life:
    """How a model is.

    Parameters
    ----------
    name
        The model's.
    doing
        What it does.
    reason
        Why it is not ready.
    first
        Whether this is still the first start: nothing has been lost.
    served
        Whether its ranks have ever been ready.
    restarts
        How often ranks were started again, also to take boards in.
    planned_for
        The boards that the ranks are planned for.
    on
        Those of them that have any.
    given
        Whether the ranks were given a plan.
    own_plan
        Whether the next ranks are to make their own.
    good
        The boards of the last job that lasted.
    short
        Jobs in a row that did not last.
    alike, lost_for
        Losses in a row for the same reason, and that reason.
    """

    name: str
    doing: Doing = Doing.WAITING
    reason: str | None = "the boards are asked for"
    first: bool = True
    served: bool = False
    restarts: int = 0
    planned_for: Names = ()
    on: Names = ()
    given: bool = False
    own_plan: bool = False
    good: frozenset[str] = frozenset()
    short: int = 0
    alike: int = 0
    lost_for: str = ""

    @property
    def state(self) -> str:
        """What clients are told: loading, ready, replanning or failed."""
        if self.doing in (Doing.READY, Doing.FAILED):
            return str(self.doing)
        return "loading" if self.first else "replanning"

    @property
    def rests(self) -> float:
        """How many times the shortest rest it waits where it rests."""
        return 2.0 ** (self.short - MOST_SHORT - 1)


@dataclass(frozen=True, slots=True)
class AllSilent:
    """No board lives that may be used."""

    why: str


@dataclass(frozen=True, slots=True)
class Begins:
    """A start begins on these boards."""

    boards: Names


@dataclass(frozen=True, slots=True)
class Comes:
    """The start has come to measuring, planning or loading."""

    to: Doing


@dataclass(frozen=True, slots=True)
class SharedOut:
    """These boards have a share, and ranks there are given a plan, or make their own."""

    boards: Names
    plan: bool


@dataclass(frozen=True, slots=True)
class Answers:
    """Rank 0 answers: everything is loaded."""


@dataclass(frozen=True, slots=True)
class Lasts:
    """The ranks have been ready for some time."""


@dataclass(frozen=True, slots=True)
class Spreads:
    """These boards may be used now, and those that are new would have nothing to do."""

    boards: Names


@dataclass(frozen=True, slots=True)
class Returns:
    """These boards are back, and the moment is calm."""

    boards: Names


@dataclass(frozen=True, slots=True)
class Refuses:
    """The ranks refuse what they are given; these boards are missing."""

    why: str
    missing: Names = ()


@dataclass(frozen=True, slots=True)
class Loses:
    """Ranks are lost."""

    why: str


@dataclass(frozen=True, slots=True)
class Gone:
    """What was left of lost ranks is ended.

    Parameters
    ----------
    answered, lasted
        Whether the ranks were ready at all, and for long enough.
    culprit
        The board whose fault it is, where it is one's.
    silent
        Whether that board is silent, which is told already.
    others
        Whether any board may be used and is not late.
    """

    answered: bool
    lasted: bool
    culprit: str | None = None
    silent: bool = False
    others: bool = True


@dataclass(frozen=True, slots=True)
class Again:
    """Nothing is waited for any more."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The service ends."""

    why: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell people: a kind, a sentence, and the board where it is of one."""

    kind: str
    sentence: str
    board: str | None = None


@dataclass(frozen=True, slots=True)
class KeepPlan:
    """Keep the plan that runs on these boards."""

    boards: Names


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """Forget the plan for these boards, or, where there are none, all plans."""

    boards: Names


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Leave a board out for some time."""

    board: str
    why: str


@dataclass(frozen=True, slots=True)
class TakeIn:
    """Leave none of these boards out any more."""

    boards: frozenset[str]


@dataclass(frozen=True, slots=True)
class RefuseAll:
    """Answer all open requests with an error."""

    why: str


LifeEvent = (
    AllSilent | Begins | Comes | SharedOut | Answers | Lasts | Spreads | Returns | Refuses | Loses | Gone | Again | Ends
)
Action = Tell | KeepPlan | ForgetPlan | LeaveOut | TakeIn | RefuseAll
Next = tuple[Life, tuple[Action, ...]]

_START = frozenset({Doing.STARTING, Doing.MEASURING, Doing.PLANNING, Doing.LOADING})
_STEPS = {
    Doing.MEASURING: "the boards are measured",
    Doing.PLANNING: "shares are planned",
    Doing.LOADING: "the ranks load their weights",
}
DURING: Mapping[type[LifeEvent], frozenset[Doing]] = {
    AllSilent: frozenset({Doing.WAITING}),
    Begins: frozenset({Doing.WAITING}),
    Comes: _START,
    SharedOut: _START,
    Answers: frozenset({Doing.LOADING}),
    Lasts: frozenset({Doing.READY}),
    Spreads: frozenset({Doing.READY}),
    Returns: frozenset({Doing.READY}),
    Refuses: _START,
    Loses: _START | {Doing.READY},
    Gone: frozenset({Doing.LOST}),
    Again: frozenset({Doing.WAITING, Doing.RESTING, Doing.HELD, Doing.FAILED}),
    Ends: frozenset(Doing),
}


def after(life: Life, event: LifeEvent) -> Next:
    """Return how a model is after an event, and what is to be done, in this order."""
    assert life.doing in DURING[type(event)], f"{type(event).__name__} while {life.doing}"
    match event:
        case AllSilent(why):
            return replace(life, reason=why), ()
        case Begins(boards):
            return replace(life, doing=Doing.STARTING, planned_for=boards, on=boards, given=False), ()
        case Comes(step):
            return _come(life, step)
        case SharedOut(boards, plan):
            return replace(life, on=boards, given=plan), ()
        case Answers():
            ready = replace(life, doing=Doing.READY, reason=None, served=True, own_plan=False)
            told = Tell("restarted" if life.restarts else "planned", f"{life.name} runs on {', '.join(life.on)}")
            return ready, (KeepPlan(life.on), told)
        case Lasts():
            good = frozenset(life.on)
            return (life, ()) if good == life.good else (replace(life, good=good), (TakeIn(good),))
        case Spreads(boards):
            return replace(life, planned_for=boards), ()
        case Returns(boards):
            why = f"taken in: {', '.join(boards)}"
            taken_in = replace(life, doing=Doing.WAITING, first=False, reason=why)
            return taken_in, (Tell("planned", f"{life.name}: {why}"),)
        case Refuses():
            return _refused(life, event)
        case Loses(why):
            alike = life.alike + 1 if why == life.lost_for else 1
            return replace(life, doing=Doing.LOST, first=False, reason=why, lost_for=why, alike=alike), ()
        case Gone():
            return _gone(life, event)
        case Again():
            return replace(life, doing=Doing.WAITING, restarts=life.restarts + 1), ()
        case Ends(why):
            return replace(life, doing=Doing.FAILED, reason=why), (RefuseAll(why),)


def _come(life: Life, step: Doing) -> Next:
    """Say what is being done at the first start; later ones are for a reason, which stays."""
    come = replace(life, doing=step, reason=_STEPS[step] if life.first else life.reason)
    if step is not Doing.MEASURING:
        return come, ()
    measuring = f"{life.name}: measuring {', '.join(life.planned_for)}: half a minute"
    return come, (ForgetPlan(()), Tell("measuring", measuring))


def _refused(life: Life, event: Refuses) -> Next:
    """Find what is to blame: our plan, a new board, those that are missing, memory, or the model itself."""
    # Other programs may have taken the memory that the plan is for: there may be another.
    forget = ForgetPlan(life.on)
    again = replace(life, doing=Doing.WAITING, own_plan=life.given)
    if life.given:
        return again, (forget,)
    if new := _new(life, life.on):
        return again, (*(LeaveOut(board, event.why) for board in new), forget)
    if event.missing:
        why = f"not without {', '.join(event.missing)}: {event.why}"
        return _held(again, Doing.HELD, why, forget)
    if life.served:  # what was enough once may be again
        return _held(again, Doing.HELD, event.why, forget)
    return _held(again, Doing.FAILED, event.why, RefuseAll(event.why), forget)


def _held(life: Life, doing: Doing, why: str, *actions: Action) -> Next:
    return replace(life, doing=doing, first=False, reason=why), (*actions, Tell("fault", f"{life.name}: {why}"))


def _gone(life: Life, event: Gone) -> Next:
    """Tell of the loss; leave a board out that is to blame, and rest where ranks end again and again.

    What has never run, and ends each time for the same reason, is held for other boards or more memory: it is no loss.
    """
    culprit, why = event.culprit, str(life.reason)
    if not (life.served or event.silent) and life.alike > MOST_ALIKE:
        never = f"it cannot start: {why}"
        return _held(replace(life, short=0), Doing.FAILED, never, RefuseAll(never), ForgetPlan(life.on))
    short = 0 if event.lasted else life.short + 1
    many = short > MOST_SHORT
    then = replace(life, doing=Doing.WAITING, short=short)
    actions: list[Action] = [_loss(life, event)]
    if not event.answered or many:
        actions.append(ForgetPlan(life.on))
    new = () if event.lasted else _new(life, (culprit,) if culprit else life.on)
    if not new and many and culprit and len(life.planned_for) > 1:
        new = (culprit,)  # what was good once need not be so for ever
    if not new and many:
        then = replace(then, doing=Doing.RESTING)
    return then, (*actions, *(LeaveOut(board, why) for board in new))


def _loss(life: Life, event: Gone) -> Tell:
    """Say why the ranks are lost; of a silent board, which is told already, only what follows from it."""
    if not event.silent:
        return Tell("fault", f"{life.name}: {life.reason}", event.culprit)
    follows = f"goes on without {event.culprit}" if event.others else "waits: no board answers"
    return Tell("planned", f"{life.name} {follows}")


def _new(life: Life, boards: Names) -> Names:
    """Return the boards that were not there when all went well."""
    return tuple(board for board in boards if life.good and board not in life.good)
