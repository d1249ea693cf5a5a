"""2-D tiles: what moves between them, and the grid that `grid2d` takes, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from solver.base.spans import Partition
from solver.model.blocks import Cut
from solver.model.named import named_model
from solver.model.spec import ModelSpec, with_layers
from solver.plan.changes import Holdings
from solver.plan.holdings import weights_bytes
from solver.plan.plan import BlockPlan, StreamLayout, Wire, block_by_rows, uniform_plan
from solver.programs.lengths import for_rows
from solver.schedule.encoders.cost import price, setting
from solver.schedule.encoders.placing import request_schedule
from solver.schedule.schedule import ExchangeStep
from solver.systems import make_plan
from solver.systems.grid2d import grid_rows, nested, sent_of_row
from tests.kit.clusters import pis
from tests.kit.encoders import POST
from tests.kit.plans import like

SPEC = named_model("bert-base", layers=3)  # H 768, F 3072, 12 heads of 64
SMALL = like(POST, hidden=8, ffn=6, heads=2, layers=3)


def sent(
    spec: ModelSpec, inner: list[int], columns: list[int], rows: list[int], wire: Wire = Wire.FLOAT32
) -> dict[str, np.ndarray]:
    """Return the bytes that every rank sends in each exchange of an MLP's grid, by its name; the rest is by rows."""
    shares = tuple(np.array(rows) / sum(rows))
    mlp = BlockPlan(
        "mlp", Cut.GRID, Partition.of_counts(inner), Partition.of_counts(columns), StreamLayout.ROWS, shares
    )
    plan = uniform_plan(spec, [f"pi-{rank}" for rank in range(len(rows))], (block_by_rows(spec.blocks[0], shares), mlp))
    _, steps = request_schedule(spec, plan, sum(rows))
    own = [step for step in steps if isinstance(step, ExchangeStep) and step.layers.start == 0 and step.layers.size]
    return {step.name: step.wire_bytes(wire).sum((0, 1, 3)) for step in own}


def of_two_by_two(columns: list[int], wire: Wire = Wire.FLOAT32) -> dict[str, np.ndarray]:
    """Return those of two rows by two columns: some columns of H, 7 rows, 6 columns of F."""
    return sent(SMALL, [1, 2, 3, 0], columns, [4, 0, 1, 2], wire)


def test_the_exchanges_of_uneven_tiles_move_what_is_counted_by_hand():
    """Ranks 0 and 2 are in the first row of the grid, 0 and 1 in its first column."""
    grid = of_two_by_two([3, 5])

    assert (grid["columns to tiles"] / 4).tolist() == [4 * (5 + 3 + 5), 0, 1 * (3 + 5 + 5), 2 * (3 + 5 + 3)]
    assert (grid["add up"] / 4).tolist() == [7 * 2, 7 * 1, 0, 7 * 3]
    assert (grid["spread"] / 4).tolist() == [7 * 1, 7 * 2, 7 * 3, 0]
    assert (grid["reduce"] / 4).tolist() == [3 * 3, 5 * 7, 3 * 6, 5 * 5]


def test_a_rank_without_a_tile_sends_only_its_rows():
    """The second row of the grid has no columns of H; ranks 1 and 3 still add up some of what lies between."""
    grid = of_two_by_two([8, 0])

    assert (grid["columns to tiles"] / 4).tolist() == [4 * 8, 0, 1 * 8, 2 * 2 * 8]
    assert (grid["add up"] / 4).tolist() == [7 * 2, 0, 0, 0]
    assert (grid["spread"] / 4).tolist() == [0, 7 * 2, 0, 0]
    assert (grid["reduce"] / 4).tolist() == [3 * 8, 0, 6 * 8, 0]


def test_thin_wires_have_a_scale_for_every_row_of_a_message():
    grid = of_two_by_two([3, 5], Wire.INT8)

    assert grid["columns to tiles"].tolist() == [4 * (9 + 7 + 9), 0, 1 * (7 + 9 + 9), 2 * (7 + 9 + 7)]
    assert grid["add up"].tolist() == [7 * (2 + 4), 7 * (1 + 4), 0, 7 * (3 + 4)]


def test_equal_tiles_send_what_the_paper_says():
    """Pope et al.: 2 S (H/X + F/Y) for the MLP, times (p - 1)/p and (X - 1)/X where counted to the number."""
    S, H, F, X, Y = 64, 768, 3072, 2, 4

    every = sent(SPEC, [F // 8] * 8, [H // X] * X, [S // 8] * 8)

    own = sum(every[name] for name in ("columns to tiles", "add up", "spread", "reduce"))
    assert (own == 4 * 2 * S * (H / X * 7 / 8 + F / Y * 1 / 2)).all()


def test_the_grid_is_the_one_that_sends_least():
    """By hand for H 768, F 3072, numbers a row: of 8 devices 2 by 4 send 1344 + 1152, 4 by 2 send 672 + 3456."""
    assert (sent_of_row(SPEC, 2, 4), sent_of_row(SPEC, 4, 2)) == (1344 + 1152, 672 + 3456)
    assert sent_of_row(SPEC, 1, 8) == 4 * 768 * 7 / 8 > sent_of_row(SPEC, 2, 4)  # tensor parallelism sends more
    assert sent_of_row(SPEC, 1, 4) == 4 * 768 * 3 / 4 < sent_of_row(SPEC, 2, 2)  # and of four devices less
    # 36 devices: 3 by 12 send 995.6 + 512, 2 by 18 send 1493.3 + 256, 4 by 9 send 746.7 + 768.
    assert [grid_rows(SPEC, devices) for devices in (4, 6, 8, 16, 36)] == [2, 2, 2, 2, 3]
    assert [grid_rows(SPEC, devices) for devices in (1, 2, 3, 5, 7)] == [1] * 5  # nothing else divides a prime


def test_heads_are_shared_over_the_columns_of_the_grid_first():
    assert nested(12, 2, 4).counts == (2, 1) * 4
    assert nested(5, 2, 2).counts == (2, 1, 1, 1)


@pytest.mark.parametrize("devices", [1, 2, 4, 6, 8])
def test_a_plan_of_grid2d_holds_and_sends_equal_shares(devices):
    cluster = pis(*[10] * devices)
    three, two = (make_plan("grid2d", with_layers(SPEC, layers), cluster, 96) for layers in (3, 2))
    X = grid_rows(SPEC, devices)

    attention, mlp = three.layer(0)
    assert attention.cut is mlp.cut is Cut.GRID
    assert mlp.inner.counts == (3072 // devices,) * devices
    assert mlp.columns.counts == (768 // X,) * X
    held = [weights_bytes(SPEC, three, rank) for rank in range(1, devices)]
    common = 6 * 768 * 4  # two norms and two last biases
    assert all(size == pytest.approx(3 * (12 * 768**2 / devices * 4 + common), rel=0.01) for size in held)
    if 12 % devices == 0:  # then heads are equal, too
        sent = three.predicted.bytes_on_wire - two.predicted.bytes_on_wire
        assert sent == 4 * 96 * devices * sent_of_row(SPEC, X, devices // X)


def test_a_grid_of_one_row_takes_as_long_as_blocks():
    """1 by p: the same products and the same bytes as Galaxy's cut; the activation is a pass of its own."""
    cluster, shares = pis(10, 20, 10), (0.25, 0.5, 0.25)
    heads, columns = Partition.of_counts([3, 6, 3]), Partition.of_counts([768, 1536, 768])
    whole, shared = Partition.of_counts([768]), (("attention", heads), ("mlp", columns))
    by_block = tuple(BlockPlan(name, Cut.BLOCK, own, norm=StreamLayout.ROWS, rows=shares) for name, own in shared)
    by_grid = tuple(BlockPlan(name, Cut.GRID, own, whole, StreamLayout.ROWS, shares) for name, own in shared)

    block, grid = (
        price(setting(SPEC, cluster, 96), uniform_plan(SPEC, cluster.names, layer)).prediction
        for layer in (by_block, by_grid)
    )

    assert (grid.bytes_on_wire, grid.weights_bytes) == (block.bytes_on_wire, block.weights_bytes)
    assert grid.seconds == pytest.approx(block.seconds, rel=0.05)
    # Bias and activation are not in its first product: the kernels are others, though the weights are the same.
    before, after = (uniform_plan(SPEC, cluster.names, layer) for layer in (by_block, by_grid))
    assert list(Holdings(before, 3).lacking(SPEC, after, 0)) == [0, 1, 2]


def test_a_grid_keeps_its_shares_at_other_lengths():
    cluster = pis(10, 10, 10, 10)
    plan = make_plan("grid2d", SPEC, cluster, 96)

    other = for_rows(SPEC, cluster, plan, 32)

    assert other.stages == plan.stages
    assert other.rows == 32
