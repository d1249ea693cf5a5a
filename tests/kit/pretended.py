"""Rank 0 of several that are not there: for what is decided before ranks compute, which needs no processes."""

from hepti_mpi.comm.group import Group, SharedError, world
from solver.base.errors import HeptiError


class RankZero(Group):
    """Rank 0 of so many: what it does in a step, all others do, too; nothing can be sent to them."""

    def __init__(self, ranks):
        super().__init__(world()._comm)
        self.size = ranks

    def from_root(self, step):
        """Run rank 0's step."""
        try:
            return step()
        except HeptiError as error:
            raise SharedError(str(error)) from error

    def on_all(self, step):
        """Run a step once, and give as many results as there are ranks."""
        return [self.from_root(step)] * self.size

    def abort(self, message, code):
        """Say what would have ended all ranks: a refusal is one that they share."""
        raise AssertionError(f"rank 0 ends the job with code {code}: {message}")
