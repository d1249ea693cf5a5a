"""How long tests take: the ten slowest, and the limit above which a test has to say why it is slow.

`@pytest.mark.slow("reason")` is that reason. The limit is for a quiet machine; on a busy one it is longer.
"""

import os

LIMIT_S = 5.0
# Cores differ by a third from minute to minute, and two tests at once share caches, memory and what programs start.
UNSTEADY = 2.0
SLOWEST = 10


def limit_s(load, cores):
    """Return what a test may take where `load` processes want `cores`, as the kernel's load average counts them."""
    return LIMIT_S * UNSTEADY * max(1.0, load / cores)


def too_long(seconds, slow, limit):
    """Return the lines that name the tests above the limit which carry no mark.

    Parameters
    ----------
    seconds
        What each test took, by its name.
    slow
        The names of those that carry the mark.
    limit
        What a test may take, in seconds.
    """
    names = [name for name, taken in seconds.items() if taken > limit and name not in slow]
    return [
        f"{name} took {seconds[name]:.1f} s of {limit:.1f}: make it shorter, or say why in @pytest.mark.slow(…)"
        for name in names
    ]


class Durations:
    """The plugin: sees the reports of all workers."""

    def __init__(self):
        self._seconds = {}
        self._slow = set()

    def pytest_runtest_logreport(self, report):
        """Note what a test took itself, without its fixtures."""
        if report.when == "call":
            self._seconds[report.nodeid] = report.duration
            if "slow" in report.keywords:
                self._slow.add(report.nodeid)

    def _complaints(self):
        return too_long(self._seconds, self._slow, limit_s(os.getloadavg()[0], os.cpu_count()))

    def pytest_sessionfinish(self, session, exitstatus):
        """Fail where a test took too long without a reason."""
        if exitstatus == 0 and self._complaints():
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter):
        """Print the slowest, and those that are too slow."""
        slowest = sorted(self._seconds.items(), key=lambda found: -found[1])[:SLOWEST]
        terminalreporter.section(f"the {len(slowest)} slowest")
        for name, taken in slowest:
            terminalreporter.line(f"{taken:6.1f} s  {name}{'  (slow)' if name in self._slow else ''}")
        for line in self._complaints():
            terminalreporter.line(line, red=True)
