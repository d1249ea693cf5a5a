"""A small comparison from end to end, on a lab that it brings up and takes down itself."""

import json
import subprocess
import sys
import time

import pytest

from tests.lab.conftest import ODD, ROOT, LabRunner, leftovers, own, write_cluster


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    name = own("compare")
    cluster = write_cluster(folder / f"{name}.toml", **{**ODD, "memory_gib": 1.5})
    done = LabRunner(name).launch(
        "bench", "compare", "--cluster", cluster, "--model", "vit-base", "--layers", 2, "--out", folder / "out",
        "--systems", "hepti,megatron", "--singles", "onnxruntime", "--runs", 2, "--repeat", 3, "--json", timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return name, json.loads(done.stdout), folder / "out"


def test_everybody_is_in_the_table(comparison):
    _, report, _ = comparison

    assert {row["system"] for row in report["results"]} == {"hepti", "megatron", "single:pi-1"}
    assert report["absent"] == []
    assert report["rows"] == 197
    assert all(len(row["seconds"]) == 6 for row in report["results"])


def test_no_split_beats_the_bound_and_the_plan_beats_equal_shares(comparison):
    """The bound's speeds were measured with all hosts at work: a host alone on this machine may exceed its own."""
    _, report, _ = comparison
    rows = {row["system"]: row for row in report["results"]}

    assert all(row["median_s"] > row["compute_bound_s"] for row in report["results"] if row["per_rank"])
    assert rows["hepti"]["median_s"] < rows["megatron"]["median_s"]


def test_what_is_predicted_is_near_what_is_measured(comparison):
    _, report, _ = comparison

    for row in report["results"]:
        assert row["predicted_s"] == pytest.approx(row["median_s"], rel=0.5)


def test_ranks_compute_or_wait_all_the_time(comparison):
    _, report, _ = comparison
    row = next(row for row in report["results"] if row["system"] == "megatron")

    for rank in row["per_rank"]:
        assert rank["compute_s"] + rank["wait_s"] == pytest.approx(row["median_s"], rel=0.3)
    assert row["bytes_on_wire"] > 0


def test_the_trace_has_every_block_of_every_rank(comparison):
    _, _, out = comparison
    events = json.loads((out / "trace-megatron-onnxruntime.json").read_text())["traceEvents"]
    blocks = {(event["tid"], event["name"]) for event in events if event["ph"] == "X"}
    named = {f"layer {layer} {block}" for layer in (0, 1) for block in ("attention", "mlp")}

    assert {(rank, name) for rank in (0, 1) for name in named} <= blocks
    assert (out / "timeline-megatron-onnxruntime.png").exists()


def test_the_lab_is_down_again(comparison):
    name, _, _ = comparison

    assert not leftovers(name)


def test_a_comparison_that_is_told_to_end_takes_its_lab_down(tmp_path):
    """While an entrant runs: nobody else starts, and the lab goes."""
    name = own("ended")
    cluster = write_cluster(tmp_path / f"{name}.toml", **{**ODD, "memory_gib": 1.5})
    command = [sys.executable, "-m", "launch", "bench", "compare", "--cluster", cluster, "--model", "vit-base"]
    process = subprocess.Popen(
        [*map(str, command), "--layers", "2", "--systems", "hepti,megatron", "--singles", "none"],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("measuring"):
            break
    time.sleep(2)
    process.terminate()
    _, rest = process.communicate(timeout=60)

    assert rest == "python -m launch: interrupted\n"
    assert process.returncode == 143
    assert not leftovers(name)
