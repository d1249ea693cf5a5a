"""Files that are damaged, numbers that are none, disks that are full."""

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.model.spec import with_layers
from solver.plan.holdings import TensorSlice
from weights.file.store import WeightsFile, WeightsWriter

NOT_ONE = "model.h5 is not a weights file: make one with hepti convert, .* or hepti synthesize"


def whole(name: str, shape: tuple[int, ...]) -> TensorSlice:
    return TensorSlice(name, Span(0, shape[0]), shape)


def test_every_flipped_byte_is_refused_or_harmless(text_spec, random_tensors, write_file, read_all, tmp_path):
    """Tensors, attributes, groups, indices: nothing that was damaged is ever taken for good."""
    tensors = random_tensors(text_spec)
    data = write_file(text_spec, tensors, tokenizer="{}").read_bytes()
    damaged = tmp_path / "damaged.h5"

    messages = []
    for position in np.random.default_rng(1).integers(0, len(data), 150):
        damaged.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        try:
            found = read_all(damaged)
            with WeightsFile(damaged) as weights:
                facts = (weights.spec, weights.source, weights.dtype, weights.tokenizer)
        except HeptiError as error:
            messages.append(str(error))
        else:
            assert all(np.array_equal(values, tensors[name]) for name, values in found.items())
            assert facts == (text_spec, "test", "float32", "{}")

    assert len(messages) > 140
    assert all(str(damaged) in message and "\n" not in message for message in messages)


def test_a_flipped_byte_names_its_tensor(text_spec, random_tensors, write_file):
    tensors = random_tensors(text_spec)
    path = write_file(text_spec, tensors)
    name = "layers/1/mlp/up/weight"
    data = bytearray(path.read_bytes())
    data[data.index(tensors[name][3].tobytes())] ^= 1
    path.write_bytes(data)

    with WeightsFile(path) as weights:
        weights.read(whole("layers/0/mlp/up/weight", (83, 65)))
        with pytest.raises(HeptiError, match=f"tensor {name} is damaged"):
            weights.read(whole(name, (83, 65)))


def test_damage_to_a_long_description_is_seen(long_labels_spec, random_tensors, write_file):
    path = write_file(long_labels_spec, random_tensors(long_labels_spec))
    path.write_bytes(path.read_bytes().replace(b"label number 7777", b"label number 7787"))

    with pytest.raises(HeptiError, match="the model description is damaged"):
        WeightsFile(path)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _folder(path):
    path.unlink()
    path.mkdir()


def _plain_text(path: Path) -> None:
    path.write_text("not HDF5")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _of_another_program(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = "3"


def _other_format(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = np.bytes_("hepti-weights/9")


def _no_format(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file.attrs["format"]


def _no_source(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file.attrs["source"]


def _no_tensor(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["layers/0/mlp/up/weight"]


def _other_shape(path: Path) -> None:
    _no_tensor(path)
    with h5py.File(path, "r+") as file:
        file.create_dataset("layers/0/mlp/up/weight", data=np.zeros((83, 66), np.float32))


def _group_for_tensor(path: Path) -> None:
    _no_tensor(path)
    with h5py.File(path, "r+") as file:
        file.create_group("layers/0/mlp/up/weight")


def _not_a_number(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["layers/0/mlp/up/weight"][3, 3] = np.nan


def _infinite(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["layers/0/mlp/up/weight"][3, 3] = -np.inf


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            Path.unlink,
            "no weights file .*model.h5: make one with hepti convert, .* or hepti synth",
        ),
        (_folder, "model.h5 is a folder, no weights file: hepti convert .*model.h5 model.h5.h5 makes one"),
        (_plain_text, NOT_ONE),
        (_empty, NOT_ONE),
        (_of_another_program, NOT_ONE),
        (_cut, "model.h5 is cut short or damaged, copy or convert the file again: .*truncated file"),
        (_other_format, "format 'hepti-weights/9', this version reads 'hepti-weights/1'"),
        (_no_format, NOT_ONE),
        (_no_source, "model.h5 is damaged, copy or convert the file again: attribute source"),
        (_no_tensor, "tensor layers/0/mlp/up/weight is missing or damaged"),
        (_other_shape, r"tensor layers/0/mlp/up/weight is \(83, 66\) float32, the model needs \(83, 65\)"),
        (_group_for_tensor, "tensor layers/0/mlp/up/weight is missing or damaged"),
        (_not_a_number, "tensor layers/0/mlp/up/weight has NaN or infinite values"),
        (_infinite, "tensor layers/0/mlp/up/weight has NaN or infinite values"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_file_that_is_not_as_it_should_be_is_refused(
    text_spec, random_tensors, write_file, read_all, harm, message, dtype
):
    """One line that names the file, and the tensor where it is one."""
    path = write_file(text_spec, random_tensors(text_spec), dtype=dtype)
    harm(path)

    with pytest.raises(HeptiError, match=message) as caught:
        read_all(path)

    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_is_not_written(text_spec, random_tensors, write_file, tmp_path, value):
    tensors = random_tensors(text_spec)
    tensors["layers/2/attention/key/bias"][4] = value

    with pytest.raises(HeptiError, match="tensor layers/2/attention/key/bias of test has NaN"):
        write_file(text_spec, tensors)

    assert list(tmp_path.iterdir()) == []


def test_what_float16_cannot_hold_is_not_written(text_spec, random_tensors, write_file, tmp_path):
    tensors = random_tensors(text_spec)
    tensors["embeddings/word"][4, 4] = 70000

    with pytest.raises(HeptiError, match="tensor embeddings/word of test does not fit float16: use --dtype float32"):
        write_file(text_spec, tensors, dtype="float16")

    assert list(tmp_path.iterdir()) == []


def test_a_forgotten_tensor_is_refused(text_spec, random_tensors, write_file, tmp_path):
    tensors = random_tensors(text_spec)
    tensors["layers/2/mlp/down/weight"] = tensors["layers/2/mlp/down/weight"][:80]

    with pytest.raises(HeptiError, match="tensor layers/2/mlp/down/weight is incomplete: 80 of 83 rows"):
        write_file(text_spec, tensors)

    assert list(tmp_path.iterdir()) == []


def test_rows_out_of_order_are_a_mistake(text_spec, tmp_path):
    with (
        pytest.raises(ValueError, match="rows from 5 on, next are 0"),
        WeightsWriter(tmp_path / "model.h5", text_spec, "test") as weights,
    ):
        weights.write("embeddings/word", 5, np.zeros((3, 65)))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_writer_leaves_nothing_and_the_old_file(text_spec, random_tensors, write_file, interruption):
    """A file is replaced when its successor is complete, not before."""
    path = write_file(text_spec, random_tensors(text_spec))
    before = path.read_bytes()

    def begin_and_stop() -> None:
        with WeightsWriter(path, text_spec, "test") as weights:
            weights.write("embeddings/word", 0, np.zeros((90, 65)))
            raise interruption

    with pytest.raises(interruption):
        begin_and_stop()

    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == before


def test_a_missing_folder_and_a_folder_as_the_file_are_refused(text_spec, tmp_path):
    for path, message in ((tmp_path / "no" / "model.h5", "there is no folder"), (tmp_path, "it is a folder")):
        with pytest.raises(HeptiError, match=message), WeightsWriter(path, text_spec, "test"):
            pass

    assert list(tmp_path.iterdir()) == []


def test_an_unknown_dtype_is_refused(text_spec, tmp_path):
    with pytest.raises(HeptiError, match="dtype 'int8' is not one of float32, float16"):
        WeightsWriter(tmp_path / "model.h5", text_spec, "test", dtype="int8")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of one MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting a small file system needs root: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_too_small_is_refused_before_writing(small_disk, text_spec, random_tensors):
    spec = with_layers(text_spec, 20)

    with (
        pytest.raises(HeptiError, match=r"cannot write .*: it takes 2 MiB, .* has 1 MiB free"),
        WeightsWriter(small_disk / "model.h5", spec, "test"),
    ):
        pass

    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9, 1.0])
def test_a_disk_that_fills_up_meanwhile_leaves_nothing_behind(small_disk, text_spec, random_tensors, left):
    """In the first tensor, on the way, in the last one, and when all is written but HDF5's own tables."""
    tensors = random_tensors(text_spec)
    filler = small_disk / "filler"

    def write_while_another_fills_the_disk() -> None:
        with WeightsWriter(small_disk / "model.h5", text_spec, "test") as weights:
            room = int(left * sum(values.nbytes for values in tensors.values())) // 4096 * 4096
            filler.write_bytes(bytes((1 << 20) - room))
            for name, values in tensors.items():
                weights.write(name, 0, values)

    with pytest.raises(HeptiError, match=r"cannot write .*model.h5: No space left on device"):
        write_while_another_fills_the_disk()

    assert list(small_disk.iterdir()) == [filler]


def test_a_limit_on_file_sizes_leaves_nothing_behind(tmp_path, text_spec, random_tensors):
    """Unlike a full disk, it refuses HDF5's changes of length, too."""

    def write_beyond_the_limit() -> None:
        with WeightsWriter(tmp_path / "model.h5", text_spec, "test") as weights:
            for name, values in random_tensors(text_spec).items():
                weights.write(name, 0, values)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(HeptiError, match=r"cannot write .*model.h5: File too large"):
            write_beyond_the_limit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list(tmp_path.iterdir()) == []
