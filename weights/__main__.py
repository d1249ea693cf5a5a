"""`python -m weights`: convert, synthesize, inspect and verify weights files."""

from solver.base import stopping


def load() -> stopping.Main:
    """Import the command line."""
    from weights.cli import main

    return main


if __name__ == "__main__":
    stopping.run("python -m weights", load)
