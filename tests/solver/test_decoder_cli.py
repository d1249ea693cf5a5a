"""The planning command line where the model is a language model."""

from __future__ import annotations

import json

import pytest

from solver.cli import main
from solver.model.named_decoders import named_decoder
from solver.plan.decoder_file import read_decoder_plan
from tests.kit import inside
from tests.kit.decoders import Weights, small_model
from weights.decoders.file import DecoderWriter

HERE = ("--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4")


def solver(*arguments):
    return inside.run(main, *arguments)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert solver(*HERE, "--out", path, "--json").returncode == 0
    return path


def test_a_model_is_planned_by_name(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = solver(*HERE, "--tokens", "20")

    assert (done.returncode, done.stderr) == (0, "")
    assert " ".join(done.stdout.split()).startswith(
        "llama-3.2-1b in int4, 4 layers: 20 tokens behind a prompt of 64, on mixed4, 940 Mbps"
    )
    for words in ("columns", "words", "tokens a second", "from a prompt of 64 tokens to the first", "single:pi-1",
                  "room for 4096 tokens", "megatron", "times as fast"):  # fmt: skip
        assert words in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80
    assert "…" not in done.stdout


def test_the_plan_is_json_that_can_be_run(plan):
    model = named_decoder("llama-3.2-1b", 4)
    table = json.loads(solver(*HERE, "--json").stdout)

    assert table["kind"] == "decoder"
    assert table["model"] == {"name": "llama-3.2-1b", "fingerprint": model.fingerprint}
    assert {entry["system"] for entry in table["alternatives"]} >= {"megatron", "galaxy", "prima", "single:pi-3"}
    assert len(table["per_device"]) == 4
    read_decoder_plan(plan, model).check(model, 4)


def test_a_plan_is_priced_for_other_lengths(plan):
    short, long = (
        json.loads(solver("--price", plan, "--cluster", "mixed4", "--prompt", prompt, "--json").stdout)["predicted"]
        for prompt in ("10", "1000")
    )

    assert (short["prompt"], long["prompt"]) == (10, 1000)
    assert short["first_s"] < 0.1 * long["first_s"]
    assert short["token_s"] < long["token_s"]


def test_a_price_without_memory_is_told(plan):
    done = solver("--price", plan, "--cluster", "mixed4", "--set", "pi-1.memory_gib=0.2")

    assert done.returncode == 0
    assert "does not fit: it would with" in done.stderr
    assert "on pi-1 (has 205," in done.stderr


def test_systems_stand_side_by_side():
    done = solver(*HERE, "--compare")
    table = json.loads(solver(*HERE, "--compare", "--json").stdout)

    assert "hepti wins with" in done.stdout
    assert table["winner"] == "hepti"
    assert [entry["system"] for entry in table["systems"]][:2] == ["hepti", "megatron"]


def test_what_a_device_does_is_printed_step_by_step():
    done = solver(*HERE, "--schedule", "pi-1")

    for words in ("step by step on pi-1", "attention, sum of attention", "mlp, sum of mlp", "candidates", "0-3"):
        assert words in done.stdout


def test_a_map_says_who_has_what(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = solver(*HERE, "--map")

    for words in ("32 heads", "8192 columns", "128256 words", "0 pi-0, 1 pi-1"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_model_is_planned_from_its_weights_file(tmp_path, precision):
    model = small_model(positions=300)
    path = tmp_path / "m.h5"
    with DecoderWriter(path, model, "random", precision) as weights:
        for name, values in Weights(model).arrays.items():
            weights.write(name, 0, values)

    table = json.loads(solver("--model", path, "--cluster", "mixed4", "--json").stdout)

    assert (table["model"]["name"], table["precision"], table["context"]) == ("small", precision, 300)
    refused = solver("--model", path, "--cluster", "mixed4", "--precision", "int4")
    assert refused.returncode == 2
    assert f"--precision int4: the weights of small are in {precision}" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*HERE, "--rows", "9"], "--rows is about the length of a text that is encoded"),
        ([*HERE, "--explain"], "--explain is about how an encoder's plan was found"),
        ([*HERE, "--deadline-ms", "9"], "--deadline-ms is about images"),
        ([*HERE, "--plot", "p.svg"], "--plot is about encoders"),
        ([*HERE, "--objective", "throughput"], "--objective throughput is for encoders"),
        ([*HERE, "--wire", "int4"], "a language model sends float32, float16, int8"),
        ([*HERE, "--map", "m.svg"], "--map prints who has what of a language model: leave m.svg out"),
        ([*HERE, "--map", "--json"], "leave out --json"),
        ([*HERE, "--compare", "--system", "hepti"], "--system is for a plan that is made, --compare makes none"),
        ([*HERE, "--out", "p.txt"], "the ending must be .json"),
        ([*HERE, "--context", "32"], "a prompt of 16 tokens and an answer of 100"),
        ([*HERE, "--context", "999999"], "a context of 999999 tokens, llama-3.2-1b has 131072"),
        ([*HERE, "--system", "modnn"], "unknown system 'modnn'"),
        ([*HERE, "--system", "voltage"], "'voltage' is a system of encoders: language models have hepti, single, "),
        (["--model", "llama-3.2-2b", "--cluster", "mixed4"], "did you mean llama-3.2"),
        (["--model", "bert-base", "--cluster", "mixed4", "--prompt", "9"], "--prompt is for language models"),
        (["--model", "resnet18", "--cluster", "mixed4", "--cache", "int8"], "--cache is for language models"),
        (["--model", "no-such-thing-at-all", "--cluster", "mixed4"], "llama-3.2-1b"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words):
    tokens = ["--tokens", "100"] if "32" in arguments else []
    done = solver(*arguments, *tokens)

    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_plan_for_others_is_refused(plan):
    done = solver("--price", plan, "--cluster", "pi4x4", "--without", "pi-3")

    assert "is for devices pi-0, pi-1, pi-2, pi-3, the cluster has pi-0, pi-1, pi-2" in done.stderr
    done = solver("--model", "gpt2", "--price", plan, "--cluster", "mixed4")
    assert "this is the plan of llama-3.2-1b, the model is gpt2: plan again" in done.stderr
    done = solver("--price", plan, "--cluster", "mixed4", "--context", "99")
    assert "--context is for a plan that is made, --price makes none" in done.stderr
