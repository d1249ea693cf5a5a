"""Executors of this process: tests need not wait for another one."""

from concurrent.futures import Executor, Future


class AtOnce(Executor):
    """Runs a function as it is submitted."""

    def submit(self, function, /, *arguments):
        """Return a future that is done."""
        future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class Held(Executor):
    """Is done with what is submitted when it is told so."""

    def __init__(self):
        self.waiting = []

    def submit(self, function, /, *arguments):
        """Return a future that is done when the test says so."""
        future = Future()
        self.waiting.append((future, function, arguments))
        return future

    def finish(self):
        """Do what was submitted."""
        for future, function, arguments in self.waiting:
            future.set_result(function(*arguments))
        self.waiting.clear()
