"""Every bad input of an encoder's job: exit code 2, one line that says what is wrong, nothing left behind.

What rank 0 says before ranks compute; that all ranks of a job end so is seen in tests/mpi.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from hepti_mpi.__main__ import main
from hepti_mpi.measure import room
from hepti_mpi.requests.inputs import Reader
from solver.model.spec import TextInput
from tests.kit import inside, refusals
from tests.kit.encoders import POST, PRE, tensors_of
from tests.kit.planned import PLAN, changed
from weights import cli as weights
from weights.file.store import WeightsFile, WeightsWriter
from weights.synthesize import synthesize

HERE = Path(__file__).parent


def stage(devices, layers=(0, 3)):
    """Return a stage of which the first device has everything."""
    rows = [1, 0, 0][: len(devices)]
    heads = [5 * own for own in rows]
    blocks = {"attention": {"cut": "heads", "heads": heads}, "mlp": {"cut": "rows", "rows": rows}}
    return {"devices": [*devices], "runs": [{"layers": [*layers], **blocks}]}


PLANS = {
    "good": PLAN,
    "three-devices": PLAN | {"stages": [stage("abc")]},
    "one-device": PLAN | {"stages": [stage("a")]},
    "another-model": changed("plan model", {"name": "other", "fingerprint": "0123456789ab"}),
    "few-heads": changed("attention heads", [3, 1]),
    "spans": changed("attention heads", [[0, 3], [3, 5]]),
    "one-number": changed("attention heads", [5]),
    "more-than-all": changed("mlp rows", [0.7, 0.7]),
    "diagonal": changed("mlp cut", "diagonal"),
    "few-layers": changed("run layers", [0, 2]),
    "another-format": {"format": "hepti-plan/9"},
    "device-twice": PLAN | {"stages": [stage("a", (0, 1)), stage("a", (1, 3))], "devices": ["a", "b"]},
}
DEVICES = "".join(f'[[device]]\nname = "{name}"\ngflops = 1\nmemory_gib = 0.1\n' for name in "ab")
CLUSTER = 'format = "hepti-cluster/1"\n{}[network]\nbandwidth_mbps = 9'


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with weights files of a text and a vision model, inputs, plans and clusters."""
    path = tmp_path_factory.mktemp("encoder")
    spec = replace(POST, name="bert", input=TextInput(vocab=211, positions=512, max_rows=512))
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "fine": 1}, unk_token="[UNK]"))
    with WeightsWriter(path / "bert.h5", spec, "made for a test", tokenizer=tokenizer.to_str()) as file:
        for name, array in tensors_of(spec).items():
            file.write(name, 0, array)
    synthesize(path / "vit.h5", replace(PRE, name="vit"))
    for name, content in {
        "empty.jsonl": b"", "empty.txt": b"\n", "bytes.txt": b"\xff\n", "notes.md": b"no text", "half.json": b"{",
        "picture.png": b"no picture",
        "small.toml": CLUSTER.format(DEVICES).encode(),
        "one.toml": CLUSTER.format('[[device]]\nname = "a"\ngflops = 1\nmemory_gib = 1\n').encode(),
    }.items():  # fmt: skip
        (path / name).write_bytes(content)
    for name, plan in PLANS.items():
        (path / f"{name}.json").write_text(json.dumps(plan))
    return path


@pytest.mark.usefixtures("two_ranks")
def test_a_job_is_refused_in_one_line_and_leaves_nothing(place, job):
    before = sorted(place.rglob("*"))
    programs = {"encoder": job("bert.h5"), "vision": job("vit.h5"), "python -m hepti_mpi": main}

    refusals.check(HERE / "encoder.txt", programs, place)

    assert sorted(place.rglob("*")) == before


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("cluster", [(), ("--cluster", "mixed4")], ids=["bare", "cluster"])
def test_a_plan_for_which_a_host_lacks_memory_whatever_a_file_says_of_its_boards(
    cluster, place, complaint, monkeypatch
):
    monkeypatch.setattr(room, "free_bytes", lambda: 0)
    monkeypatch.setattr(room, "host_name", lambda: "pi-0")

    assert "which has 0 free" in complaint("--model", "bert.h5", "--random", 5, "--plan", "good.json", *cluster)


BAD_LINES = [
    {"text": ""}, "{", {"tokens": [5] * 513}, {"tokens": [5, 211]}, {"tokens": [5, -1]}, {"id": "one", "tokens": [5]},
    {"image": "a.png"},
]  # fmt: skip


def test_bad_lines_leave_the_others_and_are_named_by_their_numbers(place, tmp_path, kept):
    lines = [{"id": "one", "tokens": [7, 8]}, *BAD_LINES, {"id": "last", "tokens": [9]}]
    path, said = tmp_path / "asked.jsonl", []
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    with WeightsFile(place / "bert.h5") as file:
        reader = Reader(file.spec, file.tokenizer, lambda complaint: said.append(str(complaint)))

    assert [request.id for request in reader.file(path)] == ["one", "last"]

    assert [line.split(":")[0] for line in said] == [f"asked.jsonl, line {number}" for number in range(2, 9)]
    kept("\n".join(said))


# Weights files that something was done to.


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


HARMS = {
    "the first tensor": (flip_in("embeddings/word"), "embeddings/word is damaged"),
    "a layer": (flip_in("layers/1/mlp/down/weight"), "layers/1/mlp/down/weight is damaged"),
    "the tokenizer": (flip_in("tokenizer"), "tokenizer is damaged"),
    "metadata": (flip_in_metadata, "damaged.h5"),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:-5000]), "cut short or damaged"),
    "nothing": (lambda path: path.write_bytes(b""), "not a weights file"),
    "another file": (lambda path: path.write_bytes(b"no HDF5 at all"), "not a weights file"),
    "no number": (with_nan, "layers/2/attention/value/weight has NaN"),
    "gone": (lambda path: path.unlink(), "no weights file"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_weights_that_cannot_be_trusted_are_named_by_the_job_and_by_verify(harm, place, complaint, request):
    path = place / "damaged.h5"
    shutil.copy(place / "bert.h5", path)
    request.addfinalizer(lambda: path.unlink(missing_ok=True))
    harm, named = HARMS[harm]
    harm(path)

    assert named in complaint("--model", "damaged.h5", "--random", 5, "--cluster", "mixed4", "--backend", "numpy")

    done = inside.run(weights.main, "verify", path)
    assert done.returncode == 2
    assert named in done.stderr
