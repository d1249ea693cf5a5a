"""A rank's share, from its own file or from rank 0, is what the plan says and what the file holds."""

from contextlib import nullcontext

import numpy as np
import pytest

from hepti_mpi.base.lacking import Lacking
from hepti_mpi.comm import group as comm
from hepti_mpi.engine import layers, load
from hepti_mpi.engine.load import open_source
from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.model.sublayers import HALVES
from solver.plan.changes import layer_shares
from solver.plan.holdings import TensorSlice, weights_bytes
from solver.plan.plan import Plan, Stage
from solver.schedule.encoders.stages import chain_of_sublayers
from tests import sweeps
from tests.kit.decoupled import random_layers
from tests.kit.encoders import CUTS, POST, TEXTS, plan_of, random_layer, tensors_of
from tests.kit.in_memory import InMemory
from tests.kit.sized import called, sized
from weights.file.store import WeightsFile
from weights.synthesize import synthesize


@pytest.fixture
def setups(folder, world):
    """Return this rank's word of where its file lies: `with_file` says which ranks have one, and of which seed."""

    def make(with_file, seed=0, spec=POST):
        if world.rank == 0:
            for number in {0, seed}:
                synthesize(folder / f"{number}.h5", spec, number)
        world.on_all(lambda: None)
        with WeightsFile(folder / "0.h5") as file:
            fingerprint = file.fingerprint
        name = "none.h5" if world.rank not in with_file else "0.h5" if world.rank == 0 else f"{seed}.h5"
        return folder / name, fingerprint, spec

    return make


def mixed_plan(ranks, seed=0):
    rng = np.random.default_rng(seed)
    layers = [
        random_layer(POST, *(CUTS[rng.integers(len(CUTS))] for _ in range(2)), kind, ranks, rng)
        for kind in ("equal", "uneven", "empty")
    ]
    stage = Stage(
        tuple(f"pi-{rank}" for rank in range(ranks)),
        tuple((Span(number, number + 1), layer) for number, layer in enumerate(layers)),
    )
    return Plan((stage,), POST.name)


def stages_within_blocks(ranks):
    """Return a plan of as many stages, most of which begin and end within a layer, some of them within a block."""
    cluster = Cluster(tuple(Device(f"pi-{rank}", 1e10, GIB) for rank in range(ranks)), Link(1e8, 1e-4))
    counts = Partition.of_shares(
        [1 + rank % 2 / 3 for rank in range(ranks)], HALVES * len(POST.blocks) * POST.layers
    ).counts
    return chain_of_sublayers(POST, cluster, list(enumerate(counts)), "by hand", 40)


def sub_blocks(ranks):
    """Return a plan of a decoupled model, the sub-blocks of which are not shared out equally."""
    layers = random_layers(TEXTS, "whole", "uneven", ranks, np.random.default_rng(0))
    return plan_of(TEXTS, layers, ranks)


def load_share(model, world, plan=None):
    """Load what the rank holds of a plan, else the mixed one, as weights, not yet as kernels."""
    plans, (path, fingerprint, spec) = [plan or mixed_plan(world.size)], model
    return layers.load(open_source(WeightsFile, path, fingerprint, world), spec, plans, lambda share, weights: weights)


def expected_block(spec, layer, share):
    """Return a block's arrays by their names: tensors of one, where the rank has any, lie one below another."""
    arrays = {}
    for piece in share.of_layer(layer):
        *_, name, kind = piece.name.split("/")
        part = {"output": "out", "down": "out", "norm": "norm"}.get(name, "into")
        part += "_bias" * (kind == "bias")
        arrays.setdefault(part, []).append(tensors_of(spec)[piece.name][piece.index])
    return {part: np.concatenate(tensors) for part, tensors in arrays.items()}


def check(loaded, plan, world, spec=POST):
    ends, held = loaded
    assert {layer: (*blocks,) for layer, blocks in held.items()} == layer_shares(spec, plan, world.rank)
    for layer, blocks in held.items():
        for share, weights in blocks.items():
            wanted = expected_block(spec, layer, share)
            for part, values in wanted.items():
                np.testing.assert_array_equal(weights[part], values)
            assert not any(weights[part].size for part in {"into", "into_bias", "out"} - {*wanted})
    # Embeddings and heads are rank 0's alone.
    wanted = {name: values for name, values in tensors_of(spec).items() if not name.startswith("layers/")}
    assert ends.keys() == (wanted.keys() if world.rank == 0 else set())
    for name, values in ends.items():
        np.testing.assert_array_equal(values, wanted[name])


@pytest.mark.parametrize("who", sized(["every second", "all", "rank 0 alone"], 3))
def test_a_share_is_the_same_wherever_it_comes_from(who, setups, world):
    with_file = {"all": range(world.size), "every second": range(0, world.size, 2), "rank 0 alone": [0]}[who]
    model = setups(with_file)

    check(load_share(model, world), mixed_plan(world.size), world)


@pytest.mark.parametrize(("who", "spec"), sweeps.cycled(2, ["all", "rank 0 alone"], [POST, TEXTS]), ids=called)
def test_parts_of_a_layer_come_as_well(spec, who, setups, world):
    """A stage's part of a layer, and sub-blocks."""
    plan = (stages_within_blocks if spec is POST else sub_blocks)(world.size)
    plan.check(spec, world.size)
    model = setups(range(world.size) if who == "all" else [0], spec=spec)

    check(load_share(model, world, plan), plan, world, spec)


@pytest.mark.sizes
def test_rank_0_sends_a_share_in_bounded_pieces(setups, world, monkeypatch):
    """It never holds more of another rank's share than the limit, or than one row."""
    monkeypatch.setattr(load, "STREAM_BYTES", limit := 2000)
    model = setups([0])
    send, sizes = world.weights.send, []

    def sent(message, to):
        if isinstance(message, np.ndarray):
            sizes.append(message.nbytes)
        send(message, to)

    monkeypatch.setattr(world.weights, "send", sent)

    check(load_share(model, world), mixed_plan(world.size), world)

    assert max(sizes, default=0) <= limit
    sent = sum(weights_bytes(POST, mixed_plan(world.size), rank) for rank in range(1, world.size))
    assert sum(sizes) == (sent if world.rank == 0 else 0)


@pytest.mark.sizes
@pytest.mark.parametrize("lacks", [[], [1]])
def test_another_file_than_rank_0s_is_refused_on_all_ranks(lacks, setups, world):
    """Also where another rank has none, and waits for nothing."""
    has = [rank for rank in range(world.size) if rank not in lacks]
    model = setups(has, seed=1)

    if len(has) == 1:
        check(load_share(model, world), mixed_plan(world.size), world)
        return
    with pytest.raises(HeptiError, match=rf"1\.h5 differs .* \(rank {has[1]}\)"):
        load_share(model, world)


class Damaged(InMemory):
    def read_pieces(self, piece, bytes_limit, out=None):
        raise HeptiError(f"{piece.name} is damaged")


@pytest.mark.sizes
@pytest.mark.parametrize("lacks", [[], [1]])
def test_a_file_that_is_damaged_is_complained_of_on_all_ranks(lacks, world):
    """And nobody waits for its rank."""
    tensors, last = {"a": np.ones((9, 5), np.float32), "b": np.zeros(4, np.float32)}, world.size - 1
    without = [rank for rank in lacks if rank < last]
    file = (Damaged if world.rank == last else InMemory)(tensors.__getitem__)
    source = load.WeightsSource(comm.world(), None if world.rank in without else file, without)
    places = {name: np.empty_like(array) for name, array in tensors.items()}
    lacking = (
        Lacking([(TensorSlice(name, Span(0, len(out)), out.shape), out)], lambda: None) for name, out in places.items()
    )

    with pytest.raises(HeptiError, match=f"a is damaged{f' .rank {last}.' * (last > 0)}"):
        source.complete(lacking)

    for name, array in tensors.items() if world.rank != last else ():
        np.testing.assert_array_equal(places[name], array)


def test_progress_counts_every_byte_of_the_share(setups, world):
    (path, *_), done = setups(range(world.size)), []

    with WeightsFile(path) as file:
        plans = [mixed_plan(world.size)]
        source, bar = load.WeightsSource(world, file), nullcontext(done.append)
        layers.load(source, POST, plans, lambda share, weights: weights, bar)

    assert sum(done) == weights_bytes(POST, mixed_plan(world.size), world.rank) == source.got_bytes
