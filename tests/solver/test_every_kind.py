"""What the planning command line does with a model of every kind: it plans, prints, writes, prices and compares."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from solver.cli import main
from solver.model.named import named_model
from solver.model.named_decoders import named_decoder
from solver.plan.file import read_any_plan
from tests.kit import inside, planned_once
from weights.networks_zoo import zoo_graph


@dataclass(frozen=True)
class Kind:
    """A kind of model: one of it on the command line, its description, and what is said of its plans."""

    words: tuple[str, ...]
    model: object
    shown: tuple[str, ...]
    others: tuple[str, ...]
    scarce: str
    steps: tuple[str, ...]

    def run(self, *words):
        return inside.run(main, *self.words, "--cluster", "mixed4", *words)


KINDS = {
    "encoder": Kind(
        ("--model", "bert-base", "--layers", "3"), named_model("bert-base", 3),
        ("bert-base, 3 layers, 256 rows", "940 Mbps", "heads", "idle ms", "No plan beats", "would save"),
        ("single:pi-1", "megatron", "sequence", "galaxy", "pipeedge", "data"), "pi-1.memory_gib=0.1",
        ("step by step on pi-1", "ms in all"),
    ),
    "network": Kind(
        ("--model", "resnet18"), zoo_graph("resnet18"),
        ("resnet18, 49 nodes, 3.6 GFLOP", "940 Mbps", "conv1", "MFLOP", "ms for an image by hepti", "No plan beats",
         "would save"),
        ("single:pi-1",), "pi-1.memory_gib=0.17", ("step by step on pi-1", "pixels"),
    ),
    "language model": Kind(
        ("--model", "llama-3.2-1b", "--layers", "4"), named_decoder("llama-3.2-1b", 4),
        ("llama-3.2-1b in int4, 4 layers", "940 Mbps", "columns", "words", "tokens a second", "room for 4096 tokens",
         "of the answer"),
        ("single:pi-3", "megatron", "galaxy", "prima"), "pi-1.memory_gib=0.2",
        ("step by step on pi-1", "sum of attention", "sum of mlp", "candidates"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _planned_once():
    with planned_once.shared():
        yield


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def path(kind, tmp_path):
    """Return the file of a plan."""
    assert kind.run("--json", "--out", tmp_path / "plan.json").returncode == 0
    return tmp_path / "plan.json"


def test_a_plan_is_printed_with_what_every_device_does_and_what_else_there_is(kind, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = kind.run()

    assert (done.returncode, done.stderr) == (0, "")
    for words in (*kind.shown, *kind.others):
        assert words in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80
    assert "…" not in done.stdout


def test_json_and_out_give_the_same_plan_that_fits_the_model(kind, path):
    table, written = json.loads(kind.run("--json").stdout), json.loads(path.read_text())

    read_any_plan(path).check(kind.model, 4)
    for key in ("model", "stages", "predicted"):
        assert table[key] == written[key]
    assert [device["device"] for device in table["per_device"]] == ["pi-0", "pi-1", "pi-2", "pi-3"]
    assert {other["system"] for other in table["alternatives"]} >= {*kind.others}
    assert all(upgrade["saved_s"] > 0 for upgrade in table["upgrades"])
    assert table["upgrades"]


@pytest.mark.parametrize(("percent", "said"), [("99%", "proved: "), ("0.1", "not proved ")])
def test_a_plan_is_proved_where_the_bound_allows_it_and_else_all_is_tried(kind, percent, said):
    done = kind.run("--prove", percent, "--schedule", "pi-1")

    assert done.returncode == 0
    assert done.stderr.startswith(said)


def test_a_plan_file_costs_what_its_planner_said_and_more_on_slower_links(kind, path):
    said = json.loads(path.read_text())
    price = ("--price", path, "--cluster", "mixed4", "--json")

    same, slow = (
        json.loads(inside.run(main, *price, *more).stdout) for more in ((), ("--set", "network.bandwidth_mbps=10"))
    )

    assert (same["stages"], same["predicted"]) == (said["stages"], said["predicted"])
    assert slow["stages"] == said["stages"]
    assert slow["predicted"]["exchange_s"] >= 10 * said["predicted"]["exchange_s"]


def test_a_wire_that_is_asked_for_goes_before_a_plan_file_s(kind, path, tmp_path):
    def priced(file, *words):
        slow = ("--cluster", "mixed4", "--set", "network.bandwidth_mbps=10")
        table = json.loads(inside.run(main, "--price", file, *slow, "--json", *words).stdout)
        return table["wire"], table["predicted"]

    said = json.loads(path.read_text())
    thin = tmp_path / "thin.json"
    thin.write_text(json.dumps({**said, "wire": "int8"}))

    exact, coded = priced(path), priced(thin)
    assert (exact[0], coded[0]) == ("float32", "int8")
    assert coded[1]["exchange_s"] < exact[1]["exchange_s"]
    assert priced(path, "--wire", "int8") == coded
    assert priced(thin, "--wire", "float32") == exact
    title = inside.run(main, "--price", thin, "--cluster", "mixed4").stdout
    assert "int8 on the wire" in " ".join(title.split())


def test_a_plan_file_that_lacks_memory_is_priced_with_a_note(kind, path):
    done = inside.run(main, "--price", path, "--cluster", "mixed4", "--set", kind.scarce)

    assert done.returncode == 0
    assert done.stderr.startswith(f"note: {path} ")
    assert "MiB more on pi-1 (has " in done.stderr


def test_a_plan_is_drawn(kind, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    path = tmp_path / "plan.svg"

    done = kind.run("--plot", path, "--schedule", "pi-1")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"The picture is in {path}.\n")
    drawn = path.read_text()
    for board in ("pi-0", "pi-1", "pi-2", "pi-3", "predicted by hepti"):
        assert board in drawn


def test_who_wins_where_is_drawn(kind, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    monkeypatch.setattr("solver.show.pictures.MAP_MBPS", (94,))
    monkeypatch.setattr("solver.show.pictures.MAP_MEMORY", (0.01, 1))
    path = tmp_path / "map.svg"

    done = kind.run("--map", path)

    assert (done.returncode, done.stdout) == (0, f"The picture is in {path}.\n")
    drawn = path.read_text()
    assert "nothing fits" in drawn
    assert "hepti" in drawn or "single" in drawn
    assert "who wins by" in drawn


def test_all_systems_stand_side_by_side(kind):
    done, table = kind.run("--compare"), json.loads(kind.run("--compare", "--json").stdout)

    assert (done.returncode, done.stderr) == (0, "")
    systems = [entry["system"] for entry in table["systems"]]
    assert {"hepti", *kind.others} <= {*systems}
    assert all(system in done.stdout for system in systems)


def test_what_a_device_does_is_told_step_by_step(kind):
    out, steps = kind.run("--schedule", "pi-1").stdout, kind.run("--schedule", "pi-1", "--json").stdout

    assert all(words in out for words in kind.steps)
    assert json.loads(steps)["steps"]
