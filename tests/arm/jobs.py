"""`mpirun … python -m tests.arm.jobs JOBS.json FOLDER`: jobs in turn, in ranks that start once, which takes 15 s.

JOBS.json has the words of every job by its name; its last hidden states go to FOLDER/NAME.npz, its report to NAME.json.
"""

import json
import sys
from pathlib import Path

from hepti_mpi import __main__

__main__.limit_threads()
for name, words in json.loads(Path(sys.argv[1]).read_text()).items():
    files = Path(sys.argv[2], name)
    code = __main__.main([*words, "--output", f"{files}.npz", "--report", f"{files}.json"])
    if code:
        sys.exit(code)
