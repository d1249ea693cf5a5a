"""What all tests share."""

from tests import sweeps


def pytest_report_header():
    """Say which sweep this is, so that it can be repeated."""
    return f"sweeps: all cases, HEPTI_TEST_SEED={sweeps.SEED}" if sweeps.ALL else "sweeps: a few cases of each"
