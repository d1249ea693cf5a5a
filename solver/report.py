"""A plan as tables that a person reads."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from solver.cluster import Cluster
from solver.model import ModelSpec
from solver.plan import BlockPlan, LayerPlan, Plan
from solver.spans import Span

MIB = 2**20


def print_plan(spec: ModelSpec, cluster: Cluster, plan: Plan) -> None:
    """Print who gets what, and what it is expected to cost."""
    console = Console()
    assert plan.predicted is not None
    for stage in plan.stages:
        for span, layer in stage.layers:
            console.print(_shares(spec, plan, span, layer))
    console.print(_memory(cluster, plan))
    facts = plan.predicted
    console.print(
        f"[bold]{1e3 * facts.seconds:.1f} ms[/] a request of {plan.rows} rows: {1e3 * facts.compute_s:.1f} compute, "
        f"{1e3 * facts.exchange_s:.1f} exchange; {facts.bytes_on_wire / MIB:.1f} MiB on the wire"
    )


def _shares(spec: ModelSpec, plan: Plan, span: Span, layer: LayerPlan) -> Table:
    """Return one run of layers: who has which rows, heads and columns."""
    last = f"-{span.stop - 1}" if span.size > 1 else ""
    table = Table(
        title=f"{spec.name} by {plan.system}: layer{'s' * (span.size > 1)} {span.start}{last}", title_justify="left"
    )
    table.add_column("device")
    for name, block, unit in (("attention", layer.attention, "heads"), ("mlp", layer.mlp, "ffn columns")):
        table.add_column(f"{name}: {block.cut}\n{unit if block.inner else 'rows'}", justify="right")
        if block.columns:
            table.add_column(f"{name}\noutput columns", justify="right")
        if block.inner and block.rows:
            table.add_column(f"{name}\nnorm on rows", justify="right")
    for rank, device in enumerate(plan.devices):
        cells = [*_cells(layer.attention, plan.rows, rank), *_cells(layer.mlp, plan.rows, rank)]
        table.add_row(device, *cells)
    return table


def _cells(block: BlockPlan, rows: int, rank: int) -> list[str]:
    partitions = (block.inner, block.columns, block.row_partition(rows))
    return [str(partition[rank].size) for partition in partitions if partition is not None]


def _memory(cluster: Cluster, plan: Plan) -> Table:
    """Return what every device holds, beside what it can."""
    assert plan.predicted is not None
    table = Table(title="weights", title_justify="left")
    for heading in ("device", "GFLOP/s", "MiB free", "MiB of weights"):
        table.add_column(heading, justify="left" if heading == "device" else "right")
    for device, held in zip(cluster.devices, plan.predicted.weights_bytes, strict=True):
        free = device.memory_bytes / MIB
        style = "bold red" if held > device.memory_bytes else ""
        speed = device.compute_flop_per_s / 1e9
        table.add_row(device.name, f"{speed:.1f}", f"{free:.0f}", f"{held / MIB:.0f}", style=style)
    return table
