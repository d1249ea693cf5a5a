"""What a lab promises: asked speeds and bandwidths, true wire times, memory caps; measured by programs under mpirun."""

import functools
import json
import os
import re
import select
import statistics
import time
from itertools import pairwise

import pytest

from launch.lab.lab import load_lab
from launch.lab.limits import brake_of
from launch.lab.links import burst_of
from tests.lab.conftest import ODD, PROGRAMS, USUAL, lab_up
from tests.lab.drift import assert_near

WIRE_OF_256_KIB_MS = 2**18 * 8 / 940e6 * 1e3


def median_of_windows(windows):
    return statistics.median(value for _, value in windows)


@pytest.mark.parametrize("settings", [ODD, USUAL], ids=["odd", "usual"])
def test_speeds_are_met_within_5_percent(settings, tmp_path):
    """All hosts at the same time, also odd speeds; a fresh lab each time, since this machine's own speed drifts."""

    def measure():
        with lab_up("fresh", tmp_path, **settings) as lab:
            return [median_of_windows(windows) for _, windows in lab.json("speed.py", 8)]

    assert_near(list(settings["gflops"]), measure)


@pytest.mark.parametrize("name", ["odd", "usual"])
def test_bandwidths_are_met_within_5_percent_both_ways_at_once(name, request):
    lab = request.getfixturevalue(name)

    def measure():
        return [median_of_windows(windows[1:]) for windows in lab.json("traffic.py", "stream", 2)]

    assert_near([host["asked_mbps"] for host in lab.measured], measure)


def test_an_exceptional_link_is_slower_than_the_others(tmp_path):
    """240 Mbps between the first and the last of three, 940 elsewhere, all used at once; then 480 from the first on."""
    links = '[[link]]\nbetween = ["pi-0", "pi-2"]\nbandwidth_mbps = 240\n'
    boards = {"gflops": (10, 10, 10), "mbps": 940, "memory_gib": 0.5, "links": links}
    with lab_up("pair", tmp_path, **boards) as lab:
        asked = [host["asked_mbps"] for host in lab.measured]
        lab.lab("set", "pi-0", "bandwidth_mbps=480")

        def measure():
            return [median_of_windows(windows[1:]) for windows in lab.json("traffic.py", "stream", 2)]

        # Received by pi-0 from pi-2, by pi-1 from pi-0, by pi-2 from pi-1.
        assert_near([240, 480, 940], measure)

    assert asked == [240, 940, 940]

    def achieved():
        """Return what `up` measures, which it does once: a busy machine may carry less in that moment."""
        with lab_up("pair", tmp_path, **boards) as lab:
            return [host["achieved_mbps"] for host in lab.measured]

    assert_near(asked, achieved)


def test_up_has_measured_what_it_promises_or_says_so(odd, usual):
    """While neighbours of this machine begin or end to work, a host may get less or more: then a note names it."""
    for lab in (odd, usual):
        for host in lab.measured:
            told = any(note.startswith(f"{host['host']} achieved") for note in lab.notes)

            assert told or host["achieved_gflops"] == pytest.approx(host["asked_gflops"], rel=0.08)
            assert host["achieved_mbps"] == pytest.approx(host["asked_mbps"], rel=0.05)


def test_speed_follows_within_a_second_of_set(usual):
    """From 24.6 to 33 GFLOP/s and to a quarter, in the middle of a run."""

    def measure(setting):
        with usual.running("speed.py", 14) as process:
            time.sleep(5)
            usual.lab("set", "pi-0", setting)
            changed = time.time()
            windows = json.loads(process.stdout.readline())[0][1]
        usual.lab("set", "pi-0", "cpu=100%")
        after = [value for end, value in windows if end > changed + 1]
        before = [value for end, value in windows if end < changed - 1]
        return [statistics.median(after) / statistics.median(before)]

    for setting, ratio in (("gflops=33", 33 / 24.6), ("cpu=25%", 0.25)):
        assert_near([ratio], functools.partial(measure, setting))


def test_bandwidth_follows_within_a_second_of_set(usual):
    """One host's link from 940 to 240 Mbps: what it sends and what it receives; the others keep theirs."""

    def measure():
        with usual.running("traffic.py", "stream", 8) as process:
            time.sleep(1.5)
            usual.lab("set", "pi-1", "bandwidth_mbps=240")
            changed = time.time()
            found = json.loads(process.stdout.readline())
        usual.lab("set", "pi-1", "bandwidth_mbps=940")
        return [statistics.median(value for end, value in windows if end > changed + 1) for windows in found]

    # Received by pi-0 from pi-2, by pi-1 from pi-0, by pi-2 from pi-1.
    assert_near([940, 240, 240], measure)


def test_a_mebibyte_costs_half_a_millisecond_of_a_core(usual):
    """To send it and to receive it, together, at 940 Mbps."""
    found = min(sum(usual.json("traffic.py", "cost", 150)[:2]) for _ in range(3))

    assert found < 0.5


def test_a_message_after_a_pause_takes_its_wire_time(usual):
    """But for the piece that a bucket that is full lets pass at once."""
    free = burst_of(940e6 / 8) / 2**18
    times = usual.json("traffic.py", "pause", 2**18)[0]

    assert WIRE_OF_256_KIB_MS * (1 - free) < statistics.median(times) < WIRE_OF_256_KIB_MS * 1.5


def test_a_small_message_takes_its_wire_time_on_a_thin_link(usual):
    """24 KiB, a token's sums, at 80 Mbps: 2.5 ms by the wire, of which a full bucket saves 0.5."""
    usual.lab("set", "pi-1", "bandwidth_mbps=80")
    times = usual.json("traffic.py", "pause", 24 * 2**10)[0]
    usual.lab("set", "pi-1", "bandwidth_mbps=940")

    wire_ms = 24 * 2**10 * 8 / 80e6 * 1e3
    free = burst_of(80e6 / 8) / (24 * 2**10)
    assert wire_ms * (1 - free) * 0.95 < statistics.median(times) < wire_ms * 1.5


def test_times_do_not_come_in_coarse_steps(usual):
    """On a 24.6 GFLOP/s host: sorted, the usual durations of one product leave no gap beyond its quota's period."""
    lab = load_lab(usual.name)
    period_ms = brake_of(lab).quota_us(lab.host("pi-0").cores)[1] * lab.scale / 1e3

    def widest_gap():
        done = usual.on("pi-0", "python", str(PROGRAMS / "products.py"))
        times = sorted(json.loads(done.stdout))
        usual_ones = times[len(times) // 20 : -len(times) // 20]
        return max(later - earlier for earlier, later in pairwise(usual_ones))

    assert min(widest_gap() for _ in range(2)) < period_ms + 1


def test_a_memory_cap_ends_the_rank_that_breaks_it_and_names_it(odd, usual):
    """And nothing else: a run on the other lab goes on."""
    with usual.running("idle.py") as other:
        done = odd.launch("lab", "run", odd.name, "--", "python", PROGRAMS / "eat.py", "1")
        assert other.poll() is None

    assert done.returncode not in (0, 2)
    assert "its memory cap of 1.00 GiB" in done.stderr
    assert done.stderr.count("was killed") == 1


def test_a_second_lab_does_not_slow_the_first(odd, usual):
    """Speeds of its hosts while the other lab works, against before and after, in one run."""

    def measure():
        with usual.running("speed.py", 30) as process:  # the other lab's begins within it, however slow its start
            time.sleep(3)
            _, other = odd.json("speed.py", 6)[0]
            begin, end = other[0][0], other[-1][0]
            hosts = [windows for _, windows in json.loads(process.stdout.readline())]
        busy = [statistics.median(value for at, value in windows if begin < at < end) for windows in hosts]
        quiet = [statistics.median(value for at, value in windows if not begin < at < end) for windows in hosts]
        return [min(1.0, one / other) for one, other in zip(busy, quiet, strict=True)]

    assert_near([1.0] * 3, measure)


def test_two_labs_do_not_see_each_other(odd, usual):
    """The third host of one lab is nowhere in the other, which has two."""
    found = usual.on("pi-0", "bash", "-c", "echo > /dev/tcp/pi-2/1")
    missing = odd.on("pi-0", "timeout", "3", "bash", "-c", "echo > /dev/tcp/10.83.0.3/1")

    assert "Connection refused" in found.stderr
    assert missing.returncode != 0
    assert "Connection refused" not in missing.stderr


def test_a_cut_cable_stops_traffic_until_it_is_mended(usual):
    with usual.running("idle.py") as process:
        usual.lab("cut", "pi-1")
        meetings(process, 0.5)  # those from before
        silent = meetings(process, 2)
        usual.lab("mend", "pi-1")
        again = meetings(process, 6)

    assert silent == 0
    assert again >= 2


def test_killing_a_host_ends_all_on_it_and_the_run(usual):
    with usual.running("idle.py") as process:
        said = usual.lab("kill", "pi-2")
        process.wait(timeout=30)

    assert re.fullmatch(r"killed [2-9] processes on pi-2\n", said)
    assert process.returncode != 0
    assert [host["processes"] for host in json.loads(usual.lab("status", "--json"))["hosts"]] == [0, 0, 0]


def meetings(process, seconds):
    """Count the lines that a program prints within so many seconds."""
    end, count = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], left)[0]:
            count += os.read(process.stdout.fileno(), 4096).count(b"\n")
    return count
