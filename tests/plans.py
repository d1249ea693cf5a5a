"""Random plans, legal in every way the contract allows: any cuts, uneven and empty shares."""

from itertools import pairwise

from hypothesis import strategies as st

from solver.model import ModelSpec, TextInput
from solver.plan import BlockPlan, Cut, LayerPlan, Layout, Plan, Prediction, Stage, Wire
from solver.routes import Route
from solver.spans import Partition, Span

SPEC = ModelSpec("tiny", hidden=20, ffn=37, heads=5, layers=4, input=TextInput(50, 32, 32))


def shares(ranks):
    weights = st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks).filter(any)
    return weights.map(lambda given: tuple(weight / sum(given) for weight in given))


@st.composite
def blocks(draw, ranks, inner, columns):
    cut = draw(st.sampled_from(list(Cut)))
    norm = Layout.ROWS if cut is Cut.ROWS else draw(st.sampled_from([Layout.FULL, Layout.ROWS]))
    return BlockPlan(
        cut,
        inner=None if cut is Cut.ROWS else Partition.of_shares(draw(shares(ranks)), inner),
        columns=Partition.of_shares(draw(shares(ranks)), columns) if cut is Cut.COLUMNS else None,
        norm=norm,
        rows=draw(shares(ranks)) if norm is Layout.ROWS else None,
        route=draw(st.sampled_from(Route)),
    )


@st.composite
def plans(draw, spec=SPEC, max_ranks=4):
    ranks = draw(st.integers(1, max_ranks))
    stops = sorted(draw(st.sets(st.integers(1, spec.layers - 1))) | {0, spec.layers})
    runs = tuple(
        (
            Span(start, stop),
            LayerPlan(draw(blocks(ranks, spec.heads, spec.hidden)), draw(blocks(ranks, spec.ffn, spec.hidden))),
        )
        for start, stop in pairwise(stops)
    )
    numbers = st.integers(0, 10**12)
    prediction = st.builds(
        Prediction,
        *[st.floats(0, 1e6)] * 3,
        weights_bytes=st.tuples(*[numbers] * ranks),
        bytes_on_wire=numbers,
    )
    return Plan(
        (Stage(tuple(f"pi-{rank}" for rank in range(ranks)), runs),),
        model_name=spec.name,
        model_fingerprint=draw(st.sampled_from(["", spec.fingerprint])),
        cluster_fingerprint=draw(st.sampled_from(["", "0123456789ab"])),
        system=draw(st.sampled_from(["", "hepti"])),
        rows=draw(st.integers(0, 512)),
        tile_rows=draw(st.integers(0, 512)),
        wire=draw(st.sampled_from(Wire)),
        predicted=draw(st.none() | prediction),
    )
