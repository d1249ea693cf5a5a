"""A profile for a language model: the same on all ranks, of every part, and good to plan for."""

import dataclasses

import pytest

from hepti_mpi.kernels.backends import of_all
from hepti_mpi.measure import profile_decoder, timing
from solver.base.errors import HeptiError
from solver.cluster.cluster import read_cluster, write_cluster
from solver.cluster.decoder_curves import DecoderPart
from solver.model.kinds.weight import PRECISIONS
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.memory import block_bytes, whole_units
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
    ("name", "precision", "backend"),
    [
        case
        for case in sweeps.cycled(8, NAMES, ["float32", "int4"], ["onnxruntime", "numpy"])
        if case[:2] not in REFUSED or case[2] == "numpy"
    ],
)
def test_every_family_is_measured_in_blocks_or_not(name, precision, backend, world):
    model = MODELS[name]

    measured = profile_decoder.measure_decoder(model, precision, world, backend)

    attention = model.layers[0][0]
    whole = block_bytes(model, attention, whole_units(model, attention), PRECISIONS[precision])
    assert whole in measured.speeds.parts[DecoderPart.ATTENTION].second
    assert measured.speeds.precision == precision
    assert measured.flop_per_s > 0


@pytest.mark.parametrize(("name", "precision"), REFUSED)
def test_heads_that_the_engine_refuses_are_not_measured(name, precision, world):
    with pytest.raises(HeptiError, match="a head is 12 wide"):
        profile_decoder.measure_decoder(MODELS[name], precision, world)


def test_a_profile_says_with_what_it_was_measured(world):
    names = ["numpy" if rank else "onnxruntime" for rank in range(world.size)]

    cluster = profile_decoder.profile_decoder(MODELS["llama"], "int4", world, names[world.rank])

    assert cluster.profile["backend"] == of_all(names)


def test_a_profile_is_kept_by_model_precision_and_backend(world):
    model = MODELS["llama"]
    wider = dataclasses.replace(model, vocab=60)
    found = [profile_decoder.decoder_fingerprint(of, p, world) for of, p in ((model, "int4"), (wider, "int4"))]
    found.append(profile_decoder.decoder_fingerprint(model, "int8", world))
    found.append(profile_decoder.decoder_fingerprint(model, "int4", world, "numpy"))

    assert len(set(found)) == 4
    assert found[0] == profile_decoder.decoder_fingerprint(model, "int4", world)
