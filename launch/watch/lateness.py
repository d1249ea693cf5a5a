"""When a heartbeat is late: as its board's own heartbeats come.

Jacobson and Karels' estimator, with its constants, as TCP has it for its time-outs (RFC 6298): a running mean of the
gaps between heartbeats and of how far they are from it; what is behind the mean by four times that is late. A board
that has a tenth of its CPU, or of its link, beats unevenly: after one gap too long the next one like it is none.
"""

from __future__ import annotations

from dataclasses import dataclass

MEAN_GAIN, SPREAD_GAIN = 1 / 8, 1 / 4
SPREADS = 4


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
        """Seconds of silence behind which the next one is late."""
        return self.mean_s + SPREADS * self.spread_s
