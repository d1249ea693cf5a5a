"""GGUF files become the model that they were made of; blocks of Q4_0 and Q8_0 stay as they are, bit for bit."""

import struct
import sys
from contextlib import suppress
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.mlp import Mlp
from tests.kit.gguf_files import CASES, their_tensors, write_gguf
from weights.decoders.convert import open_checkpoint, write_checkpoint
from weights.decoders.export import export, in_pairs, q4_0
from weights.decoders.file import DecoderFile, DecoderWriter
from weights.decoders.forward import logits
from weights.decoders.gguf import GgufCheckpoint, open_gguf
from weights.decoders.gguf.container import GgufFile

TOKENS = np.random.default_rng(0).integers(3, 96, 20).tolist()


def without_texts(model):
    """Return a model without what a GGUF of no words does not say, and its frequencies as far as both agree."""
    layers = []
    for attention, mlp in model.layers:
        rope = attention.rope
        if rope is not None:
            shorter = tuple(float(f"{value:.5g}") for value in rope.frequencies)
            rope = Rope(frequencies=shorter, factor=float(f"{rope.factor:.5g}"))
        layers.append((replace(attention, rope=rope), mlp))
    return replace(model, name="", bos=None, eos=(), layers=tuple(layers))


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_the_model_that_it_was_made_of(tmp_path, case):
    """Its logits are those of transformers, its tensors and settings those of the same model's directory."""
    model = write_gguf(tmp_path / "m.gguf", case)
    model.save_pretrained(tmp_path / "checkpoint")
    expected = model(torch.tensor([TOKENS])).logits[0].detach().numpy()

    with open_gguf(tmp_path / "m.gguf") as found, open_checkpoint(tmp_path / "checkpoint") as wanted:
        np.testing.assert_allclose(logits(found.model, found.read, TOKENS), expected, atol=1e-4)
        assert without_texts(found.model) == without_texts(wanted.model)
        for name in decoder_tensors(wanted.model):
            np.testing.assert_array_equal(found.read(name), wanted.read(name))


def q8_0(blocks, scales):
    """Return blocks of int8 as the bytes of Q8_0."""
    return np.concatenate([scales[..., None].view(np.uint8), blocks ^ np.uint8(0x80)], axis=-1)


@pytest.mark.parametrize(("kind", "precision", "bytes_of"), [("Q4_0", "int4", q4_0), ("Q8_0", "int8", q8_0)])
@pytest.mark.parametrize("case", ["llama", "qwen3", "phi3", "gpt2", "gemma2"])
def test_blocks_are_repacked_without_loss(tmp_path, case, kind, precision, bytes_of):
    path = tmp_path / "m.gguf"
    write_gguf(path, case, kind)
    with open_gguf(path) as checkpoint:
        assert checkpoint.precision == precision
        assert not checkpoint.loses(precision)
        assert not [note for note in checkpoint.notes(precision) if "quantised" in note]
        write_checkpoint(checkpoint, tmp_path / "m.h5", precision)

    found = []
    with DecoderFile(tmp_path / "m.h5") as weights:
        for name, weight in weights.tensors.items():
            if weight.summed is None:
                continue
            blocks, scales = weights.read_blocks(name)
            if not weight.summed:
                blocks, scales = np.ascontiguousarray(blocks.swapaxes(0, 1)), np.ascontiguousarray(scales.T)
            if case == "llama" and ("/query/" in name or "/key/" in name):
                head_dim = weights.model.layers[0][0].head_dim
                blocks, scales = in_pairs(blocks, head_dim), in_pairs(scales, head_dim)
            found.append(bytes_of(blocks, scales).reshape(len(blocks), -1))
    theirs = [tensor.data for tensor in gguf.GGUFReader(path).tensors if tensor.tensor_type.name == kind]

    # Tensors that lie one after the other there are several of ours.
    assert sorted(row.tobytes() for part in found for row in part) == sorted(
        row.tobytes() for part in theirs for row in part
    )


def test_any_bits_of_a_block_stay_as_they_are(tmp_path):
    """Also where quantising the numbers anew would find another scale."""
    path = tmp_path / "m.gguf"
    write_gguf(path, "qwen3", "Q4_0")
    places = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    place = places["blk.1.ffn_down.weight"]
    data = bytearray(path.read_bytes())
    levels = np.random.default_rng(3).integers(0, 256, (64, 3, 16), np.uint8) & 0x77  # never 8 to 15
    block = np.concatenate([np.full((64, 3, 1), 0.5, np.float16).view(np.uint8), levels], axis=-1)
    data[place.data_offset : place.data_offset + block.nbytes] = block.tobytes()
    path.write_bytes(data)
    with open_gguf(path) as checkpoint:
        numbers = checkpoint.read("layers/1/mlp/down/weight")
        write_checkpoint(checkpoint, tmp_path / "m.h5", "int4")

    expected = gguf.quants.dequantize(block.reshape(64, -1), gguf.GGMLQuantizationType.Q4_0).T
    np.testing.assert_array_equal(numbers, expected)
    with DecoderFile(tmp_path / "m.h5") as weights:
        np.testing.assert_array_equal(weights.read("layers/1/mlp/down/weight"), expected)


def test_what_export_writes_is_read_again_bit_for_bit(tmp_path):
    rope = Rope(frequencies=tuple(float(np.float32(10000.0) ** np.float32(-i / 8)) for i in range(8)))
    attention = Attention(heads=4, kv_heads=2, head_dim=16, rope=rope)
    layer = attention, Mlp(ffn=96)
    model = Decoder(name="odd", hidden=64, vocab=90, positions=64, layers=(layer,) * 2)
    numbers = np.random.default_rng(1)
    with DecoderWriter(tmp_path / "a.h5", model, "test", "int4") as weights:
        for name, weight in decoder_tensors(model).items():
            weights.write(name, 0, numbers.standard_normal(weight.shape, np.float32))
    export(tmp_path / "a.h5", tmp_path / "a.gguf")
    with open_gguf(tmp_path / "a.gguf") as checkpoint:
        write_checkpoint(checkpoint, tmp_path / "b.h5", checkpoint.precision)

    with DecoderFile(tmp_path / "a.h5") as before, DecoderFile(tmp_path / "b.h5") as after:
        assert without_texts(before.model) == without_texts(after.model)
        for name, weight in before.tensors.items():
            if weight.summed is None:
                np.testing.assert_array_equal(before.read(name), after.read(name))
            else:
                for old, new in zip(before.read_blocks(name), after.read_blocks(name), strict=True):
                    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_1", "Q5_0", "Q5_1"])
def test_numbers_of_other_kinds_are_those_of_the_package(tmp_path, kind):
    model = write_gguf(tmp_path / "m.gguf", "llama", kind)
    stored_kind = gguf.GGMLQuantizationType[kind]
    theirs = their_tensors("llama", model)["blk.0.ffn_down.weight"]
    expected = gguf.quants.dequantize(gguf.quants.quantize(theirs, stored_kind), stored_kind).T

    with open_gguf(tmp_path / "m.gguf") as checkpoint:
        np.testing.assert_array_equal(checkpoint.read("layers/0/mlp/down/weight"), expected)


# Bytes and numbers of a block; where its float16 scales stand.
K_BLOCKS = {
    "Q2_K": (84, (80, 82)), "Q3_K": (110, (108,)), "Q4_K": (144, (0, 2)), "Q5_K": (176, (0, 2)), "Q6_K": (210, (208,)),
}  # fmt: skip


@pytest.mark.parametrize("kind", K_BLOCKS)
def test_k_quants_are_quantised_anew_with_a_word(tmp_path, kind, kept):
    """The package reads them, but does not write them: random bits, a block a row."""
    size, places = K_BLOCKS[kind]
    blocks = np.random.default_rng(2).integers(0, 256, (96, size), np.uint8)
    for place in places:
        blocks[:, place : place + 2] = np.full((96, 1), 0.01, np.float16).view(np.uint8)
    stored = gguf.GGMLQuantizationType[kind]
    write_gguf(tmp_path / "m.gguf", "wide", "Q8_0", {"token_embd.weight": (blocks, stored)})
    expected = gguf.quants.dequantize(blocks, stored)

    with open_gguf(tmp_path / "m.gguf") as checkpoint:
        np.testing.assert_array_equal(checkpoint.read("embedding/weight"), expected)
        np.testing.assert_array_equal(checkpoint.read("embedding/weight", Span(7, 9)), expected[7:9])
        assert checkpoint.precision == "int8"
        kept(checkpoint.notes("int8"))
        write_checkpoint(checkpoint, tmp_path / "m.h5", "int8")
    with DecoderFile(tmp_path / "m.h5") as weights:
        np.testing.assert_allclose(weights.read("embedding/weight"), expected, atol=np.abs(expected).max() / 200)


def test_columns_of_wide_blocks_are_read_in_parts(tmp_path):
    """Of an [in, out] matrix 64 rows of ours are a quarter of a block's numbers."""
    blocks = np.random.default_rng(2).integers(0, 256, (96, 210), np.uint8)
    blocks[:, 208:] = np.full((96, 1), 0.01, np.float16).view(np.uint8)
    stored = gguf.GGMLQuantizationType.Q6_K
    write_gguf(tmp_path / "m.gguf", "wide", "F16", {"blk.0.ffn_gate.weight": (blocks, stored)})
    tensor = GgufFile(tmp_path / "m.gguf").tensors["blk.0.ffn_gate.weight"]
    expected = gguf.quants.dequantize(blocks, stored)

    rows = np.array([5, 90, 6])
    np.testing.assert_array_equal(tensor.numbers(rows, 64, 192), expected[rows, 64:192])


@pytest.mark.parametrize(
    ("kinds", "precision"),
    [({"Q4_0": 3, "Q6_K": 1}, "int4"), ({"Q4_K": 3, "Q6_K": 2}, "int4"), ({"Q5_K": 3, "Q6_K": 1}, "int8"),
     ({"F16": 2, "Q8_0": 1}, "float32"), ({"IQ4_NL": 1}, "int4")],
)  # fmt: skip
def test_the_precision_is_that_of_most_matrices(kinds, precision):
    names = [kind for kind, count in kinds.items() for _ in range(count)]
    checkpoint = GgufCheckpoint(None, "", {}, None, {}, dict(enumerate(names)))

    assert checkpoint.precision == precision


def test_the_command_says_what_it_does(tmp_path, run_weights, kept):
    path = tmp_path / "m.gguf"
    blocks = gguf.quants.quantize(np.ones((96, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    write_gguf(path, "llama", "Q4_0", {"output.weight": (blocks, gguf.GGMLQuantizationType.Q8_0)})

    run = run_weights("convert", path, tmp_path / "m.h5")
    assert (run.returncode, "int4" in run.stdout) == (0, True)
    kept(run.stderr)
    assert "error against the checkpoint" in run.stdout
    run = run_weights("convert", path, tmp_path / "m8.h5", "--precision", "int8")
    assert (run.returncode, "int8" in run.stdout, "22 in Q4_0" in run.stderr) == (0, True, True)
    run = run_weights("convert", path, tmp_path / "m.h5", "--labels", "x.txt")
    assert (run.returncode, "--labels is for ONNX files" in run.stderr) == (2, True)


def test_of_an_empty_file_it_is_said_that_it_is_empty(tmp_path):
    path = tmp_path / "m.gguf"
    path.touch()

    with pytest.raises(HeptiError, match=r"^cannot read .*m\.gguf: it is empty$"), open_gguf(path):
        pass


def test_a_file_cut_anywhere_is_one_line(tmp_path):
    path, cut = tmp_path / "m.gguf", tmp_path / "cut.gguf"
    write_gguf(path, "qwen2", "Q8_0", add=add_words)
    whole = path.read_bytes()
    for size in (*range(0, 1500, 53), len(whole) // 2, len(whole) - 1000):
        cut.write_bytes(whole[:size])
        with pytest.raises(HeptiError, match=r"cut short|cannot read|no GGUF file") as error, open_gguf(cut):
            pytest.fail(f"{size} bytes were read")
        assert "\n" not in str(error.value)


def test_any_byte_of_the_header_may_be_wrong(tmp_path):
    """It is read, or refused: nothing else is raised."""
    path, damaged = tmp_path / "m.gguf", tmp_path / "damaged.gguf"
    write_gguf(path, "llama", "Q8_0", add=add_words)
    whole = path.read_bytes()
    numbers = np.random.default_rng(0)
    for place in numbers.integers(0, 3000, 150):
        data = bytearray(whole)
        data[place] ^= int(numbers.integers(1, 256))
        damaged.write_bytes(data)
        with suppress(HeptiError), open_gguf(damaged) as checkpoint:
            assert checkpoint.model.vocab == 96


@pytest.mark.parametrize(
    ("place", "data", "message"),
    [
        (0, b"GGML", "is no GGUF file"),
        (4, struct.pack("<I", 1), "of version 1, this version reads 2 and 3"),
        (4, struct.pack("<I", 9), "of version 9"),
        (4, struct.pack(">I", 3), "for big-endian computers"),
    ],
)
def test_files_of_other_kinds_are_refused(tmp_path, place, data, message):
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama")
    whole = bytearray(path.read_bytes())
    whole[place : place + 4] = data
    path.write_bytes(whole)

    with pytest.raises(HeptiError, match=message), open_gguf(path):
        pytest.fail("it was read")


def test_version_2_is_read(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama")
    whole = bytearray(path.read_bytes())
    whole[4:8] = struct.pack("<I", 2)
    path.write_bytes(whole)

    with open_gguf(path) as checkpoint:
        assert checkpoint.model.hidden == 64


@pytest.mark.parametrize(
    "add",
    [
        lambda w: w.add_uint32("llama.expert_count", 8),
        lambda w: w.add_uint32("llama.embedding_length", 0),
        lambda w: w.add_string("llama.embedding_length", "x"),
        lambda w: w.add_uint32("llama.block_count", 4),
        lambda w: w.add_uint32("llama.block_count", 2),
        lambda w: w.add_uint32("llama.block_count", 2**31),
        lambda w: w.add_uint32("llama.feed_forward_length", 64),
        # No array of that size is made before the file's own is seen.
        lambda w: w.add_uint32("llama.feed_forward_length", 2**32 - 1),
        lambda w: w.add_array("llama.attention.head_count_kv", [2, 1, 2]),
        lambda w: w.add_uint32("llama.rope.dimension_count", 12),
        lambda w: w.add_string("llama.rope.scaling.type", "strange"),
        lambda w: w.add_uint16("split.count", 3),
        lambda w: w.add_string("general.architecture", "mamba"),
        lambda w: w.add_uint32("tokenizer.ggml.bos_token_id", 99) or add_words(w),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, monkeypatch, add, kept):
    # The writer takes a key once; a later value counts.
    monkeypatch.setattr(gguf.GGUFWriter, "add_key_value", replacing)
    write_gguf(tmp_path / "m.gguf", "llama", add=add)

    with pytest.raises(HeptiError) as raised, open_gguf(tmp_path / "m.gguf"):
        pytest.fail("it was read")
    kept(raised.value)


def replacing(writer, key, value, kind, sub_type=None):
    writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue(value=value, type=kind, sub_type=sub_type)


def add_words(writer):
    """Add 96 words as GPT-2 has them."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<pad>", "<s>", "</s>", *(chr(33 + number) for number in range(93))])
    writer.add_token_types([3, 3, 3, *[1] * 93])
    writer.add_token_merges(["t h", "th e"])


def test_without_the_package_other_kinds_are_refused(tmp_path, monkeypatch):
    write_gguf(tmp_path / "m.gguf", "llama", "Q5_0")
    monkeypatch.setitem(sys.modules, "gguf", None)

    with pytest.raises(HeptiError, match=r"kind 6.*needs the package gguf: pip install"):
        GgufFile(tmp_path / "m.gguf")
