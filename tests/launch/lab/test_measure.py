"""What the probes' answers add up to."""

import math
import signal
from dataclasses import replace

import pytest

from launch.lab import measure as lab_measure
from launch.lab.lab import plan_lab
from launch.lab.measure import FLOP, TURN_S, _Probes, calibrate, summary
from solver.base.errors import HeptiError
from solver.cluster.cluster import GIB, Cluster, Device, Link


def test_a_round_is_summed_up_by_windows():
    """Forty products of 25 ms, a quarter of it on the CPU: 21.5 GFLOP/s of a core that does 86."""
    found = summary([(0.025, 0.00625)] * 40, 1.0)

    assert found.flop_per_s == pytest.approx(FLOP / 0.025)
    assert found.core_flop_per_s == pytest.approx(FLOP / 0.00625)
    assert found.share == pytest.approx(0.25)


def test_one_slow_window_does_not_count():
    found = summary([(0.025, 0.00625)] * 40 + [(0.5, 0.00625)], 1.0)

    assert found.flop_per_s == pytest.approx(FLOP / 0.025)


def test_a_host_that_is_too_slow_is_refused(kept):
    with pytest.raises(HeptiError) as caught:
        summary([(1.0, 0.01)], 1.0)
    kept(caught.value)


def test_at_a_scale_seconds_are_the_labs():
    """A lab at a quarter: a product of 100 ms by the clock takes 25 ms of the lab's time."""
    found = summary([(0.1, 0.025)] * 40, 0.25)

    assert found.flop_per_s == pytest.approx(FLOP / 0.025)
    assert found.core_flop_per_s == pytest.approx(FLOP / 0.00625)
    assert found.share == pytest.approx(0.25)


def test_a_probe_that_says_anything_else_is_refused_with_its_words():
    probes = _Probes([["bash", "-c", "echo Killed; cat"]])

    with pytest.raises(HeptiError, match="'Killed'"), probes:
        pass
    assert probes.processes[0].poll() == -signal.SIGKILL


class Busy:
    """Hosts whose core does 100 GFLOP/s, in some rounds another part of it, under the quota that is in force.

    In a round in which it is taken from them, 0 of it, they do three products. After the rounds with a part a core is
    slower for a host that has less of it: by a tenth at a quarter.
    """

    def __init__(self, parts, quotas):
        self.parts, self.quotas, self.whole = list(parts), quotas, None

    def __call__(self, commands):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, seconds):
        if seconds == TURN_S:
            self.whole = self.whole or list(self.quotas)
            shares = [quota / whole for quota, whole in zip(self.quotas, self.whole, strict=True)]
            return [[(1.0, FLOP / (100e9 * 0.9 ** math.log(share, 0.25)))] * 3 for share in shares]
        part = self.parts.pop(0)
        if not part:
            return [[(1.0, 0.01)] * 3 for _ in self.quotas]
        cpu_s = FLOP / (100e9 * part)
        return [[(cpu_s / (quota * 0.98), cpu_s)] * 24 for quota in self.quotas]


def calibrated(parts, monkeypatch):
    """Return a lab of two hosts, calibrated on such a machine, and what is left of its rounds."""
    device = Device("pi-0", 24.6e9, GIB)
    lab = plan_lab("lab", Cluster((device, replace(device, name="pi-1")), Link(1e8, 2e-4), {}))
    lab = replace(lab, hosts=tuple(replace(host, core_flop_per_s=90e9) for host in lab.hosts))
    busy = Busy(parts, [host.cores for host in lab.hosts])
    monkeypatch.setattr(lab_measure, "_Probes", busy)

    def limit(lab, host):
        busy.quotas[[other.name for other in lab.hosts].index(host.name)] = host.cores

    return calibrate(lab, limit)[0], busy


@pytest.mark.parametrize(
    ("parts", "rounds"),
    [((1, 1, 1, 1, 1, 1), 2), ((0.7, 1, 1, 1.3, 1, 1), 4), ((1.1, 0.9, 1, 1, 1, 1), 3), ((0, 1, 1, 0, 1, 1), 3)],
)
def test_quotas_follow_what_is_usual_and_settle(parts, rounds, monkeypatch):
    """A core of 100 GFLOP/s, 2 % lost by the quota: a round that is a third off, or lost, does not count in the end."""
    lab, busy = calibrated(parts, monkeypatch)

    assert [host.core_flop_per_s for host in lab.hosts] == pytest.approx([98e9] * 2, rel=0.01)
    assert len(parts) - len(busy.parts) == rounds


def test_a_slowed_host_gets_the_quota_that_its_cooler_cache_needs(monkeypatch):
    """At a quarter of the quota a core is a tenth slower, and the whole quota is in force again in the end."""
    lab, busy = calibrated((1, 1), monkeypatch)
    slowed = replace(lab.hosts[0], cpu=0.25)

    share = slowed.cores / lab.hosts[0].cores
    assert share * 0.9 ** math.log(share, 0.25) == pytest.approx(0.25)
    assert busy.quotas == pytest.approx([host.cores for host in lab.hosts])
