"""Interrupts one core again and again, so that the kernel notices used-up CPU quotas in time.

    python ticker.py CORE SECONDS

The kernel looks at a running process's quota only when something happens on its core, else at its tick, 4 ms at 250
Hz: a 26 % host then ran for 4 ms and stood still for 12, and one product took 18 or 30 ms. Interrupted every
millisecond it runs for 1 ms and stands still for 3, and takes 20 to 24. An interruption takes 11 µs of the core,
outside the quotas.
"""

import os
import sys
import time

core, interval_s = int(sys.argv[1]), float(sys.argv[2])
os.sched_setaffinity(0, {core})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))  # before the hosts, which may have priority 1
while True:
    time.sleep(interval_s)
