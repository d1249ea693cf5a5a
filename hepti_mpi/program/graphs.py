"""What computes a rank's part of a model under a plan, by key: what is there already is taken over, the rest lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key")
Wanted = TypeVar("Wanted")  # what a graph is made by
Made = TypeVar("Made")


class Graphs(Generic[Key, Wanted, Made]):
    """A rank's graphs.

    Parameters
    ----------
    wanted
        By their keys, what they are made by; those of one key are one.
    before
        Those that are there: the same are taken over.

    Attributes
    ----------
    graphs
        What is ready to run; those that are lacking are not there yet.
    """

    def __init__(self, wanted: Iterable[tuple[Key, Wanted]], before: Sequence[Graphs[Key, Wanted, Made]]) -> None:
        self.graphs: dict[Key, Made] = {}
        self._lacking: dict[Key, Wanted] = {}
        for key, own in wanted:
            there = next((others.graphs[key] for others in before if key in others.graphs), None)
            if there is None:
                self._lacking[key] = own
            else:
                self.graphs[key] = there
