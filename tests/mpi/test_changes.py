"""A plan changes between requests: every rank gets what it lacks and nothing else, and results stay those of the model.

Of all families, from own files or from rank 0. Encoders have more: `tests/mpi/test_move.py`.
"""

import numpy as np
import pytest

from hepti_mpi.comm import group as comm
from hepti_mpi.engine.load import Preparation, WeightsSource
from hepti_mpi.engine.network import HeldPlans, HoldPlan, NetworkShare, PreparePlan
from hepti_mpi.kernels.kinds.held import columns_of, rows_of
from hepti_mpi.program.share import Share, key_of
from solver.model.decoder import decoder_tensors
from solver.model.kinds.part import FFN, HEAD
from solver.model.kinds.weight import BLOCK, PRECISIONS
from solver.schedule.decoders.passes import DecoderPasses
from tests import sweeps
from tests.kit import decoder_ranks
from tests.kit.convnets import emulate, plan_of, random_net, random_plan
from tests.kit.decoders import small_model
from tests.kit.encoder_ranks import Run
from tests.kit.encoders import POST
from tests.kit.encoders import random_plan as encoder_plan
from tests.kit.in_memory import InMemory
from tests.kit.sized import sized
from weights.decoders.file import DecoderFile, DecoderWriter

WHO = ["all", "rank 0 alone"]  # has the file
CHANGES = sweeps.count(3, 12)


def source_of(world, file, who):
    """Return where a rank's weights come from, by a communicator of their own."""
    without = [] if who == "all" else [*range(1, world.size)]
    return WeightsSource(comm.world(), None if world.rank in without else file, without)


@pytest.mark.parametrize(("who", "seed"), sized(sweeps.cycled(2, WHO, sweeps.seeds(2, 10)), 2))
def test_of_an_encoder(who, seed, world, files):
    rng = np.random.default_rng([seed, 20])
    run = Run(POST, encoder_plan(POST, rng, world.size), world, files, with_file=None if who == "all" else [0])
    for _ in range(CHANGES):
        plan, before = encoder_plan(POST, rng, world.size), run.source.got_bytes
        lacking = run.mover.holdings.moved_bytes(POST, plan, world.rank)
        run.prepare(plan)
        run.mover.adopt(POST.layers)

        assert run.source.got_bytes - before == lacking
        run.check([7, 20])


@pytest.mark.parametrize(("who", "seed", "tiles"), sized(sweeps.cycled(4, WHO, sweeps.seeds(4, 20), [False, True]), 3))
def test_of_a_network(who, seed, tiles, world):
    """Images are computed under the old plan until all ranks have what the new one needs."""
    rng = np.random.default_rng([seed, world.size, 21])
    net, tensors = random_net(rng, verbatim=seed % 2 == 0)
    pixels = rng.integers(0, 256, net.shapes["x"], dtype=np.uint8)
    whole = emulate(net, tensors, plan_of(net, [(len(net.nodes), "rows", [1.0])], 1), pixels)
    source = source_of(world, InMemory(tensors.__getitem__), who)
    source._odd_types = {name: array.dtype for name, array in tensors.items()}
    held = HeldPlans(lambda plan, before: NetworkShare(net, plan, world, before=before), source, changes=True)

    def plan():
        return random_plan(net, rng, world.size, tiles=tiles)

    def check():
        share = held.of(0)
        if world.rank == 0:
            share.image[...] = pixels
        share.run()
        world.finish_sending()
        for value, array in share.outputs.items() if world.rank == 0 else ():
            np.testing.assert_allclose(array, whole[value], rtol=0, atol=1e-5 * max(np.abs(whole[value]).max(), 1e-6))

    held.load(now := plan())
    has = slices_of(net, now, world)
    assert source.got_bytes == bytes_of(has, tensors)
    for _ in range(CHANGES):
        check()
        before, needs = source.got_bytes, slices_of(net, now := plan(), world)
        held.change(PreparePlan(now, 0.0))
        while not all(world.on_all(lambda: held.preparation.ready)):
            held.preparation.work()
            check()
        held.change(HoldPlan(1))

        assert source.got_bytes - before == bytes_of(needs - has, tensors)
        assert {*held.of(0).tensors} <= needs
        has = needs
    check()


def slices_of(net, plan, world):
    """Return the slices of tensors that a rank needs of a network under a plan."""
    return {piece for graph in graphs_of(net, plan, world) for piece in graph.slices}


def graphs_of(net, plan, world):
    return [graph for slab in NetworkShare(net, plan, world).program.slabs for graph in slab.graphs]


def bytes_of(slices, tensors):
    return sum(np.atleast_1d(tensors[piece.name])[piece.index].nbytes for piece in slices)


def test_where_memory_is_short_a_network_keeps_no_tensors_and_reads_those_of_graphs_that_are_others(world, monkeypatch):
    monkeypatch.setattr("hepti_mpi.engine.network.free_bytes", lambda: 0)
    rng = np.random.default_rng([world.size, 22])
    net, tensors = random_net(rng)
    source = source_of(world, InMemory(tensors.__getitem__), "all")
    held = HeldPlans(lambda plan, before: NetworkShare(net, plan, world, before=before), source, changes=True)
    one, other = (random_plan(net, rng, world.size) for _ in "ab")
    held.load(one)
    before, ready = source.got_bytes, held.of(0).graphs
    assert not held.of(0).tensors

    held.load(one)
    again = source.got_bytes
    held.load(other)

    assert again == before
    others = {piece for graph in graphs_of(net, other, world) if graph.key not in ready for piece in graph.slices}
    assert source.got_bytes - again == bytes_of(others, tensors)


@pytest.mark.slow("weights in blocks are made, loaded and laid out for two plans")
@pytest.mark.parametrize(
    ("who", "precision", "seed"),
    sized(sweeps.cycled(4, WHO, ["float32", "int4", "int8", "int4m"], sweeps.seeds(4, 12)), 3),
)
def test_of_a_language_model(who, precision, seed, world, folder):
    """Results after it are in `test_generation.py`."""
    model = small_model(hidden=64, ffn=160, d=32, heads=6, kv_heads=2, vocab=90)
    rng, random = np.random.default_rng([seed, world.size, 23]), np.random.default_rng(seed)
    if world.rank == 0:
        with DecoderWriter(folder / "m.h5", model, "test", precision) as writer:
            for name, weight in decoder_tensors(model).items():
                writer.write(name, 0, random.standard_normal(weight.shape, np.float32))
    world.barrier()
    facts = {"stages": 1 + seed % 2, "rows_from": 16 * (seed % 2), "precision": precision}
    plans = (
        decoder_ranks.random_plan(world, model, rng, **facts, outputs=(HEAD, FFN)[:number], hidden=number == 1)
        for number in range(1 + CHANGES)
    )
    with DecoderFile(folder / "m.h5") as file:
        source, share, has = source_of(world, file, who), None, {}
        preparation = Preparation(source)
        for plan in plans:
            share, before = Share(DecoderPasses(model, plan), world.rank, share), source.got_bytes
            needs = {key_of(run): run for run, _ in share._runs()}
            preparation.begin(share.lacking())
            while not all(world.on_all(lambda: preparation.ready)):
                preparation.step()

            lacking = [run for key, run in needs.items() if key not in has]
            assert source.got_bytes - before == sum(run_bytes(run, precision) for run in lacking)
            assert share.graphs.keys() == needs.keys()
            has = needs


def run_bytes(run, precision):
    """Return the bytes in the file of what a rank needs for a run of parts."""
    own = {
        tensor.name: (tensor, rows_of(tensor, region), columns_of(tensor, part, region))
        for part, region in run
        for tensor in part.tensors
    }
    total = 0
    for tensor, rows, columns in own.values():
        held, summed = tensor.weight.held_in(PRECISIONS[precision]), tensor.weight.summed
        shape = [rows.size, *(tensor.shape[1:] if columns is None else (columns.size,))]
        if summed is None or held.name == "float32":
            total += 4 * int(np.prod(shape))
            continue
        shape[summed] = -(-shape[summed] // BLOCK)
        total += shape[0] * shape[1] * (BLOCK * held.bits // 8 + 2 * (1 + held.minima))
    return total
