"""What is measured moves the devices' factors: changes that last do, blips and noise do not."""

import math

import numpy as np
import pytest

from solver.cluster.curves import derived_curves
from solver.live.drift import PLANS, Drift, scaled
from solver.live.observe import SOON, Level
from solver.model.named import named_model
from solver.schedule.encoders.cost import predict, price, setting
from solver.systems import make_plan
from solver.systems.sequence import rows_plan
from tests.kit.clusters import pis
from tests.sweeps import ALL, pairs, seeds

SPEC = named_model("bert-base")
SLIGHT_PATIENCE = 5  # requests that show a change to 0.7 or 1.4 of a speed


def noise(count, seed=0, width=0.1):
    return np.exp(np.random.default_rng(seed).normal(0, width / 2, count))


def follow(trace):
    """Return the factor after every measurement of a trace."""
    tracker, factors = Level(), []
    for measured in trace:
        tracker.observe(measured)
        factors.append(tracker.factor)
    return tracker, np.array(factors)


@pytest.mark.parametrize(("level", "seed"), pairs([0.1, 0.25, 0.5, 2.0, 4.0], range(5)))
def test_a_step_is_followed_after_two_measurements(level, seed):
    trace = noise(60, seed) * np.repeat([1.0, level, 1.0], 20)

    tracker, factors = follow(trace)

    assert tracker.changes == 2
    for start, wanted in ((21, level), (41, 1.0)):
        assert np.all(np.abs(np.log(factors[start : start + 18] / wanted)) < math.log(1.2))


@pytest.mark.parametrize("level", [0.7, 1.4])
def test_a_slight_step_is_followed_once_it_has_lasted(level):
    """A machine that others share is at 0.7 of its speed for a second now and then."""
    short, _ = follow([*np.ones(10), *[level] * (SLIGHT_PATIENCE - 1), *np.ones(10)])
    lasting, factors = follow([*np.ones(10), *[level] * SLIGHT_PATIENCE])

    assert (short.changes, short.factor) == (0, 1.0)
    assert (lasting.changes, factors[-1]) == (1, level)


def test_soon_after_a_change_two_measurements_mend_its_level():
    """What a part of a request showed is a guess; later a step as slight as this has to last."""
    soon, _ = follow([*np.ones(10), 0.18, 0.18, 0.26, 0.26])
    later, _ = follow([*np.ones(10), *[0.18] * (SOON + 4), 0.26, 0.26])

    assert soon.factor == 0.26
    assert later.factor == pytest.approx(0.18)


def test_a_level_that_is_mended_to_and_fro_comes_to_lie_between():
    """What a device seems to do depends on its share, and so on what it seemed to do before."""
    tracker = Level()
    for measured in [*np.ones(10), 0.17, 0.17]:
        tracker.observe(measured)
    for _ in range(40):
        tracker.observe(np.interp(tracker.factor, [0.21, 0.29], [0.3, 0.2]))

    assert tracker.changes <= 3
    assert tracker.factor == pytest.approx(0.25, rel=0.05)


def test_a_step_within_a_request_counts_from_the_next():
    """The request during which it changed shows something between."""
    _, factors = follow([1.0] * 5 + [0.6, 0.25])

    assert factors[-1] == 0.25


@pytest.mark.parametrize("blip", [0.02, 0.5, 3.0])
def test_a_blip_moves_nothing(blip):
    trace = np.ones(100)
    trace[::10] = blip

    tracker, factors = follow(trace)

    assert tracker.changes == 0
    assert np.all(factors == 1)


@pytest.mark.parametrize("seed", seeds(3, 10))
def test_noise_is_no_change_in_500_requests(seed):
    tracker, factors = follow(noise(500, seed, width=0.12))

    assert tracker.changes == 0
    assert np.all(np.abs(np.log(factors)) < 0.08)


def test_a_change_of_which_the_level_is_mended_later_is_not_a_change_back():
    """The first two requests at a quarter of the speed may show less than it: that makes nobody wait longer."""
    tracker, _ = follow([1.0] * 20 + [0.17, 0.17, 0.25, 0.25, 0.19, 0.18] + [1.0] * 2)

    assert tracker.factor == 1.0


def test_a_level_that_was_mended_has_held_since_the_change_before():
    """It is left 8 measurements after its correction, 12 in all: nothing alternates, and the next takes two again."""
    tracker, _ = follow([1.0] * 20 + [0.2, 0.2, 0.32, 0.32, 0.2, 0.2] + [0.25] * 6 + [1.0] * 15)
    for _ in range(2):
        tracker.observe(0.2)

    assert tracker.factor == pytest.approx(0.25, rel=0.01)


def test_after_a_change_the_mean_of_what_follows_counts():
    _, factors = follow([1.0] * 20 + [0.2, 0.2] + [0.25] * 4)

    assert factors[-1] == pytest.approx(0.24, rel=0.05)


def test_the_first_requests_say_how_fast_a_device_is_in_a_run():
    """The very first is slow; where all differ from the profile, nothing has changed."""
    tracker = Level(first=5)

    changed = [tracker.observe(measured) for measured in (0.4, 0.7, 0.71, 0.69, 0.72, 0.7)]

    assert not any(changed)
    assert tracker.factor == pytest.approx(0.7, rel=0.02)


def test_slow_drift_is_followed_without_a_change():
    """A board that gets hot over 200 requests."""
    trace = noise(200) * np.linspace(1, 0.6, 200)

    tracker, factors = follow(trace)

    assert tracker.changes == 0
    assert abs(math.log(factors[-1] / 0.6)) < 0.1


@pytest.mark.parametrize("period", range(1, SOON + 1) if ALL else [1, 3, SOON])
def test_what_alternates_is_followed_a_few_times_only(period):
    trace = np.where(np.arange(1000) // period % 2, 0.3, 1.0)

    tracker, _ = follow(trace)

    assert tracker.changes <= 5


def test_after_a_calm_time_a_step_is_followed_at_once_again():
    tracker, _ = follow(np.where(np.arange(300) // 4 % 2, 0.3, 1.0))
    waited = tracker.factor

    for _ in range(200):
        tracker.observe(1.0)
    tracker.observe(0.3)
    tracker.observe(0.3)

    assert waited in (0.3, 1.0)
    assert tracker.factor == 0.3


@pytest.mark.parametrize(("seems", "is_taken_for"), [(0.8, 1.0), (1.25, 1.0), (0.55, 0.55), (1.4, 1.4)])
def test_what_comes_near_the_level_before_has_come_back_to_it(seems, is_taken_for):
    """Also where the level between was mended; what is farther is a level of its own."""
    tracker = Level()
    for measured in (0.2, 0.2, 0.35, 0.35):
        tracker.observe(measured)
    assert tracker.changes == 2
    for _ in range(2):
        tracker.observe(seems)

    assert tracker.factor == pytest.approx(is_taken_for)


@pytest.mark.parametrize(("level", "now"), [(0.25, 0.7), (0.25, 0.55), (0.25, 0.42), (0.4, 0.7), (4.0, 1.5)])
def test_who_comes_back_up_half_of_the_way_is_thought_all_the_way_back_for_a_few_requests_only(level, now):
    tracker, factors = follow([*np.ones(10), *[level] * 20, *[now] * 6])

    back = math.log(now / level) / math.log(1 / level)
    assert factors[31] == pytest.approx(1.0 if back > 1 / 2 and level < 1 else now)
    assert tracker.factor == pytest.approx(now)


def test_two_parts_of_a_request_are_a_change_only_beyond_what_so_little_errs_by():
    """A quarter may err by as many seconds as a whole request may: by 2.2 times."""
    for level, changes in ((0.25, 1), (0.5, 0), (2.0, 0), (4.0, 1)):
        tracker = Level()
        for _ in range(2):
            tracker.observe(level, 0.25)
        assert tracker.changes == changes
        assert tracker.factor == (level if changes else 1.0)


def test_parts_neither_average_nor_take_back_what_a_whole_request_showed():
    tracker = Level()
    for measured, part in ((0.6, 1.0), (1.2, 0.25), (0.8, 0.5)):
        tracker.observe(measured, part)
        assert (tracker.factor, tracker.doubtful) == (1.0, True)

    assert tracker.observe(0.6)


def test_a_part_takes_back_what_the_one_before_showed():
    tracker = Level()

    assert not any(tracker.observe(measured, 0.3) for measured in (0.2, 1.1, 0.2, 1.0, 0.2))


def test_where_a_speed_begins_whole_requests_alone_say():
    tracker = Level(first=3)
    for measured in (0.8, 0.7, 0.9):
        for part in (0.3, 0.3, 1.0):
            tracker.observe(measured if part == 1 else 0.1, part)

    assert tracker.factor == 0.8


def test_compute_is_compared_with_what_the_plan_asked_of_each_device():
    """Whatever the shares, the factor is the device's own; a device without a share says nothing."""
    cluster = pis(24.6, 70, 24.6, 10)
    drift = Drift(SPEC, cluster)
    for system in ("megatron", "sequence-weighted", "single"):
        plan = make_plan(system, SPEC, cluster, 96)
        due = sum(s.repeats * s.times.compute for s in price(setting(SPEC, cluster, 96), plan).steps[1:])
        for _ in range(3):
            drift.computed(plan, 96, due / np.array([1, 0.25, 1, 1]), [0] * 4)

    assert [round(tracker.factor, 6) for tracker in drift.compute] == [1, 0.25, 1, 1]


@pytest.mark.parametrize(("begins", "changed"), [(0.0, [0.5]), (0.2, [0.8]), (0.5, [1.0]), (0.8, [])])
def test_of_a_request_that_shows_a_change_on_its_way_the_last_part_counts(begins, changed):
    """A device falls to a quarter after so much of a request: two parts say so, and the factor is not a mixture."""
    cluster = pis(24.6, 24.6)
    drift, plan = Drift(SPEC, cluster), make_plan("sequence-weighted", SPEC, cluster, 96)
    due = sum(s.repeats * s.times.compute for s in price(setting(SPEC, cluster, 96), plan).steps[1:])
    for _ in range(10):
        drift.computed(plan, 96, due, [0] * 2)
    found = []
    for done in (0.25, 0.5, 0.8, 1.0):
        slow = max(done - begins, 0)
        if drift.computed(
            plan, 96, due * (done - slow + slow / np.array([1, 0.25])), [0] * 2, None if done == 1 else np.full(2, done)
        ):
            found.append(done)

    assert found == changed
    assert drift.compute[1].factor == pytest.approx(0.25 if changed else 1.0, rel=0.01)


def test_who_waits_much_only_seems_faster():
    """A rank under a quota computes fast what it has rested for; but it may recover to what its profile says."""
    cluster = pis(24.6, 70)
    drift, plan = Drift(SPEC, cluster), make_plan("sequence-weighted", SPEC, cluster, 96)
    due = price(setting(SPEC, cluster, 96), plan).compute_s
    for waits, speed, wanted in ((2, 3, 1), (2, 0.25, 1), (0.1, 0.25, 0.25), (2, 3, 1), (0.1, 3, 3)):
        for _ in range(40):
            drift.computed(plan, 96, due / speed, waits * due / speed)
        assert [tracker.factor for tracker in drift.compute] == pytest.approx([wanted] * 2, rel=0.1)


def test_who_waits_a_third_of_its_compute_may_be_slower_but_hardly_faster():
    cluster = pis(24.6, 70)
    plan = make_plan("sequence-weighted", SPEC, cluster, 96)
    due = price(setting(SPEC, cluster, 96), plan).compute_s
    for waits, speed, wanted in ((0.2, 1.2, 1.2), (0.4, 1.2, 1.0), (0.4, 0.8, 0.8), (0.4, 0.6, 0.6)):
        drift = Drift(SPEC, cluster)
        for speeds in ([1] * 10, [speed] * 60):
            for now in speeds:
                drift.computed(plan, 96, due / now, waits * due / now)
        assert [tracker.factor for tracker in drift.compute] == pytest.approx([wanted] * 2, rel=0.05)


def test_other_lengths_say_the_same_of_a_device():
    cluster = pis(24.6, 70)
    drift, plan = Drift(SPEC, cluster), make_plan("sequence-weighted", SPEC, cluster, 128)

    for rows in (31, 40, 96, 128, 200, 384):
        drift.computed(plan, rows, price(setting(SPEC, cluster, rows), plan).compute_s, [0, 0])

    assert all(abs(math.log(tracker.factor)) < 0.1 for tracker in drift.compute)


def test_a_slow_link_is_found_among_those_that_it_slows_down():
    """What four devices' connections carried in the lab, 20 all-gathers: before and after pi-1 went to 240 Mbps."""
    sent = 1e6 * np.array([[0, 9.83, 9.83, 9.83], [19.3, 0, 19.3, 19.3], [9.83, 9.83, 0, 9.83], [2.62, 2.62, 2.62, 0]])
    before = 1e-3 * np.array([[0, 268, 224, 248], [500, 0, 476, 464], [284, 272, 0, 252], [88, 100, 136, 0]])
    after = 1e-3 * np.array([[0, 736, 208, 216], [1684, 0, 1860, 1680], [244, 660, 0, 208], [120, 272, 96, 0]])
    cluster = pis(24.6, 70, 24.6, 10)
    drift, plan = Drift(SPEC, cluster), make_plan("sequence-weighted", SPEC, cluster, 128)

    for _ in range(5):
        assert drift.carried(plan, sent, before) == []
    changed = [drift.carried(plan, sent, after) for _ in range(3)]

    assert changed == [[], [1], []]
    assert [tracker.factor for tracker in drift.links] == [1, pytest.approx(240 / 940, rel=0.3), 1, 1]
    assert [drift.carried(plan, sent, before) for _ in range(2)] == [[], [1]]
    assert [tracker.factor for tracker in drift.links] == [1, 1, 1, 1]


@pytest.mark.parametrize(("shares", "found"), [([0.3, 0.3, 0.9, 0.3, 0.3, 0.8] * 3, 1.0), ([0.3] * 10, 0.3)])
def test_of_a_link_that_one_connection_shows_the_best_of_four_windows_counts(shares, found):
    """All heads are on pi-0: what the others exchange with it meets there."""
    cluster = pis(70, 24.6, 24.6)
    drift, plan = Drift(SPEC, cluster), make_plan("megatron", SPEC, cluster, 128)
    star = 50e6 * np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    for share in [*[1.0] * 6, *shares]:
        rates = np.where(np.arange(3) == 2, share, 1.0) * np.where(np.arange(3) == 2, share, 1.0)[:, None]
        drift.carried(plan, star, np.where(star > 0, 0.5 / rates, 0.0))

    assert [tracker.factor for tracker in drift.links] == [1, 1, pytest.approx(found, rel=0.01)]


@pytest.mark.parametrize("plans", [("megatron",), ("sequence-weighted",), ("sequence-weighted", "megatron")])
def test_a_link_that_is_whole_again_under_another_plan_is_seen_by_what_it_carries(plans):
    """Nobody knows how fast that plan's connections are over whole links; the other links are whole all the time."""
    cluster = pis(24.6, 70, 24.6, 10)
    drift = Drift(SPEC, cluster)
    star = np.zeros((4, 4))
    star[1], star[:, 1] = 1, 1
    star[1, 1] = 0

    def carry(plan, mbps):
        drift.carried(plan, 0.1 * mbps * 1e6 / 8 * star, 0.1 * star)
        return [tracker.factor for tracker in drift.links]

    first = make_plan("sequence-weighted", SPEC, cluster, 128)
    for mbps in [400] * 6 + [100] * 6:
        narrow = carry(first, mbps)
    assert narrow == [1, pytest.approx(0.25, rel=0.01), 1, 1]
    for name in plans:
        plan = make_plan(name, SPEC, cluster, 128)
        for mbps in [100] * 6:
            assert carry(plan, mbps) == narrow
    for mbps in [300] * 3:
        found = carry(plan, mbps)

    assert found == [1, 1, 1, 1]
    for mbps in [300] * 3 + [75] * 6:
        found = carry(plan, mbps)
    assert found == [1, pytest.approx(0.25, rel=0.3), 1, 1]


def test_small_messages_show_latency_not_a_slow_link():
    """Blocks of a few kilobytes never fill a link; a new plan with larger ones does not make it faster either."""
    cluster = pis(24.6, 70)
    drift, small, large = (
        Drift(SPEC, cluster),
        *(make_plan(name, SPEC, cluster, 8) for name in ("sequence-weighted", "megatron")),
    )

    for plan, rate in ((small, 5e6), (large, 100e6)):
        for _ in range(6):
            assert drift.carried(plan, np.array([[0, 1], [1, 0]]) * rate, np.array([[0, 1.0], [1.0, 0]])) == []

    assert [tracker.factor for tracker in drift.links] == [1, 1]


def test_a_scaled_cluster_costs_what_its_factors_say():
    cluster = pis(24.6, 70)
    plan = make_plan("sequence-weighted", SPEC, cluster, 128)

    half = scaled(cluster, [0.5, 0.5], [0.5, 0.5], [device.memory_bytes for device in cluster.devices])

    assert predict(SPEC, half, plan, 128).seconds == pytest.approx(2 * predict(SPEC, cluster, plan, 128).seconds, 0.02)


def test_what_is_known_of_plans_is_forgotten_for_those_that_ran_long_ago():
    """Speeds and plans that never come again, as in a run that serves for weeks, take no more memory than some."""
    cluster = pis(20.0, 20.0)
    drift = Drift(SPEC, cluster)
    flows = np.array([[0.0, 1e6], [1e6, 0.0]])
    counts = []
    for number in range(1, 200):
        plan = rows_plan("rows", SPEC, cluster, 128, [1.0, 1 + number / 200])
        drift.carried(plan, flows, flows / 1e7)
        drift.compute[0].factor = 1 + number / 200
        assert drift.cluster.devices[0].kernels  # made of nothing but its speed
        counts.append(len(drift._usual) + derived_curves.cache_info().currsize)

    assert counts[-1] == counts[98]
    assert len(drift._usual) == PLANS
