"""The table of a run with a convolutional network."""

import io

import pytest
from rich.console import Console

from hepti_mpi.engine.stack import Meter
from hepti_mpi.report.network_report import show_network
from hepti_mpi.report.ranks import network_rank_report
from tests.kit.convnets import plan_of
from tests.kit.networks import classifier


@pytest.mark.parametrize("predicted", [None, 0.25])
def test_a_person_sees_shares_of_the_work_in_80_columns(predicted):
    net, _ = classifier()
    plan = plan_of(net, [(2, "rows", [0.25, 0.75]), (len(net.nodes), "rows", [0, 1])], 2)
    meters = [Meter(2.0, 0.5, 4096, 0, 1.98), Meter(1.0, 0.0, 2048, 0, 0.9)]
    report = {
        "requests_answered": 2,
        "per_rank": [network_rank_report(net, plan, meter, rank, "onnxruntime") for rank, meter in enumerate(meters)],
        "seconds_median": 0.5,
        "predicted_seconds": predicted,
        "predicted_for": "these hosts",
        "requests_per_s": 1.5,
        "predicted_requests_per_s": None,
    }
    console = Console(file=io.StringIO(), width=80, markup=False, emoji=False)

    show_network(console, report, net, [plan])

    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    # The first of two convolutions: 3 * 8 of 3 * 8 + 8 * 6 products a pixel, and a little beside.
    assert rows[0] == ["0", "pi-0", "1 of 2", "8 %", "0.0", "1000.0", "250.0", "2"]
    assert rows[1] == ["1", "pi-1", "2 of 2", "92 %", "0.0", "500.0", "0.0", "1"]
    said = " ".join(" ".join(lines[-3:]).split())
    assert "500.0 ms an image" in said
    assert "1.50 images a second" in said
    assert ("predicted 250.0 ms for these hosts" in said) is (predicted is not None)
