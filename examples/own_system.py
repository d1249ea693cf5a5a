"""A way to split of one's own: priced, compared with Hepti's, and written as a plan that runs.

python examples/own_system.py bert-base mixed4 --out plan.json
hepti run --np 4 --model bert-base.h5 --plan plan.json --random 128
"""

import argparse
import sys
from pathlib import Path

from solver.base.errors import HeptiError
from solver.base.spans import Partition
from solver.cluster.cluster import Cluster
from solver.cluster.named import find_cluster
from solver.model.blocks import Block, Cut, inner_of
from solver.model.named import named_model
from solver.model.spec import ModelSpec
from solver.plan.plan import BlockPlan, Plan, blockwise_plan
from solver.plan.writing import plan_to_json
from solver.programs.tiles_and_routes import sent_and_predicted
from solver.systems import make_plan

NAME = "fastest-two"


def plan_fastest_two(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Share heads and MLP columns between the two fastest boards, in proportion to speed; others have nothing."""
    speeds = [device.compute_flop_per_s for device in cluster.devices]
    fastest = sorted(range(len(speeds)), key=speeds.__getitem__)[-2:]
    weights = [speed if rank in fastest else 0.0 for rank, speed in enumerate(speeds)]

    def shared_out(block: Block) -> BlockPlan:
        return BlockPlan(block.name, Cut.BLOCK, Partition.of_shares(weights, inner_of(block, NAME).count))

    return blockwise_plan(
        spec, cluster.names, shared_out, system=NAME, rows=rows, cluster_fingerprint=cluster.fingerprint
    )


def main() -> None:
    """Print what both take with the tiles and routes that are best for them, and write the plan of one's own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="an architecture: bert-base, bert-large, …")
    parser.add_argument("cluster", help="a cluster file, or a ready one: mixed4, pi4x4, …")
    parser.add_argument("--rows", type=int, default=128, help="tokens of a request (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="the plan file to write")
    options = parser.parse_args()

    spec, cluster = named_model(options.model), find_cluster(options.cluster)
    own = sent_and_predicted(spec, cluster, plan_fastest_two(spec, cluster, options.rows), options.rows)
    for plan in (own, make_plan("hepti", spec, cluster, options.rows)):
        print(f"{plan.system:<12} {1000 * plan.predicted.seconds:6.0f} ms")
    options.out.write_text(plan_to_json(own))


if __name__ == "__main__":
    try:
        main()
    except HeptiError as error:
        print(f"own_system.py: {error}", file=sys.stderr)
        sys.exit(2)
