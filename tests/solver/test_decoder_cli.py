"""The planning command line where the model is a language model."""

from __future__ import annotations

import json

import pytest

from solver.cli import main
from tests.kit import inside
from tests.kit.decoders import Weights, small_model
from weights.decoders.file import DecoderWriter

HERE = ("--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4")


def solver(*arguments):
    return inside.run(main, *arguments)


def test_lengths_and_speeds_of_an_answer_are_told_and_the_winner_among_all_systems():
    done = solver(*HERE, "--tokens", "20")
    table = json.loads(solver(*HERE, "--compare", "--json").stdout)

    text = " ".join(done.stdout.split())
    assert "after a prompt of 64" in text
    assert "from a prompt of 64 tokens" in text
    assert "times as fast" in text
    assert table["winner"] == "hepti"
    assert [entry["system"] for entry in table["systems"]][:2] == ["hepti", "megatron"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert solver(*HERE, "--out", path, "--json").returncode == 0
    return path


def test_a_plan_is_priced_for_other_lengths(plan):
    short, long = (
        json.loads(solver("--price", plan, "--cluster", "mixed4", "--prompt", prompt, "--json").stdout)["predicted"]
        for prompt in ("10", "1000")
    )

    assert (short["prompt"], long["prompt"]) == (10, 1000)
    assert short["first_s"] < 0.1 * long["first_s"]
    assert short["token_s"] < long["token_s"]


def test_a_plan_whose_embedding_is_cut_takes_memory_for_it_and_an_exchange(plan, tmp_path):
    table = json.loads(plan.read_text())
    table["embedding"] = {"cut": "words", "words": [128000, 256, 0, 0]}
    (tmp_path / "cut.json").write_text(json.dumps(table))
    whole, cut = (
        json.loads(solver("--price", path, "--cluster", "mixed4", "--json").stdout)
        for path in (plan, tmp_path / "cut.json")
    )

    assert cut["embedding"] == table["embedding"]
    both = zip(cut["per_device"], whole["per_device"], strict=True)
    more = [own["weights_bytes"] - other["weights_bytes"] for own, other in both]
    assert more == [128000 * 2048 // 32 * 24, 256 * 2048 // 32 * 24, 0, 0]
    assert whole["predicted"]["token_s"] < cut["predicted"]["token_s"] < 1.1 * whole["predicted"]["token_s"]
    assert "embedded" in solver("--price", tmp_path / "cut.json", "--cluster", "mixed4").stdout


def test_how_the_plan_was_found_is_explained():
    where = ("--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4", "--without", "pi-2")
    printed = " ".join(solver(*where, "--explain").stdout.split())
    plan = json.loads(solver(*where, "--explain", "--json").stdout)
    explained = plan["explanation"]

    best, *others = explained["crews"]
    assert explained["fractions_s"] <= explained["answer_s"] <= best["best_s"] <= best["first_s"]
    assert all(best["best_s"] <= other["best_s"] for other in others)
    # What speeds and links bind is all of it, but for what messages cost.
    bound_s = sum(limit["compute_s"] + limit["link_s"] for limit in explained["limits"])
    assert bound_s == pytest.approx(explained["fractions_s"], rel=0.1)
    for own in explained["spent"]:
        seconds = [own[f"{name}_s"] for name in ("kernels", "messages", "exchange", "idle")]
        assert sum(seconds) == pytest.approx(plan["predicted"]["token_s"], rel=0.02)
        assert min(seconds) >= 0
    (idle,) = explained["idle"]
    assert f"{idle['device']} has nothing: " in printed
    assert idle["added_s"] > 0
    assert f"it would take {1e3 * explained['fractions_s']:.1f} ms" in printed


def test_most_tokens_a_second_of_all_sequences_are_planned_for(tmp_path):
    """By as many sequences as that takes, or as are asked for."""
    where = ("--model", "llama-3.2-1b", "--layers", "1", "--cluster", "pi4,pi5", "--context", "256")

    def speed(*sequences):
        path = tmp_path / "plan.json"
        solver(*where, "--system", "megatron", "--objective", "throughput", *sequences, "--map", "--out", path)
        priced = json.loads(solver("--price", path, *where[:-2], "--json").stdout)
        return priced["sequences"], priced["tokens_per_s"]

    (most, best), (two, less) = speed(), speed("--sequences", "2")
    compared = json.loads(solver(*where, "--objective", "throughput", "--compare", "--json").stdout)
    systems = {entry["system"]: entry for entry in compared["systems"]}

    assert most > two == 2
    assert best > 1.2 * less
    assert (systems["megatron"]["sequences"], systems["megatron"]["tokens_per_s"]) == (most, best)
    assert compared["winner"] == "hepti"
    assert systems["hepti"]["tokens_per_s"] > best


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
    assert f"weights of small are in {precision}" in refused.stderr
