"""Every bad input: exit code 2, one line that says what is wrong, nothing left behind.

What two ranks say of it; that a job of processes ends so is seen in tests/commands.
"""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from hepti_mpi.__main__ import main
from hepti_mpi.measure import room
from solver.base.spans import Span
from solver.model.spec import TextInput, tensor_shapes
from tests.kit.planned import PLAN, changed
from tests.mpi.test_layers import POST, PRE
from weights import cli as weights
from weights.file.store import WeightsWriter
from weights.synthesize import synthesize, synthetic_rows

pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="the plans here are for two ranks")


@pytest.fixture(scope="module")
def bert(all_ranks, shared_folder):
    """Return where the weights file of a small text model with a tokenizer lies."""
    path = shared_folder / "bert.h5"
    if all_ranks.rank == 0:
        spec = replace(POST, name="bert", input=TextInput(vocab=211, positions=512, max_rows=512))
        tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "fine": 1}, unk_token="[UNK]"))
        with WeightsWriter(path, spec, "made for a test", tokenizer=tokenizer.to_str()) as file:
            for name, shape in tensor_shapes(spec).items():
                file.write(name, 0, synthetic_rows(name, shape, Span(0, shape[0])))
    all_ranks.barrier()
    return SimpleNamespace(path=path)


@pytest.fixture
def vit(world, folder):
    """Return where the weights file of a small vision model lies."""
    if world.rank == 0:
        synthesize(folder / "vit.h5", replace(PRE, name="vit"))
    world.barrier()
    return SimpleNamespace(path=folder / "vit.h5")


@pytest.fixture
def refused(world, folder, capsys):
    """Run a command on all ranks and check that it refuses, for the reason given, and leaves no file."""

    def check(complaint, *arguments):
        before = sorted(folder.rglob("*"))
        code = main([str(word) for word in arguments])
        lines = complaints(capsys)

        world.barrier()
        if world.rank == 0:
            assert code == 2
            (line,) = lines
            assert complaint in line
            assert sorted(folder.rglob("*")) == before
        else:
            assert lines == []

    return check


@pytest.fixture
def job(refused, folder):
    """Run a job that would write two files, and check that it refuses."""

    def check(complaint, *arguments):
        outputs = ("--output", folder / "answers.jsonl", "--report", folder / "report.json")
        refused(complaint, *arguments, *outputs)

    return check


def complaints(capsys):
    """Return what was said on stderr that is an error; notes and progress are none."""
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("python -m ")]


@pytest.fixture
def write(world):
    """Write a file on rank 0, for all."""

    def on_root(path, content):
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        if world.rank == 0:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        world.barrier()
        return path

    return on_root


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--modle", "bert.h5"],
            "unrecognized arguments: --modle bert.h5: did you mean --model? (see python -m hepti_mpi --help)",
        ),
        (["--text", "a", "--random", "5"], "--text and --random both say what to compute"),
        (["--random", "x"], "invalid int value: 'x'"),
        (["--random", "5", "--repeat", "0"], "--repeat is 0, must be at least 1"),
        (["--input", "-", "--repeat", "2"], "what standard input asks is answered once"),
        (["--random", "5", "--wire", "float8"], "invalid choice: 'float8'"),
        (["--random", "5", "--system", "galxy"], "unknown system 'galxy'"),
        (["--random", "5", "--wire", "int4"], "int4 on the wire is for what goes from stage to stage, this plan has 1"),
        (["--random", "5", "--trace", "trace.txt"], "trace.txt"),
        (["--random", "5", "--system", "prima", "--replan", "auto"], "that hepti makes: leave out --system prima"),
        (["--random", "5", "--plan", "p.json", "--system", "hepti"], "--plan and --system hepti both say who has what"),
        (["--random", "5", "--plan", "p.json", "--replan", "auto"], "what they were planned for: add --cluster"),
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
        (["--input", "pyproject.toml"], "not a .txt, a .jsonl, an image or a folder, nor - for standard input"),
        (["--input", "nowhere.png"], "model bert reads texts, not images"),
        (["--random", "5", "--cluster", "mixed4", "--system", "single:pi-2"], "no device 'pi-2', there are pi-0, pi-1"),
        (["--random", "5", "--cluster", "nowhere.toml"], "there is no cluster file nowhere.toml (known: mixed3, "),
        (["--random", "5", "--cluster", "mixed4.toml"], "there is no cluster file mixed4.toml (did you mean mixed4?)"),
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
def test_a_bad_line_leaves_the_others(line, complaint, bert, world, folder, write, capsys):
    """The line is named by its number; the answers of the others are written, and the exit code is 2."""
    lines = [{"id": "one", "tokens": [7, 8]}, line, {"id": "three", "tokens": [9]}]
    answers = {}
    for name, some in (("good", lines[::2]), ("bad", lines)):
        text = "".join((json.dumps(entry) if isinstance(entry, dict) else entry) + "\n" for entry in some)
        source = write(folder / f"{name}.jsonl", text)
        code = main(["--model", str(bert.path), "--input", str(source), "--output", str(folder / f"{name}-out.jsonl")])
        said = complaints(capsys)
        if world.rank == 0:
            assert code == (2 if name == "bad" else 0)
            answers[name] = [json.loads(row) for row in (folder / f"{name}-out.jsonl").read_text().splitlines()]

    if world.rank == 0:
        (only,) = said
        assert only.startswith("python -m hepti_mpi: bad.jsonl, line 2: ")
        assert complaint in only
        assert [answer["id"] for answer in answers["bad"]] == ["one", "three"]
        for one, other in zip(answers["bad"], answers["good"], strict=True):
            np.testing.assert_allclose(one["embedding"], other["embedding"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("empty.jsonl", b"", "empty.jsonl is empty"),
        ("empty.txt", b"\n\n", "empty.txt, line 1: the text is empty"),
        ("bytes.txt", b"\xff\n", "bytes.txt, line 1: not UTF-8"),
    ],
)
def test_a_file_without_a_request(name, content, complaint, bert, job, folder, write):
    write(folder / name, content)
    job(complaint, "--model", bert.path, "--input", folder / name)


@pytest.mark.parametrize("content", [b"no picture", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"])
def test_a_file_that_is_no_picture(content, vit, job, folder, write):
    write(folder / "picture.png", content)
    job("cannot read image", "--model", vit.path, "--input", folder / "picture.png")


@pytest.mark.parametrize(
    ("option", "path", "complaint"),
    [
        ("--output", "missing/answers.jsonl", "there is no folder missing"),
        ("--output", "answers.csv", "the ending must be .jsonl or .npz"),
        ("--report", "missing/report.json", "there is no folder missing"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(option, path, complaint, bert, refused):
    refused(complaint, "--model", bert.path, "--random", 5, option, path)


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (changed("stage devices", ["a", "b", "c"]), "the plan is for 3 devices, the job has 2 ranks"),
        (changed("stage devices", ["a"]), "the plan is for 1 devices, the job has 2 ranks"),
        (changed("plan model", {"name": "other", "fingerprint": "0123456789ab"}), "the plan is for model other"),
        (changed("attention heads", [[0, 3], [3, 4]]), "the spans cover 4 heads, model bert has 5"),
        (changed("attention heads", [[0, 3], [2, 5]]), "spans [0, 3) and [2, 5) overlap"),
        (changed("attention heads", [[0, 2], [3, 5]]), "nobody has [2, 3)"),
        (changed("attention heads", [[0, 5]]), "1 spans of heads for 2 devices"),
        (changed("mlp rows", [0.7, 0.7]), "add up to 1.4, not 1"),
        (changed("mlp cut", "diagonal"), "cut 'diagonal' is not one of rows, columns, block"),
        (changed("run layers", [0, 2]), "the plan has 2 layers, model bert has 3"),
        ("{", "not JSON"),
        ({"format": "hepti-plan/9"}, "format is 'hepti-plan/9', this version reads 'hepti-plan/1'"),
    ],
)
def test_a_plan_that_does_not_fit(plan, complaint, bert, job, folder, write):
    job(complaint, "--model", bert.path, "--random", 5, "--plan", write(folder / "plan.json", plan))


def test_a_device_in_two_stages(bert, job, folder, write):
    run = {
        "attention": {"cut": "block", "heads": [[0, 5]]},
        "mlp": {"cut": "block", "ffn": [[0, 83]]},
    }
    stages = [{"devices": ["a"], "layers": [{"layers": layers, **run}]} for layers in ([0, 1], [1, 3])]
    plan = write(folder / "plan.json", PLAN | {"stages": stages, "devices": ["a", "b"]})

    job("device a is in two stages: a device can be in one", "--model", bert.path, "--random", 5, "--plan", plan)


@pytest.mark.parametrize("cluster", [(), ("--cluster", "mixed4")])
def test_a_plan_for_which_a_host_lacks_memory_whatever_a_file_says_of_its_boards(
    cluster, bert, job, folder, write, monkeypatch
):
    monkeypatch.setattr(room, "free_bytes", lambda: 0)
    plan = write(folder / "plan.json", PLAN)

    job(" for 2 ranks, which has 0 free: give", "--model", bert.path, "--random", 5, "--plan", plan, *cluster)


def test_a_system_whose_plan_lacks_memory(bert, job, folder, write):
    """Systems that do not ask what memory there is are refused before anything is loaded."""
    devices = "".join(f'[[device]]\nname = "{name}"\ngflops = 1\nmemory_gib = 0.1\n' for name in "ab")
    path = write(folder / "small.toml", f'format = "hepti-cluster/1"\n{devices}[network]\nbandwidth_mbps = 9')

    complaint = "bert by megatron does not fit: "
    job(complaint, "--model", bert.path, "--random", 5, "--cluster", path, "--system", "megatron")


def test_more_ranks_than_the_cluster_has_devices(bert, job, folder, write):
    cluster = (
        'format = "hepti-cluster/1"\n[[device]]\nname = "a"\ngflops = 1\nmemory_gib = 1\n[network]\nbandwidth_mbps = 9'
    )
    path = write(folder / "one.toml", cluster)

    job("has 1 devices, the job has 2 ranks", "--model", bert.path, "--random", 5, "--cluster", path)


# Weights files.


def damaged(world, path, folder, harm):
    """Return a copy of a weights file that `harm` has been done to."""
    copy = folder / "damaged.h5"
    if world.rank == 0:
        shutil.copy(path, copy)
        harm(copy)
    world.barrier()
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
def test_weights_that_cannot_be_trusted(harm, complaint, bert, job, world, folder, capsys):
    """The job and `verify` both name what is damaged."""
    path = damaged(world, bert.path, folder, harm)

    job(complaint, "--model", path, "--random", 5)
    if world.rank == 0:
        assert weights.main(["verify", str(path)]) == 2
        assert complaint in capsys.readouterr().err
