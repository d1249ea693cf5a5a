"""A batch's way through a rank's layers, from one to the next: the plan may change on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hepti_mpi.engine.layers import Layer
from hepti_mpi.engine.steps import Pass
from solver.plan.plan import LayerPlan, Plan, Stage
from solver.plan.spans import Span

# Called before every layer; returns the plan that holds from there on, if it is another, and this rank's layers by it.
Look = Callable[[int], tuple[Plan, Sequence[Layer]] | None]


class ChangeableLayers:
    """A batch's way through this rank's layers, of which the plan may change.

    Parameters
    ----------
    plan
        Under which it begins.
    crew
        The stage's devices that run it.
    run, look
        As in `layers.Pass` and `Stack.run`.
    """

    def __init__(self, plan: Plan, crew: Sequence[int], run: Pass, look: Look | None) -> None:
        self.plan = plan
        self._crew, self._run, self._look = crew, run, look

    def through(
        self, layers: Sequence[Layer], cuts: Sequence[LayerPlan], parts: Sequence[Span]
    ) -> Iterator[tuple[Layer, LayerPlan, Span, Pass]]:
        """Yield the layers, each with its cuts when it is asked for."""
        for number, part in enumerate(parts):
            if self._look is not None and (turn := self._look(number)) is not None:
                (self.plan, layers), self._look = turn, None
                cuts = cuts_for(self.plan.stages[0], self._crew)
                self._run = replace(self._run, tile_rows=self.plan.tile_rows)
            yield layers[number], cuts[number], part, self._run


def cuts_for(stage: Stage, crew: Sequence[int]) -> list[LayerPlan]:
    """Return the cuts of every layer of a stage as a group of some of its devices sees them."""
    return [
        LayerPlan(layer.attention.only(crew), layer.mlp.only(crew))
        for span, layer in stage.layers
        for _ in range(span.size)
    ]
