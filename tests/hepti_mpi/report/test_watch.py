"""The picture of `--watch`, of a network."""

import io
from functools import partial

import numpy as np
from rich.console import Console

from hepti_mpi.report.network_report import network_shares
from hepti_mpi.report.watch import Watch, follower_picture
from solver.cluster.cluster import Cluster, Device, Link
from solver.live.network_replan import NetworkFollower
from tests.kit.convnets import plan_of
from tests.kit.networks import classifier


def test_a_person_sees_what_every_board_computes_of_a_network_in_80_columns():
    net, _ = classifier()
    plan = plan_of(net, [(2, "rows", [0.25, 0.75]), (len(net.nodes), "rows", [0, 1])], 2)
    devices = tuple(Device(f"pi-{rank}", 20e9, 2 << 30) for rank in range(2))
    follower = NetworkFollower(net, Cluster(devices, Link(1e8, 1e-4)), plan, changes=False)
    for _ in range(5):
        follower.took([0.01, 0.03], 0.04)
    change = next(change for _ in range(20) if (change := follower.took([0.01, 0.09], 0.1)) is not None)
    console = Console(file=io.StringIO(), width=80)

    with Watch(console) as watch:
        shares_of = partial(network_shares, net, plan)
        watch.show(follower_picture(follower, [0.01, 0.09], 0.1, [change.line], ("segments", "work"), shares_of))

    shown = console.file.getvalue().splitlines()
    assert max(map(len, shown)) <= 80
    assert "100 ms for the last image" in " ".join(shown)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown if line.startswith("│ pi-")]
    slower = follower.slower(1)
    assert np.isclose(slower, 3, rtol=0.05)
    assert rows[0] == ["pi-0", "1 of 2", "8 %", "10", "90", "20.0, 100%", "2.0"]
    assert rows[1] == ["pi-1", "2 of 2", "92 %", "90", "10", f"{20 / slower:.1f}, {100 / slower:.0f}%", "2.0"]
    assert "pi-1 takes 3.0 times as long" in " ".join(shown)
