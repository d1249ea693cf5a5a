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
from tests.kit import refused
from tests.kit.decoders import shares

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
STAGE = DecoderStage(Span(0, 16), shares([8, 24], [2048, 6144]))
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


def test_what_is_no_plan_is_refused(kept):
    cases = [
        {"kind": "convnet"},
        {"kind": None},
        {"format": "hepti-plan/9"},
        {"model": {"name": "gpt2"}},
        {"model": {"name": "llama-3.2-1b", "fingerprint": "0"}},
        {"colour": 1},
        {"context": None},
        {"context": 1.5},
        {"sequences": 0},
        {"cache": "int4"},
        {"wire": "int2"},
        {"precision": "int2"},
        {"stages": []},
        {"stages": [7]},
        {"stages": [{"layers": [0, 16], "heads": [8, 24]}]},
        {"stages": [{**HAND["stages"][0], "tokens": [1, 1]}]},
        {"stages": [{**HAND["stages"][0], "rows": [1, -1]}]},
        {"stages": [{**HAND["stages"][0], "heads": [32]}]},
        {"stages": [{**HAND["stages"][0], "heads": [33, -1]}]},
        {"stages": [{**HAND["stages"][0], "layers": [16]}]},
        {"words": [1, True]},
        {"devices": ["pi-0", "pi-0"]},
        {"predicted": {"token_s": 1}},
    ]

    def read(change):
        decoder_plan_from_json(json.dumps(refused.without_none({**HAND, **change})), MODEL)

    kept(refused.said(read, cases))


def test_what_is_damaged_is_refused(tmp_path, kept):
    for name, text in (("open", "{"), ("list", "[]"), ("empty", '{"format": "hepti-plan/1", "kind": "decoder"}')):
        (tmp_path / f"{name}.json").write_text(text)

    kept(refused.said(read_decoder_plan, [tmp_path / f"{name}.json" for name in ("open", "list", "empty", "none")]))
