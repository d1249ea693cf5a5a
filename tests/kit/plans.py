"""Random plans, legal in every way the contract allows: any cuts, uneven and empty shares; models a little changed."""

import dataclasses
from copy import deepcopy
from itertools import pairwise

from hypothesis import strategies as st

from solver.base.spans import Partition, Span
from solver.model.blocks import Cut
from solver.model.kinds.attention import Attention
from solver.model.kinds.part import FFN, HEAD
from solver.model.kinds.weight import BLOCK
from solver.model.spec import TextInput, encoder, encoder_widths
from solver.plan.changes import everything
from solver.plan.decoder_plan import ROWS_BY_MPI, DecoderPlan, DecoderPrediction, DecoderStage, totals_of
from solver.plan.holdings import end_slices
from solver.plan.plan import WIRES, BlockPlan, Keys, Plan, Prediction, Stage, StreamLayout, Wire
from solver.plan.routes import Route

SPEC = encoder("tiny", hidden=20, ffn=37, heads=5, layers=4, input=TextInput(50, 32, 32))


def like(spec, **fields):
    """Return an encoder with some of the fields of `encoder` or `ModelSpec` changed."""
    facts = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.name != "runs"}
    return encoder(**{**facts, **encoder_widths(spec), **fields})


def joined(name, *specs):
    """Return the model of the layers of several, one after the other."""
    return dataclasses.replace(specs[0], name=name, runs=tuple(run for spec in specs for run in spec.runs))


def shares(ranks):
    weights = st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks).filter(any)
    return weights.map(lambda given: tuple(weight / sum(given) for weight in given))


@st.composite
def blocks(draw, ranks, block):
    cut = draw(st.sampled_from([Cut.ROWS, Cut.COLUMNS, Cut.BLOCK, Cut.TO_ROWS, Cut.GRID]))
    has_keys = cut is Cut.ROWS and isinstance(block.kind, Attention) and draw(st.booleans())
    ways = st.tuples(*[st.sampled_from(Keys)] * ranks) if has_keys else st.none()
    norm = (
        StreamLayout.ROWS
        if cut in (Cut.ROWS, Cut.TO_ROWS, Cut.GRID)
        else draw(st.sampled_from([StreamLayout.FULL, StreamLayout.ROWS]))
    )
    # As many spans of columns as ranks, or as rows of a grid.
    spans = {Cut.COLUMNS: [ranks], Cut.GRID: [rows for rows in range(1, ranks + 1) if ranks % rows == 0]}.get(cut)
    return BlockPlan(
        block.name,
        cut,
        inner=None if cut is Cut.ROWS else Partition.of_shares(draw(shares(ranks)), block.inner.count),
        columns=Partition.of_shares(draw(shares(draw(st.sampled_from(spans)))), block.hidden) if spans else None,
        norm=norm,
        rows=draw(shares(ranks)) if norm is StreamLayout.ROWS else None,
        route=draw(st.sampled_from(Route)),
        keys=draw(ways),
        groups=draw(st.integers(1, 4)) if cut is Cut.TO_ROWS else 1,
    )


@st.composite
def runs(draw, spec, start, stop, ranks):
    """Draw what a stage of so many ranks does with layers `start` to `stop`."""
    stops = sorted({start, stop} | draw(st.sets(st.integers(start, stop))))
    return tuple((Span(*ends), tuple(draw(blocks(ranks, block)) for block in spec.blocks)) for ends in pairwise(stops))


@st.composite
def stages(draw, spec, names, max_replicas):
    """Draw stages of one or more replicas; every device is in one, in any order of the ranks."""
    shuffled = draw(st.permutations(range(len(names))))
    crews = split(shuffled, draw(st.sets(st.integers(1, len(names)), max_size=len(names))))
    starts = sorted(draw(st.sets(st.integers(1, len(crews)), max_size=max_replicas - 1)))
    found = []
    for crew_group in split(crews, starts):
        crew_group = crew_group[: spec.layers]
        size = len(crew_group) - 1
        inner = draw(st.sets(st.integers(1, spec.layers - 1), min_size=size, max_size=size))
        for crew, ends in zip(crew_group, pairwise(sorted({0, spec.layers} | inner)), strict=True):
            devices = tuple(names[rank] for rank in sorted(crew))
            found.append(Stage(devices, draw(runs(spec, *ends, len(crew)))))
    return tuple(found)


def split(items, stops):
    """Cut a list at these places; no part is empty."""
    ends = sorted({0, len(items)} | {stop for stop in stops if stop < len(items)})
    return [list(items[start:stop]) for start, stop in pairwise(ends)]


@st.composite
def plans(draw, spec=SPEC, max_ranks=4, max_replicas=1):
    ranks = draw(st.integers(1, max_ranks))
    names = tuple(f"pi-{rank}" for rank in range(ranks))
    numbers = st.integers(0, 10**12)
    prediction = st.builds(
        Prediction,
        *[st.floats(0, 1e6)] * 3,
        weights_bytes=st.tuples(*[numbers] * ranks),
        bytes_on_wire=numbers,
    )
    found = Plan(
        draw(stages(spec, names, max_replicas)),
        model_name=spec.name,
        model_fingerprint=draw(st.sampled_from(["", spec.fingerprint])),
        cluster_fingerprint=draw(st.sampled_from(["", "0123456789ab"])),
        system=draw(st.sampled_from(["", "hepti"])),
        rows=draw(st.integers(0, 512)),
        tile_rows=draw(st.integers(0, 512)),
        predicted=draw(st.none() | prediction),
        devices=names,
    )
    return dataclasses.replace(found, wire=draw(st.sampled_from(WIRES if found.in_one else Wire)))


@st.composite
def decoder_plans(draw, model, max_ranks=4):
    """Draw plans of a language model: every rank is in one stage, with or without a share."""
    ranks = draw(st.integers(1, max_ranks))
    crews = split(range(ranks), draw(st.sets(st.integers(1, ranks), max_size=len(model.layers) - 1)))
    inner = st.sets(st.integers(1, len(model.layers) - 1), min_size=len(crews) - 1, max_size=len(crews) - 1)
    ends = sorted({0, len(model.layers)} | draw(inner))
    rows_from = draw(st.sampled_from([0, ROWS_BY_MPI, 99]))

    def over(crew, total, unit=1):
        own = dict(zip(crew, Partition.of_shares(draw(shares(len(crew))), total // unit).counts, strict=True))
        return Partition.of_counts(own.get(rank, 0) * unit for rank in range(ranks))

    stages = [
        DecoderStage(Span(*span), {axis: over(crew, total) for axis, total in totals_of(model, Span(*span)).items()})
        for crew, span in zip(crews, pairwise(ends), strict=True)
    ]
    if draw(st.booleans()):
        outputs = draw(st.sampled_from([(HEAD,), (FFN,), (HEAD, FFN)]))
        stages = [
            dataclasses.replace(stage, outputs={axis: over(crew, model.hidden, BLOCK) for axis in outputs})
            for crew, stage in zip(crews, stages, strict=True)
        ]
    context = draw(st.integers(1, 512))
    if draw(st.booleans()):
        stages = [
            dataclasses.replace(stage, keys=over(crew, draw(st.integers(1, context))).counts)
            for crew, stage in zip(crews, stages, strict=True)
        ]
    if rows_from:
        rows_end = draw(st.booleans())
        stages = [dataclasses.replace(stage, rows=over(stage.ranks, 7).counts, rows_end=rows_end) for stage in stages]
    seconds, counts = [st.floats(0, 1e6)] * 4, st.integers(0, 10**12)
    prediction = st.builds(DecoderPrediction, *seconds, st.tuples(*[counts] * ranks), counts, counts)
    at_work = sorted(rank for stage in stages for rank in stage.ranks)
    return DecoderPlan(
        draw(st.sampled_from(["", "hepti"])),
        tuple(f"pi-{rank}" for rank in range(ranks)),
        tuple(stages),
        over(stages[-1].ranks, model.vocab),
        wire=draw(st.sampled_from(WIRES)),
        cache=draw(st.sampled_from(["float32", "int8"])),
        context=context,
        sequences=draw(st.integers(1, 9)),
        two_steps_from=draw(st.integers(1, ROWS_BY_MPI)),
        rows_from=rows_from,
        hidden=draw(st.sampled_from([None, over(stages[-1].ranks, model.hidden, BLOCK)])),
        predicted=draw(st.none() | prediction),
        embedding=over(at_work, model.vocab) if draw(st.booleans()) else None,
    )


def changed(table, *steps, value=None, drop=False):
    """Return a copy of some JSON with the node at the end of `steps` replaced or dropped."""
    table = deepcopy(table)
    node = table
    for step in steps[:-1]:
        node = node[step]
    if drop:
        del node[steps[-1]]
    else:
        node[steps[-1]] = value
    return table


def rank_slices(spec, plan, rank):
    """Return all that a rank gets which has nothing yet; embeddings and heads are rank 0's."""
    shares = everything(spec, [plan], rank)
    own = [piece for layer, blocks in shares.items() for share in blocks for piece in share.of_layer(layer)]
    return [*(end_slices(spec) if rank == 0 else ()), *own]
