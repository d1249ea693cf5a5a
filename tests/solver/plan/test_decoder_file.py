"""The plan file of a language model: written and read back, by hand, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.model.named_decoders import named_decoder
from solver.plan.decoder_file import (
    decoder_plan_from_json,
    decoder_plan_to_json,
    planned_model,
    read_decoder_plan,
)
from solver.plan.decoder_plan import DecoderPlan, DecoderPrediction, DecoderStage
from solver.plan.plan import Wire
from solver.plan.segment_file import any_plan_from_json, read_any_plan, read_segments

MODEL = named_decoder("llama-3.2-1b")
HAND = {
    "format": "hepti-plan/1",
    "kind": "decoder",
    "model": {"name": "llama-3.2-1b"},
    "devices": ["pi-0", "pi-1"],
    "precision": "int4",
    "context": 4096,
    "stages": [{"layers": [0, 16], "heads": [8, 24], "columns": [2048, 6144]}],
    "words": [32064, 96192],
}
STAGE = DecoderStage(Span(0, 16), Partition.of_counts([8, 24]), Partition.of_counts([2048, 6144]))
PLAN = DecoderPlan("", ("pi-0", "pi-1"), (STAGE,), Partition.of_counts([32064, 96192]), precision="int4")


def test_a_person_writes_one_by_hand():
    plan = decoder_plan_from_json(json.dumps(HAND), MODEL)

    plan.check(MODEL, 2)
    assert plan == PLAN


def test_what_is_written_is_read_back(tmp_path):
    facts = DecoderPrediction(0.1, 1.5, 0.07, 0.03, (10, 20), 64, 128)
    plan = replace(PLAN, system="hepti", wire=Wire.INT8, cache="int8", sequences=4, context=77, predicted=facts)
    path = tmp_path / "plan.json"
    path.write_text(decoder_plan_to_json(MODEL, plan))

    assert read_decoder_plan(path, MODEL) == read_any_plan(path) == plan
    assert planned_model(path) == "llama-3.2-1b"
    with pytest.raises(HeptiError, match=r"plan\.json: "):
        read_segments(path)


def test_any_plan_knows_its_kind():
    assert any_plan_from_json(json.dumps(HAND)) == PLAN


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "convnet"}, "this is the plan of a convnet, llama-3.2-1b: here a language model's is needed"),
        ({"kind": None}, "this is the plan of an encoder, llama-3.2-1b"),
        ({"format": "hepti-plan/9"}, "format is 'hepti-plan/9'"),
        ({"model": {"name": "gpt2"}}, "this is the plan of gpt2, the model is llama-3.2-1b: plan again"),
        ({"model": {"name": "llama-3.2-1b", "fingerprint": "0"}}, "of llama-3.2-1b of other layers or widths, the"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"context": None}, "the plan has no 'context'"),
        ({"context": 1.5}, "context is 1.5, must be a whole number"),
        ({"sequences": 0}, "sequences is 0, must be at least 1"),
        ({"cache": "int4"}, "cache 'int4' is not one of float32, int8"),
        ({"wire": "int2"}, "wire 'int2' is not one of float32, float16, int8"),
        ({"precision": "int2"}, "precision 'int2' is not one of float32, int8, int4"),
        ({"stages": []}, "the plan has no stages"),
        ({"stages": [7]}, "stage 0: a stage is 7, must be a table"),
        ({"stages": [{"layers": [0, 16], "heads": [8, 24]}]}, "stage 0 has no 'columns'"),
        ({"stages": [{**HAND["stages"][0], "rows": [1, 1]}]}, "stage 0: unknown key 'rows'"),
        ({"stages": [{**HAND["stages"][0], "heads": [32]}]}, "stage 0: heads are 1, there are 2 devices"),
        ({"stages": [{**HAND["stages"][0], "heads": [33, -1]}]}, "stage 0: heads is -1, must not be negative"),
        ({"stages": [{**HAND["stages"][0], "layers": [16]}]}, r"stage 0: \[16\] is not a span"),
        ({"words": [1, True]}, "words is True, must be a whole number"),
        ({"devices": ["pi-0", "pi-0"]}, "one is named twice"),
        ({"predicted": {"token_s": 1}}, "the plan has no 'first_s'"),
    ],
)
def test_what_is_no_plan_is_refused(change, words):
    table = {key: value for key, value in {**HAND, **change}.items() if value is not None}

    with pytest.raises(HeptiError, match=words):
        decoder_plan_from_json(json.dumps(table), MODEL)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not JSON"), ("[]", "no plan, which is"), ('{"format": "hepti-plan/1", "kind": "decoder"}', "no")],
)
def test_what_is_damaged_is_refused(tmp_path, text, words):
    path = tmp_path / "plan.json"
    path.write_text(text)

    with pytest.raises(HeptiError, match=f"plan.json: .*{words}"):
        read_decoder_plan(path)
    with pytest.raises(HeptiError, match="cannot read plan"):
        read_decoder_plan(tmp_path / "none.json")
