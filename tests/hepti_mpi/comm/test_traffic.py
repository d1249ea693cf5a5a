"""What a rank's seconds are made of."""

import itertools

from hepti_mpi.comm import mailbox
from hepti_mpi.comm.mailbox import Traffic


def test_kernels_count_without_what_they_waited(monkeypatch):
    """The clock is read twice by the kernel and twice by the wait within: 3 s in all, 1 s of them waiting."""
    ticks = itertools.count()
    monkeypatch.setattr(mailbox.clock, "now", lambda: float(next(ticks)))
    traffic = Traffic()

    def computes():
        with traffic.waiting():
            pass

    traffic.compute(computes)
    traffic.compute(lambda: None)

    assert (traffic.wait_s, traffic.kernel_s) == (1.0, 2.0 + 1.0)
    traffic.reset()
    assert traffic.kernel_s == 0.0
