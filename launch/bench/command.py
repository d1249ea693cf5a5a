"""`python -m launch bench …`: suites of measurements as tables, JSON and pictures."""

from __future__ import annotations

import argparse

from launch.bench import compare_command, limits, offload, paper_command, shift_command
from launch.trials import day_command, faults_command

SUITES = (
    compare_command.SUITE, paper_command.SUITE, offload.SUITE, shift_command.SUITE,
    faults_command.SUITE, day_command.SUITE, limits.SUITE,
)  # fmt: skip


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` and its suites."""
    bench = subparsers.add_parser("bench", help="measure", epilog="example, as root: hepti bench offload --out results")
    suites = bench.add_subparsers(required=True, metavar="SUITE")
    for suite in SUITES:
        suite.add_parser(suites)
