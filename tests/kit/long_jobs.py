"""A job that stays: started once, it answers lines of standard input for as long as tests have questions."""

import json
from contextlib import contextmanager

from tests.kit.commands import start

STAYS_S = 900


class LongJob:
    """Tells a job lines, and hears what it answers."""

    def __init__(self, process):
        self.process = process
        self.told = 0  # lines so far: the next one is answered under the next number, if it has no id

    def tell(self, *entries):
        """Write lines: objects as JSON, texts as they are."""
        for entry in entries:
            print(entry if isinstance(entry, str) else json.dumps(entry), file=self.process.stdin, flush=True)
        self.told += len(entries)

    def hear(self):
        """Return the next line that the job says."""
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def ask(self, entry):
        """Tell one line, and return the next that is said."""
        self.tell(entry)
        return self.hear()

    def answers(self, *entries):
        """Tell several lines at once, and return their answers by id."""
        self.tell(*entries)
        return {answer["id"]: answer for answer in (self.hear() for _ in entries)}

    def end(self):
        """Say that nothing follows; return the exit code and what was not heard of output and errors."""
        rest, errors = self.process.communicate()
        return self.process.returncode, rest, errors


@contextmanager
def long_job(*command, timeout=STAYS_S, **variables):
    """Give a job that runs until the block ends."""
    with start(*command, timeout=timeout, **variables) as process:
        job = LongJob(process)
        yield job
        if process.poll() is None:
            job.end()
