"""2-D weight-stationary: Pope et al., "Efficiently Scaling Transformer Inference", arXiv 2211.05102, section 3.2.2.

The devices are a grid of X rows by Y columns, and every weight is cut along both of its axes, H over the rows and F (or
the heads) over the columns, in equal parts; all-gather and reduce-scatter run along the columns for [S, H/X] and along
the rows for [S, F/Y]. The MLP's exchanges take 2 S/bw (H/X + F/Y); the grid is the one for which they take least, with
X = sqrt(p)/2 where F = 4 H. Counted to the number, with the three tensors of Q, K and V, and the stream in rows between
the blocks (`solver.schedule.encoders.placing`), a device sends in a layer

    S (4 H/X (p - 1)/p + (2 F + 4 H)/Y (X - 1)/X)

Of the layouts that the paper has for attention this is the one for prefill, by heads, the weights in the same tiles as
the MLP's: 2 H/X (p - 1)/p + 4 H/Y (X - 1)/X numbers a row, of the above. By heads in whole rows of the weights it would
be 2 H (p - 1)/p, which is less for four devices only, and memory would be shared by heads alone.

A grid of one row is the paper's 1-D layout, which `megatron` and `galaxy` have. With fewer than eight devices it sends
less, and the rule above would take it; so that this system stays the 2-D one, its grid has several rows and several
columns, unless the number of devices is a prime.
"""

from __future__ import annotations

from solver.base.spans import Partition, largest_remainder
from solver.cluster.cluster import Cluster
from solver.model.blocks import Block, Cut, inner_of
from solver.model.spec import ModelSpec
from solver.plan.plan import BlockPlan, Plan, StreamLayout, blockwise_plan


def plan_grid2d(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Take the grid that sends least, with equal tiles and equal rows."""
    devices = len(cluster.devices)
    X = grid_rows(spec, devices)
    columns, shares = Partition.of_shares([1.0] * X, spec.hidden), (1 / devices,) * devices

    def tiled(block: Block) -> BlockPlan:
        inner = nested(inner_of(block, "grid2d").count, X, devices // X)
        return BlockPlan(block.name, Cut.GRID, inner, columns, StreamLayout.ROWS, shares)

    return blockwise_plan(
        spec, cluster.names, tiled, system="grid2d", rows=rows, cluster_fingerprint=cluster.fingerprint
    )


def grid_rows(spec: ModelSpec, devices: int) -> int:
    """Return X, the rows of the grid that sends least."""
    proper = [X for X in range(2, devices) if devices % X == 0]
    return min(proper, key=lambda X: sent_of_row(spec, X, devices // X), default=1)


def sent_of_row(spec: ModelSpec, X: int, Y: int) -> float:
    """Return the numbers that a device sends in a layer for every row of a request, by the formula above."""
    H, F, p = spec.hidden, spec.blocks[1].kind.inner_columns, X * Y
    return 4 * H / X * (p - 1) / p + (2 * F + 4 * H) / Y * (X - 1) / X


def nested(total: int, X: int, Y: int) -> Partition:
    """Share equally over the columns of the grid, then over the devices of each."""
    columns = largest_remainder([1.0] * Y, total)
    return Partition.of_counts([count for column in columns for count in largest_remainder([1.0] * X, column)])
