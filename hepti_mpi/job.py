"""The two jobs: the main one, where rank 0 leads the ranks through what is asked, and `profile`."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from hepti_mpi import hosts, outputs, show
from hepti_mpi.batch import Batch
from hepti_mpi.comm import Group
from hepti_mpi.leader import Leader, Setup
from hepti_mpi.load import RankWeights, load, open_weights, serve_weights
from hepti_mpi.profile import profile
from hepti_mpi.report import rank_report
from hepti_mpi.stack import Stack
from solver.cluster import write_cluster
from solver.errors import HeptiError
from solver.model import ModelSpec, named_model
from solver.shares import weights_bytes
from weights.progress import progress
from weights.store import WeightsFile


def run_job(options: argparse.Namespace, group: Group) -> int:
    """Run the main job on all ranks; return the exit code."""
    places = group.on_all(hosts.place)
    leader = Leader(options, group) if group.rank == 0 else None
    if leader:
        leader.say(hosts.describe(places))
        for warning in hosts.warnings(places):
            leader.say(f"note: {warning}")
    setup = group.from_root(leader.prepare if leader else None)
    weights = load_share(setup, group, leader.console if leader else None)
    stack = Stack(setup.spec, setup.plan, weights.layers, group)
    if leader:
        leader.lead(stack, weights.ends)
    else:
        follow(stack, group)
    ranks = group.on_all(lambda: rank_report(setup.spec, setup.plan, stack.meter, group.rank))
    return leader.close(ranks, places) if leader else 0


def load_share(setup: Setup, group: Group, console: Console | None) -> RankWeights:
    """Load this rank's share; rank 0 first sends theirs to the ranks that have no file, and shows how it gets on."""
    file: WeightsFile | None = None

    def open_own() -> bool:
        nonlocal file
        file = open_weights(setup.path, setup.fingerprint)
        return file is not None

    has_file = group.on_all(open_own)
    if group.rank == 0:
        assert file is not None
        for peer in (rank for rank, has in enumerate(has_file) if not has):
            try:
                serve_weights(file, setup.spec, setup.plan, peer, group)
            except HeptiError as error:
                group.abort(str(error), code=2)  # the rank waits for its share and would not hear of it
    loaded: list[RankWeights] = []

    def load_own() -> None:
        total = weights_bytes(setup.spec, setup.plan, group.rank)
        bar = progress("loading", total, console=console) if console else nullcontext(lambda _: None)
        with bar as done:
            loaded.append(load(file, setup.spec, setup.plan, group, done))

    group.on_all(load_own)
    if file is not None:
        file.close()
    return loaded[0]


def follow(stack: Stack, group: Group) -> None:
    """Do what rank 0 says until it says that all is done."""
    while (step := group.next_message()) is not None:
        stack.run(Batch.of_lengths(step.lengths), None, count=step.count)


def run_profile(options: argparse.Namespace, group: Group) -> int:
    """Measure the cluster and write it down; return the exit code."""

    def prepare() -> ModelSpec:
        outputs.check_path(options.out, (".toml",))
        if Path(options.model).suffix or Path(options.model).exists():
            with WeightsFile(Path(options.model)) as file:
                return file.spec
        return named_model(options.model)

    spec = group.from_root(prepare if group.rank == 0 else None)
    cluster = profile(spec, group, options.backend)
    group.from_root((lambda: write_cluster(cluster, options.out)) if group.rank == 0 else None)
    if group.rank == 0:
        show.show_cluster(show.terminal(stderr=False), cluster)
    return 0
