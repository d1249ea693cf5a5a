"""`from solver import make_plan`: what `python -m solver` plans, from a program."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import solver.plan.plan
from solver import make_plan
from solver.base.errors import InfeasiblePlanError
from solver.cli import main
from solver.cluster.named import find_cluster
from solver.model.named import named_model
from solver.model.named_decoders import named_decoder
from solver.plan.plan import Plan
from tests.kit import inside, refused
from weights.networks_zoo import zoo_graph
from weights.synthesize import synthesize

# One of each kind, with what the command line says for it.
ASKED = {
    "encoder": (("bert-base", {"rows": 64}), ["--model", "bert-base", "--rows", "64"]),
    "stages": (
        ("bert-base", {"rows": 64, "system": "edgeshard"}),
        ["--model", "bert-base", "--rows", "64", "--system", "edgeshard"],
    ),
    "throughput": (
        ("bert-base", {"rows": 64, "objective": "throughput"}),
        ["--model", "bert-base", "--rows", "64", "--objective", "throughput"],
    ),
    "network": (("resnet18", {"wire": "float16"}), ["--model", "resnet18", "--wire", "float16"]),
    "decoder": (
        ("llama-3.2-1b", {"prompt": 8, "tokens": 9, "context": 64, "precision": "int8", "layers": 2}),
        ["--model", "llama-3.2-1b", "--prompt", "8", "--tokens", "9", "--context", "64", "--precision", "int8",
         "--layers", "2"],
    ),
}  # fmt: skip


def test_the_room_of_plans_and_the_function_have_names_of_their_own():
    assert solver.plan.plan.Plan is Plan
    assert callable(solver.make_plan)
    with pytest.raises(AttributeError, match="has no attribute 'no_such'"):
        _ = solver.no_such


@cache
def made(kind):
    """Return the plan of a kind: two tests look at it."""
    (model, arguments), _ = ASKED[kind]
    return make_plan(model, "mixed4", **arguments)


@pytest.mark.parametrize("kind", ASKED)
def test_a_program_gets_the_plan_that_the_command_writes(kind, tmp_path, monkeypatch):
    """What the command says besides, of other clusters and systems, is not asked for."""
    monkeypatch.setattr("solver.cli.changes", lambda *_: [])
    monkeypatch.setattr("solver.cli.other_systems", lambda _: ["single"])
    done = inside.run(main, *ASKED[kind][1], "--cluster", "mixed4", "--out", tmp_path / "command.json")
    assert done.returncode == 0

    made(kind).save(tmp_path / "program.json")

    assert json.loads((tmp_path / "program.json").read_text()) == json.loads((tmp_path / "command.json").read_text())


@pytest.mark.parametrize("kind", ASKED)
def test_a_plan_prints_as_the_tables_of_the_command_at_80_columns(kind):
    (model, _), _ = ASKED[kind]
    found = made(kind)

    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(model)
    assert all(any(device in line for line in lines) for device in ("pi-0", "pi-1"))
    assert "MadePlan(plan=" in repr(found)
    assert "\x1b" not in str(found)


def test_seconds_and_bytes_are_those_that_the_plan_predicts():
    encoder, network, decoder = made("encoder"), made("network"), made("decoder")

    for found in (encoder, network):
        facts = found.plan.predicted
        assert (found.seconds, found.bytes_on_wire) == pytest.approx((facts.seconds, facts.bytes_on_wire))
    assert decoder.seconds == decoder.plan.predicted.token_s
    assert decoder.bytes_on_wire > 0
    assert make_plan("bert-base", "mixed4", system="single:pi-0").bytes_on_wire == 0
    # Rows of float32 go there and back.
    assert make_plan("bert-base", "mixed4", rows=64, system="single:pi-1").bytes_on_wire == 2 * 64 * 768 * 4


@pytest.mark.parametrize("kind", ["encoder", "network", "decoder"])
def test_a_plan_is_proved_where_that_is_asked(kind):
    (model, arguments), _ = ASKED[kind]

    assert make_plan(model, "mixed4", **arguments, prove=99).proof == "proved: no plan saves more than 99 %"
    assert made(kind).proof == ""


def test_descriptions_do_as_well_as_names_and_paths(tmp_path):
    cluster, spec = find_cluster("mixed3"), named_model("bert-base", 2)
    weights = tmp_path / "bert.h5"
    synthesize(weights, spec, 0, "float32")

    plans = [
        make_plan(model, place, rows=32, **layers).plan.stages
        for model, place, layers in (
            ("bert-base", "mixed3", {"layers": 2}),
            (spec, cluster, {}),
            (weights, cluster, {}),
            (str(weights), cluster, {}),
        )
    ]

    assert all(plan == plans[0] for plan in plans)
    assert make_plan(zoo_graph("resnet18"), cluster).plan == make_plan("resnet18", "mixed3").plan
    llama = named_decoder("llama-3.2-1b", None)
    assert make_plan(llama, cluster).plan == make_plan("llama-3.2-1b", "mixed3").plan


def test_what_cannot_be_planned_is_one_line(kept):
    cases = [
        ("bert-huge-model", {}),
        ("bert-base", {"cluster": "nowhere"}),
        ("bert-base", {"system": "hepty"}),
        ("bert-base", {"wire": "float8"}),
        ("bert-base", {"objective": "fame"}),
        ("bert-base", {"objective": "throughput", "system": "voltage"}),
        ("bert-base", {"rows": 5000}),
        ("bert-base", {"prove": 0}),
        ("bert-base", {"prove": 5, "system": "single"}),
        ("bert-base", {"rows": 0}),
        ("bert-base", {"rows": "12"}),
        ("bert-base", {"rows": 2.5}),
        ("llama-3.2-1b", {"tokens": float("nan")}),
        (None, {}),
        ("bert-base", {"tokens": 3}),
        ("resnet18", {"rows": 3}),
        ("resnet18", {"layers": 3}),
        ("resnet50", {"objective": "throughput"}),
        ("llama-3.2-1b", {"prompt": 9000, "context": 64}),
        ("nobody/has-this", {}),
        (named_model("bert-base", 2), {"layers": 3}),
    ]

    kept(refused.said(lambda model, arguments: make_plan(model, **{"cluster": "mixed4", **arguments}), cases))


def test_a_model_that_fits_nowhere_says_what_is_missing():
    with pytest.raises(InfeasiblePlanError, match="MiB"):
        make_plan("bert-large", "mixed3", layers=1000, system="sequence")


def test_a_plan_is_saved_whole_and_as_json_only(tmp_path, kept):
    found = make_plan("bert-base", "mixed3")

    kept(refused.said(found.save, [tmp_path / "plan.toml", str(tmp_path / "none" / "plan.json")]))
    assert not list(tmp_path.iterdir())


def test_asking_the_package_for_a_name_alone_loads_no_solver():
    code = "import sys, solver.plan.plan, solver; print({'cvxpy', 'pulp', 'rich'} & set(sys.modules))"
    root = Path(__file__).parents[2]

    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "set()"


def test_the_document_for_programs_plans(tmp_path):
    root = Path(__file__).parents[2]
    (block, *_) = re.findall(r"```python\n(.*?)```", (root / "docs" / "python.md").read_text(), flags=re.DOTALL)

    run = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip

    assert "bert-large, 24 layers, 256 rows" in run.stdout
    assert json.loads((tmp_path / "plan.json").read_text())["model"]["name"] == "bert-large"
