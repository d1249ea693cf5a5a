"""Q4_1, 4 bits with a minimum, is read without loss, words of Q8_0 beside it; floats are rounded as by llama.cpp."""

import math
from contextlib import contextmanager

import gguf
import numpy as np
import pytest

from tests.kit.gguf_files import write_gguf
from weights.decoders import convert
from weights.decoders.convert import write_checkpoint
from weights.decoders.file import DecoderFile
from weights.decoders.gguf import open_gguf
from weights.decoders.quantise import dequantise, quantise

Q4_1 = gguf.GGMLQuantizationType.Q4_1


@pytest.mark.parametrize("words", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("layers", ["Q4_0", "Q4_1"])
def test_every_number_of_a_file_stays_as_it_is(tmp_path, layers, words):
    """Also where blocks are random bits, which rounding anew would not find."""
    kind, random = gguf.GGMLQuantizationType[words], np.random.default_rng(5)
    embedding = gguf.quants.quantize(random.standard_normal((96, 64), np.float32), kind)
    down = random.integers(0, 256, (64, 3, 20), np.uint8)
    down[..., :4] = (random.random((64, 3, 2)) * 0.1).astype(np.float16).view(np.uint8)
    raw = {"token_embd.weight": (embedding, kind), "blk.1.ffn_down.weight": (down.reshape(64, -1), Q4_1)}
    write_gguf(tmp_path / "m.gguf", "llama tied, biased", layers, raw)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}

    with open_gguf(tmp_path / "m.gguf") as checkpoint:
        assert not checkpoint.loses("int4m")
        assert layers == "Q4_0" or checkpoint.precision == "int4m"
        write_checkpoint(checkpoint, tmp_path / "m.h5", "int4m")
    with DecoderFile(tmp_path / "m.h5") as weights:
        for ours, name in (
            ("embedding/weight", "token_embd"), ("layers/1/mlp/down/weight", "blk.1.ffn_down"),
            ("layers/0/attention/value/weight", "blk.0.attn_v"), ("layers/2/attention/output/weight",
            "blk.2.attn_output"),
        ):  # fmt: skip
            tensor = theirs[f"{name}.weight"]
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            turned = ours.endswith(("down/weight", "output/weight"))
            np.testing.assert_array_equal(weights.read(ours), numbers.T if turned else numbers)


def test_what_is_converted_adds_up_to_what_was_said_to_come(tmp_path, monkeypatch):
    """In float32's bytes, whatever the file holds."""
    steps, done = [], []

    @contextmanager
    def counted(label, total):
        steps.append((label, total))
        yield done.append

    monkeypatch.setattr(convert, "progress", counted)
    write_gguf(tmp_path / "m.gguf", "llama tied, biased", "Q4_0", {})
    with open_gguf(tmp_path / "m.gguf") as checkpoint:
        write_checkpoint(checkpoint, tmp_path / "m.h5", "int4")
        numbers = sum(math.prod(source.shape) for source in checkpoint.sources.values())

    assert steps == [("converting", 4 * numbers)]
    assert sum(done) == 4 * numbers


@pytest.mark.parametrize("summed", [0, 1])
def test_floats_are_rounded_as_llama_cpp_does(summed):
    matrix = np.random.default_rng(1).standard_normal((64, 96), np.float32) + np.float32(0.5)
    theirs = gguf.quants.dequantize(gguf.quants.quantize(matrix, Q4_1), Q4_1)

    blocks = quantise(matrix if summed else np.ascontiguousarray(matrix.T), summed, "int4m")
    ours = dequantise(*blocks, summed, 96, "int4m")
    np.testing.assert_array_equal(ours if summed else ours.T, theirs)
