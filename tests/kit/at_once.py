"""An executor that is done at once: tests need not wait for another process."""

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
