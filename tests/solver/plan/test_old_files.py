"""Plan files of the first version are read as those that say the same today, or refused in one line."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.base.errors import HeptiError
from solver.plan.file import any_plan_from_json
from tests.kit import refused
from tests.kit.plans import changed
from tests.solver.plan.test_file import ENCODER, JUNK, LANGUAGE_MODEL, NETWORK, PREDICTED, places
from tests.sweeps import count

OLD_ENCODER = {
    "format": "hepti-plan/1",
    "model": {"name": "tiny"},
    "stages": [
        {
            "devices": ["pi-0", "pi-1", "pi-2"],
            "layers": [
                {
                    "layers": [0, 3],
                    "attention": {"cut": "block", "heads": [[0, 3], [3, 5], [5, 5]], "norm": "full"},
                    "mlp": {"cut": "rows", "rows": [0.6, 0.3, 0.1], "route": "ring"},
                },
                {
                    "layers": [3, 4],
                    "attention": {
                        "cut": "columns",
                        "heads": [[0, 2], [2, 4], [4, 5]],
                        "columns": [[0, 7], [7, 14], [14, 20]],
                        "norm": "rows",
                        "rows": [0.33, 0.33, 0.33],
                    },
                    "mlp": {"cut": "block", "ffn": [[0, 20], [20, 36], [36, 37]]},
                },
            ],
        }
    ],
}
OLD_NETWORK = {
    "format": "hepti-plan/1",
    "kind": "convnet",
    "model": {"name": "resnet18"},
    "devices": ["pi-0", "pi-1"],
    "segments": [
        {"nodes": [0, 32], "first": "conv1", "rows": [5, 2], "edges_first": True},
        {"nodes": [32, 48], "cut": "tiles", "tiles": [3, 1], "grid": [2, 2], "stealing": False, "reuse": True},
        {"nodes": [48, 49], "cut": "sums", "shares": [0, 1]},
    ],
}
OLD_LANGUAGE_MODEL = {
    "format": "hepti-plan/1",
    "kind": "decoder",
    "model": {"name": "llama-3.2-1b"},
    "devices": ["pi-0", "pi-1", "pi-2"],
    "precision": "int4",
    "context": 4096,
    "rows_from": 8,
    "stages": [
        {"layers": [0, 3], "heads": [8, 24, 0], "columns": [2048, 6144, 0], "rows": [3, 7, 0]},
        {"layers": [3, 4], "heads": [0, 0, 32], "columns": [0, 0, 8192]},
    ],
    "words": [0, 0, 128256],
}
# Their language models had whole numbers for rows, and fewer cuts.
SAME = changed(LANGUAGE_MODEL, "stages", 0, "runs", 0, "rows", value=[3, 7])
SAME = changed(SAME, "stages", 0, "runs", 0, "attention", "keys", drop=True)
SAME = changed(SAME, "stages", 1, "runs", 0, "mlp", value={"cut": "columns", "columns": [8192]})
SAME = changed(SAME, "head", value={"cut": "words", "words": [128256]})
PAIRS = {
    "encoder": (OLD_ENCODER, ENCODER),
    "network": (OLD_NETWORK, NETWORK),
    "language model": (OLD_LANGUAGE_MODEL, SAME),
}
EVERY_KIND = pytest.mark.parametrize("kind", PAIRS)
FIRST, LAST = ("stages", 0, "layers", 0), ("stages", 0, "layers", 1)


def load(table):
    return any_plan_from_json(json.dumps(table))


@EVERY_KIND
def test_a_file_of_the_first_version_is_the_plan_that_says_the_same_today(kind):
    old, new = PAIRS[kind]
    facts = {"system": "hepti", "wire": "int8"}

    assert load(old | facts) == load(new | facts)


def test_all_that_an_encoders_file_had_is_read():
    attention = {"cut": "rows", "norm": "rows", "rows": [1, 0, 0], "keys": ["avoided"] * 3, "route": "direct"}
    grid = {"cut": "grid", "ffn": [[0, 20], [20, 37], [37, 37]], "columns": [[0, 20]], "rows": [0.5, 0.5, 0]}
    facts = {"devices": ["pi-0", "pi-1", "pi-2"], "cluster": {"fingerprint": "x"}, "rows": 9, "predicted": PREDICTED}
    old = changed(changed(OLD_ENCODER, *FIRST, "attention", value=attention), *FIRST, "mlp", value=grid)
    without_norm = {key: value for key, value in attention.items() if key != "norm"}
    new = changed(ENCODER, "stages", 0, "runs", 0, "attention", value=without_norm)
    tile = {"cut": "grid", "columns": [20, 17, 0], "output": [20], "rows": [0.5, 0.5, 0]}

    assert load(old | facts) == load(changed(new, "stages", 0, "runs", 0, "mlp", value=tile) | facts)


def test_what_contradicts_itself_or_leaves_gaps_is_refused_in_one_line(kept):
    heads = (*FIRST, "attention", "heads")
    cases = [
        changed(OLD_ENCODER, *heads, 1, value=[2, 5]),
        changed(OLD_ENCODER, *heads, 1, value=[4, 5]),
        changed(OLD_ENCODER, *heads, 0, value=[1, 3]),
        changed(OLD_ENCODER, *heads, value=[]),
        changed(OLD_ENCODER, *heads, 0, value=[0, 2.5]),
        changed(OLD_ENCODER, *heads, 0, value=[0]),
        changed(OLD_ENCODER, *heads, 0, value=3),
        changed(OLD_ENCODER, *FIRST, "mlp", "norm", value="full"),
        changed(OLD_ENCODER, *FIRST, "attention", "norm", value="rows"),
        changed(OLD_ENCODER, *FIRST, "mlp", "ffn", value=[[0, 37]]),
        changed(OLD_ENCODER, *FIRST, "mlp", "cut", drop=True),
        changed(OLD_ENCODER, *FIRST, "mlp", "cut", value="grit"),
        changed(OLD_ENCODER, *FIRST, "convolution", value={"cut": "rows"}),
        changed(OLD_ENCODER, "stages", 0, "layers", drop=True),
        changed(OLD_ENCODER, "colour", value="red"),
        changed(OLD_NETWORK, "kind", value="graph"),
        changed(OLD_NETWORK, "segments", drop=True),
        changed(OLD_NETWORK, "segments", 0, "shares", value=[0.5, 0.5]),
        changed(OLD_NETWORK, "segments", 0, "rows", drop=True),
        changed(OLD_NETWORK, "segments", 0, "cut", value=[]),
        changed(OLD_LANGUAGE_MODEL, "words", drop=True),
        changed(OLD_LANGUAGE_MODEL, "words", value=[128256]),
        changed(OLD_LANGUAGE_MODEL, "stages", 0, "heads", drop=True),
        changed(OLD_LANGUAGE_MODEL, "stages", 0, "tokens", value=1),
    ]

    kept(refused.said(load, cases))


@EVERY_KIND
@settings(max_examples=count(60, 300))
@given(data=st.data())
def test_damaged_json_of_the_first_version_is_a_plan_or_refused(kind, data):
    table, _ = PAIRS[kind]
    for _ in range(data.draw(st.integers(1, 3))):
        steps = data.draw(st.sampled_from(places(table)))
        value = data.draw(JUNK | st.sampled_from([OLD_ENCODER["stages"], OLD_NETWORK["segments"]]))
        table = changed(table, *steps, value=value, drop=data.draw(st.booleans()))
        if not places(table):
            return
    try:
        plan = load(table)
    except HeptiError:
        return
    assert plan.devices
