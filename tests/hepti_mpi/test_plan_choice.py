"""Which plan a run begins with, and whether others follow for other lengths."""

import json
from types import SimpleNamespace

import pytest

from hepti_mpi.comm.group import world
from hepti_mpi.comm.hosts import place
from hepti_mpi.session import cli
from hepti_mpi.session.leader import Leader
from hepti_mpi.session.plan_choice import choose
from solver.base.errors import HeptiError
from solver.cluster.cluster import write_cluster
from solver.cluster.named import find_cluster
from solver.model.named import named_model
from solver.model.precision import INT8
from solver.model.spec import TextInput, encoder
from solver.plan.writing import plan_to_json
from solver.schedule.encoders.cost import predict
from solver.systems import make_plan
from tests.kit.clusters import pis
from tests.kit.pretended import RankZero
from weights.file.store import ENCODER

SPEC = encoder("small", hidden=64, ffn=256, heads=4, layers=4, input=TextInput(vocab=97, positions=512, max_rows=512))


@pytest.mark.parametrize(
    ("words", "follow"),
    [([], True), (["--system", "sequence"], False), (["--replan", "auto"], False), (["--replan", "dry-run"], False)],
    ids=str,
)
def test_plans_for_other_lengths_are_heptis_own_where_devices_do_not_change_them(words, follow):
    """A published system's shares stay its own; a plan that lives is changed by what is measured."""
    choice = choose(cli.parse(words), SPEC, 100, 1, 3, pis(1, 2, 1), lambda line: None)

    assert (choice.trials is not None) == follow
    if follow:
        assert choice.plans == (choice.plan,)
        assert choice.trials.of(128) is choice.plan


@pytest.mark.parametrize("measured", ["float32", "int8"])
def test_memory_is_that_of_the_precision_that_a_run_has_whatever_was_measured(measured):
    """In 0.9 GiB, weights of bert-large fit on one board in int8 only."""
    cluster = pis(24.6, memory_gib=0.9).holding(measured)

    def chosen(precision):
        words = ["--system", "single", "--precision", precision, "--backend", "onnxruntime"]
        return choose(cli.parse(words), named_model("bert-large"), 128, 1, 1, cluster, lambda line: None)

    with pytest.raises(HeptiError, match="bert-large by single does not fit: "):
        chosen("float32")
    choice = chosen("int8")

    assert choice.cluster.precision == INT8
    assert sum(choice.plan.predicted.weights_bytes) < 0.5 * 2**30


@pytest.mark.parametrize("measured", ["float32", "int8"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_prediction_for_another_precision_is_told(measured, precision, tmp_path):
    write_cluster(pis(10, 20).holding(measured), tmp_path / "pis.toml")
    words = ["--cluster", tmp_path / "pis.toml", "--precision", precision, "--backend", "onnxruntime"]
    said = []

    choose(cli.parse([str(word) for word in words]), SPEC, 100, 1, 2, pis(10, 20).holding(measured), said.append)

    assert [f"is for {measured}, by" in line for line in said] == [True] * (measured != precision)


def test_what_comes_to_less_than_a_plan_says_is_told(tmp_path):
    contexts = {"cut": "to_rows", "heads": [3, 1], "rows": [3, 1], "groups": 4}
    run = {"layers": [0, 4], "attention": contexts, "mlp": {"cut": "rows", "rows": [3, 1]}}
    table = {"format": "hepti-plan/2", "model": {"name": "small"}, "devices": ["a", "b"], "stages": [{"runs": [run]}]}
    (tmp_path / "plan.json").write_text(json.dumps(table))
    said = []

    choose(cli.parse(["--plan", str(tmp_path / "plan.json")]), SPEC, 100, 1, 2, None, said.append)

    assert said == [
        f"note: {tmp_path}/plan.json: layers 0 to 3, attention: groups is 4, no device has more than 3 heads"
    ]


def given(tmp_path, cluster, system="hepti"):
    """Return a choice for a plan of a file that may change, made by a system for other boards."""
    (tmp_path / "plan.json").write_text(plan_to_json(make_plan(system, SPEC, pis(10, 20, 30), 100)))
    write_cluster(cluster, tmp_path / "pis.toml")
    words = ["--plan", tmp_path / "plan.json", "--cluster", tmp_path / "pis.toml", "--replan", "auto"]
    return choose(cli.parse([*map(str, words)]), SPEC, 0, 1, 3, cluster, lambda line: None)


def test_a_plan_of_a_file_may_change_and_is_predicted_for_the_boards_at_hand(tmp_path):
    cluster = pis(5, 10, 15)

    choice = given(tmp_path, cluster)

    assert choice.may_change
    assert choice.solution is None
    assert choice.plan.predicted == predict(SPEC, cluster, choice.plan, 100)


def test_a_plan_of_a_file_that_may_change_has_one_stage_and_memory(tmp_path):
    with pytest.raises(HeptiError, match=r"one stage, .*plan\.json has \d"):
        given(tmp_path, pis(10, 20, 30), "pipeedge")
    with pytest.raises(HeptiError, match=r"plan\.json .*MiB"):
        given(tmp_path, pis(10, 20, 30, memory_gib=0.05))


def test_devices_of_the_file_that_have_no_rank_are_named(tmp_path):
    path, said = tmp_path / "pis.toml", []
    write_cluster(pis(10, 20, 30), path)

    leader = Leader(cli.parse(["--cluster", str(path)]), RankZero(2), [place()], ENCODER)
    leader.kind, leader.say = SimpleNamespace(plan=lambda cluster: cluster.names), said.append

    assert leader.plan(None) == ("pi-0", "pi-1")
    assert said == [f"note: 2 ranks, 3 devices in {path}: without pi-2"]


def test_an_unknown_system_is_refused_before_hosts_are_measured():
    with pytest.raises(HeptiError, match=r"'galxy' \(did you mean galaxy\?"):
        Leader(cli.parse(["--system", "galxy"]), world(), [place()], ENCODER).read()


def test_a_ready_cluster_goes_by_its_name():
    leader = Leader(cli.parse(["--cluster", "mixed4"]), RankZero(3), [place()], ENCODER)
    leader.kind, leader.say = SimpleNamespace(plan=lambda cluster: cluster), lambda line: None

    assert leader.plan(None) == find_cluster("mixed4").first(3, "mixed4")
