"""Which board to buy next: what each would save, by the planner. Needs no board and no weights.

python examples/buy_next.py bert-large mixed4
"""

import argparse
import sys

from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.cluster.named import find_cluster
from solver.cluster.whatif import BOARDS, changed
from solver.model.named import named_model
from solver.systems import plan_that_fits

# Assumed: write what your shop asks.
EUROS = {"pi3": 35, "pi4": 60, "pi5": 80, "minipc": 180}


def main() -> None:
    """Plan for the cluster as it is, and with one board more of every kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="an architecture: bert-base, bert-large, vit-large, …")
    parser.add_argument("cluster", help="a cluster file, or a ready one: mixed4, pi4x4, …")
    parser.add_argument("--rows", type=int, default=128, help="tokens of a request (default: %(default)s)")
    options = parser.parse_args()

    model, cluster = named_model(options.model), find_cluster(options.cluster)

    def milliseconds(boards: Cluster) -> float:
        plan = plan_that_fits("hepti", model, boards, options.rows)
        return 1000 * plan.predicted.seconds

    now = milliseconds(cluster)
    print(f"{options.model}, {options.rows} rows on {options.cluster}: {now:.0f} ms")
    for board in BOARDS:
        with_it = milliseconds(changed(cluster, settings=[], added=[board], without=[]))
        saved = now - with_it
        print(f"  with a {board:<7}{with_it:6.0f} ms  {saved / EUROS[board]:5.2f} ms saved per euro")


if __name__ == "__main__":
    try:
        main()
    except HeptiError as error:
        sys.exit(str(error))
