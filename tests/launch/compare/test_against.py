"""Two checkouts in one comparison: the other is a made-up folder whose planner copies a plan, and stages pretend."""

import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.base import shell
from launch.bench import compare_command
from launch.compare.checkout import HERE, check_hosts, checkouts
from launch.compare.compare import compare
from launch.compare.model import BenchModel
from launch.compare.show import comparison_markdown
from launch.compare.stage import BenchHosts
from solver.base.errors import HeptiError
from solver.plan.writing import plan_table
from solver.systems import make_plan
from tests.kit import inside
from tests.kit.stages import Pretended
from tests.launch.compare.test_compare import CONTEST, KEYS, SPEC

PLANNER = """import sys
from pathlib import Path

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
plan = Path(f"{options['--system']}.json")
if not plan.exists():
    sys.exit("a library says hello\\npython -m solver: nobody has heard of " + plan.stem)
Path("asked").write_text(" ".join(sys.argv[1:]))
Path(options["--out"]).write_text(plan.read_text())
"""


class BothVersions(Pretended):
    """Hosts that say what they find in a folder, and keep which version was run on what plan."""

    def __init__(self):
        super().__init__()
        self.runs = []

    def mpirun(self, program, log):
        if "--plan" in program:
            options = dict(pairwise(program))
            plan = json.loads(Path(options["--plan"]).read_text())
            others = plan["cluster"]["fingerprint"] == "other"
            self.runs.append((program[:2], plan["system"], "other" * others, "--trace" in options))
        return super().mpirun(program, log)

    def alone(self, host, program):
        return shell.attempt(program) if program[0] == "env" else super().alone(host, program)


@pytest.fixture
def other(tmp_path):
    """Return a checkout that plans for hepti and megatron, for a cluster that goes by another fingerprint."""
    folder = tmp_path / "other"
    for package in ("hepti_mpi", "solver", "weights"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
        (folder / package / "__main__.py").touch()
    (folder / "solver" / "__main__.py").write_text(PLANNER)
    for system in ("hepti", "megatron"):
        plan = plan_table(make_plan(system, SPEC, Pretended().cluster, CONTEST.rows))
        predicted = {"seconds": 9.0, "compute_s": 8.0, "exchange_s": 1.0, "weights_bytes": [], "bytes_on_wire": 0}
        theirs = {"cluster": {"fingerprint": "other"}, "predicted": predicted}
        (folder / f"{system}.json").write_text(json.dumps(plan | theirs))
    return folder


def compared(pretended, folder, other, **changes):
    contest = replace(CONTEST, runtimes=(), runs=2, against=other, **changes)
    files = folder / "files"
    files.mkdir()
    return compare(pretended.stage, BenchModel(Path("/model.h5"), SPEC), contest, files, lambda _: None)


def test_both_versions_run_in_every_round_each_with_its_own_plan(tmp_path, other):
    """And take turns at being first; traces are asked of this one only, in the last round."""
    pretended = BothVersions()
    compared(pretended, tmp_path, other)

    this, theirs = ["env", f"--chdir={HERE}"], ["env", f"--chdir={other}"]
    first = [
        (this, "hepti", "", False),
        (theirs, "hepti", "other", False),
        (this, "megatron", "", False),
        (theirs, "megatron", "other", False),
    ]
    assert pretended.runs[:4] == first
    assert pretended.runs[4:] == [(*run[:3], run[0] == this) for run in reversed(first)]


def test_the_other_planner_gets_the_same_files(tmp_path, other):
    compared(BothVersions(), tmp_path, other, systems=("megatron",))
    files = tmp_path / "files"

    assert (other / "asked").read_text() == (
        f"--model /model.h5 --cluster {files}/cluster-auto-float32.toml --rows 64 --system megatron "
        f"--out {files}/against.plan.json"
    )


def test_rows_say_whose_they_are_and_keep_the_contract(tmp_path, other):
    report = compared(BothVersions(), tmp_path, other)
    rows = {(row["system"], row["version"]): row for row in report["results"]}

    assert rows.keys() == {(system, version) for system in ("hepti", "megatron") for version in ("this", "against")}
    assert all(row.keys() >= KEYS for row in rows.values())
    assert rows["hepti", "against"]["predicted_s"] == 9.0
    assert rows["hepti", "this"]["predicted_s"] < 1
    for key in ("devices", "compute_bound_s", "exchange_bound_s"):
        assert rows["megatron", "this"][key] == rows["megatron", "against"][key]
    assert report["checkouts"]["against"] == str(other)
    assert json.loads(json.dumps(report)) == report


def test_ratios_are_of_the_medians_of_every_round(tmp_path, other):
    report = compared(BothVersions(), tmp_path, other)
    hepti, megatron = sorted(report["ratios"], key=lambda row: row["system"])

    assert hepti["ratios"] == pytest.approx([0.105 / 0.205, 0.805 / 0.705])
    assert megatron["ratios"] == pytest.approx([0.305 / 0.405, 0.605 / 0.505])
    low, high = hepti["ratios"]
    assert (hepti["low"], hepti["ratio"], hepti["high"]) == pytest.approx(
        (low + 0.25 * (high - low), (low + high) / 2, low + 0.75 * (high - low))
    )
    assert (hepti["backend"], hepti["precision"], hepti["wire"]) == ("onnxruntime", "float32", "float32")


def test_the_tables_tell_the_versions_apart(tmp_path, other, kept):
    text = comparison_markdown(compared(BothVersions(), tmp_path, other))

    assert text.count("| hepti | onnxruntime this | ") == text.count("| hepti | onnxruntime against | ") == 2
    kept(text[text.index("this / against") : text.index("\nthis: ")])
    assert f". against: {other}. Medians" in text


def test_a_system_that_one_version_does_not_plan_runs_in_the_other(tmp_path, other):
    report = compared(BothVersions(), tmp_path, other, systems=("hepti", "voltage", "detransformer"))

    assert {(row["system"], row["version"]) for row in report["results"]} == {
        ("hepti", "this"), ("hepti", "against"), ("voltage", "this"),
    }  # fmt: skip
    why = {(row["system"], row["version"]): row["why"] for row in report["absent"]}
    assert why["voltage", "against"] == "nobody has heard of voltage"
    assert "bert-base has no decoupled layers" in why["detransformer", "this"]
    assert ("detransformer", "against") in why
    assert [row["system"] for row in report["ratios"]] == ["hepti"]


def test_a_host_that_would_run_other_code_is_named(other):
    """Python can be told not to look into the current folder; then what is installed wins."""
    stage = BenchHosts("s", ("pi-0",), Pretended().mpirun, lambda _, program: safe(program))

    def safe(program):
        return shell.attempt(["env", "PYTHONSAFEPATH=1", f"PYTHONPATH={HERE}", *program])

    with pytest.raises(HeptiError, match=f"^pi-0 would run hepti_mpi of {HERE}/hepti_mpi/__init__.py, not of {other}"):
        check_hosts(stage, other)


def test_a_host_without_the_folder_is_named(kept):
    with pytest.raises(HeptiError) as caught:
        check_hosts(BothVersions().stage, Path("/nowhere"))
    kept(caught.value)


@pytest.mark.parametrize("missing", ["hepti_mpi", "solver", "weights"])
def test_what_is_no_checkout_is_refused_before_anything_starts(missing, other, monkeypatch, kept):
    (other / missing / "__main__.py").unlink()
    monkeypatch.setattr(compare_command, "_stage", lambda _: pytest.fail("something was started"))
    done = inside.run(main, "bench", "compare", "--against", other)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    kept(done.stderr)


def test_the_command_line_takes_a_folder_from_here(tmp_path, other, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare_command, "_stage", lambda _: nullcontext(BothVersions().stage))
    monkeypatch.setattr(compare_command, "bench_model", lambda word, layers: BenchModel(Path("/model.h5"), SPEC))
    words = ["--systems", "megatron", "--singles", "none", "--rows", "64", "--runs", "1", "--json"]
    done = inside.run(main, "bench", "compare", *words, "--against", "other")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {row["version"] for row in report["results"]} == {"this", "against"}
    assert report["checkouts"]["against"] == str(other)


def test_a_checkout_with_a_history_is_named_with_its_commit(tmp_path):
    for words in (["init", "-q"], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m", "--allow-empty"]):
        shell.run(["git", "-C", str(tmp_path), *words])
    commit = shell.run(["git", "-C", str(tmp_path), "rev-parse", "--short", "HEAD"]).strip()

    assert checkouts(tmp_path)["against"] == f"{tmp_path} at {commit}"
