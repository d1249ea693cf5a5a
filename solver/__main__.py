"""`python -m solver`: plan for a cluster that need not be there, and show who gets what."""

from solver.base import stopping


def load() -> stopping.Main:
    """Import the command line."""
    from solver.cli import main

    return main


if __name__ == "__main__":
    stopping.run("python -m solver", load)
