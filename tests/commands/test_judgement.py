"""Behind every run stands what one board alone would have taken, and a note where a prediction was far off."""

import json

from tests.commands.cli import hepti, succeeded, weights

SLOW = """format = "hepti-cluster/1"
[[device]]
name = "slow"
gflops = 0.002
memory_gib = 1
[[device]]
name = "slower"
gflops = 0.001
memory_gib = 1
[network]
bandwidth_mbps = 940
"""


def test_a_split_is_held_against_the_best_board_alone(converted, tmp_path):
    """Of boards that are a thousand times as slow as these hosts what is predicted is compared."""
    path, report = tmp_path / "boards.toml", tmp_path / "report.json"
    path.write_text(SLOW)
    job = ("--model", converted("bert").path, "--random", 60, "--cluster", path, "--report", report)

    done = succeeded(hepti(2, *job, "--system", "megatron"))

    alone, said = json.loads(report.read_text())["best_single"], " ".join(done.stdout.split())
    assert alone["name"] == "slow"
    assert f"best single board {1e3 * alone['seconds']:.1f} ms (slow, predicted for the boards of {path})" in said
    assert said.endswith("by what is predicted")
    assert f"times as fast as predicted: the boards of {path} are not these hosts" in done.stderr


def test_one_rank_has_nothing_to_be_held_against(converted, tmp_path):
    done = succeeded(hepti(1, "--model", converted("bert").path, "--random", 5, "--report", tmp_path / "report.json"))

    assert "single board" not in done.stdout
    assert json.loads((tmp_path / "report.json").read_text())["best_single"] is None


def test_a_language_model_says_it_behind_its_table(tmp_path):
    model, asked = tmp_path / "model.h5", tmp_path / "asked.jsonl"
    succeeded(weights("synthesize", "smollm2-135m", model, "--precision", "int4", "--layers", 1))
    asked.write_text('{"tokens": [1, 2, 3]}\n')
    job = ("--model", model, "--input", asked, "--tokens", 5, "--cluster", "pi4x4", "--system", "megatron")

    done = succeeded(hepti(2, "generate", *job))

    assert "split " in done.stderr
    assert "best single board" in done.stderr
    assert "predicted for the boards of pi4x4)" in done.stderr
