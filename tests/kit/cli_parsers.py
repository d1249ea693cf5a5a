"""Where the command line of each module is parsed, and how to come by its parser."""

import argparse
from contextlib import contextmanager
from unittest.mock import patch

PARSERS = {
    "hepti_mpi": ("hepti_mpi.session.cli", "parse"),
    "hepti_mpi rerank": ("hepti_mpi.session.cli", "parse_rerank"),
    "hepti_mpi generate": ("hepti_mpi.session.cli", "parse_generate"),
    "hepti_mpi profile": ("hepti_mpi.measure.profile_command", "parse"),
    "solver": ("solver.cli", "main"),
    "weights": ("weights.cli", "main"),
    "launch": ("launch.__main__", "main"),
}


class CapturedError(Exception):
    """A parser was asked to parse; nothing else is to be done."""

    def __init__(self, parser):
        super().__init__(parser.prog)
        self.parser = parser


@contextmanager
def captured():
    """Raise CapturedError where a parser is asked to parse."""

    def capture(parser, *arguments, **how):
        raise CapturedError(parser)

    with patch.object(argparse.ArgumentParser, "parse_args", capture):
        yield
