"""What is said below tables of plans."""

import io

import pytest
from rich.console import Console

from solver.cluster.named import find_cluster
from solver.show.comparison import ComparedSystem
from solver.show.plan_tables import print_estimated


@pytest.mark.parametrize(
    ("measured", "gain", "said"),
    [
        (True, 1.0, ""), (True, 1.1, "1.10 times"), (True, 1.15, ""),
        (False, 1.0, "hepti profile"), (False, 1.3, "1.30 times"), (False, 1.5, "hepti profile"),
    ],
)  # fmt: skip
def test_small_gains_over_one_board_are_said_to_be_uncertain(measured, gain, said):
    """Of boards that were measured, smaller ones than of those of which GFLOP/s alone are known."""
    others = [ComparedSystem("megatron", 0.5, 2.0, 0, ()), ComparedSystem("single:pi-1", gain, 1.0, 0, ())]
    console = Console(file=io.StringIO(), width=400)

    print_estimated(console, find_cluster("mixed4"), lambda _: measured, 1.0, others)

    out = console.file.getvalue()
    assert (said in out) if said else not out
    assert ("may come to nothing" in out) == ("times" in said)
    assert ("--plan-by measure" in out) == (measured and bool(said))
