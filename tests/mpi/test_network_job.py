"""The main job with a convolutional network: images, answers, plans, systems and reports, for any number of ranks."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hepti_mpi.__main__ import main
from hepti_mpi.comm.trace import OUTSIDE
from hepti_mpi.kernels import trial
from hepti_mpi.kernels.backends import of_all
from hepti_mpi.report.watch import Watch
from solver.live import fewer_devices
from solver.live.follower import PlanChange
from solver.live.network_replan import NetworkFollower
from solver.live.turns import TURNS
from solver.plan.writing import plan_to_json
from solver.schedule.networks.segment_steps import net_setting, predicted
from solver.systems.convnets import SYSTEMS, hepti_throughput
from tests import sweeps
from tests.kit.convnets import plan_of
from tests.kit.networks import check_answer, classifier, expected, write_boards, write_classifier, write_photos
from tests.kit.sized import sized

LINES = ['{"id": "x", "image": "a.png"}', '{"image": "../a.png"}', "", '{"id": "y", "image": "deep/c.png"}']


@pytest.fixture(scope="module")
def place(all_ranks, shared_folder):
    """Return a folder with the weights file of a network, images, and boards."""
    path = shared_folder / "network"
    if all_ranks.rank == 0:
        write_photos(path / "photos")
        write_classifier(path / "sees.h5")
        write_boards(path / "boards.toml", all_ranks.size)
        (path / "list.txt").write_text(f"{path}/photos/a.png\n{path}/photos/none.png\n{path}/photos/b.jpg\n")
        (path / "list.jsonl").write_text("\n".join(LINES))
    all_ranks.barrier()
    return path


@pytest.fixture
def job(place, world, capsys):
    """Run a job on all ranks; return on rank 0 its exit code, what it printed, and what it complained of."""

    def run(*arguments, boards=True):
        cluster = ["--cluster", str(place / "boards.toml")] if boards else []
        code = main(["--model", str(place / "sees.h5"), *cluster, *map(str, arguments)])
        world.barrier()
        said = capsys.readouterr()
        return code, said.out, [line for line in said.err.splitlines() if line.startswith("python -m ")]

    return run


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.sizes
def test_a_folder_is_answered_image_by_image_but_for_what_is_none(job, place, world, folder):
    outputs = ("--output", folder / "answers.jsonl", "--report", folder / "report.json")

    code, out, said = job("--input", place / "photos", "--repeat", 2, "--warmup", 1, *outputs)

    if world.rank == 0:
        assert code == 2
        assert said == [f"python -m hepti_mpi: cannot read image {place}/photos/bad.png: it is no image"]
        answers = read_lines(folder / "answers.jsonl")
        assert [answer["id"] for answer in answers] == ["a.png", "b.jpg", "deep/c.png"]
        for answer in answers:
            check_answer(answer, place / "photos" / answer["id"])
        report = json.loads((folder / "report.json").read_text())
        assert report["requests_answered"] == 6
        assert [(entry["id"], len(entry["seconds"])) for entry in report["requests"]] == [
            (answer["id"], 2) for answer in answers
        ]
        assert report["requests_per_s"] > 0
        assert report["predicted_seconds"] > 0
        assert report["predicted_for"] == f"the boards of {place / 'boards.toml'}"
        assert report["plan"]["stages"][0]["runs"][0]["nodes"][0] == 0
        assert [entry["device"] for entry in report["per_rank"]] == [f"pi-{rank}" for rank in range(world.size)]
        assert f"{place / 'boards.toml'}; " in " ".join(out.split())


def test_answers_are_printed_where_no_file_is_named(job, place, world):
    code, out, said = job("--input", place / "photos" / "a.png")

    if world.rank == 0:
        assert (code, said) == (0, [])
        lines = [line.split() for line in out.splitlines()]
        scores = expected(place / "photos" / "a.png")
        assert lines[0] == ["a"]
        assert [line[1] for line in lines[1:6]] == [classifier()[0].labels[i] for i in np.argsort(-scores)[:5]]
        assert "1 image" in out


@pytest.mark.parametrize(
    ("name", "options", "ids", "complaints"),
    [
        ("list.txt", [], {1: "a.png", 3: "b.jpg"}, ["list.txt, line 2: cannot read image"]),
        (
            "list.jsonl",
            ["--images", "photos"],
            {"x": "a.png", "y": "deep/c.png"},
            ["list.jsonl, line 2: image '../a.png'", "list.jsonl, line 3: "],
        ),
    ],
)
def test_lists_of_images_have_all_outputs_in_an_npz(name, options, ids, complaints, job, place, world, folder):
    options = [place / word if word == "photos" else word for word in options]

    code, _, said = job("--input", place / name, *options, "--output", folder / "all.npz")

    if world.rank == 0:
        assert code == 2
        for line, complaint in zip(said, complaints, strict=True):
            assert complaint in line
        output = classifier()[0].outputs[0]
        with np.load(folder / "all.npz") as arrays:
            assert arrays.files == [f"{request}/{output}" for request in ids]
            for request, image in ids.items():
                wanted = expected(place / "photos" / image)
                np.testing.assert_allclose(arrays[f"{request}/{output}"], wanted, rtol=0, atol=1e-5)


# Whose plans differ in kind: by rows, by channels, by tiles with strips, and of one board. Tests of the engine and of
# the slabs hold plans of any kind.
KINDS = ("hepti", "modnn", "deepthings", "single:pi-0")


@pytest.mark.parametrize("system", sized([*SYSTEMS, "single:pi-0"] if sweeps.ALL else KINDS, 3))
def test_every_system_gives_the_answer_of_one_rank(system, job, place, world, folder):
    image = place / "photos" / "deep" / "c.png"

    code, _, said = job("--input", image, "--system", system, "--output", folder / "answers.jsonl")

    if world.rank == 0:
        assert (code, said) == (0, [])
        (answer,) = read_lines(folder / "answers.jsonl")
        check_answer(answer, image)


@pytest.mark.parametrize(("wire", "priced"), sized(sweeps.cycled(3, ["float32", "float16", "int8"], [True, False]), 3))
def test_a_plan_by_hand_with_empty_shares_is_run_on_any_wire(wire, priced, job, place, world, folder):
    net, _ = classifier()
    shares = np.arange(1, world.size + 1) % 3 + np.eye(world.size)[0]
    shares /= shares.sum()
    if world.rank == 0:
        segments = [(2, "rows", shares), (4, "channels", shares), (len(net.nodes), "rows", np.eye(world.size)[-1])]
        (folder / "plan.json").write_text(plan_to_json(plan_of(net, segments, world.size), net))
    world.barrier()
    image, output = place / "photos" / "a.png", folder / "all.npz"

    done = job(
        "--input", image, "--plan", folder / "plan.json", "--wire", wire, "--output", output,
        "--report", folder / "report.json", boards=priced,
    )  # fmt: skip

    if world.rank == 0:
        assert (done[0], done[2]) == (0, [])
        report = json.loads((folder / "report.json").read_text())
        assert report["wire"] == wire
        assert (report["predicted_seconds"] is not None) is priced
        wanted, most = expected(image), {"float32": 1e-5, "float16": 5e-3, "int8": 0.1}[wire]
        with np.load(output) as arrays:
            (found,) = arrays.values()
            np.testing.assert_allclose(found, wanted, rtol=0, atol=most * np.abs(wanted).max())


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("asked", sized(["numpy", "auto"], 2))
def test_numpy_answers_as_onnxruntime_does_also_beside_it(asked, tiles, job, place, world, folder, monkeypatch):
    """Every rank by numpy; or the last one, on which onnxruntime has trouble. The report says so."""
    trouble = "onnxruntime 1.21.0 dies of SIGILL" if world.rank == world.size - 1 else ""
    monkeypatch.setattr(trial, "known", lambda: trouble)
    net, _ = classifier()
    shares = np.full(world.size, 1 / world.size)
    parts = [(4, "tiles", shares, False, (3, 2), True, True)]  # of which others are taken, and strips
    if not tiles:
        parts = [(1, "input_channels", shares), (2, "rows", shares, True), (4, "channels", shares)]
    if world.rank == 0:
        plan = plan_of(net, [*parts, (len(net.nodes), "rows", np.eye(world.size)[-1])], world.size)
        (folder / "plan.json").write_text(plan_to_json(plan, net))
    world.barrier()
    image, report = place / "photos" / "a.png", folder / "report.json"

    done = job(
        "--input", image, "--plan", folder / "plan.json", "--backend", asked, "--output", folder / "answers.jsonl",
        "--report", report,
    )  # fmt: skip

    if world.rank == 0:
        assert (done[0], done[2]) == (0, [])
        (answer,) = read_lines(folder / "answers.jsonl")
        check_answer(answer, image)
        names = ["numpy" if asked == "numpy" else "onnxruntime"] * (world.size - 1) + ["numpy"]
        table = json.loads(report.read_text())
        assert [entry["backend"] for entry in table["per_rank"]] == names
        assert table["backend"] == of_all(names)


def test_random_pixels_are_computed_without_an_image(job, world):
    code, out, said = job("--random", 3, "--repeat", 4)

    if world.rank == 0:
        assert (code, said) == (0, [])
        assert "mean of 4 images" in out


@pytest.mark.parametrize("replan", ["auto", "dry-run"])
def test_a_plan_that_changes_gives_the_same_answers(job, place, world, folder, monkeypatch, replan):
    """Whatever ranks took, rank 0 shares the segments out anew after every image: now this rank has most, now that."""
    shares = iter(np.random.default_rng(0).dirichlet([1.0] * world.size, 100))

    def took(follower, compute_s, seconds):
        assert len(compute_s) == world.size
        assert min(*compute_s, seconds) >= 0
        plan = follower.plan
        segments = (replace(own, shares=tuple(next(shares))) for own in plan.segments)
        changed = replace(plan, segments=tuple(segments))
        taken = replan == "auto"
        return PlanChange(changed, "a test", 60.0, 0.5, taken)  # so long all may get what they lack

    monkeypatch.setattr(NetworkFollower, "took", took)
    code, _, _ = job(
        "--input", place / "list.txt", "--repeat", 2, "--replan", replan, "--output", folder / "answers.jsonl",
        "--report", folder / "report.json",
    )  # fmt: skip

    if world.rank == 0:
        assert code == 2  # one line names no image
        for answer, name in zip(read_lines(folder / "answers.jsonl"), ("a.png", "b.jpg"), strict=True):
            check_answer(answer, place / "photos" / name)
        replans = json.loads((folder / "report.json").read_text())["replans"]
        assert [entry["taken"] for entry in replans] == [replan == "auto"] * 4 * (world.size > 1)


def test_devices_are_shown_after_every_image(job, world, monkeypatch):
    shown = []
    monkeypatch.setattr(Watch, "show", lambda watch, drawn: shown.append(drawn))

    code, _, _ = job("--random", 3, "--repeat", 4, "--replan", "dry-run", "--watch")

    if world.rank == 0:
        assert (code, len(shown)) == (0, 4 * (world.size > 1))
        assert [drawn.renderables[0].row_count for drawn in shown] == [world.size] * len(shown)


@pytest.mark.parametrize("images", [3 * TURNS + 2, 4])
def test_plans_that_are_tried_in_turn_give_the_same_answers_and_one_stays(
    images, job, place, world, folder, monkeypatch
):
    def others(net, cluster, plan):
        s = net_setting(net, cluster)
        first, last, all_of_it = np.eye(world.size)[0], np.eye(world.size)[-1], len(net.nodes)
        alone = plan_of(net, [(all_of_it, "rows", last)], world.size)
        equal = [(3, "rows", np.full(world.size, 1 / world.size)), (all_of_it, "rows", first)]
        mixed = plan_of(net, equal, world.size)
        return [plan, *(predicted(s, own) for own in (alone, mixed))]

    monkeypatch.setattr(fewer_devices, "networks_to_try", others)
    wanted = expected(place / "photos" / "a.png")
    if world.rank == 0:
        (folder / "many.txt").write_text("\n".join(images * [str(place / "photos" / "a.png")]))
    world.barrier()

    code, _, said = job(
        "--input", folder / "many.txt", "--plan-by", "measure", "--output", folder / "all.npz",
        "--report", folder / "report.json",
    )  # fmt: skip

    if world.rank == 0:
        assert (code, said) == (0, [])
        with np.load(folder / "all.npz") as arrays:
            assert len(arrays.files) == images
            for array in arrays.values():
                np.testing.assert_allclose(array, wanted, rtol=0, atol=1e-5)
        trials = json.loads((folder / "report.json").read_text())["trials"]
        assert [entry["turns"] for entry in trials] == [min(TURNS, -(-(images - number) // 3)) for number in range(3)]
        stays = [entry["seconds"] for entry in trials if entry["stays"]]
        assert stays == ([min(entry["seconds"] for entry in trials)] if images > 3 * TURNS else [])


def test_a_trace_shows_the_segments_of_the_last_image_on_every_rank(job, world, folder):
    path = folder / "trace.json"
    code, _, _ = job("--random", 0, "--repeat", 3, "--system", "modnn", "--trace", path, "--report", folder / "r.json")

    if world.rank == 0:
        assert code == 0
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
        plan = json.loads((folder / "r.json").read_text())["plan"]
        computes = [(event["tid"], event["name"]) for event in events if event["cat"] == "compute"]
        assert {rank for rank, _ in computes} == {*range(world.size)}
        begun = {name.split(" to ")[0] for _, name in computes}
        assert begun >= {run["first"] for run in plan["stages"][0]["runs"] if "first" in run}
        assert begun - {OUTSIDE, "brings"} <= {node.name for node in classifier()[0].nodes}


@pytest.mark.parametrize(("options", "tries"), [((), True), (("--plan-by", "estimate"), False)])
def test_plans_are_tried_where_enough_images_come_unless_a_person_says_otherwise(
    options, tries, job, world, folder, monkeypatch
):
    monkeypatch.setattr(fewer_devices, "networks_to_try", lambda net, cluster, plan: [plan, plan])
    answered = []
    for images in (4, 400):
        report = folder / f"{images}.json"
        job("--random", 0, "--repeat", images, "--report", report, *options)
        if world.rank == 0:
            answered.append(json.loads(report.read_text())["trials"])

    if world.rank == 0:
        assert [bool(trials) for trials in answered] == [False, tries]


@pytest.mark.parametrize("scarce", sized([True, False], 2))
def test_images_that_replicas_answer_come_in_order_and_are_right(scarce, job, place, world, folder, monkeypatch):
    """Each rank by itself; or rank 0 and the last one together, and those between them by themselves."""
    if scarce:
        pair = tuple(sorted({0, world.size - 1}))
        groups = [pair, *((rank,) for rank in range(1, world.size - 1))]
        monkeypatch.setattr(hepti_throughput, "_partition", lambda rates, p: groups)
        monkeypatch.setattr(hepti_throughput._Rates, "_solved", solved)
    names = 5 * ["a.png", "b.jpg", "deep/c.png", "bad.png"]
    if world.rank == 0:
        (folder / "many.txt").write_text("\n".join(str(place / "photos" / name) for name in names))
    world.barrier()

    code, out, said = job(
        "--input", folder / "many.txt", "--system", "hepti-throughput", "--repeat", 2, "--output", folder / "a.jsonl",
        "--report", folder / "report.json",
    )  # fmt: skip

    if world.rank == 0:
        assert code == 2
        assert len(said) == 5
        answers = read_lines(folder / "a.jsonl")
        assert [answer["id"] for answer in answers] == [n for n, name in enumerate(names, 1) if name != "bad.png"]
        for answer in answers:
            check_answer(answer, place / "photos" / names[answer["id"] - 1])
        report = json.loads((folder / "report.json").read_text())
        assert report["requests_answered"] == 30
        assert len(report["replicas"]) == (max(world.size - 1, 1) if scarce else world.size)
        assert report["predicted_requests_per_s"] > 0
        assert "images a second, predicted" in " ".join(out.split())


def solved(rates, group):
    """Share out all rows of a group alike."""
    net, cluster = rates._net, rates._cluster.only(group)
    ranks = len(group)
    plan = plan_of(net, [(3, "rows", np.full(ranks, 1 / ranks)), (len(net.nodes), "rows", np.eye(ranks)[-1])], ranks)
    return predicted(net_setting(net, cluster), replace(plan, devices=cluster.names))
