"""The four sub-layers of a layer, as PipeEdge cuts it (arXiv 2110.14895): where a stage may begin and end.

=  ==============================================  =====================================
   what it computes                                what lies after it
=  ==============================================  =====================================
0  (norm,) Q, K, V, scores and context             context and residual, H and H a row
1  output product, residual(, norm)                the stream, H
2  (norm,) up and its activation                   inner columns and residual, F and H
3  down, residual(, norm)                          the stream, H
=  ==============================================  =====================================

Within a block, after 0 or 2, only what is cut by rows can be cut: context and inner columns of other cuts lie by heads
and columns, and the residual by rows.
"""

from __future__ import annotations

from solver.model.spec import ModelSpec

HALVES = 2  # sub-layers of a block
LEGEND = "Layer.sub-layer: .0 Q, K, V, context; .1 output; .2 MLP up; .3 MLP down."


def widths(spec: ModelSpec, layer: int, done: int) -> tuple[int, ...]:
    """Return the width of every tensor that travels where a stage begins, with so many sub-layers of a layer done."""
    if done % HALVES == 0:
        return (spec.hidden,)
    return spec.run(layer).blocks[done // HALVES].kind.inner_columns, spec.hidden
