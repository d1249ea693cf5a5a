"""One job, batches of many lengths: each runs under the plan of its bucket, and all answers are the oracle's."""

import json

import numpy as np
import pytest

from hepti_mpi.comm import group as comm
from hepti_mpi.engine.stack import Stack
from hepti_mpi.requests import inputs
from hepti_mpi.session import cli, job
from solver.cluster.cluster import write_cluster
from solver.plan.holdings import weights_bytes
from solver.programs import candidates
from solver.schedule.encoders.layer_table import kind_by_rows
from tests.kit.clusters import pis
from tests.kit.encoders import POST, expected
from tests.kit.sized import sized

# Boards as slow as this model is small. The equal ones leave the short requests to the last of them, the others to
# rank 0; the last of five others gets nothing at all.
CLUSTERS = {"equal": [0.1] * 5, "uneven": [0.1, 0.08, 0.09, 0.07, 0.05]}
LENGTHS = (250, 20, 60, 250, 120, 20)


@pytest.fixture
def plans(monkeypatch):
    """Return the plans that this rank adopts, in order."""
    adopted, adopt = [], Stack.adopt

    def noted(stack, plan, layers):
        adopted.append(plan)
        adopt(stack, plan, layers)

    monkeypatch.setattr(Stack, "adopt", noted)
    return adopted


def run(world, files, tmp_path, speeds, lengths):
    """Run a job; return on rank 0 the report and the last hidden states, on the others nothing."""
    write_cluster(pis(*speeds[: world.size], mbps=100), tmp_path / "boards.toml")
    contents, _ = expected(POST, lengths)
    lines = [json.dumps({"id": number, "tokens": ids.tolist()}) for number, ids in enumerate(contents)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    words = {
        "--model": files[POST.name].path, "--cluster": tmp_path / "boards.toml", "--input": tmp_path / "in.jsonl",
        "--output": tmp_path / "out.npz", "--report": tmp_path / "report.json", "--backend": "numpy", "--repeat": 2,
        "--plan-by": "estimate",
    }  # fmt: skip

    assert job.run_job(cli.parse([str(word) for pair in words.items() for word in pair]), comm.world()) == 0

    if world.rank:
        return None, {}
    with np.load(tmp_path / "out.npz") as hidden:
        return json.loads((tmp_path / "report.json").read_text()), dict(hidden)


@pytest.mark.parametrize("boards", sized(["uneven", "equal"], 2))
def test_every_length_runs_under_a_plan_of_its_own(boards, world, files, plans, tmp_path, monkeypatch):
    """Short requests leave ranks out, by rows, which hear of the long ones after them all the same."""
    monkeypatch.setattr(inputs, "BATCH_ROWS", 1)
    monkeypatch.setattr(candidates, "kinds_to_try", lambda s: (kind_by_rows(s.spec.blocks),))

    report, hidden = run(world, files, tmp_path, CLUSTERS[boards], LENGTHS)

    # First that which the weights were loaded for; the second pass begins as the first one ended.
    once = [32, 64, 250, 128, 32]
    assert [plan.rows for plan in plans] == [250, *once, 250, *once]
    long, short, middle = plans[0], plans[1], plans[4]
    assert len(short.stages[0].active) == 1
    if world.size > 1:
        assert set(short.stages[0].active) < set(middle.stages[0].active) <= set(long.stages[0].active)
    _, answers = expected(POST, LENGTHS)
    for name, answer in hidden.items():
        np.testing.assert_allclose(answer, answers[int(name)], rtol=0, atol=1e-4)
    if world.rank == 0:
        assert len(hidden) == len(LENGTHS)
        assert report["plan"]["rows"] == 250
        assert report["predicted_rows"] == np.median(LENGTHS)
        assert short.predicted_s < report["predicted_seconds"] < long.predicted_s
        held = [weights_bytes(POST, long, rank) for rank in range(world.size)]
        assert [entry["weights_bytes"] for entry in report["per_rank"]] == held


def test_batches_of_one_bucket_run_under_one_plan(world, files, plans, tmp_path):
    """Requests of a file are put together first: 260 and 250 rows, then 300."""
    _, hidden = run(world, files, tmp_path, CLUSTERS["uneven"], (260, 250, 300))

    assert [plan.rows for plan in plans] == [510]
    for name, answer in hidden.items():
        np.testing.assert_allclose(answer, expected(POST, (260, 250, 300))[1][int(name)], rtol=0, atol=1e-4)
