"""`python -m hepti_mpi profile`: its command line, and the job.

What only rank 0 needs is imported there and then: a device of 10 GFLOP/s takes a second to import half of the main job.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hepti_mpi.comm.group import Group
from hepti_mpi.kernels.backends import NAMES, agree, check_precision, need_onnx
from hepti_mpi.measure.profile import profile
from hepti_mpi.measure.steady import doubted, measured
from solver.base.command import Parser, check_path
from solver.base.errors import HeptiError
from solver.base.front import program
from solver.base.phrases import counted
from solver.cluster.cluster import write_cluster
from solver.model.convnet import ConvNet
from solver.model.decoder import Decoder
from solver.model.kinds.weight import PRECISIONS
from solver.model.precision import FLOAT32
from solver.model.spec import ModelSpec
from solver.models import decoder_of, encoder_of, kind_of, network_of
from solver.schedule.decoders.asked import TokenRequest


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line of `profile`.

    Raises
    ------
    HeptiError
        If an option is unknown, malformed or missing.
    """
    return parser().parse_args(arguments)


def parser() -> Parser:
    """Return the parser of `profile`."""
    parser = Parser(
        prog=program("python -m hepti_mpi profile"),
        description="Measure every rank's kernels and memory and the links between them, in seconds.",
        epilog="example: hepti profile --hostfile pis --model bert-large --out pis.toml",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", required=True, metavar="MODEL.h5|NAME", help="whose layers the kernels are measured for"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="CLUSTER.toml", help="the cluster file to write")
    parser.add_argument("--backend", choices=NAMES, default="auto", help="kernels (default: %(default)s)")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of products (default: float32; of a language model as its file has it, int4 where it is named)",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def run(options: argparse.Namespace, group: Group) -> int:
    """Measure the cluster and write it down; return the exit code."""

    def prepare() -> tuple[ModelSpec | ConvNet | Decoder, str]:
        check_path(options.out, (".toml",))
        model, stored = _described(options.model)
        precision = options.precision or stored
        if precision == "int4" and not isinstance(model, Decoder):
            raise HeptiError(f"--precision int4 is for language models, {model.name} is no such: take int8 or float32")
        if not isinstance(model, Decoder):
            check_precision(precision, options.backend)
        return model, precision

    model, precision = group.from_root(prepare if group.rank == 0 else None)
    if isinstance(model, ConvNet):
        need_onnx(model.name, group)
    decodes = isinstance(model, Decoder)  # by any backend in any precision
    slow = isinstance(model, Decoder | ConvNet)  # by numpy
    backends, notes = agree(options.backend, FLOAT32.name if decodes else precision, group, chosen=not slow)
    if group.rank == 0:
        from hepti_mpi.report.speaker import Speaker

        speaker = Speaker()
        speaker.note(notes)
        speaker.say(f"measuring {counted(group.size, 'rank')} for {model.name}, which takes some seconds")
    if isinstance(model, ConvNet):
        from hepti_mpi.measure.profile_network import profile_network

        cluster = measured(lambda: profile_network(model, group, backends[group.rank]), group)
    elif isinstance(model, Decoder):
        from hepti_mpi.measure.profile_decoder import profile_decoder

        cluster = measured(lambda: profile_decoder(model, precision, group, backends[group.rank]), group)
    else:
        cluster = measured(lambda: profile(model, group, backends[group.rank], precision), group)
    group.from_root((lambda: write_cluster(cluster, options.out)) if group.rank == 0 else None)
    if group.rank == 0:
        from hepti_mpi.report import tables

        tables.show_cluster(tables.terminal(stderr=False), cluster)
        if (doubt := doubted(cluster)) is not None:
            speaker.note([doubt.replace("--measure measures", "the same command measures")])
    return 0


def _described(name: str) -> tuple[ModelSpec | ConvNet | Decoder, str]:
    """Return what a file, or a name, describes, and what its weights are held in where nothing else is asked for."""
    kind = kind_of(name)
    if kind == "decoder":
        model, precision = decoder_of(name)
        return model, precision or TokenRequest().precision
    return (network_of(name) if kind == "network" else encoder_of(name)), FLOAT32.name
