"""A rank's share, from its own file or from rank 0, is what the plan says and what the file holds."""

import numpy as np
import pytest

from hepti_mpi import job
from hepti_mpi.engine import load
from hepti_mpi.leader import Model
from solver.base.errors import HeptiError
from solver.plan.changes import layer_shares
from solver.plan.holdings import weights_bytes
from solver.plan.plan import Plan, Stage
from solver.plan.spans import Span
from tests.mpi.test_layers import CUTS, POST, random_layer, tensors_of
from weights.file.store import WeightsFile
from weights.synthesize import synthesize


@pytest.fixture
def setups(folder, world):
    """Return this rank's word of where its file lies: `with_file` says which ranks have one, and of which seed."""

    def make(with_file, seed=0):
        if world.rank == 0:
            for number in {0, seed}:
                synthesize(folder / f"{number}.h5", POST, number)
        world.on_all(lambda: None)
        with WeightsFile(folder / "0.h5") as file:
            fingerprint = file.fingerprint
        name = "none.h5" if world.rank not in with_file else "0.h5" if world.rank == 0 else f"{seed}.h5"
        return Model(folder / name, fingerprint, POST)

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


def load_share(model, world):
    """Load what the rank holds of the mixed plan, as weights, not yet as kernels."""
    return job.load_share(model, [mixed_plan(world.size)], lambda share, weights: weights, world, None)[0]


def expected_block(layer, share):
    """Return a block's arrays by their names: tensors of one, where the rank has any, lie one below another."""
    arrays = {}
    for piece in share.slices:
        _, name, kind = piece.name.split("/")
        part = {"output": "out", "down": "out", "norm": "norm"}.get(name, "into")
        part += "_bias" * (kind == "bias")
        tensor = tensors_of(POST)[f"layers/{layer}/{piece.name}"][piece.index]
        arrays.setdefault(part, []).append(tensor)
    return {part: np.concatenate(tensors) for part, tensors in arrays.items()}


def check(loaded, plan, world):
    assert {layer: (*blocks,) for layer, blocks in loaded.layers.items()} == layer_shares(POST, plan, world.rank)
    for layer, blocks in loaded.layers.items():
        for share, weights in blocks.items():
            wanted = expected_block(layer, share)
            for part in ("into", "into_bias", "out", "out_bias", "norm", "norm_bias"):
                ours = getattr(weights, part)
                np.testing.assert_array_equal(ours, wanted.get(part, ours[:0]))
    # Embeddings and heads are rank 0's alone.
    ends = {name: values for name, values in tensors_of(POST).items() if not name.startswith("layers/")}
    assert loaded.ends.keys() == (ends.keys() if world.rank == 0 else set())
    for name, values in loaded.ends.items():
        np.testing.assert_array_equal(values, ends[name])


@pytest.mark.parametrize("who", ["all", "every second", "rank 0 alone"])
def test_a_share_is_the_same_wherever_it_comes_from(who, setups, world):
    with_file = {"all": range(world.size), "every second": range(0, world.size, 2), "rank 0 alone": [0]}[who]
    model = setups(with_file)

    check(load_share(model, world), mixed_plan(world.size), world)


def test_rank_0_sends_a_share_in_bounded_pieces(setups, world, monkeypatch):
    """It never holds more of another rank's share than the limit, or than one row."""
    monkeypatch.setattr(load, "STREAM_BYTES", limit := 2000)
    model = setups([0])
    send, sizes = world.weights.send, []
    monkeypatch.setattr(world.weights, "send", lambda array, to: (sizes.append(array.nbytes), send(array, to)))

    check(load_share(model, world), mixed_plan(world.size), world)

    assert max(sizes, default=0) <= limit
    sent = sum(weights_bytes(POST, mixed_plan(world.size), rank) for rank in range(1, world.size))
    assert sum(sizes) == (sent if world.rank == 0 else 0)


def test_another_file_than_rank_0s_is_refused_on_all_ranks(setups, world):
    model = setups(range(world.size), seed=1)

    if world.size == 1:
        check(load_share(model, world), mixed_plan(world.size), world)
        return
    with pytest.raises(HeptiError, match=r"1\.h5 differs from rank 0's: fingerprint .* \(rank 1\)"):
        load_share(model, world)


def test_progress_counts_every_byte_of_the_share(setups, world):
    model, done = setups(range(world.size)), []

    with WeightsFile(model.path) as file:
        plans = [mixed_plan(world.size)]
        load.load(load.Source(world, file), POST, plans, lambda share, weights: weights, done.append)

    assert sum(done) == weights_bytes(POST, mixed_plan(world.size), world.rank)
