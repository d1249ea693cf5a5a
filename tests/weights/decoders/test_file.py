"""Weights files of language models: written in any precision, read by rows and by blocks."""

import json

import h5py
import numpy as np
import pytest

from solver.base.errors import HeptiError
from solver.base.spans import Span
from tests import sweeps
from tests.sweeps import pairs
from weights.decoders.file import DecoderFile, DecoderWriter
from weights.file.networks import NetworkFile
from weights.file.store import ENCODER, LANGUAGE_MODEL, WeightsFile, stored_kind

PRECISIONS = ("float32", "int8", "int4")
GATE, DOWN = "layers/1/mlp/gate/weight", "layers/2/mlp/down/weight"  # [83, 52] and [83, 52] summed over 83


class TestReading:
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_gives_what_was_written(self, odd_decoder, decoder_numbers, write_decoder, precision):
        tensors = decoder_numbers(odd_decoder)
        path = write_decoder(
            odd_decoder, tensors, precision=precision, tokenizer='{"ä": 1}', chat_template="{{ x }}",
            generation={"temperature": 0.6, "top_k": 20}, special={"bos_token": "<s>"},
        )  # fmt: skip

        with DecoderFile(path) as weights:
            assert (weights.model, weights.precision, weights.source) == (odd_decoder, precision, "test")
            assert (weights.tokenizer, weights.chat_template) == ('{"ä": 1}', "{{ x }}")
            assert (weights.generation, weights.special) == ({"temperature": 0.6, "top_k": 20}, {"bos_token": "<s>"})
            for name, values in tensors.items():
                found = weights.read(name)
                blocked = precision != "float32" and weights.tensors[name].summed is not None
                assert (found.dtype, found.shape, weights.in_blocks(name)) == (np.float32, values.shape, blocked)
                bound = {"float32": 0, "int8": 1 / 127, "int4": 1 / 8}[precision] if blocked else 0
                assert np.abs(found - values).max() <= bound * np.abs(values).max()

    @pytest.mark.parametrize(
        ("precision", "rows"), pairs(PRECISIONS, [Span(0, 32), Span(32, 64), Span(64, 83), Span(32, 83), Span(32, 32)])
    )
    def test_of_rows_gives_those_rows(self, odd_decoder, decoder_numbers, write_decoder, precision, rows):
        path = write_decoder(odd_decoder, decoder_numbers(odd_decoder), precision=precision)

        with DecoderFile(path) as weights:
            for name in (GATE, DOWN, "embedding/weight", "layers/0/mlp/norm/weight"):
                if weights.tensors[name].shape[0] >= rows.stop:
                    np.testing.assert_array_equal(weights.read(name, rows), weights.read(name)[rows.slice])

    @pytest.mark.parametrize("precision", ["int8", "int4"])
    def test_of_blocks_gives_them_as_stored(self, odd_decoder, decoder_numbers, write_decoder, precision):
        path = write_decoder(odd_decoder, decoder_numbers(odd_decoder), precision=precision)
        wide = {"int8": 32, "int4": 16}[precision]

        with DecoderFile(path) as weights:
            blocks, scales = weights.read_blocks(GATE)
            assert (blocks.shape, scales.shape) == ((83, 2, wide), (83, 2))
            assert (blocks.dtype, scales.dtype) == (np.uint8, np.float16)
            blocks, scales = weights.read_blocks(DOWN)
            assert (blocks.shape, scales.shape) == ((3, 52, wide), (3, 52))
            some, some_scales = weights.read_blocks(DOWN, Span(1, 3))
            np.testing.assert_array_equal(some, blocks[1:])
            np.testing.assert_array_equal(some_scales, scales[1:])

    def test_of_a_row_within_a_block_is_the_callers_mistake(self, odd_decoder, decoder_numbers, write_decoder, kept):
        path = write_decoder(odd_decoder, decoder_numbers(odd_decoder), precision="int4")

        with DecoderFile(path) as weights, pytest.raises(ValueError) as raised:
            weights.read(DOWN, Span(5, 32))
        kept(raised.value)

    def test_has_nothing_beside_the_tensors_where_there_was_nothing(self, odd_decoder, decoder_numbers, write_decoder):
        path = write_decoder(odd_decoder, decoder_numbers(odd_decoder), dtype="float16")

        with DecoderFile(path) as weights:
            assert (weights.tokenizer, weights.chat_template) == (None, None)
            assert (weights.generation, weights.special) == ({}, {})
            assert weights.read(GATE).dtype == np.float32
        with h5py.File(path) as file:
            assert file[GATE].dtype == np.float16


class TestWriting:
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_in_slices_makes_the_same_file(self, odd_decoder, decoder_numbers, write_decoder, tmp_path, precision):
        tensors = decoder_numbers(odd_decoder)
        whole = write_decoder(odd_decoder, tensors, precision=precision)
        with DecoderWriter(tmp_path / "sliced.h5", odd_decoder, "test", precision) as weights:
            for name, values in tensors.items():
                for start in range(0, len(values), 32):
                    weights.write(name, start, values[start : start + 32])

        with DecoderFile(whole) as one, DecoderFile(tmp_path / "sliced.h5") as other:
            assert one.fingerprint == other.fingerprint

    def test_of_blocks_keeps_them(self, odd_decoder, decoder_numbers, write_decoder, tmp_path):
        path = write_decoder(odd_decoder, decoder_numbers(odd_decoder), precision="int4")

        with (
            DecoderFile(path) as weights,
            DecoderWriter(tmp_path / "copy.h5", odd_decoder, "test", "int4") as copy,
        ):
            for name in weights.tensors:
                if weights.in_blocks(name):
                    copy.write_blocks(name, 0, *weights.read_blocks(name))
                else:
                    copy.write(name, 0, weights.read(name))

        with DecoderFile(path) as one, DecoderFile(tmp_path / "copy.h5") as other:
            assert one.fingerprint == other.fingerprint

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_refuses_numbers_that_are_none(
        self, odd_decoder, decoder_numbers, write_decoder, precision, tmp_path, kept
    ):
        tensors = decoder_numbers(odd_decoder)
        tensors[DOWN][5, 7] = np.nan

        with pytest.raises(HeptiError) as raised:
            write_decoder(odd_decoder, tensors, precision=precision)
        kept(raised.value)

        assert list(tmp_path.iterdir()) == []

    def test_refuses_a_precision_that_is_none(self, odd_decoder, tmp_path, kept):
        with pytest.raises(HeptiError) as raised:
            DecoderWriter(tmp_path / "model.h5", odd_decoder, "test", "int3")
        kept(raised.value)

    def test_refuses_to_leave_a_tensor_out(self, odd_decoder, decoder_numbers, write_decoder):
        tensors = decoder_numbers(odd_decoder)
        del tensors[DOWN]

        with pytest.raises(HeptiError, match=f"{DOWN} is incomplete: 0 of 83 rows"):
            write_decoder(odd_decoder, tensors)


class TestKinds:
    def test_are_told_apart(
        self, odd_decoder, decoder_numbers, write_decoder, text_spec, random_tensors, write_file, kept
    ):
        decoder = write_decoder(odd_decoder, decoder_numbers(odd_decoder), "decoder.h5")
        encoder = write_file(text_spec, random_tensors(text_spec), "encoder.h5")

        assert [stored_kind(path) for path in (decoder, encoder)] == [LANGUAGE_MODEL, ENCODER]
        with pytest.raises(HeptiError) as raised:
            WeightsFile(decoder)
        kept(raised.value)
        with pytest.raises(HeptiError) as raised:
            NetworkFile(decoder)
        kept(raised.value)
        with pytest.raises(HeptiError) as raised:
            DecoderFile(encoder)
        kept(raised.value)


class TestDamage:
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_is_found_wherever_a_byte_differs(self, odd_decoder, decoder_numbers, write_decoder, precision):
        """A byte here and there is turned: it is noticed, or changes nothing that is read."""
        path = write_decoder(odd_decoder, decoder_numbers(odd_decoder), precision=precision, tokenizer="{}" * 50)
        data = path.read_bytes()
        whole = self.everything(path)
        step = sweeps.count(9973, 997)
        noticed = 0
        for place in range(0, len(data), step):
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
            try:
                assert self.everything(path) == whole
            except HeptiError:
                noticed += 1

        assert noticed > len(data) // step // 2

    def test_of_a_file_that_is_cut_short_is_one_line(self, odd_decoder, decoder_numbers, write_decoder):
        path = write_decoder(odd_decoder, decoder_numbers(odd_decoder), precision="int4")
        path.write_bytes(path.read_bytes()[:-100])

        with pytest.raises(HeptiError, match="is cut short or damaged"):
            DecoderFile(path)

    def everything(self, path):
        with DecoderFile(path) as weights:
            tensors = [weights.read(name).tobytes() for name in weights.tensors]
            facts = json.dumps([weights.tokenizer, weights.generation, weights.fingerprint, weights.model.to_json()])
            return facts, *tensors
