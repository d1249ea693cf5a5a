"""Stages and replicas, whatever their ranks, cuts and shares, give what the oracle gives, in order."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from hepti_mpi.comm.adaptive import HEADER_BYTES, WINDOW, SendRate
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import OUTSIDE, Trace
from hepti_mpi.engine import stack
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.engine import Engine
from hepti_mpi.engine.flow import MOST, SPREAD
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels import embeddings
from hepti_mpi.kernels.products import NUMPY
from hepti_mpi.live.member import follow
from solver.base.spans import Span
from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.model.spec import tensor_shapes, with_layers
from solver.model.sublayers import HALVES
from solver.plan.plan import STAGE_WIRES, Plan, Stage, Wire
from solver.schedule.encoders.stages import chain_of_sublayers, price_plan
from tests import sweeps
from tests.kit.connections import connected
from tests.kit.encoder_ranks import make_stack
from tests.kit.encoders import CUTS, KINDS, LAYOUTS, PRE, expected, one_device_plan, random_layer, tensors_of
from tests.kit.encoders import FIVE as SPEC
from tests.kit.rank_requests import hidden_states, requests_of
from tests.kit.sized import called, sized

PRE_SPEC = with_layers(PRE, 4)
LENGTHS = [[3, 1, 17], [2], [30], [5, 5], [1], [40], [8], [2, 9]]


def random_plan(spec, ranks, rng, replicas):
    """Return a plan whose stages have any ranks, in any order, and any cuts and shares; some ranks may be in none."""
    names = tuple(f"pi-{rank}" for rank in range(ranks))
    crews = np.split(rng.permutation(ranks), np.unique(rng.integers(1, ranks, ranks - 1)) if ranks > 1 else [])
    chains = np.array_split(np.arange(len(crews)), min(replicas, len(crews)))
    stages = []
    for chain in chains:
        chain = chain[: spec.layers]
        stops = np.sort(rng.choice(np.arange(1, spec.layers), len(chain) - 1, replace=False)).tolist()
        for crew, start, stop in zip(chain, [0, *stops], [*stops, spec.layers], strict=True):
            members = sorted(crews[crew].tolist())
            runs = []
            for layer in range(start, stop):
                attention, mlp = (CUTS[rng.integers(len(CUTS))] for _ in range(2))
                kind = KINDS[rng.integers(3)]
                runs.append(
                    (Span(layer, layer + 1), random_layer(spec, attention, mlp, kind, len(members), rng)),
                )
            stages.append(Stage(tuple(names[rank] for rank in members), tuple(runs)))
    return Plan(tuple(stages), spec.name, tile_rows=int(rng.integers(0, 9)), devices=names)


def run(spec, plan, batches, world, wire=Wire.FLOAT32):
    """Run batches through the plan on all ranks; return the stack, and on rank 0 the results."""
    tensors = tensors_of(spec)
    stack = make_stack(spec, plan, tensors, world, NUMPY, wire)
    if world.rank:
        follow(world, stack)
        return stack, []
    results = hidden_states(Engine(spec, tensors, stack, world), spec, batches)
    world.orders.send(None, world.others())
    return stack, results


def embedded(spec, tensors, lengths):
    contents, _ = expected(spec, tuple(lengths))
    return np.concatenate([embeddings.embed(spec, tensors, content) for content in contents])


def check(spec, plan, batches, world):
    stack, results = run(spec, plan, batches, world)
    if world.rank == 0:
        assert len(results) == len(batches)
        for lengths, hidden in zip(batches, results, strict=True):
            _, answers = expected(spec, tuple(lengths))
            np.testing.assert_allclose(hidden, np.concatenate(answers), rtol=0, atol=1e-4)
    return stack


@pytest.mark.parametrize(("seed", "replicas"), sized(sweeps.cycled(6, sweeps.seeds(6, 8), [1, 2, 3]), 2))
def test_any_stages_and_replicas_give_the_reference_in_order(seed, replicas, world):
    rng = np.random.default_rng([seed, replicas, world.size])
    check(SPEC, random_plan(SPEC, world.size, rng, replicas), LENGTHS, world)


@pytest.mark.parametrize("seed", sized(sweeps.seeds(1, 3)))
def test_stages_give_the_reference_with_norms_in_front(seed, world):
    rng = np.random.default_rng([seed, world.size])
    rows = PRE_SPEC.input.rows
    check(PRE_SPEC, random_plan(PRE_SPEC, world.size, rng, 2), [[rows], [rows, rows], [rows]], world)


@pytest.mark.parametrize("last", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
def test_every_pair_of_layouts_meets_at_a_boundary(first, last, world):
    """A stage of two ranks before one of rank 0 and all others: on the way in, between, and out."""
    if world.size < 3:
        return
    rng = np.random.default_rng(4)
    names = tuple(f"pi-{rank}" for rank in range(world.size))
    layouts = {layout: [cut for cut in CUTS if cut[1] is layout] for layout in LAYOUTS}
    layers = [
        random_layer(SPEC, layouts[first][0], layouts[last][0], "uneven", size, rng) for size in (2, world.size - 2)
    ]
    stages = (
        Stage(names[1:3], ((Span(0, 2), layers[0]),)),
        Stage((names[0], *names[3:]), ((Span(2, 5), layers[1]),)),
    )
    check(SPEC, Plan(stages, SPEC.name, devices=names), LENGTHS[:3], world)


@pytest.mark.parametrize("place", range(3))
def test_large_messages_and_full_queues_do_not_wait_for_each_other(place, world):
    """Rank 0 in every stage of three, and messages that are too large to be sent before they are asked for."""
    if world.size < 3:
        return
    others = [1, 2]
    crew = [others.pop() if number != place else 0 for number in range(3)]
    plan = one_device_plan(SPEC, [(crew[0], 0, 2), (crew[1], 2, 3), (crew[2], 3, 5)], world.size)

    check(SPEC, plan, [[500], [300, 200]] * 12, world)


@pytest.mark.sizes
@pytest.mark.parametrize("at", [4, 7], ids=["between layers", "behind the inner columns"])
def test_what_goes_between_stages_is_sent_in_pieces(at, world, monkeypatch):
    """Of about as many numbers as may travel before they are asked for; the result is the same."""
    if world.size < 2:
        return
    sizes = []
    post_send = Group.post_send

    def noted(group, message, peer, tag):
        sizes.append(message.size)
        post_send(group, message, peer, tag)

    monkeypatch.setattr(Group, "post_send", noted)
    monkeypatch.setattr(stack, "MOVED_FLOATS", 500)
    devices = tuple(Device(f"pi-{rank}", 1e10, GIB) for rank in range(world.size))
    parts = [(1, at), (0, HALVES * len(SPEC.blocks) * SPEC.layers - at)]
    plan = chain_of_sublayers(SPEC, Cluster(devices, Link(1e8, 1e-4)), parts, "by hand", 40)

    check(SPEC, plan, [[40], [7, 30]], world)

    sent = world.on_all(lambda: sizes)
    for rank in (0, 1):
        assert max(sent[rank]) <= 1.5 * 500  # rows do not divide
        assert len(sent[rank]) > 2 * 2  # more than one a batch


def test_a_rank_that_becomes_slow_gets_less(world, monkeypatch):
    """The last replica sleeps in every batch: the others do most of them."""
    if world.size < 2:
        return
    if world.rank == world.size - 1:
        carry = Stack.carry

        def slow(*arguments, **options):
            time.sleep(0.5)  # long beside what the others take, also where they share two cores with other tests
            return carry(*arguments, **options)

        monkeypatch.setattr(Stack, "carry", slow)
    plan = one_device_plan(SPEC, [(rank, 0, SPEC.layers) for rank in range(world.size)], world.size)

    stack = check(SPEC, plan, [[30]] * 60, world)

    moved = world.on_all(lambda: stack.meter.sent_bytes)
    assert 0 < moved[-1] // (30 * SPEC.hidden * 4) <= 60 / world.size / 2


@pytest.mark.parametrize("seed", sized(sweeps.seeds(2, 4), 2))
def test_bytes_on_the_wire_are_those_that_the_price_says(seed, world):
    """Of all ranks together, for one request through stages of one device, one on each rank that has a layer."""
    rng = np.random.default_rng([seed, world.size])
    crew = rng.permutation(world.size)[: SPEC.layers].tolist()
    stops = [0, *np.sort(rng.choice(np.arange(1, SPEC.layers), len(crew) - 1, replace=False)).tolist(), SPEC.layers]
    plan = one_device_plan(SPEC, zip(crew, stops[:-1], stops[1:], strict=True), world.size)
    devices = tuple(Device(name, 1e10, GIB) for name in plan.devices)

    stack, _ = run(SPEC, plan, [[12]], world)

    sent = sum(world.on_all(lambda: stack.meter.sent_bytes))
    assert sent == price_plan(SPEC, Cluster(devices, Link(1e8, 1e-4)), plan, 12).prediction.bytes_on_wire


@pytest.mark.parametrize(("seed", "spec"), sized(sweeps.cycled(4, sweeps.seeds(4, 6), [SPEC, PRE_SPEC]), 3), ids=called)
def test_bytes_of_any_stages_are_those_that_the_price_says(seed, spec, world):
    """Any ranks, cuts and shares in a stage, one request."""
    rows = 40 if spec is SPEC else PRE_SPEC.input.rows
    rng = np.random.default_rng([seed, world.size])
    plan = replace(random_plan(spec, world.size, rng, 1), tile_rows=0)
    devices = tuple(Device(name, 1e10, GIB) for name in plan.devices)

    stack, _ = run(spec, plan, [[rows]], world)

    sent = sum(world.on_all(lambda: stack.meter.sent_bytes))
    assert sent == price_plan(spec, Cluster(devices, Link(1e8, 1e-4)), plan, rows).prediction.bytes_on_wire


def rank_by_rank(spec, world):
    """Return stages of one layer or more, one on each rank, the last of them first."""
    crew = [*range(world.size - 1, -1, -1)][: spec.layers]
    stops = np.linspace(0, spec.layers, len(crew) + 1).astype(int).tolist()
    return one_device_plan(spec, zip(crew, stops[:-1], stops[1:], strict=True), world.size)


def within_layers(spec, ranks, rng):
    """Return stages of any ranks that begin and end within layers, of any cuts where the cut is not within a block."""
    names = tuple(f"pi-{rank}" for rank in range(ranks))
    crews = np.split(rng.permutation(ranks), np.unique(rng.integers(1, ranks, ranks - 1)) if ranks > 1 else [])
    total = 4 * spec.layers
    stops = [0, *np.sort(rng.choice(np.arange(1, total), len(crews) - 1, replace=False)).tolist(), total]
    stages = []
    for crew, start, stop in zip(crews, stops[:-1], stops[1:], strict=True):
        runs = []
        for layer in range(start // 4, -(-stop // 4)):
            halved = {end // 2 for end in (start, stop) if end % 2}  # blocks that are cut within
            cuts = [CUTS[0] if 2 * layer + block in halved else CUTS[rng.integers(len(CUTS))] for block in range(2)]
            kind = KINDS[rng.integers(3)]
            runs.append((Span(layer, layer + 1), random_layer(spec, *cuts, kind, len(crew), rng)))
        devices = tuple(names[rank] for rank in sorted(crew.tolist()))
        stages.append(Stage(devices, tuple(runs), Span(start, stop)))
    return Plan(tuple(stages), spec.name, tile_rows=int(rng.integers(0, 9)), devices=names)


@pytest.mark.parametrize(("seed", "spec"), sized(sweeps.cycled(6, sweeps.seeds(6, 8), [SPEC, PRE_SPEC]), 3), ids=called)
def test_stages_that_begin_and_end_within_layers_give_the_reference(seed, spec, world):
    batches = LENGTHS if spec is SPEC else [[16], [16, 16]]
    check(spec, within_layers(spec, world.size, np.random.default_rng([seed, world.size])), batches, world)


@pytest.mark.parametrize("at", range(1, 8) if sweeps.ALL else (1, 2, 3, 6))
def test_every_place_within_layers_can_end_a_stage(at, world):
    """One device on each side; what travels, and what each of them holds, is to the byte what the price says."""
    if world.size < 2:
        return
    spec = with_layers(SPEC, 2)
    layer = one_device_plan(spec, [(0, 0, 2)], 1).stages[0].layers[0][1]
    stages = tuple(
        Stage((f"pi-{rank}",), ((Span(start // 4, -(-stop // 4)), layer),), Span(start, stop))
        for rank, start, stop in ((0, 0, at), (1, at, 8))
    )
    plan = Plan(stages, spec.name, devices=tuple(f"pi-{rank}" for rank in range(world.size)))
    devices = tuple(Device(name, 1e10, GIB) for name in plan.devices)

    stack = check(spec, plan, [[12]], world)

    sent = sum(world.on_all(lambda: stack.meter.sent_bytes))
    priced = price_plan(spec, Cluster(devices, Link(1e8, 1e-4)), plan, 12)
    travels = {1: 2 * spec.hidden, 3: spec.blocks[1].kind.ffn + spec.hidden}.get(at % 4, spec.hidden)
    assert sent == priced.prediction.bytes_on_wire == 4 * 12 * (travels + spec.hidden)
    layers = {name: shape for name, shape in tensor_shapes(spec).items() if name.startswith("layers/")}
    ends = {name: shape for name, shape in tensor_shapes(spec).items() if name not in layers}
    assert sum(priced.weights_bytes) == 4 * sum(math.prod(shape) for shape in [*layers.values(), *ends.values()])


@pytest.mark.sizes
def test_fewer_bits_between_stages_send_less_and_err_more(world):
    """Bytes to the byte as the price says; the error grows as the bits shrink, from none at all."""
    plan, lengths, errors = rank_by_rank(SPEC, world), [3, 30], []
    devices = tuple(Device(name, 1e10, GIB) for name in plan.devices)
    for wire in STAGE_WIRES:
        stack, results = run(SPEC, plan, [lengths], world, wire)

        priced = price_plan(SPEC, Cluster(devices, Link(1e8, 1e-4)), replace(plan, wire=wire), sum(lengths))
        assert sum(world.on_all(lambda stack=stack: stack.meter.sent_bytes)) == priced.prediction.bytes_on_wire
        assert set(stack.meter.batches_by_bits) == ({wire.bits} if world.size > 1 else set())
        if world.rank == 0:
            answer = np.concatenate(expected(SPEC, tuple(lengths))[1])
            errors.append(float(np.sqrt(np.square(results[0] - answer).mean() / np.square(answer).mean())))
    if world.rank == 0 and world.size > 1:
        assert errors == sorted(errors)
        bounds = {32: 1e-5, 16: 1e-3, 8: 0.02, 6: 0.06, 4: 0.3, 2: 1.2}
        assert all(error < bounds[wire.bits] for wire, error in zip(STAGE_WIRES, errors, strict=True))


@pytest.mark.sizes
def test_stages_of_several_ranks_send_few_bits_to_each_other_and_exact_numbers_within(world):
    rng = np.random.default_rng(3)
    plan = replace(random_plan(SPEC, world.size, rng, 1), tile_rows=0)
    devices = tuple(Device(name, 1e10, GIB) for name in plan.devices)

    stack, _ = run(SPEC, plan, [[40]], world, Wire.INT4)

    priced = price_plan(SPEC, Cluster(devices, Link(1e8, 1e-4)), replace(plan, wire=Wire.INT4), 40)
    if not plan.in_one:
        assert sum(world.on_all(lambda: stack.meter.sent_bytes)) == priced.prediction.bytes_on_wire


def test_adaptive_stages_send_as_few_bits_as_a_slow_link_carries(world, monkeypatch):
    """Where the kernel says that the link carries next to nothing, two bits after a window; all is counted."""
    monkeypatch.setattr(SendRate, "__call__", lambda self: 1.0)
    batches = 2 * (WINDOW + MOST)
    stack, results = run(SPEC, rank_by_rank(SPEC, world), [[8]] * batches, world, Wire.ADAPTIVE)

    used, moved = (
        stack.meter.batches_by_bits,
        world.on_all(lambda: (stack.meter.sent_bytes, stack.meter.received_bytes)),
    )
    assert sum(sent for sent, _ in moved) == sum(received for _, received in moved)
    if used:
        assert used[32] <= WINDOW + MOST  # those under way when the first window is through
        assert set(used) == {32, 2}
        hops = sum(used.values()) // batches
        assert moved[world.rank][0] == sum(
            count * (HEADER_BYTES + 8 * wire.row_bytes(SPEC.hidden))
            for wire in STAGE_WIRES
            for count in [used[wire.bits]]
        )
        assert hops in (1, 2)
    assert len(results) == (batches if world.rank == 0 else 0)


def test_a_connection_to_no_receiver_does_not_say_how_fast_the_link_is(world):
    """A busy one of this process's own, beside those of MPI, which carry nothing meanwhile."""
    stack = make_stack(SPEC, rank_by_rank(SPEC, world), tensors_of(SPEC), world, NUMPY, Wire.ADAPTIVE)
    (between,) = stack._between_stages.values()
    with connected() as (_, send):
        between._send_rate()
        send(1 << 20)
        rate = between._send_rate()

    world.finish_sending()
    assert rate == 0


@pytest.mark.sizes
def test_a_slow_consumer_does_not_grow_what_is_under_way(world, monkeypatch):
    """Batches are embedded only as answers are taken: never more ahead than the replicas can have."""
    plan = one_device_plan(SPEC, [(rank, 0, SPEC.layers) for rank in range(world.size)], world.size)
    stack = make_stack(SPEC, plan, tensors_of(SPEC), world, NUMPY, Wire.FLOAT32)
    if world.rank:
        follow(world, stack)
        return
    taken, ahead, embed = [], [], embeddings.embed

    def noted(*arguments):
        taken.append(True)
        return embed(*arguments)

    monkeypatch.setattr(embeddings, "embed", noted)
    answers = Engine(SPEC, tensors_of(SPEC), stack, world).serve([[requests_of(SPEC, [2])] * 100])
    for done, _ in enumerate(answers, start=1):
        ahead.append(len(taken) - done)
    world.orders.send(None, world.others())

    assert len(ahead) == 100
    assert max(ahead) <= SPREAD * MOST * world.size


def test_a_rank_alone_in_its_stage_can_do_something_else_behind_every_layer(world):
    """Rank 0 deals then; where other ranks would wait for it, it goes through."""
    alone = one_device_plan(SPEC, [(rank, 0, SPEC.layers) for rank in range(world.size)], world.size)
    stack = make_stack(SPEC, alone, tensors_of(SPEC), world, NUMPY, Wire.FLOAT32)

    if world.rank == 0:
        batch, x = Batch.of_lengths([8]), embedded(SPEC, tensors_of(SPEC), [8])
        pauses = [*stack.carry(stack.paths[0], batch, x)]
        assert pauses == [(0, None)] * SPEC.layers + [(1, None)]


@pytest.mark.sizes
def test_every_replica_gets_a_share(world):
    """Of many batches, no rank is left without; what all did adds up."""
    plan = one_device_plan(SPEC, [(rank, 0, SPEC.layers) for rank in range(world.size)], world.size)
    stack = check(SPEC, plan, [[30]] * 40, world)

    moved = world.on_all(lambda: (stack.meter.sent_bytes, stack.meter.received_bytes))
    batch_bytes = 30 * SPEC.hidden * 4
    away = [sent // batch_bytes for sent, _ in moved[1:]]
    assert all(away)
    assert sum(away) < 40
    assert moved[0] == (sum(away) * batch_bytes, sum(away) * batch_bytes)


def test_an_error_within_a_batch_closes_its_counters_and_its_trace(world):
    """What was sent until then counts, and what others exchange later is in no batch's trace."""
    stack = Stack(SPEC, one_device_plan(SPEC, [(0, 0, SPEC.layers)], world.size), (), world, NUMPY)
    trace = stack.trace = Trace()

    def lost():
        with stack.metered(True):
            world.traffic.sent_bytes += 12
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        lost()
    waits, slices = list(trace.waits), list(trace.slices)
    world.traffic.waited(time.perf_counter())

    assert stack.meter.sent_bytes == stack.last.sent_bytes == 12
    assert [name for name, _, _ in slices] == [OUTSIDE]
    assert (trace.waits, trace.slices) == (waits, slices)
