"""`python -m hepti_mpi profile`: its command line, and the job.

What only rank 0 needs is imported there and then: a device of 10 GFLOP/s takes a second to import half of the main job.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hepti_mpi.comm.group import Group
from hepti_mpi.kernels.backends import NAMES, agree, check_precision
from hepti_mpi.measure.profile import profile
from solver.base.command import Parser, check_path
from solver.cluster.cluster import write_cluster
from solver.model.named import named_model
from solver.model.precision import PRECISIONS
from solver.model.spec import ModelSpec


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line of `profile`.

    Raises
    ------
    HeptiError
        If an option is unknown, malformed or missing.
    """
    options = parser().parse_args(arguments)
    check_precision(options.precision, options.backend)
    return options


def parser() -> Parser:
    """Return the parser of `profile`."""
    parser = Parser(
        prog="python -m hepti_mpi profile",
        description="Measure every rank's kernels and memory and the links between them, in seconds.",
        epilog="example: mpirun -np 4 --hostfile pis python -m hepti_mpi profile --model bert-large --out pis.toml",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", required=True, metavar="MODEL.h5|NAME", help="whose layers the kernels are measured for"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="CLUSTER.toml", help="the cluster file to write")
    parser.add_argument("--backend", choices=NAMES, default="auto", help="kernels (default: %(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32", help="of products (default: %(default)s)")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def run(options: argparse.Namespace, group: Group) -> int:
    """Measure the cluster and write it down; return the exit code."""

    def prepare() -> ModelSpec:
        from weights.file.store import WeightsFile

        check_path(options.out, (".toml",))
        if Path(options.model).suffix or Path(options.model).exists():
            with WeightsFile(Path(options.model)) as file:
                return file.spec
        return named_model(options.model)

    spec = group.from_root(prepare if group.rank == 0 else None)
    backends, notes = agree(options.backend, options.precision, group)
    cluster = profile(spec, group, backends[group.rank], options.precision)
    group.from_root((lambda: write_cluster(cluster, options.out)) if group.rank == 0 else None)
    if group.rank == 0:
        from hepti_mpi.report import tables

        for note in notes:
            tables.terminal(stderr=True).print(f"note: {note}", soft_wrap=True)
        tables.show_cluster(tables.terminal(stderr=False), cluster)
    return 0
