"""Emulated ARM boards compute, convert and plan what x86 does, from wheels alone, also side by side with it."""

import json
import subprocess

import h5py
import numpy as np
import pytest

from solver.plan.plan import Wire
from tests import sweeps
from tests.arm.conftest import board
from tests.kit.commands import ROOT

TEXTS = ["a small board", "a little computer with a fan", "who is there?"]
BY_STAGES = [wire for wire in Wire if wire is not wire.within]  # formats that go from stage to stage
# The words of every job of two ranks; rank 0's board is the faster one.
JOBS = {
    **{f"numpy-{wire}": ["--backend", "numpy", "--system", "megatron-weighted", "--wire", wire]
       for wire in Wire if wire not in BY_STAGES},
    **{f"stages-{wire}": ["--backend", "numpy", "--system", "pipeedge", "--wire", wire] for wire in BY_STAGES},
    "numpy-rows": ["--backend", "numpy", "--system", "sequence-weighted"],
    "onnxruntime": ["--backend", "onnxruntime", "--system", "megatron-weighted"],
    "onnxruntime-rows": ["--backend", "auto", "--system", "sequence-weighted"],
    "int8": ["--precision", "int8", "--system", "megatron-weighted"],
    "int8-int8": ["--precision", "int8", "--system", "sequence-weighted", "--wire", Wire.INT8],
}  # fmt: skip
# What the wheels compute by what the processor has, and numpy once: where both boards are emulated a job takes 4 s.
BY_PROCESSOR = [name for name in JOBS if not name.startswith(("numpy-", "stages-"))] + ["numpy-float32"]
EXACT = ("numpy-float32", "numpy-rows", "onnxruntime", "onnxruntime-rows")
SOLVER = ("-m", "solver", "--model", "bert-base", "--layers", "2", "--rows", "128", "--json", "--cluster")


def rounded(text):
    """Read JSON to nine digits: the last ones of a solver's numbers are those of the board's own arithmetic."""
    return json.loads(text, parse_float=lambda number: float(f"{float(number):.9g}"))


@pytest.fixture(scope="module")
def plan_on_arm(folder, environment):
    """Start to plan on a board, which takes most of a minute beside all else; return what ends it."""
    path = folder / "plan-on-arm.json"
    with path.open("w") as file:
        process = subprocess.Popen(
            [board("cortex-a76"), *SOLVER, folder / "cluster.toml"], cwd=ROOT, env=environment, stdout=file
        )

    def planned():
        assert process.wait(600) == 0
        return rounded(path.read_text())

    yield planned
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def converted(plan_on_arm, checkpoint, folder, run):
    """Return the checkpoint's weights files, converted on x86 and on a board."""
    paths = {name: folder / f"{name}.h5" for name in ("x86", "cortex-a72")}
    for name, path in paths.items():
        done = run(board(name), "-m", "weights", "convert", checkpoint, path)
        assert done.returncode == 0, done.stderr
    return paths


@pytest.fixture(scope="module")
def start(folder, converted, run):
    """Run jobs on boards, one rank each; return how that ended, and by job the hidden states and each rank's report."""
    texts = folder / "texts.txt"
    texts.write_text("\n".join(TEXTS))

    def start(boards, jobs):
        here = folder / "-".join(boards)
        here.mkdir(exist_ok=True)
        model = converted["x86" if "x86" in boards else "cortex-a72"]
        given = ["--model", str(model), "--input", str(texts), "--cluster", str(folder / "cluster.toml")]
        list_of_jobs = here.with_suffix(".jobs")
        list_of_jobs.write_text(json.dumps({name: [*given, *words] for name, words in jobs.items()}))
        job = ["-m", "tests.arm.jobs", list_of_jobs, here]
        ranks = [word for name in boards for word in (":", "-np", 1, board(name), *job)]
        done = run("mpirun", *ranks[1:])
        reports = {path.stem: json.loads(path.read_text())["per_rank"] for path in here.glob("*.json")}
        return done, {path.stem: dict(np.load(path)) for path in here.glob("*.npz")}, reports

    return start


@pytest.fixture(scope="module")
def alone(start):
    """Return what one x86 rank computes with numpy."""
    done, states, _ = start(["x86"], {"single": ["--backend", "numpy", "--system", "single"]})
    assert done.returncode == 0, done.stderr
    return states["single"]


@pytest.fixture(scope="module")
def on_x86(start):
    """Return what two x86 ranks compute."""
    done, states, _ = start(["x86", "x86"], JOBS)
    assert done.returncode == 0, done.stderr
    return states


def farthest(states, others):
    """Return the largest difference of two jobs' hidden states."""
    return max(np.abs(states[name] - others[name]).max() for name in others)


def nearest(states, others):
    """Return the least cosine of two jobs' hidden states, of every request's."""
    pairs = [(states[name].ravel(), others[name].ravel()) for name in others]
    return min(one @ other / np.linalg.norm(one) / np.linalg.norm(other) for one, other in pairs)


def test_a_checkpoint_is_converted_to_the_same_file(converted):
    with h5py.File(converted["x86"]) as one, h5py.File(converted["cortex-a72"]) as other:
        names = []
        one.visit(names.append)
        datasets = [name for name in names if isinstance(one[name], h5py.Dataset)]

        assert datasets
        for name in datasets:
            np.testing.assert_array_equal(one[name][()], other[name][()], err_msg=name)
        assert dict(one.attrs) == dict(other.attrs)


@pytest.mark.parametrize(
    ("boards", "names"),
    [(("cortex-a76", "cortex-a72"), JOBS if sweeps.ALL else BY_PROCESSOR), (("x86", "cortex-a72"), JOBS)],
    ids=["two emulated", "one emulated"],
)
def test_boards_give_the_results_of_x86(start, alone, on_x86, boards, names):
    """By both backends, in both precisions, on every wire: exact ones as one x86 rank does, the others nearly."""
    done, states, reports = start(boards, {name: JOBS[name] for name in names})

    assert done.returncode == 0, done.stderr
    assert states.keys() == set(names)
    for name in names:
        if name in EXACT:
            assert farthest(states[name], alone) < 1e-4, name
        else:
            assert nearest(states[name], on_x86[name]) >= 0.99, name
        if name.startswith("int8"):
            assert nearest(states[name], alone) >= 0.99, name
        kernels = "numpy" if name.startswith(("numpy", "stages")) else "onnxruntime"
        assert [rank["backend"] for rank in reports[name]] == [kernels] * 2, name
        assert min(rank["sent_bytes"] for rank in reports[name]) > 0, f"{name}: a rank has no share"


def test_a_wheel_that_takes_a_process_down_leaves_its_board_to_numpy(start, alone):
    """Where x86's /proc/cpuinfo shows through, onnxruntime 1.28 to 1.31 follow a null pointer at import."""
    share = ["--system", "megatron-weighted"]
    done, states, reports = start(["x86", "broken"], {"float32": share, "int8": [*share, "--precision", "int8"]})
    complaints = [line for line in done.stderr.splitlines() if line.startswith("python -m ")]

    assert "dies of SIGSEGV" in done.stderr
    assert [rank["backend"] for rank in reports["float32"]] == ["onnxruntime", "numpy"]
    assert farthest(states["float32"], alone) < 1e-4
    assert done.returncode == 2
    assert len(complaints) == 1
    assert "--precision int8 cannot be had on" in complaints[0]


def test_a_plan_made_on_arm_is_that_made_on_x86(plan_on_arm, folder, run):
    done = run(board("x86"), *SOLVER, folder / "cluster.toml")
    assert done.returncode == 0, done.stderr
    here, there = rounded(done.stdout), plan_on_arm()

    assert min(device["compute_s"] for device in here["per_device"]) > 0, "a plan for one board is no test"
    assert there == here
