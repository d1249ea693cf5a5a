"""What no plan beats: random plans of every family, cut in any way, on unlike devices, take no less."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.cluster.named import find_cluster
from solver.model.named_decoders import named_decoder
from solver.model.spec import TextInput, encoder
from solver.schedule.bound import shared_s
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.bound import answer_bound_s
from solver.schedule.decoders.cost import answer_seconds, setting_of
from solver.schedule.encoders.bound import bound_s
from solver.schedule.encoders.cost import setting
from solver.schedule.encoders.stages import price_plan
from solver.schedule.networks.segment_steps import net_setting, plan_seconds
from solver.systems.decoders import plan_decoder
from tests import sweeps
from tests.kit.convnets import random_net, random_plan
from tests.kit.decoders import small_model
from tests.kit.instances import sharing_cluster, unlike_cluster
from tests.kit.plans import decoder_plans, like, plans

SPEC = encoder("small", hidden=64, ffn=192, heads=4, layers=3, input=TextInput(50, 64, 64))
SPECS = [SPEC, like(SPEC, norm="pre", pooling="cls", layers=4)]
EXACT = 1 - 1e-9
MODELS = [small_model(layers=layers, heads=6, kv_heads=3, hidden=64, ffn=96) for layers in (3, 9)]


def cluster_of(seed, devices):
    return (unlike_cluster if seed % 2 else sharing_cluster)(np.random.default_rng(seed), 4).first(devices, "")


def test_parts_are_shared_out_by_speed_and_of_several_ways_the_least_counts():
    """Of two devices, one three times as fast, three quarters of all; of another way of one part half of that."""
    parts = np.array([[3.0, 1.0], [6.0, 2.0]])

    assert shared_s(parts) == pytest.approx(0.75 + 1.5)
    assert shared_s(parts, parts / 2) == pytest.approx(shared_s(parts) / 2)
    assert shared_s(parts, 2 * parts) == pytest.approx(shared_s(parts))


@settings(max_examples=sweeps.count(40, 2000), deadline=None)
@given(plan=plans(SPEC), seed=st.integers(0, 10**6), rows=st.sampled_from([1, 7, 64]))
def test_no_plan_of_an_encoder_beats_it(plan, seed, rows):
    cluster = cluster_of(seed, len(plan.devices))
    plan = replace(plan, rows=rows)

    assert price_plan(SPEC, cluster, plan, rows).prediction.seconds >= bound_s(setting(SPEC, cluster, rows)) * (
        1 - 1e-9
    )


@pytest.mark.parametrize("seed", sweeps.seeds(40, 1000))
def test_no_plan_of_a_network_beats_it(seed):
    rng = np.random.default_rng(seed)
    net, ranks = random_net(rng)[0], int(rng.integers(1, 5))
    s = net_setting(net, cluster_of(seed, ranks))

    assert plan_seconds(s, random_plan(net, rng, ranks)) >= s.bound_s * EXACT


@settings(max_examples=sweeps.count(40, 2000), deadline=None)
@given(
    data=st.data(), model=st.sampled_from(MODELS), seed=st.integers(0, 10**6), prompt=st.sampled_from([1, 9, 70]),
    latency_s=st.none() | st.floats(1e-5, 1e-2),
)  # fmt: skip
def test_no_plan_of_a_language_model_beats_it(data, model, seed, prompt, latency_s):
    plan = data.draw(decoder_plans(model))
    cluster = cluster_of(seed, len(plan.devices))
    if latency_s is not None:
        cluster = replace(cluster, network=replace(cluster.network, latency_s=latency_s))
    plan = replace(plan, context=max(plan.context, prompt + 8), precision="float32")
    asked = TokenRequest(
        prompt=prompt, tokens=8, context=plan.context, precision="float32", cache=plan.cache, wire=plan.wire
    )
    s = setting_of(model, cluster, plan)

    assert answer_seconds(s, plan, asked) >= answer_bound_s(s, asked) * EXACT


@pytest.mark.parametrize("cluster", ["mixed3", "mixed4", "pi4x4"])
@pytest.mark.parametrize("name", ["llama-3.2-1b", "smollm2-135m"])
def test_of_a_language_model_the_plan_is_near_it(name, cluster):
    """Exchanges and calls count in it: by what is computed alone the plans would be 1.3 to 3 times as long."""
    model, cluster = named_decoder(name), find_cluster(cluster)
    plan = plan_decoder("hepti", model, cluster, TokenRequest())
    s = setting_of(model, cluster, plan)

    answer_s = answer_seconds(s, plan, TokenRequest())

    assert 0.88 * answer_s <= answer_bound_s(s, TokenRequest()) <= answer_s
