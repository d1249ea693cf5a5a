"""What all tests share."""

import os

# Before numpy and torch are imported: their threads of several tests at once would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests import sweeps


def pytest_report_header():
    """Say which sweep this is, so that it can be repeated."""
    return f"sweeps: all cases, HEPTI_TEST_SEED={sweeps.SEED}" if sweeps.ALL else "sweeps: a few cases of each"
