"""The one kind of error that a user can mend."""


class HeptiError(Exception):
    """Bad usage or bad input: one line that says what is wrong and how to mend it; exit code 2."""


class InfeasiblePlanError(HeptiError):
    """No plan fits: the message says how many bytes are missing and where."""
