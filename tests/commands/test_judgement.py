"""After a run comes what one board alone would have taken, and a note where a prediction was far off."""

import json
import re
import socket

from tests.kit.commands import succeeded
from tests.kit.shared_ranks import jobs
from weights import cli as weights

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


def test_boards_that_are_not_these_hosts_are_named_and_not_compared(converted, tmp_path):
    """They are a thousand times as slow: what this machine takes says nothing of them. Predictions are compared."""
    path, report = tmp_path / "boards.toml", tmp_path / "report.json"
    path.write_text(SLOW)
    job = ("--model", converted("bert").path, "--random", 60, "--cluster", path, "--report", report)

    done = succeeded(jobs(2, *job, "--system", "megatron"))

    # In 80 columns a long path is parted anywhere.
    told, said = json.loads(report.read_text()), "".join(done.stdout.split())
    alone = told["best_single"]
    assert alone["name"] == "slow"
    line = (
        f"predicted for the boards of {path}: split {1e3 * told['predicted_seconds']:.1f} ms; "
        f"best single board {1e3 * alone['seconds']:.1f} ms (slow): "
    )
    assert "".join(line.split()) in said
    assert "as predicted" not in done.stdout + done.stderr


def test_a_host_that_is_not_as_its_file_says_is_noted(converted, tmp_path, kept):
    """A board of this host's name is this host, and it is a thousand times as fast as its file says."""
    path = tmp_path / "boards.toml"
    path.write_text(SLOW.replace('"slow"', f'"{socket.gethostname()}"'))

    done = succeeded(jobs(1, "--model", converted("bert").path, "--random", 60, "--cluster", path))

    said = next(line for line in " ".join(done.stderr.split()).split("note: ") if "as predicted" in line)
    assert str(path) in said
    kept(re.sub(r"[\d.,]+ times", "N times", said))


def test_one_rank_has_nothing_to_be_held_against(converted, tmp_path):
    done = succeeded(jobs(1, "--model", converted("bert").path, "--random", 5, "--report", tmp_path / "report.json"))

    assert "single board" not in done.stdout
    assert json.loads((tmp_path / "report.json").read_text())["best_single"] is None


def test_a_language_model_says_it_behind_its_table(tmp_path):
    model, asked = tmp_path / "model.h5", tmp_path / "asked.jsonl"
    words = ("synthesize", "smollm2-135m", str(model), "--precision", "int4", "--layers", "1")
    assert weights.main(words) == 0
    asked.write_text('{"tokens": [1, 2, 3]}\n')
    job = ("--model", model, "--input", asked, "--tokens", 5, "--cluster", "pi4x4", "--system", "megatron")

    done = succeeded(jobs(2, "generate", *job))

    _, line, rest = done.stderr.partition("predicted for the boards of pi4x4:")
    assert "best single board" in " ".join(rest.split())
    assert max(map(len, (line + rest).splitlines())) <= 80
