"""Programs of ours as text, for a Python that has none of our packages: the doctor's, and the boards' agents."""

from __future__ import annotations

from pathlib import Path

from solver.cluster import board


def sent(program: Path) -> str:
    """Return a program that imports the standard library and `solver.cluster.board` alone, with the latter."""
    name, own = board.__name__, Path(board.__file__).read_text()
    return (
        f"import sys\nsys.modules[{name!r}] = board = type(sys)({name!r})\n"
        f"exec({own!r}, board.__dict__)\nexec({program.read_text()!r})\n"
    )
