"""A lab's hosts count its seconds."""

import os
import subprocess
import sys

import pytest

TIMES = """
import time
from solver.base import clock
began, by_clock = time.perf_counter(), clock.now()
clock.sleep(0.05)
print(clock.now() - by_clock, time.perf_counter() - began, clock.cpu_now() / time.process_time())
"""


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_sleep_of_the_lab_takes_longer_by_the_clock(scale):
    """50 ms of a lab at a half are 100 ms by the clock; CPU time is counted alike."""
    done = subprocess.run(
        [sys.executable, "-c", TIMES],
        env={**os.environ, "HEPTI_LAB_SCALE": str(scale)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    slept, by_clock, cpu = map(float, done.stdout.split())

    assert slept >= 0.05
    assert by_clock == pytest.approx(slept / scale, rel=0.02)
    assert cpu == pytest.approx(scale, rel=0.02)
