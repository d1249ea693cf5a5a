"""One rank times single products of 20 ms, after warming up; prints the milliseconds as JSON."""

import json

import numpy as np

from solver.base import clock

left, right = np.ones((256, 1024), np.float32), np.ones((1024, 1024), np.float32)
out = left @ right
times = []
for _ in range(200):
    begin = clock.now()
    np.matmul(left, right, out=out)
    times.append((clock.now() - begin) * 1e3)
print(json.dumps(times[20:]))
