"""Block parallelism: which model it is, what it costs, and that nothing is cheaper than what is chosen."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from solver.base.errors import InfeasiblePlanError
from solver.model.blocks import Cut
from solver.model.named import decoupled, named_model
from solver.model.spec import layer_prefixes, tensor_shapes
from solver.plan.file import plan_from_json
from solver.plan.holdings import weights_bytes
from solver.plan.plan import Plan
from solver.plan.writing import plan_to_json
from solver.schedule.encoders.cost import price, request_seconds, setting
from solver.schedule.encoders.memory import work_bytes
from solver.schedule.encoders.stages import layer_seconds as layer_seconds_alone
from solver.show.comparison import compare, winner
from solver.systems import make_plan, plans_for
from solver.systems.decoupled import TENSOR_PARALLEL, WHOLE, decoupled_plan, seconds_on_one
from solver.systems.detransformer import Choices, able, choices, choose, ways
from tests.kit import refused
from tests.kit.clusters import pis
from tests.kit.plans import like
from tests.sweeps import pairs, seeds

SPEC = named_model("bert-base-decoupled")
MIB = 2**20


# The model.


def test_the_last_layer_of_every_group_is_original():
    assert (SPEC.groups, SPEC.sub_blocks, SPEC.layers) == (4, 4, 12)
    assert [number for number in range(12) if SPEC.run(number).parts == 1] == [2, 5, 8, 11]
    assert {SPEC.run(number).parts for number in range(12)} == {1, 4}
    assert {named_model("bert-base").run(number).parts for number in range(12)} == {1}


def test_a_sub_block_has_the_widths_that_were_published():
    """DeTransformer, bert-base with N_div 4: 192 columns, 3 heads, 4224 columns of the MLP."""
    attention, mlp = SPEC.part_blocks

    assert (attention.hidden, attention.kind.heads, attention.kind.head_dim) == (192, 3, 64)
    assert (mlp.hidden, mlp.kind.ffn) == (192, 4224)


@pytest.mark.parametrize("name", ["bert-base-decoupled-4x2", "bert-large-decoupled", "vit-base-decoupled-6x6"])
def test_matrices_of_a_decoupled_layer_have_as_many_parameters_as_those_of_an_original_one(name):
    spec = named_model(name)

    def matrices(layer):
        run = spec.run(layer)
        tensors = [tensor for _ in layer_prefixes(run, layer) for tensor in run.tensors]
        return sum(np.prod(tensor.shape) for tensor in tensors if tensor.weight.summed is not None)

    original = spec.layers // spec.groups - 1
    assert matrices(0) == matrices(original) == 4 * spec.hidden**2 + 2 * spec.hidden * spec.blocks[1].kind.ffn


def test_names_say_how_a_model_is_decoupled():
    assert named_model("bert-large-decoupled").groups == 8
    assert named_model("bert-large-decoupled", 6).groups == 2
    spec = named_model("minilm-l6-decoupled-1x2")
    assert (spec.name, spec.groups, spec.sub_blocks) == ("minilm-l6-decoupled-1x2", 1, 2)
    assert len({named_model(f"bert-base{end}").fingerprint for end in ("", "-decoupled", "-decoupled-4x2")}) == 3
    assert tensor_shapes(SPEC)["layers/3/2/mlp/down/weight"] == (4224, 192)
    assert tensor_shapes(SPEC)["layers/2/mlp/down/weight"] == (3072, 768)


def test_what_does_not_divide_is_refused(kept):
    cases = [
        {"groups": 5},
        {"sub_blocks": 7},
        {"sub_blocks": 8},
        {"groups": 12},
        {"groups": 0},
        {"sub_blocks": 1},
        {"groups": -1},
    ]

    kept(refused.said(lambda changes: like(SPEC, **changes), cases))


# Its plans.


def plan_of(sub_blocks, originals, cluster=None, rows=128, spec=SPEC):
    cluster = cluster or pis(*[24.6] * len(sub_blocks))
    return decoupled_plan(setting(spec, cluster, rows), cluster, "by hand", np.array(sub_blocks), originals)


def test_a_plan_survives_its_file():
    plan = plan_of([1, 3, 0], [WHOLE, TENSOR_PARALLEL, 1, 0])

    assert plan_from_json(plan_to_json(plan), Plan) == plan
    assert '"sub_blocks": [' in plan_to_json(plan)
    plan.check(SPEC, 3)
    assert plan.stages[0].active == (0, 1)


def changed(plan, layer, block, **changes):
    """Return the plan with a run's block changed."""
    (stage,) = plan.stages
    runs = [
        (span, tuple(replace(cut, **changes) if (number, cut.block) == (layer, block) else cut for cut in cuts))
        for number, (span, cuts) in enumerate(stage.layers)
    ]
    return replace(plan, stages=(replace(stage, layers=tuple(runs)),))


def test_plans_that_do_not_fit_the_groups_are_refused(kept):
    plan = plan_of([1, 3], [WHOLE] * 4)
    swapped = plan_of([3, 1], [WHOLE] * 4)
    ordinary = named_model("bert-base")
    by_rows = make_plan("sequence", ordinary, pis(10, 10), 64)
    by_block = make_plan("megatron", ordinary, pis(1, 1), 8).layer(0)[1].inner
    cases = [
        (replace(plan, model_fingerprint="", model_name=ordinary.name), ordinary),
        (replace(by_rows, model_fingerprint="", model_name=SPEC.name), SPEC),
        (changed(plan, 0, "mlp", inner=swapped.layer(0)[1].inner), SPEC),
        (changed(plan, 1, "mlp", cut=Cut.BLOCK, inner=by_block), SPEC),
        (replace(plan, model_fingerprint=""), like(SPEC, sub_blocks=6)),
        (replace(plan, devices=(*plan.devices, "pi-9")), SPEC),
    ]

    kept(refused.said(lambda wrong, spec: wrong.check(spec, len(wrong.devices)), cases))


def test_every_sub_block_is_held_once_and_whole_layers_by_all_who_have_any():
    plan = plan_of([1, 3, 0], [WHOLE, TENSOR_PARALLEL, 1, 0])
    part = sum(4 * np.prod(shape) for name, shape in tensor_shapes(SPEC).items() if name.startswith("layers/0/0/"))
    whole = sum(4 * np.prod(shape) for name, shape in tensor_shapes(SPEC).items() if name.startswith("layers/2/"))
    common = 4 * 6 * 768
    ends = sum(4 * np.prod(shape) for name, shape in tensor_shapes(SPEC).items() if not name.startswith("layers/"))

    first, second, third = (weights_bytes(SPEC, plan, rank) for rank in range(3))

    assert first + second == ends + 8 * 4 * part + 2 * whole + (whole + common) + 2 * (whole + common)
    assert third == 4 * common


# What it costs.


def test_a_layer_alone_costs_what_the_cost_model_says_elsewhere():
    cluster, spec = pis(24.6, 70, 10), named_model("bert-base")

    found = seconds_on_one(setting(spec, cluster, 100), spec.blocks)

    assert found == pytest.approx(layer_seconds_alone(spec, cluster, 100))


def test_a_request_costs_the_exchanges_by_hand():
    """Four equal boards of no compute at all: in, 3/4 S H from rank 0; out of every group, S H 3/4 to each of them."""
    cluster, rows = pis(*[1e9] * 4, mbps=100, latency_us=1000), 128
    unit_s = 0.001 + 3 / 4 * 4 * rows * SPEC.hidden / 12.5e6

    def seconds(*originals):
        return price(setting(SPEC, cluster, rows), plan_of([1] * 4, originals, cluster, rows)).seconds

    # Whole: N_b (p - 1) / p S H, and what comes in. On one device: as much to it, and back to all.
    assert seconds(*[WHOLE] * 4) == pytest.approx((1 + 4) * unit_s, rel=1e-3)
    assert seconds(*[2] * 3, 0) == pytest.approx((1 + 2 * 3 + 1) * unit_s, rel=0.02)
    # Tensor-parallel: two all-reduces more, of two exchanges each.
    assert seconds(*[TENSOR_PARALLEL] * 4) == pytest.approx((1 + 5 * 4) * unit_s, rel=1e-3)


# What is chosen.


def by_hand(room):
    """Two boards, two groups, two sub-blocks: 1 s each a group, 2 s a whole layer, 0.5 s a gather, 0.25 an all-reduce.

    Both have one: 0.5 s in. A group is 1 s of sub-blocks, 0.5 to gather, and an original layer: on one of them 2 and
    0.5 to go on; by both 2; tensor-parallel 1 and two times 0.25. All on one board: 2 s of sub-blocks, and 2 a layer.
    """
    inf = np.inf
    whole = 10 * np.eye(2)
    return Choices(
        counts=np.array([[2, 0], [1, 1]]),
        fixed_s=np.array([0.0, 0.5]),
        inner_s=np.array([[4.0, inf, 4.0, 4.0], [4.0, 4.0, 3.5, 3.0]]),
        last_s=np.array([[4.0, inf, 4.0, 4.0], [3.5, 4.0, 3.5, 3.0]]),
        held=np.array([[*whole, [10, 0], [10, 0]], [*whole, [10, 10], [5, 5]]]),
        room=np.array(room, float),
    )


def test_the_placement_of_a_worked_example():
    plenty = choose(by_hand([[99, 99], [99, 99]]), 2)
    # Two tensor-parallel layers take 10 on both: board 1 has room for one, board 0 for another layer whole.
    scarce = choose(by_hand([[19, 99], [16, 6]]), 2)
    alone = choose(by_hand([[20, 99], [9, 9]]), 2)

    assert plenty[0].tolist() == [1, 1]
    assert plenty[1] == [TENSOR_PARALLEL, TENSOR_PARALLEL]  # 0.5 + 3 + 3 = 6.5 s against 8 s alone
    assert scarce[0].tolist() == [1, 1]
    assert scarce[1] == [TENSOR_PARALLEL, 0]  # 7 s
    assert alone[0].tolist() == [2, 0]  # 8 s
    assert choose(by_hand([[19, 99], [9, 9]]), 2) is None


@pytest.mark.parametrize("seed", seeds(8, 40))
def test_nothing_that_fits_takes_less(seed):
    """Every way and every mode of every original layer, tried one by one."""
    rng = np.random.default_rng(seed)
    counts, groups = ways(int(rng.integers(2, 4)), p := int(rng.integers(1, 4))), int(rng.integers(1, 5))
    size = len(counts)
    inner = rng.uniform(1, 5, (size, p + 2))
    inner[:, :p][counts == 0] = np.inf
    last = inner + rng.uniform(-1, 1, inner.shape)
    held = rng.integers(0, 6, (size, p + 2, p)).astype(float)
    given = Choices(counts, rng.uniform(1, 9, size), inner, last, held, rng.integers(-1, 14, (size, p)).astype(float))

    def total(way, modes):
        fits = (held[way, list(modes)].sum(0) <= given.room[way]).all()
        return given.fixed_s[way] + inner[way, list(modes[:-1])].sum() + last[way, modes[-1]] if fits else np.inf

    best = min(total(way, modes) for way in range(size) for modes in product(range(p + 2), repeat=groups))
    found = choose(given, groups)

    if np.isinf(best):
        assert found is None
        return
    way = counts.tolist().index(found[0].tolist())
    modes = [mode if mode >= 0 else p + (mode - WHOLE) for mode in found[1]]
    assert total(way, modes) == pytest.approx(best)


def test_choices_by_hand():
    """Boards with one and three of four sub-blocks, and links so slow that a message's CPU time is nothing."""
    cluster, rows = pis(24.6, 70, mbps=20), 128
    given = choices(SPEC, cluster, rows, [0, 1])
    way = given.counts.tolist().index([1, 3])
    s = setting(SPEC, cluster, rows)
    part_s, whole_s = seconds_on_one(s, SPEC.part_blocks), seconds_on_one(s, SPEC.blocks)
    chunk_s = 4 * rows * 192 / (20e6 / 8)
    to_first, to_second = 3 * chunk_s + 200e-6, chunk_s + 200e-6
    done = 2 * part_s * [1, 3]  # when they have done the two decoupled layers of a group
    first, second = max(done[0], done[1] + to_first), max(done[1], done[0] + to_second)

    def about(seconds):
        return pytest.approx(seconds, rel=0.01)

    assert given.fixed_s[way] == about(3 * chunk_s + 200e-6)
    assert given.inner_s[way, 0] == about(first + whole_s[0] + to_first)
    assert given.inner_s[way, 1] == about(second + whole_s[1] + to_second)
    assert given.last_s[way, 0] == about(first + whole_s[0])
    assert given.last_s[way, 1] == about(second + whole_s[1] + 4 * chunk_s + 200e-6)
    assert given.inner_s[way, 2] == about(max(first, second) + whole_s.max())


@pytest.mark.parametrize(
    ("speeds", "mbps", "memory_gib"),
    pairs([(24.6, 24.6), (24.6, 70, 10)], [20, 240, 2000], [0.2, 0.25, 0.28, 0.32, 4]),
)
def test_no_plan_is_much_faster_by_the_cost_model(speeds, mbps, memory_gib):
    """T adds up groups, in which a little more overlaps: all plans of two groups, priced as they would run."""
    spec = named_model("bert-base-decoupled-2x4", 6)
    cluster, rows = pis(*speeds, mbps=mbps, memory_gib=memory_gib), 128
    s, p = setting(spec, cluster, rows), len(speeds)

    def fits(plan):
        return all(
            weights_bytes(spec, plan, rank) + work_bytes(spec, rows) <= device.memory_bytes
            for rank, device in enumerate(cluster.devices)
        )

    every = [
        plan_of(counts, modes, cluster, rows, spec)
        for counts in ways(4, p)
        for modes in product([*np.flatnonzero(counts).tolist(), WHOLE, TENSOR_PARALLEL], repeat=2)
    ]
    best_s = min((request_seconds(s, plan) for plan in every if fits(plan)), default=None)

    if best_s is None:
        with pytest.raises(InfeasiblePlanError, match=r"does not fit: \d+ MiB short"):
            make_plan("detransformer", spec, cluster, rows)
        return
    plan = make_plan("detransformer", spec, cluster, rows)
    assert fits(plan)
    # Its own sums let all wait for all between layers; by the clocks of ranks, other modes may be faster.
    assert plan.predicted.seconds <= 1.15 * best_s


def test_slow_links_keep_more_on_one_board_and_fast_ones_less():
    sent = [
        make_plan("detransformer", SPEC, pis(24.6, 24.6, 24.6, 24.6, mbps=mbps), 128).predicted.bytes_on_wire
        for mbps in (1, 20, 2000)
    ]

    assert sent == sorted(sent)
    assert sent[0] == 0 < sent[1] < sent[2]


def test_of_many_boards_the_fastest_are_looked_at():
    cluster = pis(*([10] * 30), 70, 24.6, *([10] * 30))

    crew = able(SPEC, cluster, 128, np.full(62, np.inf))
    plan = make_plan("detransformer", SPEC, cluster, 128)

    assert {30, 31} < set(crew)
    assert len(crew) == 8
    assert set(plan.stages[0].active) <= set(crew)


def test_single_has_everything_on_the_fastest():
    plan = make_plan("single", SPEC, pis(10, 70, 20), 128)

    assert plan.stages[0].active == (1,)
    assert plan.layer(0)[0].inner.counts == (0, 4, 0)
    # There and back: the other ranks have nothing to do with it.
    assert plan.predicted.bytes_on_wire == 2 * 4 * 128 * 768
    assert make_plan("single:pi-2", SPEC, pis(10, 70, 20), 128).stages[0].active == (2,)


# Other models, other systems.


def test_an_ordinary_model_has_no_decoupled_layers(kept):
    cases = [("detransformer", named_model("bert-base"), pis(10, 20), 64)]

    kept(refused.said(make_plan, cases, InfeasiblePlanError))


def test_other_systems_have_no_plan_for_decoupled_layers():
    assert plans_for(SPEC) == ("detransformer", "single")
    for spec, system in product((SPEC, named_model("bert-base-decoupled")), plans_for(named_model("bert-base"))):
        if system != "single":
            with pytest.raises(InfeasiblePlanError, match=f"decoupled layers: {system} has no plan"):
                make_plan(system, spec, pis(10, 20), 64)


def test_beside_other_systems_it_is_marked_and_wins_nothing():
    """On a network so slow that a model which sends less is the fastest of all."""
    spec, cluster = named_model("bert-base"), pis(24.6, 24.6, 24.6, 24.6, mbps=60)

    entries = compare(spec, cluster, 128)

    fastest = min(entries, key=lambda entry: entry.seconds)
    assert (fastest.system, fastest.model, fastest.label) == ("detransformer", "bert-base-decoupled", "detransformer *")
    assert winner(entries, "latency") is min(entries, key=lambda entry: (bool(entry.model), entry.seconds))
    assert [entry.model for entry in compare(decoupled(spec), cluster, 128)] == ["", ""]
    lacking = compare(named_model("bert-base", 7), cluster, 64, systems=["detransformer"])
    assert "7 do not divide into 2" in lacking[0].lacks
