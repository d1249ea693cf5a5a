"""The planning command line: what it prints, and the code it ends with."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from solver.base.command import check_path
from solver.base.environment import install
from solver.base.errors import HeptiError
from solver.cli import main
from solver.cluster.cluster import write_cluster
from solver.model.named import named_model
from solver.plan.file import read_plan
from solver.plan.plan import Plan
from tests.kit import inside, planned_once, refused
from tests.kit.clusters import pair
from tests.sweeps import count
from weights.synthesize import synthesize


@pytest.fixture(scope="module", autouse=True)
def _planned_once():
    with planned_once.shared():
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    path = tmp_path_factory.mktemp("clusters") / "cluster.toml"
    write_cluster(pair(), path)
    return path


def solver(*arguments):
    return inside.run(main, *arguments)


def process(*arguments):
    """Run the command line as a person does."""
    return subprocess.run([sys.executable, "-m", "solver", *map(str, arguments)], capture_output=True, text=True)


def test_plan_is_printed_as_a_table(cluster):
    done = process("--model", "bert-base", "--cluster", cluster, "--system", "megatron")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("bert-base, 12 layers, 256 rows ")
    assert "pi-1" in done.stdout
    assert "heads" in done.stdout


def test_json_says_what_the_tables_say(cluster):
    table = json.loads(solver("--model", "bert-base", "--cluster", cluster, "--json").stdout)

    assert [device["device"] for device in table["per_device"]] == ["pi-0", "pi-1"]
    for device in table["per_device"]:
        parts = device["compute_s"] + device["exchange_s"] + device["idle_s"]
        assert parts == pytest.approx(table["predicted"]["seconds"])
    others = {other["system"] for other in table["alternatives"]}
    assert {"single:pi-1", "megatron", "sequence", "galaxy", "pipeedge", "data"} <= others
    assert min(other["seconds"] for other in table["alternatives"]) >= table["predicted"]["seconds"]
    assert table["bounds"]["compute_bound_s"] < table["predicted"]["seconds"]
    assert all(upgrade["saved_s"] > 0 for upgrade in table["upgrades"])


def test_a_plan_says_how_far_its_advice_and_its_comparison_are(cluster, monkeypatch):
    """Each takes longer than the plan."""
    steps = []

    @contextmanager
    def counted(label, total, *, unit):
        ticks = []
        steps.append((label, total, ticks))
        yield ticks.append

    for module in ("solver.cli", "solver.show.advice"):
        monkeypatch.setattr(f"{module}.progress", counted)

    # Of a length of its own: what was planned before says nothing.
    assert main(["--model", "bert-base", "--cluster", str(cluster), "--rows", "65", "--json"]) == 0

    assert [label for label, _, _ in steps] == ["trying other clusters", "comparing"]
    for _, total, ticks in steps:
        assert total > 1
        assert ticks == [1] * total


def test_what_if_needs_no_other_file(cluster):
    given = ("--set", "pi-0.gflops=70", "--set", "network.bandwidth_mbps=500", "--add", "pi5:2", "--add", "pi-0")
    job = ("--model", "bert-base", "--cluster", cluster, "--system", "sequence", "--json")
    table = json.loads(solver(*job, *given, "--without", "pi-1").stdout)

    assert table["devices"] == ["pi-0", "pi5-0", "pi5-1", "pi-0-0"]


def test_clusters_that_nobody_has_can_be_planned(cluster):
    done = solver("--model", "bert-large", "--cluster", cluster, "--add", f"pi5:{count(22, 62)}")

    assert (done.returncode, done.stderr) == (0, "")
    assert "other devices hold nothing" in done.stdout


def test_where_the_timeline_is_stands_beside_json(cluster, tmp_path):
    path = tmp_path / "plan.svg"

    done = solver("--model", "bert-base", "--cluster", cluster, "--system", "megatron", "--plot", path, "--json")

    assert json.loads(done.stdout)["predicted"]
    assert done.stderr == f"The picture is in {path}.\n"


@pytest.mark.parametrize("option", ["--plot", "--map"])
def test_a_picture_without_matplotlib_is_refused_before_planning(option, cluster, monkeypatch, capsys, kept):
    planned = []
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("plan_encoder", "draw_winners"):
        monkeypatch.setattr(f"solver.cli.{name}", lambda *arguments: planned.append(arguments))

    code = main(["--model", "bert-base", "--cluster", str(cluster), option, "plan.svg"])

    assert (code, planned) == (2, [])
    assert capsys.readouterr().err.endswith(f"{install('plot')}\n")


def test_weights_file_says_what_model_it_is(cluster, tmp_path):
    synthesize(tmp_path / "m.h5", named_model("minilm-l6", layers=1))

    table = json.loads(
        solver("--model", tmp_path / "m.h5", "--cluster", cluster, "--system", "single", "--json").stdout
    )

    assert table["model"]["name"] == "minilm-l6"


@pytest.mark.parametrize("form", [["--json"], []], ids=["JSON", "tables"])
def test_who_reads_no_further_is_told_nothing(cluster, form):
    """As with `| head`: no traceback, and the exit code that SIGPIPE gives other programs.

    Progress may stand on stderr, where planning takes long enough to be told of.
    """
    words = ["--model", "bert-base", "--cluster", str(cluster), "--system", "megatron"]
    command = [sys.executable, "-m", "solver", *words, *form]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        errors = process.stderr.read()

    said = [
        line
        for line in errors.splitlines()
        if not re.fullmatch(r"(trying other clusters|comparing): +\d+ %|planning: \d+ s so far", line)
    ]
    assert (process.returncode, said) == (128 + signal.SIGPIPE, [])


def test_named_model_needs_neither_mpi_nor_weights_files(cluster):
    program = (
        "import sys; from solver.cli import main; "
        f"main(['--model', 'bert-base', '--cluster', {str(cluster)!r}, '--schedule']); "
        "print([name for name in ('mpi4py', 'h5py', 'weights', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_reading_a_plan_needs_neither_cvxpy_nor_pulp():
    program = "import sys, solver.plan.plan; print([name for name in ('cvxpy', 'pulp', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_help_has_an_example():
    done = solver("--help")

    assert done.returncode == 0
    assert "example: hepti plan --model" in done.stdout


def test_mistakes_end_the_process_with_one_line(kept):
    done = process("--model", "bert-lage", "--cluster", "mixed4")

    assert (done.returncode, done.stdout) == (2, "")
    kept(done.stderr)


def test_the_fastest_of_all_systems_wins(cluster):
    table = json.loads(solver("--model", "bert-base", "--cluster", cluster, "--compare", "--json").stdout)

    job = ("--model", "bert-base", "--cluster", cluster, "--system", "sequence", "--json")
    plan = json.loads(solver(*job).stdout)
    assert {key: table[key] for key in ("model", "cluster", "wire")} == {
        key: plan[key] for key in ("model", "cluster", "wire")
    }
    assert table["layers"] == 12
    assert table["winners"]["latency"] in ("hepti", "single:pi-1")
    seconds = {
        entry["system"]: entry["seconds"] for entry in table["systems"] if not (entry["lacks"] or entry["model"])
    }
    assert seconds[table["winners"]["latency"]] == pytest.approx(min(seconds.values()), rel=1e-3)


@pytest.mark.parametrize("what", [["--compare"], ["--system", "grid2d"], ["--system", "pipeedge"]])
def test_nothing_is_cut_where_there_is_no_terminal(what, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    out = solver("--model", "bert-base", "--layers", 2, "--cluster", "mixed4", *what).stdout

    assert "┃" in out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_stages_within_layers_are_explained(cluster):
    out = solver("--model", "bert-base", "--layers", 3, "--cluster", cluster, "--system", "pipeedge").stdout
    whole = solver(
        "--model", "bert-base", "--cluster", cluster, "--system", "edgeshard", "--set", "pi-1.memory_gib=0.4"
    )

    assert re.search(r"│ 0\.0-\d\.\d │", out)
    assert "Layer.sub-layer: .0 Q, K, V, context;" in out
    assert re.search(r"│ +\d+-11 │", whole.stdout)
    assert "Layer.sub-layer" not in whole.stdout


def test_who_has_no_sub_block_has_nothing_of_whole_layers():
    out = solver("--model", "bert-large-decoupled", "--layers", 8, "--cluster", "mixed4", "--system", "detransformer",
                 "--set", "network.bandwidth_mbps=10").stdout  # fmt: skip

    assert re.search(r"pi-0 +│ +all │ +all │", out)
    assert re.search(r"pi-3 +│ +0 │ +0 │", out)
    assert not re.search(r"pi-3 +│ +all", out)


def test_a_plan_for_many_requests_has_replicas(cluster, tmp_path):
    path = tmp_path / "plan.json"
    job = ("--model", "bert-base", "--cluster", cluster, "--objective", "throughput")

    done = solver(*job, "--out", path)
    table = json.loads(solver(*job, "--json").stdout)

    assert (done.returncode, done.stderr) == (0, "")
    assert "requests a second" in done.stdout
    plan = read_plan(path, Plan)
    plan.check(named_model("bert-base"), ranks=2)
    assert len(plan.replicas) == len(table["replicas"]) == 2


@pytest.mark.parametrize(
    "arguments", [["--map", "map.doc"], ["--plot", "no/such/plan.svg"], ["--out", "no/such/p.json"]]
)
def test_what_cannot_be_written_is_refused_before_planning(arguments, cluster, monkeypatch):
    planned = []
    for name in ("plan_encoder", "draw_winners"):
        monkeypatch.setattr(f"solver.cli.{name}", lambda *arguments: planned.append(arguments))

    assert main(["--model", "bert-base", "--cluster", str(cluster), *arguments]) == 2
    assert planned == []


def test_paths_are_checked_by_ending_and_folder(tmp_path, kept):
    check_path(tmp_path / "a.npz", (".jsonl", ".npz"))

    (tmp_path / "folder.npz").mkdir()
    wrong = (tmp_path / "a.txt", tmp_path / "b" / "a.npz", tmp_path / "folder.npz")
    kept(refused.said(lambda path: check_path(path, (".jsonl", ".npz")), wrong))
    with pytest.raises(HeptiError, match=r"cannot write /proc/a\.npz: "):
        check_path(Path("/proc/a.npz"))
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npz"]


def test_the_map_says_how_far_it_is_and_where_it_was_written(cluster, tmp_path, monkeypatch, capsys, kept):
    """Two places, every system once at each."""
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    steps = []

    @contextmanager
    def counted(label, total, *, unit):
        steps.append((label, total, unit))
        yield steps.append

    monkeypatch.setattr("solver.show.pictures.progress", counted)
    monkeypatch.setattr("solver.show.pictures.MAP_MBPS", (100, 940))
    monkeypatch.setattr("solver.show.pictures.MAP_MEMORY", (1,))
    path = tmp_path / "map.svg"
    large = ["--set", "pi-1.memory_gib=1024"]

    assert main(["--model", "bert-base", "--cluster", str(cluster), "--map", str(path), *large]) == 0

    (label, total, unit), *ticks = steps
    assert (label, unit, total) == ("mapping", "plans", 2 * 14)
    assert ticks == [1] * total
    assert capsys.readouterr().out == f"The picture is in {path}.\n"
    written = re.findall("<!-- (.*?) -->", path.read_text())
    kept("\n".join(line for line in written if "bert-base" in line))
    assert "3.2 to 1020 GiB" in written


def test_a_plan_of_stages_is_drawn_and_printed(cluster, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    path, picture = tmp_path / "plan.json", tmp_path / "plan.svg"

    done = solver("--model", "bert-base", "--cluster", cluster, "--system", "prima", "--set", "pi-1.memory_gib=0.4",
                  "--plot", picture, "--out", path)  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert f"The picture is in {picture}." in done.stdout
    assert "bert-base by prima" in done.stdout
    assert path.exists()
    written = re.findall("<!-- (.*?) -->", picture.read_text())
    assert "layers 0-" in " ".join(written)


def test_of_a_plan_for_throughput_the_fastest_replica_is_drawn(cluster, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    picture = tmp_path / "plan.svg"

    done = solver("--model", "bert-base", "--cluster", cluster, "--objective", "throughput", "--plot", picture)

    assert (done.returncode, done.stderr) == (0, "")
    assert "bert-base by hepti-throughput" in done.stdout
    written = " ".join(re.findall("<!-- (.*?) -->", picture.read_text()))
    assert re.search(r"ms on the fastest of 2 ", written)


@pytest.mark.parametrize(("objective", "column"), [("latency", 2), ("throughput", 3)])
def test_the_best_for_the_objective_stands_first(objective, column, cluster):
    lines = solver("--model", "bert-base", "--cluster", cluster, "--compare", "--objective", objective).stdout

    cells = [line.split("│") for line in lines.splitlines() if line.startswith("│")]
    values = [float(cell[column]) for cell in cells if re.fullmatch(r" *\d+\.\d+ *", cell[column])]
    assert len(values) > 10
    assert values == sorted(values, reverse=objective == "throughput")


def test_a_device_that_takes_no_part_needs_no_memory(cluster):
    done = solver("--model", "bert-base", "--cluster", cluster, "--add", "pi3", "--set", "pi3-0.memory_gib=0.01",
                  "--system", "single")  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert "By single all is on pi-1." in done.stdout
    assert "One device alone is fastest" not in done.stdout


def test_systems_that_lack_memory_are_compared_all_the_same(cluster, kept):
    """Every device that lacks some is named, in the JSON and below the table; and that nothing can be run."""
    words = ["--model", "bert-base", "--cluster", cluster, "--set", "pi-1.memory_gib=0.2", "--compare"]
    done, tight = solver(*words, "--json"), solver(*words, "--set", "pi-0.memory_gib=0.2")

    entries = {entry["system"]: entry for entry in json.loads(done.stdout)["systems"]}
    assert entries["sequence"]["seconds"] > 0
    short, more, has = re.findall(r"\d+(?= MiB (?:short|more))|(?<=has )\d+", entries["sequence"]["lacks"])
    assert (short, has) == (more, "204")
    text = " ".join(tight.stdout.split())
    kept("\n".join(re.findall(r"† [^†]* cannot be run: [^†]*", text)))


def test_the_plan_stands_once_beside_the_others(cluster):
    done = solver("--model", "bert-base", "--cluster", cluster, "--system", "megatron-weighted")

    assert done.stdout.count("│ megatron-weighted ") == 1
    assert "inf" not in done.stdout


def test_why_a_system_cannot_be_run_stands_in_a_line_of_its_own(cluster):
    done = solver("--model", "bert-base", "--cluster", cluster, "--set", "pi-1.memory_gib=0.2", "--compare")

    text = " ".join(done.stdout.split())
    assert re.search(r"sequence.* cannot be run: .*204\)", text)
    names = [line.split("│")[1] for line in done.stdout.splitlines() if line.startswith("│")]
    able = ["†" not in name for name in names]
    assert able == sorted(able, reverse=True)
    assert "data cannot be run" not in text  # by pi-0
    assert "lacks" not in done.stdout


@pytest.mark.parametrize("way", [[], ["--json"]])
def test_advice_is_given_where_another_systems_plan_won(way, cluster, capsys):
    """Half of the model on each of two boards on a slow network: stages, and more memory or links would save them."""
    small = ["--set", "pi-0.memory_gib=0.45", "--set", "pi-1.memory_gib=0.45", "--set", "network.bandwidth_mbps=5"]

    assert main(["--model", "bert-base", "--cluster", str(cluster), *small, *way]) == 0

    out = capsys.readouterr().out
    if way:
        table = json.loads(out)
        assert len(table["stages"]) == 2
        changes = {upgrade["change"]: upgrade["saved_s"] for upgrade in table["upgrades"]}
        assert 0 < changes["1 GiB more on pi-1"] < table["predicted"]["seconds"]
    else:
        assert "1 GiB more on pi-1 would save" in out
        assert "links of 94 Mbps to all" in out


@pytest.mark.parametrize("system", ["megatron", "pipeedge"])
def test_a_plan_file_is_priced_for_another_cluster_and_length(system, cluster, tmp_path):
    """The plan comes back with what it would take."""
    out = tmp_path / "plan.json"
    model = ("--model", "bert-base", "--layers", 3)
    assert solver(*model, "--cluster", cluster, "--system", system, "--out", out, "--json").returncode == 0
    faster = ("--set", "network.bandwidth_mbps=9400")

    same = json.loads(solver("--price", out, "--cluster", cluster, "--json").stdout)
    other = json.loads(solver("--price", out, "--cluster", cluster, *faster, "--rows", 100, "--json").stdout)

    assert same["stages"] == json.loads(out.read_text())["stages"]
    assert same["predicted"] == json.loads(out.read_text())["predicted"]
    assert other["rows"] == 100
    assert other["predicted"]["seconds"] < same["predicted"]["seconds"] / 2
    table = solver("--price", out, "--cluster", cluster)
    assert f"{1e3 * same['predicted']['seconds']:.1f} ms" in table.stdout


@pytest.mark.parametrize("system", ["voltage", "pipeedge", "grid2d"])
def test_the_schedule_adds_up_to_the_prediction(system, cluster, tmp_path):
    """All steps of a request, printed and as JSON; what a device sends in all of them is what it sends."""
    out = tmp_path / "plan.json"
    words = ("--model", "bert-base", "--layers", 3, "--cluster", cluster, "--system", system)
    assert solver(*words, "--out", out, "--json").returncode == 0
    plan = json.loads(out.read_text())["predicted"]

    found = json.loads(solver(*words, "--schedule", "--json").stdout)["steps"]
    own = [json.loads(solver("--price", out, "--cluster", cluster, "--schedule", name, "--json").stdout)["steps"]
           for name in ("pi-0", "pi-1")]  # fmt: skip

    embed_s = plan["seconds"] - sum(step["repeats"] * step["seconds"] for step in found)
    assert 0 <= embed_s < 0.05 * plan["seconds"]  # where stages follow each other, no step of theirs
    for steps in (found, [*own[0], *own[1]]):
        sent = sum(step["repeats"] * step["sent_bytes"] for step in steps)
        assert sent == pytest.approx(plan["bytes_on_wire"], rel=1e-6)
    assert f"{1e3 * (plan['seconds'] - embed_s):.1f} ms in all." in solver(*words, "--schedule").stdout


def test_how_the_plan_was_found_is_explained(cluster):
    where = ["--model", "bert-base", "--cluster", cluster, "--rows", 64, "--add", "pi3", "--set", "pi3-0.gflops=0.5"]

    printed = solver(*where, "--explain").stdout
    plan = json.loads(solver(*where, "--explain", "--json").stdout)
    explained = plan["explanation"]

    best, *others = explained["kinds"]
    assert all(best["best_s"] <= other["best_s"] for other in others)
    assert explained["fractions_s"] <= plan["predicted"]["seconds"]
    (idle,) = explained["idle"]
    assert idle["device"] == "pi3-0"
    assert f"makes a request {1e3 * idle['added_s']:.1f} ms longer" in printed
    assert {limit["device"] for limit in explained["limits"]} <= {"pi-0", "pi-1"}
    for own in explained["spent"]:
        seconds = [own[f"{name}_s"] for name in ("kernels", "messages", "exchange", "idle")]
        assert sum(seconds) == pytest.approx(plan["predicted"]["seconds"])
        assert min(seconds) >= 0
    assert best["kind"] in printed
    assert f"it would take {1e3 * explained['fractions_s']:.1f} ms" in " ".join(printed.split())
    assert f"takes {1e3 * plan['predicted']['seconds']:.1f} ms: 12 layers of " in printed
