"""All systems that plan language models."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import MIB
from solver.cluster.named import find_cluster
from solver.cluster.whatif import changed
from solver.model.kinds.part import FFN, HEAD
from solver.model.named_decoders import named_decoder
from solver.plan.plan import Wire
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import answer_seconds, first_seconds, setting_of
from solver.systems.decoders import SYSTEMS, plan_decoder
from solver.systems.decoders.hepti import StageSet, best_stages, layers_s
from tests.kit import refused
from tests.kit.answers import boards
from tests.kit.clusters import pis
from tests.kit.decoders import MODELS, small_model
from tests.sweeps import pairs

FEW = named_decoder("llama-3.2-1b", 4)
ASKED = TokenRequest(prompt=40, tokens=30, context=512)
CLUSTERS = {
    "even": pis(24, 24, 24, 24),
    "mixed": pis(24, 70, 24, 10),
    "three": pis(24, 70, 24),
    "alone": pis(24),
    "slow links": pis(24, 70, 24, 10, mbps=10),
    "tight": pis(24, 70, 24, 10, memory_gib=0.33),
    "tight, slow links": pis(24, 70, 24, 10, memory_gib=0.33, mbps=10),
}


@pytest.fixture(scope="module")
def plans():
    """Return every system's plan of every cluster, where there is one."""
    found = {}
    for where, cluster in CLUSTERS.items():
        for system in SYSTEMS:
            try:
                found[where, system] = plan_decoder(system, FEW, cluster, ASKED)
            except InfeasiblePlanError:
                assert "tight" in where
    return found


def test_every_plan_fits_its_model_and_its_devices(plans):
    for (where, system), plan in plans.items():
        memory = [device.memory_bytes for device in CLUSTERS[where].devices]

        plan.check(FEW, len(memory))
        assert (plan.system, plan.context, plan.precision) == (system, 512, "int4")
        assert all(needed <= has for needed, has in zip(plan.predicted.memory_bytes, memory, strict=True))
        assert plan.predicted.first_s > plan.predicted.token_s > 0


@pytest.mark.parametrize("where", CLUSTERS)
def test_hepti_answers_as_soon_as_any_other(plans, where):
    cluster = CLUSTERS[where]
    s = setting_of(FEW, cluster, ASKED)
    seconds = {system: answer_seconds(s, plans[where, system], ASKED) for system in SYSTEMS if (where, system) in plans}

    assert seconds["hepti"] <= 1.003 * min(seconds.values())


def test_uneven_boards_gain_most(plans):
    token_s = {system: plans["mixed", system].predicted.token_s for system in SYSTEMS}

    assert token_s["hepti"] < 0.85 * token_s["single"]
    assert token_s["hepti"] < 0.5 * token_s["megatron"]


def test_megatron_shares_evenly_and_more_ranks_than_groups_have_columns_only():
    model = small_model(heads=8, kv_heads=2, d=32, ffn=160, vocab=10)
    plan = plan_decoder("megatron", model, pis(9, 9, 9), TokenRequest(prompt=4, tokens=4, context=64))

    assert plan.stages[0].shares[HEAD].counts == (4, 4, 0)
    assert plan.stages[0].shares[FFN].counts == (64, 64, 32)
    assert plan.words.counts == (4, 3, 3)


def test_galaxy_shares_by_speed(plans):
    stage = plans["mixed", "galaxy"].stages[0]

    assert np.argsort(stage.shares[FFN].counts)[-1] == 1
    assert stage.shares[FFN].counts[1] > 5 * stage.shares[FFN].counts[3]


@pytest.mark.parametrize("system", ["prima", "edgeshard", "pipeedge", "single"])
def test_whole_layers_are_on_one_device_each(plans, system):
    for where in CLUSTERS:
        if (where, system) in plans:
            assert all(len(stage.ranks) == 1 for stage in plans[where, system].stages)


def test_pipeedge_makes_the_slowest_stage_fast(plans):
    assert [stage.layers.size for stage in plans["even", "pipeedge"].stages] == [1, 1, 1, 1]


def test_a_device_is_chosen_by_name(kept):
    plan = plan_decoder("single:pi-2", FEW, CLUSTERS["mixed"], ASKED)

    assert plan.stages[0].ranks == (2,)
    kept(refused.said(lambda name: plan_decoder(name, FEW, CLUSTERS["mixed"], ASKED), ["single:pi-9", "hept"]))


@pytest.mark.parametrize(("name", "precision"), pairs([*MODELS], ["float32", "int8", "int4"]))
def test_models_of_awkward_sizes_are_planned(name, precision):
    """Of every system the plan is one that `check` accepts; their shares are small, so one device may be best."""
    asked = TokenRequest(prompt=5, tokens=5, context=64, precision=precision, cache="int8", wire=Wire.INT8)
    for system in ("hepti", "megatron", "galaxy", "prima"):
        plan = plan_decoder(system, MODELS[name], pis(3, 1, 2), asked)

        assert (plan.cache, plan.wire, plan.precision) == ("int8", Wire.INT8, precision)


def test_stages_pay_where_memory_is_scarce_and_links_are_slow():
    model = named_decoder("llama-3.1-8b")
    cluster = changed(find_cluster("mixed4"), ["network.bandwidth_mbps=10"], [], [])
    plan = plan_decoder("hepti", model, cluster, TokenRequest())
    even = plan_decoder("hepti", model, find_cluster("mixed4"), TokenRequest())

    assert len(plan.stages) > 1
    assert len(even.stages) == 1


def test_prompts_have_output_products_by_rows_where_answers_are_sooner_and_memory_has_room():
    asked, short = (replace(ASKED, prompt=prompt) for prompt in (128, 7))
    for where in ("even", "mixed"):
        plan, s = plan_decoder("hepti", FEW, CLUSTERS[where], asked), setting_of(FEW, CLUSTERS[where], asked)
        (stage,) = plan.stages
        by_heads = replace(plan, stages=(replace(stage, rows=(), rows_end=False),), rows_from=0)

        assert stage.rows_end
        assert stage.rows.index(max(stage.rows)) == (where == "mixed")
        assert 8 <= plan.rows_from <= 128
        assert plan.predicted.first_s < 0.98 * first_seconds(s, by_heads, 128)

    cluster = CLUSTERS["even"]
    few = plan_decoder("hepti", FEW, cluster, short)
    assert not few.rows_from
    for rank, needed in enumerate(few.predicted.memory_bytes):
        cluster = cluster.with_device(rank, memory_bytes=needed + 5 * MIB)
    assert not plan_decoder("hepti", FEW, cluster, asked).rows_from


def test_the_program_of_stages_takes_the_least_sum():
    def stages(layers):
        def stage(ranks, layer_s, hop_s, holds, holds_last):
            count = np.arange(layers + 1)
            seconds = [np.where(count <= most, layer_s * count + hop_s, np.inf) for most in (holds, holds_last)]
            return StageSet(ranks, *seconds)

        sets = [stage((0,), 2.0, 1.0, 3, 2), stage((1,), 1.0, 1.0, 2, 1), stage((0, 1), 1.5, 9.0, 5, 5)]
        return best_stages(sets, layers)

    assert stages(4) == [((1,), 2), ((0,), 2)]  # 2 + 1 + 4 + 1
    assert stages(5) == [((0, 1), 5)]
    assert stages(6) == []


def test_devices_that_share_layers_are_done_at_once_or_full():
    def done(seconds, holds, layers):
        """Return the least T with Σ min(T / c, m) of at least so many, by bisection."""
        if sum(holds) < layers:
            return math.inf
        low, high = 0.0, max(seconds) * layers
        for _ in range(60):
            middle = (low + high) / 2
            did = sum(min(middle / c, m) for c, m in zip(seconds, holds, strict=True))
            low, high = (low, middle) if did >= layers else (middle, high)
        return high

    rng = np.random.default_rng(47)
    for devices in (1, 2, 3, 7):
        seconds, holds = rng.uniform(0.5, 4.0, devices), rng.uniform(0.0, 6.0, devices)
        expected = [done(seconds, holds, layers) for layers in range(9)]
        np.testing.assert_allclose(layers_s(seconds, holds, 8), expected, atol=1e-9)


def test_no_room_for_the_cache_says_how_long_the_context_could_be(kept):
    cluster = pis(24, 24, memory_gib=0.5)
    line = refused.said(plan_decoder, [("hepti", FEW, cluster, TokenRequest(context=65536))], InfeasiblePlanError)
    kept(line)
    longest = int(line.split("--context ")[1].split(",")[0])

    plan_decoder("hepti", FEW, cluster, TokenRequest(context=65536, cache="int8"))
    plan = plan_decoder("hepti", FEW, cluster, TokenRequest(context=longest))
    assert max(plan.predicted.memory_bytes) > 0.9 * 512 * MIB
    with pytest.raises(InfeasiblePlanError):
        plan_decoder("hepti", FEW, cluster, TokenRequest(context=int(1.1 * longest)))


def test_no_room_for_several_says_how_many_there_could_be(kept):
    cluster, asked = pis(24, 24, memory_gib=0.5), TokenRequest(context=4096, sequences=64)
    line = refused.said(plan_decoder, [("hepti", FEW, cluster, asked)], InfeasiblePlanError)
    kept(line)
    most = int(re.search(r"or --sequences (\d+)$", line)[1])  # int8 would not do

    assert f", or for {most} of 4096: " in line
    plan_decoder("hepti", FEW, cluster, replace(asked, sequences=most))
    with pytest.raises(InfeasiblePlanError):
        plan_decoder("hepti", FEW, cluster, replace(asked, sequences=most + 1))


def test_no_room_for_the_weights_says_how_much_is_needed(kept):
    cases = [("hepti", FEW, boards(1e9, 1e9, memory_bytes=200 * MIB), ASKED)]

    kept(refused.said(plan_decoder, cases, InfeasiblePlanError))


def test_others_say_what_they_lack(kept):
    systems = ("single", "megatron", "galaxy", "prima", "edgeshard", "pipeedge")
    cases = [(system, FEW, pis(24, 24, memory_gib=200 / 1024), ASKED) for system in systems]

    kept(refused.said(plan_decoder, cases, InfeasiblePlanError))


def test_what_cannot_be_asked_for_is_refused(kept):
    cases = [
        {"prompt": 0},
        {"sequences": 0},
        {"context": 2**20},
        {"prompt": 500, "tokens": 100, "context": 512},
        {"precision": "int2"},
        {"cache": "int4"},
        {"wire": Wire.INT4},
    ]

    kept(refused.said(lambda asked: plan_decoder("hepti", FEW, CLUSTERS["even"], TokenRequest(**asked)), cases))
