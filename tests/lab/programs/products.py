"""One rank times single products of 20 ms, after warming up; prints the milliseconds as JSON."""

import json

from launch.lab.probe import product
from solver.base import clock

multiply = product()
multiply()
times = []
for _ in range(200):
    begin = clock.now()
    multiply()
    times.append((clock.now() - begin) * 1e3)
print(json.dumps(times[20:]))
