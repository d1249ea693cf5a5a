import errno
import threading
from dataclasses import replace

import h5py
import numpy as np
import pytest

from solver.base.spans import Span
from solver.model.spec import ModelSpec, tensor_shapes
from solver.plan.holdings import TensorSlice
from tests.sweeps import pairs
from weights.file.disk import Disk
from weights.file.layout import chunk_shape, is_finite, row_spans, steps, widen
from weights.file.store import FORMAT, WeightsFile, WeightsWriter

SPANS = [(0, 1), (0, 0), (3, 3), (5, 17), (20, 21), (0, 21)]


def whole(name: str, shape: tuple[int, ...]) -> TensorSlice:
    return TensorSlice(name, Span(0, shape[0]), shape)


@pytest.mark.parametrize(("dtype", "span"), pairs(["float32", "float16"], SPANS))
def test_any_span_along_either_axis_and_any_tile_reads_back(text_spec, random_tensors, write_file, dtype, span):
    """What was written is what is read, whatever part of whichever axis, or of both, is asked for."""
    tensors = random_tensors(text_spec)
    path = write_file(text_spec, tensors, dtype=dtype)

    with WeightsFile(path) as weights:
        for name in ("layers/1/mlp/down/weight", "layers/2/attention/query/weight", "embeddings/word"):
            stored = tensors[name].astype(dtype).astype(np.float32)
            for rows, columns in ((span, None), ((0, stored.shape[0]), span), ((2, 19), span)):
                tile = columns and Span(*columns)
                expected = stored[slice(*rows), tile.slice if tile else slice(None)]
                piece = TensorSlice(name, Span(*rows), expected.shape, tile)
                assert np.array_equal(weights.read(piece), expected)
                pieces = list(weights.read_pieces(piece, bytes_limit=700))
                assert np.array_equal(np.concatenate([np.empty((0, *expected.shape[1:])), *pieces]), expected)


def test_facts_travel_with_the_tensors(text_spec, random_tensors, write_file):
    """Model, source, dtype and tokenizer, umlauts included, come back as they went."""
    text = '{"vocab": "größe"}' * 9000

    path = write_file(text_spec, random_tensors(text_spec), tokenizer=text)

    with WeightsFile(path) as weights:
        assert weights.spec == text_spec
        assert (weights.source, weights.dtype, weights.tokenizer) == ("test", "float32", text)
    assert h5py.File(path).attrs["format"] == FORMAT.encode()


def test_image_models_and_long_label_lists_read_back(
    image_spec, long_labels_spec, random_tensors, write_file, read_all
):
    """The other kind of input, and a description above HDF5's 64 KiB."""
    for spec in (image_spec, long_labels_spec):
        tensors = random_tensors(spec)
        path = write_file(spec, tensors)

        with WeightsFile(path) as weights:
            assert weights.spec == spec
            assert weights.tokenizer is None
        assert all(np.array_equal(values, tensors[name]) for name, values in read_all(path).items())


def test_reading_into_a_part_of_a_larger_array(text_spec, random_tensors, write_file):
    """Query, key and value of some heads can stand one below the other without a copy."""
    tensors = random_tensors(text_spec)
    path = write_file(text_spec, tensors)
    heads = Span(13, 39)
    stacked = np.zeros((3 * heads.size, 65), np.float32)

    with WeightsFile(path) as weights:
        for row, name in enumerate(("query", "key", "value")):
            piece = TensorSlice(f"layers/0/attention/{name}/weight", heads, (heads.size, 65))
            weights.read(piece, stacked[row * heads.size : (row + 1) * heads.size])
        with pytest.raises(ValueError, match="does not fit"):
            weights.read(piece, stacked[:, :65].T[:26])

    expected = [tensors[f"layers/0/attention/{name}/weight"][heads.slice] for name in ("query", "key", "value")]
    assert np.array_equal(stacked, np.concatenate(expected))


def test_pieces_keep_their_limit_unless_one_row_is_above_it(text_spec, random_tensors, write_file):
    tensors = random_tensors(text_spec)
    path = write_file(text_spec, tensors)
    piece = whole("embeddings/word", (90, 65))

    with WeightsFile(path) as weights:
        assert max(block.nbytes for block in weights.read_pieces(piece, 1000)) <= 1000
        assert {block.shape for block in weights.read_pieces(piece, 1)} == {(1, 65)}
        assert [block.shape for block in weights.read_pieces(piece, 1 << 30)] == [(90, 65)]


def test_a_piece_that_lies_outside_is_a_mistake(text_spec, random_tensors, write_file):
    path = write_file(text_spec, random_tensors(text_spec))

    with WeightsFile(path) as weights, pytest.raises(ValueError, match="does not lie in"):
        weights.read(TensorSlice("embeddings/word", Span(80, 100), (20, 65)))


def test_slices_of_any_size_give_the_same_file(text_spec, random_tensors, tmp_path, read_all):
    """The fingerprint is that of the numbers, not of how they were written."""
    tensors, fingerprints = random_tensors(text_spec), set()
    for step in (7, 64, 1000):
        path = tmp_path / f"{step}.h5"
        with WeightsWriter(path, text_spec, "test") as weights:
            for name, values in tensors.items():
                for start in range(0, len(values), step):
                    weights.write(name, start, values[start : start + step])
        with WeightsFile(path) as weights:
            fingerprints.add(weights.fingerprint)
        assert all(np.array_equal(values, tensors[name]) for name, values in read_all(path).items())

    assert len(fingerprints) == 1


@pytest.mark.parametrize("change", ["number", "dtype", "tokenizer", "pooling"])
def test_the_fingerprint_tells_files_apart(text_spec, random_tensors, write_file, change):
    tensors = random_tensors(text_spec)
    first = write_file(text_spec, tensors, "first.h5", tokenizer="{}")

    if change == "number":
        tensors["layers/2/mlp/down/weight"][-1, -1] += 1
    second = write_file(
        replace(text_spec, pooling="mean") if change == "pooling" else text_spec,
        tensors,
        "second.h5",
        dtype="float16" if change == "dtype" else "float32",
        tokenizer="[]" if change == "tokenizer" else "{}",
    )

    with WeightsFile(first) as one, WeightsFile(second) as other:
        assert one.fingerprint != other.fingerprint


def test_a_disk_keeps_its_first_failure_and_drops_the_rest(tmp_path):
    """HDF5 must not hear of it, the writer must."""
    with Disk(tmp_path / "file", "x+") as disk:
        disk.write(b"abc")
        disk.failure = OSError(errno.EIO, "broken")

        assert disk.write(b"def") == 3
        assert disk.seek(0, 2) == 3


def test_a_writer_works_in_a_thread(text_spec, random_tensors, write_file, read_all):
    """Where signals cannot be held back, and never arrive."""
    tensors = random_tensors(text_spec)
    thread = threading.Thread(target=write_file, args=(text_spec, tensors))
    thread.start()
    thread.join()

    path = write_file(text_spec, tensors, "other.h5").with_name("model.h5")
    assert all(np.array_equal(values, tensors[name]) for name, values in read_all(path).items())


def test_widening_is_exact_for_every_float16():
    """All 65536 of them; those that are not finite become numbers that are refused."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = np.empty(every.shape, np.float32)
    widen(every, wide)
    finite = np.isfinite(every)

    assert np.array_equal(wide[finite], every[finite].astype(np.float32))
    assert (np.signbit(wide) == np.signbit(every)).all()
    assert (np.abs(wide[~finite]) >= 65536).all()


def test_large_finite_numbers_are_finite():
    """Their squares and sums overflow; they do not."""
    for values in ([3e38, -3e38], [1e30] * 100, [0.0], []):
        assert is_finite(np.array(values, np.float32), limit=np.inf)
    for values in ([1, np.nan], [np.inf, -np.inf], [-np.inf]):
        assert not is_finite(np.array(values, np.float32), limit=np.inf)


def test_steps_cover_a_span_once_and_end_where_chunks_end():
    piece = TensorSlice("x", Span(30, 300), (270, 64))
    spans = list(steps(piece, (400, 64), most=150 * 64))

    assert [(span.start, span.stop) for span in spans] == [(30, 128), (128, 256), (256, 300)]


def test_equal_tiles_store_no_padding():
    """384 columns lie as twice 192; as 256 and 128 the second tile would be stored at the size of the first."""
    assert chunk_shape((1536, 384), inputs_first=True) == (64, 192)
    assert chunk_shape((4096, 1024), inputs_first=True) == (64, 256)
    assert chunk_shape((4096, 1024), inputs_first=False) == (64, 1024)
    assert chunk_shape((7, 5), inputs_first=False) == (7, 5)


def test_row_spans_cover_every_tensor(text_spec: ModelSpec, image_spec: ModelSpec):
    for spec in (text_spec, image_spec):
        for shape in tensor_shapes(spec).values():
            spans = list(row_spans(shape))
            assert spans[0].start == 0
            assert spans[-1].stop == shape[0]
    assert [span.size for span in row_spans((2500, 1024))] == [1024, 1024, 452]
