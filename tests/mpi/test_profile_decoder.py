"""A profile for a language model: the same on all ranks, of every part, and good to plan for."""

import dataclasses

import numpy as np
import pytest

from hepti_mpi.measure import profile_decoder, random_decoder, timing
from hepti_mpi.measure.random_decoder import RandomDecoder
from solver.base.errors import HeptiError
from solver.cluster.cluster import read_cluster, write_cluster
from solver.cluster.decoder_curves import DecoderPart
from solver.model.decoder import CACHES, PRECISIONS
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.memory import attention_bytes
from solver.systems.decoders import plan_decoder
from tests import sweeps
from tests.kit.decoders import MODELS

NAMES = [*MODELS] if sweeps.ALL else ["gemma2", "gpt2", "narrow", "qwen3"]
REFUSED = [("narrow", "int4")]  # blocks of 32 cannot be filled up within heads


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(timing, "LEAST_S", 0.002)
    monkeypatch.setattr(timing, "MOST_S", 0.01)
    monkeypatch.setattr(profile_decoder, "EXCHANGES_S", 0.01)


def test_a_language_model_is_profiled_and_planned(world, tmp_path):
    model = MODELS["qwen3"]

    cluster = profile_decoder.profile_decoder(model, "int4", world)

    assert len(set(world.on_all(lambda: cluster.fingerprint))) == 1
    for device in cluster.devices:
        assert device.decoder_speeds("int4") is device.decoder
        assert min(device.decoder.pass_s, device.decoder.message_s) > 0
    path = tmp_path / "cluster.toml"
    write_cluster(cluster, path)
    assert read_cluster(path).fingerprint == cluster.fingerprint
    plan = plan_decoder("hepti", model, cluster, TokenRequest(prompt=20, tokens=20, context=60, precision="int4"))
    plan.check(model, world.size)
    assert plan.predicted is not None
    assert plan.predicted.token_s > 0


@pytest.mark.parametrize(
    ("name", "precision"),
    [case for case in sweeps.cycled(4, NAMES, ["float32", "int4"]) if case not in REFUSED],
)
def test_every_family_is_measured_in_blocks_or_not(name, precision, world):
    model = MODELS[name]

    measured = profile_decoder.measure_decoder(model, precision, world)

    attention = model.layers[0].attention
    whole = attention_bytes(model, attention, attention.heads, attention.kv_heads, PRECISIONS[precision])
    assert whole in measured.speeds.parts[DecoderPart.ATTENTION].second
    assert measured.speeds.precision == precision
    assert measured.flop_per_s > 0


@pytest.mark.parametrize(("name", "precision"), REFUSED)
def test_heads_that_the_engine_refuses_are_not_measured(name, precision, world):
    with pytest.raises(HeptiError, match="a head is 12 wide"):
        profile_decoder.measure_decoder(MODELS[name], precision, world)


def test_a_profile_is_kept_by_model_and_precision(world):
    model = MODELS["llama"]
    wider = dataclasses.replace(model, vocab=60)
    found = [profile_decoder.decoder_fingerprint(of, p, world) for of, p in ((model, "int4"), (wider, "int4"))]
    found.append(profile_decoder.decoder_fingerprint(model, "int8", world))

    assert len(set(found)) == 3
    assert found[0] == profile_decoder.decoder_fingerprint(model, "int4", world)


@pytest.mark.parametrize(("precision", "cache"), sweeps.cycled(3, PRECISIONS, CACHES))
def test_no_number_is_too_small_to_be_normal_or_none(precision, cache):
    """Arithmetic on such numbers takes a hundred times as long on some processors."""
    graphs = RandomDecoder(MODELS["qwen3"], precision)
    session = graphs._session(DecoderPart.ATTENTION, 1, cache)
    held = {}
    bound = session.bound
    found = []

    def kept(inputs, outputs):
        held.update(outputs)
        return bound(inputs, outputs)

    session.bound = kept
    for rows, behind in ((1, 0), (5, 64)):
        graphs.call(DecoderPart.ATTENTION, 1, rows, behind, cache)()
        found += [np.abs(held["h"]).max(), np.abs(held["part"]).max()]

    assert all(0.01 < largest < 100 for largest in found)


def test_shares_are_at_least_two_and_no_larger_than_is_quick(monkeypatch):
    model = MODELS["one-kv-head"]
    graphs = RandomDecoder(model, "float32")

    assert graphs.sizes(DecoderPart.ATTENTION) == [1, 2]
    monkeypatch.setitem(random_decoder.LARGEST_BYTES, DecoderPart.MLP, graphs.bytes_of(DecoderPart.MLP, 64))
    assert graphs.sizes(DecoderPart.MLP) == [32, 64]
