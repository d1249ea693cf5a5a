"""Small encoders and plans of any cuts for them, the requests that they are asked, and what the oracle answers."""

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np

from solver.base.spans import Partition, Span
from solver.model.blocks import Cut
from solver.model.spec import ImageInput, TextInput, encoder, tensor_shapes, with_layers
from solver.plan.plan import BlockPlan, Plan, Stage, StreamLayout, layer_by_rows
from solver.plan.routes import Route
from solver.schedule.encoders.cost import AlikePlans, alike_seconds
from solver.schedule.encoders.placing import CutBlock, batch_rows, cuts_of, request_crew
from tests.kit import reference
from tests.kit.plans import like
from weights.synthesize import encoder_spread, synthetic_rows

TEXT = TextInput(vocab=97, positions=600, max_rows=600, token_types=2)
POST = encoder("post", hidden=40, ffn=83, heads=5, layers=3, input=TEXT)
PRE = encoder(
    "pre", hidden=56, ffn=101, heads=7, layers=3, norm="pre", embedding_norm=False, final_norm=True,
    input=ImageInput(height=24, width=40, patch=8),
)  # fmt: skip
FIVE = with_layers(POST, 5)
LONG = like(POST, name="long", layers=9)
# Two groups of two decoupled layers and an original one; five sub-blocks of two heads, seven of one.
TEXTS = like(POST, hidden=60, heads=10, layers=6, groups=2, sub_blocks=5)
LAYOUTS = (StreamLayout.FULL, StreamLayout.ROWS)
KINDS = ("equal", "uneven", "empty")
CUTS = [
    (cut, norm)
    for cut in (Cut.ROWS, Cut.COLUMNS, Cut.BLOCK, Cut.GRID, Cut.TO_ROWS)
    for norm in LAYOUTS
    if cut not in (Cut.ROWS, Cut.GRID, Cut.TO_ROWS) or norm is StreamLayout.ROWS
]


@cache
def tensors_of(spec):
    return {
        name: synthetic_rows(name, shape, Span(0, shape[0]), encoder_spread(spec, name, shape))
        for name, shape in tensor_shapes(spec).items()
    }


@cache
def expected(spec, lengths):
    """Return a batch of random requests and the oracle's answers."""
    rng = np.random.default_rng(1)
    if isinstance(spec.input, TextInput):
        contents = [rng.integers(0, spec.input.vocab, rows) for rows in lengths]
    else:
        image = spec.input
        contents = [rng.standard_normal((3, image.height, image.width), np.float32) for _ in lengths]
    return contents, [reference.forward(spec, tensors_of(spec), content) for content in contents]


def lengths_of(spec, rng):
    if spec is PRE:
        return [spec.input.rows] * int(rng.integers(1, 3))
    return [[3, 1, 17, 2, 30], [1], [2], [40], [5, 64]][rng.integers(5)]


def shares(kind, ranks, rng):
    """Return weights of the ranks: equal, very uneven, or with empty ones."""
    if kind == "equal":
        return [1.0] * ranks
    weights = rng.pareto(0.7, ranks) + 0.01
    if kind == "empty":
        weights[rng.random(ranks) < 0.5] = 0
        if not weights.any():
            weights[rng.integers(ranks)] = 1
    return weights.tolist()


def block_plan(block, cut, norm, draw, route, rng):
    columns = None
    if cut is Cut.COLUMNS:
        columns = Partition.of_shares(draw(), block.hidden)
    elif cut is Cut.GRID:
        ranks = len(draw())
        rows = rng.choice([rows for rows in range(1, ranks + 1) if ranks % rows == 0])
        columns = Partition.of_shares(draw(rows), block.hidden)
    return BlockPlan(
        block.name,
        cut,
        inner=None if cut is Cut.ROWS else Partition.of_shares(draw(), block.inner.count),
        columns=columns,
        norm=norm,
        rows=tuple(np.array(weights) / sum(weights)) if norm is StreamLayout.ROWS and (weights := draw()) else None,
        route=route,
        groups=int(rng.integers(1, 4)) if cut is Cut.TO_ROWS else 1,
    )


def random_layer(spec, attention, mlp, kind, ranks, rng):
    def draw(parts=ranks):
        return shares(kind, parts, rng)

    cuts, routes = (attention, mlp), rng.choice(list(Route), 2)
    return tuple(
        block_plan(block, *cut, draw, Route(route), rng)
        for block, cut, route in zip(spec.blocks, cuts, routes, strict=True)
    )


def plan_of(spec, layers, ranks):
    stage = Stage(tuple(f"pi-{r}" for r in range(ranks)), tuple((Span(n, n + 1), cut) for n, cut in enumerate(layers)))
    return Plan((stage,), spec.name)


def random_plan(spec, rng, ranks):
    """Return a plan of any cuts, in runs of equal layers or not, with equal, uneven or empty shares."""
    layers = []
    while len(layers) < spec.layers:
        kind = KINDS[rng.integers(3)]
        cuts = (CUTS[rng.integers(len(CUTS))] for _ in range(2))
        layers += [random_layer(spec, *cuts, kind, ranks, rng)] * int(rng.integers(1, spec.layers + 1))
    return plan_of(spec, layers[: spec.layers], ranks)


def rows_plan(weights, spec=POST, tile_rows=0, route=Route.DIRECT):
    by_rows = layer_by_rows(spec.blocks, np.array(weights) / sum(weights))
    layer = tuple(replace(block, route=route) for block in by_rows)
    return replace(plan_of(spec, [layer] * spec.layers, len(weights)), tile_rows=tile_rows)


def one_device_plan(spec, parts, ranks):
    """Return stages of one device each, `parts` being (rank, first layer, end)."""
    rng = np.random.default_rng(0)
    cut = CUTS[0]
    stages = tuple(
        Stage((f"pi-{rank}",), ((Span(start, stop), random_layer(spec, cut, cut, "equal", 1, rng)),))
        for rank, start, stop in parts
    )
    return Plan(stages, spec.name, devices=tuple(f"pi-{rank}" for rank in range(ranks)))


def structure(plan, rows):
    """Return what plans of one stage have in common of which one schedule is for all: all but the sizes of shares."""
    (stage,) = plan.stages

    def of(block):
        shares = block.row_partition(rows), block.inner, None if block.cut is Cut.GRID else block.columns
        takes = tuple(None if own is None else own.taking for own in shares)
        return block.cut, block.norm, block.route, block.keys, block.groups, takes

    last = [layer[-1].rows for _, layer in stage.layers]
    moves = tuple(one == other for one, other in pairwise(last))  # the stream, between layers that are alike
    layers = tuple((span, tuple(map(of, layer))) for span, layer in stage.layers)
    return plan.tile_rows, plan.wire, stage.devices, stage.active, stage.sublayers, layers, moves


def requests_seconds(s, plans):
    """Return the seconds of a request by each of some plans, [n]; those of one structure are priced at once."""
    alike, found = defaultdict(list), np.zeros(len(plans))
    for number, plan in enumerate(plans):
        alike[structure(plan, s.rows)].append(number)
    for numbers in alike.values():
        some = [plans[number] for number in numbers]

        def cuts(crew, some=some):
            of_each = [
                cuts_of(plan.stages[0], crew, batch_rows(plan.stages[0], crew, [s.rows], plan.tile_rows))
                for plan in some
            ]
            return [tuple(map(together, zip(*layers, strict=True))) for layers in zip(*of_each, strict=True)]

        found[numbers] = alike_seconds(s, AlikePlans(some[0], request_crew(some[0]), cuts))
    return found


def together(blocks):
    """Return what several plans make of a block as one."""
    shares = zip(*((own.rows, own.inner, own.columns) for own in blocks), strict=True)
    return CutBlock(blocks[0].plan, *(None if some[0] is None else np.concatenate(some) for some in shares))
