"""Which board to buy next: what each would save, by the planner. Needs no board and no weights.

python examples/buy_next.py bert-large mixed4 --price pi5=95 --price minipc=150
"""

import argparse
import sys

from solver import make_plan
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.cluster.named import find_cluster
from solver.cluster.whatif import BOARDS, changed

# Assumed: --price says what your shop asks.
EUROS = {"pi3": 35, "pi4": 60, "pi5": 80, "minipc": 180}


def main() -> None:
    """Plan for the cluster as it is, and with one board more of every kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="an architecture: bert-base, bert-large, vit-large, resnet50, llama-3.2-1b, …")
    parser.add_argument("cluster", help="a cluster file, or a ready one: mixed4, pi4x4, …")
    parser.add_argument("--rows", type=int, help="tokens of a request of an encoder (default: 128)")
    parser.add_argument("--price", action="append", default=[], type=price, metavar="BOARD=EUROS", help="of a board")
    options = parser.parse_args()

    euros = EUROS | dict(options.price)
    cluster = find_cluster(options.cluster)

    def milliseconds(boards: Cluster) -> float:
        return 1000 * make_plan(options.model, boards, rows=options.rows).seconds

    now = milliseconds(cluster)
    print(f"{options.model} on {options.cluster}: {now:.0f} ms")
    for board in BOARDS:
        with_it = milliseconds(changed(cluster, settings=[], added=[board], without=[]))
        saved = now - with_it
        cost = euros[board]
        print(f"  with a {board:<7}for {cost:4g} euros {with_it:6.0f} ms  {saved / cost:5.2f} ms saved per euro")


def price(text: str) -> tuple[str, float]:
    """Read a board's price."""
    board, _, euros = text.partition("=")
    try:
        if board in BOARDS and 0 < float(euros) < float("inf"):
            return board, float(euros)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not like pi5=80, with one of {', '.join(BOARDS)}")


if __name__ == "__main__":
    try:
        main()
    except HeptiError as error:
        print(f"buy_next.py: {error}", file=sys.stderr)
        sys.exit(2)
