"""`python -m launch.single`: one device alone, without Hepti."""

from solver.base import stopping


def load() -> stopping.Main:
    """Import the command line."""
    from launch.single.command import main

    return main


if __name__ == "__main__":
    stopping.run("python -m launch.single", load)
