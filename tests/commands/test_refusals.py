"""Every bad input: exit code 2, one line that says what is wrong, nothing left behind."""

import json
import shutil

import h5py
import numpy as np
import pytest

from tests.commands.cli import complaints, hepti, solver, weights
from tests.commands.requests import check_answers


@pytest.fixture(scope="module")
def bert(converted):
    return converted("bert")


@pytest.fixture
def refused(tmp_path):
    """Run a command and check that it refuses, for the reason given, and leaves no file."""

    def check(complaint, command, *arguments, **options):
        before = sorted(tmp_path.rglob("*"))
        done = command(*arguments, **options)

        assert done.returncode == 2, done.stderr
        (line,) = complaints(done)
        assert complaint in line
        assert sorted(tmp_path.rglob("*")) == before
        return done

    return check


@pytest.fixture
def job(refused, tmp_path):
    """Run a job that would write two files, and check that it refuses."""

    def check(complaint, *arguments, ranks=2, **options):
        outputs = ("--output", tmp_path / "answers.jsonl", "--report", tmp_path / "report.json")
        return refused(complaint, hepti, ranks, *arguments, *outputs, **options)

    return check


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--modle", "bert.h5"], "unrecognized arguments: --modle bert.h5 (see python -m hepti_mpi --help)"),
        (["--text", "a", "--random", "5"], "--text and --random both say what to compute"),
        (["--random", "x"], "invalid int value: 'x'"),
        (["--random", "5", "--repeat", "0"], "--repeat is 0, must be at least 1"),
        (["--input", "-", "--repeat", "2"], "what standard input asks is answered once"),
        (["--random", "5", "--wire", "float8"], "invalid choice: 'float8'"),
        (["--random", "5", "--system", "galxy"], "unknown system 'galxy'"),
        (["--random", "5", "--wire", "int4"], "int4 on the wire is for what goes from stage to stage, this plan has 1"),
        (["--random", "5", "--trace", "trace.txt"], "trace.txt"),
        (["--random", "5", "--system", "prima", "--replan", "auto"], "that hepti makes: leave out --system prima"),
        (["--random", "5", "--watch"], "add --replan dry-run, or auto"),
    ],
)
def test_bad_usage(arguments, complaint, bert, job):
    job(complaint, "--model", bert.path, *arguments)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--random", "513"], "--random is 513, but bert has 1 to 512 positions"),
        (["--random", "0"], "--random is 0"),
        (["--text", "fine", "  "], "the text is empty"),
        (["--input", "nowhere.txt"], "cannot read --input nowhere.txt: No such file"),
        (["--input", "pyproject.toml"], "not a .txt, a .jsonl or an image, nor - for standard input"),
        (["--input", "nowhere.png"], "model bert reads texts, not images"),
        (["--random", "5", "--cluster", "mixed4", "--system", "single:pi-2"], "no device 'pi-2', there are pi-0, pi-1"),
        (["--random", "5", "--cluster", "nowhere.toml"], "there is no cluster file nowhere.toml: ready are mixed3, "),
        (["--random", "5", "--cluster", "mixed4.toml"], "there is no cluster file mixed4.toml: did you mean mixed4?"),
        (["--random", "5", "--plan", "nowhere.json"], "cannot read plan nowhere.json"),
    ],
)
def test_what_cannot_be_computed(arguments, complaint, bert, job):
    job(complaint, "--model", bert.path, *arguments)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"text": ""}, "the text is empty"),
        ("{", "not JSON"),
        ({"tokens": [5] * 513}, "513 tokens, but bert has 512 positions"),
        ({"tokens": [5, 211]}, "token 211 is out of range: bert has 211 tokens, from 0 on"),
        ({"tokens": [5, -1]}, "token -1 is out of range"),
        ({"id": "one", "tokens": [5]}, "id 'one' stands on line 1 already"),
        ({"image": "a.png"}, "model bert needs a text or tokens"),
    ],
)
def test_a_bad_line_leaves_the_others(line, complaint, bert, tmp_path):
    """The line is named by its number; the answers of the others are written, and the exit code is 2."""
    lines = [{"id": "one", "tokens": [7, 8]}, line, {"id": "three", "tokens": [9]}]
    text = "".join((json.dumps(entry) if isinstance(entry, dict) else entry) + "\n" for entry in lines)
    source = write(tmp_path / "requests.jsonl", text)

    done = hepti(2, "--model", bert.path, "--input", source, "--output", tmp_path / "answers.jsonl")

    assert done.returncode == 2
    (said,) = complaints(done)
    assert said.startswith("python -m hepti_mpi: requests.jsonl, line 2: ")
    assert complaint in said
    check_answers((tmp_path / "answers.jsonl").read_text(), {"one": bert.expected([7, 8]), "three": bert.expected([9])})


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("empty.jsonl", b"", "empty.jsonl is empty"),
        ("empty.txt", b"\n\n", "empty.txt, line 1: the text is empty"),
        ("bytes.txt", b"\xff\n", "bytes.txt, line 1: not UTF-8"),
    ],
)
def test_a_file_without_a_request(name, content, complaint, bert, job, tmp_path):
    (tmp_path / name).write_bytes(content)
    job(complaint, "--model", bert.path, "--input", tmp_path / name)


@pytest.mark.parametrize("content", [b"no picture", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"])
def test_a_file_that_is_no_picture(content, converted, job, tmp_path):
    (tmp_path / "picture.png").write_bytes(content)
    job("cannot read image", "--model", converted("vit").path, "--input", tmp_path / "picture.png")


@pytest.mark.parametrize(
    ("option", "path", "complaint"),
    [
        ("--output", "missing/answers.jsonl", "there is no folder missing"),
        ("--output", "answers.csv", "the ending must be .jsonl or .npz"),
        ("--report", "missing/report.json", "there is no folder missing"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(option, path, complaint, bert, refused):
    refused(complaint, hepti, 2, "--model", bert.path, "--random", 5, option, path)


# Plans: a good one for two ranks, and what a slip of the pen makes of it.

PLAN = {
    "format": "hepti-plan/1",
    "model": {"name": "bert"},
    "stages": [
        {
            "devices": ["a", "b"],
            "layers": [
                {
                    "layers": [0, 3],
                    "attention": {"cut": "block", "heads": [[0, 4], [4, 5]]},
                    "mlp": {"cut": "rows", "rows": [0.7, 0.3]},
                }
            ],
        }
    ],
}


def changed(path, value):
    """Return the plan with another value at a path like "attention heads"."""
    plan = json.loads(json.dumps(PLAN))
    run = plan["stages"][0]["layers"][0]
    table = {"plan": plan, "stage": plan["stages"][0], "run": run}.get(path.split()[0], run.get(path.split()[0]))
    table[path.split()[1]] = value
    return plan


@pytest.mark.parametrize(
    ("plan", "ranks", "complaint"),
    [
        (PLAN, 3, "the plan is for 2 devices, the job has 3 ranks"),
        (PLAN, 1, "the plan is for 2 devices, the job has 1 ranks"),
        (changed("plan model", {"name": "other", "fingerprint": "0123456789ab"}), 2, "the plan is for model other"),
        (changed("attention heads", [[0, 3], [3, 4]]), 2, "the spans cover 4 heads, model bert has 5"),
        (changed("attention heads", [[0, 3], [2, 5]]), 2, "spans [0, 3) and [2, 5) overlap"),
        (changed("attention heads", [[0, 2], [3, 5]]), 2, "nobody has [2, 3)"),
        (changed("attention heads", [[0, 5]]), 2, "1 spans of heads for 2 devices"),
        (changed("mlp rows", [0.7, 0.7]), 2, "add up to 1.4, not 1"),
        (changed("mlp cut", "diagonal"), 2, "cut 'diagonal' is not one of rows, columns, block"),
        (changed("run layers", [0, 2]), 2, "the plan has 2 layers, model bert has 3"),
        ("{", 2, "not JSON"),
        ({"format": "hepti-plan/9"}, 2, "format is 'hepti-plan/9', this version reads 'hepti-plan/1'"),
    ],
)
def test_a_plan_that_does_not_fit(plan, ranks, complaint, bert, job, tmp_path):
    job(complaint, "--model", bert.path, "--random", 5, "--plan", write(tmp_path / "plan.json", plan), ranks=ranks)


def test_a_device_in_two_stages(bert, job, tmp_path):
    run = {
        "attention": {"cut": "block", "heads": [[0, 5]]},
        "mlp": {"cut": "block", "ffn": [[0, 83]]},
    }
    stages = [{"devices": ["a"], "layers": [{"layers": layers, **run}]} for layers in ([0, 1], [1, 3])]
    plan = write(tmp_path / "plan.json", PLAN | {"stages": stages, "devices": ["a", "b"]})

    job("device a is in two stages: a device can be in one", "--model", bert.path, "--random", 5, "--plan", plan)


def test_a_system_whose_plan_lacks_memory(bert, job, tmp_path):
    """Systems that do not ask what memory there is are refused before anything is loaded."""
    devices = "".join(f'[[device]]\nname = "{name}"\ngflops = 1\nmemory_gib = 0.1\n' for name in "ab")
    path = write(tmp_path / "small.toml", f'format = "hepti-cluster/1"\n{devices}[network]\nbandwidth_mbps = 9')

    complaint = "bert by megatron does not fit: "
    job(complaint, "--model", bert.path, "--random", 5, "--cluster", path, "--system", "megatron")


def test_more_ranks_than_the_cluster_has_devices(bert, job, tmp_path):
    cluster = (
        'format = "hepti-cluster/1"\n[[device]]\nname = "a"\ngflops = 1\nmemory_gib = 1\n[network]\nbandwidth_mbps = 9'
    )
    path = write(tmp_path / "one.toml", cluster)

    job("has 1 devices, the job has 2 ranks", "--model", bert.path, "--random", 5, "--cluster", path)


# Weights files.


def damaged(path, folder, harm):
    """Return a copy of a weights file that `harm` has been done to."""
    copy = folder / "damaged.h5"
    shutil.copy(path, copy)
    harm(copy)
    return copy


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def flip_in(name):
    def harm(path):
        with h5py.File(path) as file:
            place = file[name].id.get_chunk_info(0).byte_offset
        flip(path, place + 5)

    return harm


def flip_in_metadata(path):
    """Harm the object header of the root group, which holds the attributes."""
    with h5py.File(path) as file:
        place = h5py.h5o.get_info(file.id).addr
    flip(path, place + 30)


def with_nan(path):
    with h5py.File(path, "r+") as file:
        file["layers/2/attention/value/weight"][3, 4] = np.nan


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (flip_in("embeddings/word"), "tensor embeddings/word is damaged"),
        (flip_in("layers/1/mlp/down/weight"), "tensor layers/1/mlp/down/weight is damaged"),
        (flip_in("tokenizer"), "the tokenizer is damaged"),
        (flip_in_metadata, "damaged.h5"),
        (lambda path: path.write_bytes(path.read_bytes()[:-5000]), "is cut short or damaged, copy or convert"),
        (lambda path: path.write_bytes(b""), "is not a weights file: make one with"),
        (lambda path: path.write_bytes(b"no HDF5 at all"), "is not a weights file: make one with"),
        (with_nan, "tensor layers/2/attention/value/weight has NaN or infinite values"),
        (lambda path: path.unlink(), "no weights file"),
    ],
)  # fmt: skip
def test_weights_that_cannot_be_trusted(harm, complaint, bert, job, refused, tmp_path):
    """The job and `verify` both name what is damaged."""
    path = damaged(bert.path, tmp_path, harm)

    job(complaint, "--model", path, "--random", 5)
    refused(complaint, weights, "verify", path)


def test_a_rank_that_finds_the_damage_alone_ends_all(bert, job, tmp_path):
    """Only the last of three ranks reads the last head's query."""
    plan = changed("attention heads", [[0, 2], [2, 3], [3, 5]])
    plan["stages"][0]["devices"].append("c")
    plan["stages"][0]["layers"][0]["mlp"]["rows"] = [0.5, 0.5, 0]

    def harm(path):
        with h5py.File(path, "r+") as file:
            file["layers/2/attention/query/weight"][39, 1] = np.nan

    path = damaged(bert.path, tmp_path, harm)
    plan = write(tmp_path / "plan.json", plan)

    job("query/weight has NaN or infinite values: convert it again (rank 2)", "--model", path, "--random", 5,
        "--plan", plan, ranks=3)  # fmt: skip


# Commands without MPI.


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (shutil.rmtree, "no checkpoint directory"),
        (lambda folder: (folder / "config.json").unlink(), "config.json: No such file"),
        (lambda folder: write(folder / "config.json", {"model_type": "mamba"}), "unknown architecture"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\7" * 90), "cannot read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    ],
)
def test_checkpoints_that_cannot_be_converted(harm, complaint, bert, refused, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(bert.folder, folder, ignore=shutil.ignore_patterns("*.h5"))
    harm(folder)

    refused(complaint, weights, "convert", folder, tmp_path / "model.h5")


def test_safetensors_cut_short(bert, refused, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(bert.folder, folder, ignore=shutil.ignore_patterns("*.h5"))
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])

    refused("model.safetensors", weights, "convert", folder, tmp_path / "model.h5")


def test_weights_for_a_missing_folder(bert, refused, tmp_path):
    refused("there is no folder", weights, "convert", bert.folder, tmp_path / "missing" / "model.h5")
    refused("there is no folder", weights, "synthesize", "minilm-l6", tmp_path / "missing" / "model.h5")


def test_the_planner_refuses_a_damaged_file(bert, refused, tmp_path):
    cluster = "hepti_mpi/demo/cluster.toml"
    path = damaged(bert.path, tmp_path, flip_in_metadata)

    refused("damaged.h5", solver, "--model", path, "--cluster", cluster, "--out", tmp_path / "plan.json")
