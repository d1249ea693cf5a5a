"""What a function says of everything that it refuses: a line a case, to be kept."""

from solver.base.errors import HeptiError


def said(function, cases, error=HeptiError):
    """Return what is said of each case, a line each; every one is refused in one line.

    Parameters
    ----------
    function
        What refuses; a case that is a tuple is its arguments, any other its only one.
    cases
        What is refused, one after the other.
    error
        What is raised.
    """
    return "\n".join(_line(function, case if isinstance(case, tuple) else (case,), error) for case in cases)


def _line(function, arguments, error):
    try:
        function(*arguments)
    except error as refusal:
        line = str(refusal)
        assert line, arguments
        assert "\n" not in line
        return line
    raise AssertionError(f"not refused: {arguments}")


def without_none(table):
    """Return a table without the keys whose value is None, which is how a case drops one."""
    return {key: value for key, value in table.items() if value is not None}
