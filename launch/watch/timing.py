"""How long is waited for what, between a service and its boards; and when a heartbeat is late: as its board's own come.

Jacobson and Karels' estimator, with its constants, as TCP has it for its time-outs (RFC 6298): a running mean of the
gaps between heartbeats and of how far they are from it; what is after the mean by four times that is late. A board
that has a tenth of its CPU, or of its link, beats unevenly: after one gap too long the next one like it is none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

MEAN_GAIN, SPREAD_GAIN = 1 / 8, 1 / 4
SPREADS = 4


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, all of them, each with its reason.

    Parameters
    ----------
    beat_s
        Between two orders to a board, each of which a heartbeat answers.
    look_s
        The longest between two looks at what heartbeats say.
    silence_s
        A board that says nothing for so long is lost: three heartbeats may be late or missing.
    suspect_s
        What takes its place is started from here on, or later where its heartbeats come unevenly, and ended again
        where it speaks: half a start for nothing, on boards that compute.
    steady_s
        A board that is back beats for so long before it is used: a loose plug comes and goes.
    again_s
        Between two tries to reach a board.
    first_s
        All boards are waited for at the first start: one that is late would mean another start.
    held_s
        A board with which no start succeeds is left out for so long, twice as long each time.
    gone_s
        mpirun notices a rank's end as soon as we do, and knows the signal: a moment for it to say so.
    stuck_s
        Rank 0 looks for questions between passes, and the pass of a long prompt may take minutes: as long as ranks
        compute, they are given so long.
    load_s
        Weights from a card take minutes, and so does measuring.
    status_s
        Between two questions to rank 0, how it is.
    calm_s
        A board that is back is taken in when nothing is asked. Under steady load that never comes: then after so long,
        since open requests go on after what they have said anyway.
    short_s
        Ranks that were ready for less than this did not last.
    pause_s, longest_pause_s
        After several such jobs the next start waits for so long, twice as long each time, up to the longest.
    reserve_pause_s, longest_reserve_pause_s
        After ranks in reserve that did not start the next ones wait, twice as long each time.
    reserve_late_s
        mpirun that has not started its ranks in reserve by then was seen to hang.
    coming_s
        A model that loses its ranks waits for those in reserve that are coming, but no longer than for its own start.
    """

    beat_s: float = 1.0
    look_s: float = 0.25
    silence_s: float = 4.0
    suspect_s: float = 2.0
    steady_s: float = 3.0
    again_s: float = 1.0
    first_s: float = 15.0
    held_s: float = 60.0
    gone_s: float = 0.5
    stuck_s: float = 300.0
    load_s: float = 1800.0
    status_s: float = 1.0
    calm_s: float = 30.0
    short_s: float = 5.0
    pause_s: float = 2.0
    longest_pause_s: float = 30.0
    reserve_pause_s: float = 1.0
    longest_reserve_pause_s: float = 600.0
    reserve_late_s: float = 60.0
    coming_s: float = 5.0

    def faster(self, times: float) -> Timing:
        """Return the same in a shorter time."""
        return replace(self, **{field.name: getattr(self, field.name) / times for field in fields(self)})


@dataclass(slots=True)
class Gaps:
    """The gaps between a board's heartbeats.

    Parameters
    ----------
    mean_s
        Their mean so far.
    spread_s
        How far they are from it, in the mean.
    """

    mean_s: float
    spread_s: float = 0.0

    def take(self, gap_s: float) -> None:
        """Take in a gap."""
        self.spread_s += SPREAD_GAIN * (abs(gap_s - self.mean_s) - self.spread_s)
        self.mean_s += MEAN_GAIN * (gap_s - self.mean_s)

    @property
    def late_s(self) -> float:
        """Seconds of silence after which the next one is late."""
        return self.mean_s + SPREADS * self.spread_s
