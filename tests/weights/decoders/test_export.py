"""Files for other engines: every level and scale is in them, in their order; what they cannot say is refused.

The engines' own answers were compared by hand: distributed-llama 8d624a7 and llama-cpp-python 0.3.36 chose the same
twelve ids as a model in float64, from files of a model with three layers, turning as Llama 3.2 does.
"""

import math
import struct
from dataclasses import replace

import numpy as np
import pytest

from solver.base.errors import HeptiError
from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.mlp import Mlp
from weights.cli import main
from weights.decoders.export import check_llama, dllama_header, dllama_tokenizer, export, in_pairs, q4_0
from weights.decoders.file import DecoderFile, DecoderWriter
from weights.decoders.quantise import dequantise, quantise

Q4_0, HEADS, KV_HEADS, HEAD_DIM = 2, 4, 2, 16


def frequencies(theta=500000.0, factor=32, width=HEAD_DIM):
    """Return Llama 3's, by its own formula."""
    base = theta ** (-2 * np.arange(width // 2) / width)
    smooth = np.clip((8192 * base / (2 * math.pi) - 1) / 3, 0, 1)
    return tuple(map(float, base * ((1 - smooth) / factor + smooth)))


def llama(**facts):
    rope = Rope(frequencies=frequencies())
    attention = Attention(heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, rope=rope)
    layers = ((attention, Mlp(ffn=96)),) * 2
    return Decoder(**{"name": "m", "hidden": 64, "vocab": 40, "positions": 256, "layers": layers, **facts})


def with_attention(**facts):
    attention, mlp = llama().layers[0]
    return llama(layers=((replace(attention, **facts), mlp),) * 2)


def written(path, model, precision="int4"):
    rng = np.random.default_rng(3)
    with DecoderWriter(path, model, "made up", precision) as weights:
        for name, weight in decoder_tensors(model).items():
            weights.write(name, 0, rng.standard_normal(weight.shape, np.float32))
    return path


def numbers(q4):
    """Read Q4_0 [out, b * 18] by its definition: a scale, 16 low halves, 16 high halves, 8 is zero."""
    blocks = np.frombuffer(q4, np.uint8).reshape(-1, 18)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    levels = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1).astype(np.float32) - 8
    return levels * scales


def as_they_lie(weights, name):
    """Return a matrix as [out, in], heads that turn in pairs."""
    matrix = weights.read(name)
    if weights.tensors[name].summed == 0:
        return matrix.T
    return in_pairs(matrix, HEAD_DIM) if "query" in name or "key" in name else matrix


def test_blocks_keep_their_numbers_in_another_order():
    blocks, scales = quantise(np.random.default_rng(0).standard_normal((5, 96), np.float32), 1, "int4")

    assert np.array_equal(numbers(q4_0(blocks, scales)).reshape(5, 96), dequantise(blocks, scales, 1, 96, "int4"))


def test_a_head_turned_in_pairs_scores_as_one_turned_in_halves():
    rng = np.random.default_rng(1)
    query, key = rng.standard_normal((2, HEAD_DIM))
    angles = 5 * np.array(frequencies())
    cos, sin = np.cos(angles), np.sin(angles)

    def halves(x):
        a, b = x[: HEAD_DIM // 2], x[HEAD_DIM // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin])

    def pairs(x):
        a, b = in_pairs(x, HEAD_DIM).reshape(-1, 2).T
        return np.stack([a * cos - b * sin, b * cos + a * sin], axis=1).ravel()

    assert pairs(query) @ in_pairs(key, HEAD_DIM) == pytest.approx(halves(query) @ key)


@pytest.mark.parametrize("tied", [True, False])
def test_a_dllama_file_has_every_tensor_in_its_order(tmp_path, tied):
    model = llama(tied=tied)
    path = written(tmp_path / "m.h5", model)

    assert main(["export", str(path), str(tmp_path / "m.m")]) == 0

    data = (tmp_path / "m.m").read_bytes()
    magic, size = struct.unpack_from("<ii", data)
    pairs = struct.unpack_from(f"<{(size - 8) // 4}i", data, 8)
    assert (magic, dict(zip(pairs[::2], pairs[1::2], strict=True))) == (0xA00ABCD, dict(dllama_header(model)))
    layer = ("attention/query", "attention/key", "attention/value", "attention/output")
    layer += ("mlp/gate", "mlp/down", "mlp/up", "attention/norm", "mlp/norm")
    names = [f"layers/{number}/{name}/weight" for number in range(2) for name in layer]
    with DecoderFile(path) as weights:
        for place, name in enumerate(("embedding/weight", *names, "final_norm/weight", model.head)):
            expected = as_they_lie(weights, name)
            if place == 0 or weights.tensors[name].summed is None:
                stored, used = np.frombuffer(data, np.float32, expected.size, size), 4 * expected.size
            else:
                used = expected.size // 32 * 18
                stored = numbers(data[size : size + used])
            assert np.array_equal(stored.ravel(), expected.ravel()), name
            size += used
    assert size == len(data)


def test_llama3_turns_as_its_numbers_say_and_llama_without_scaling():
    header = dllama_header(llama())

    assert {key: header[key] for key in (12, 14, 15, 16, 17, 18)} == {
        12: 500000, 14: 32, 15: 1, 16: 4, 17: 8192, 18: 2,
    }  # fmt: skip
    plain = dllama_header(with_attention(rope=Rope(frequencies=frequencies(10000.0, 1))))
    assert plain[12] == 10000
    assert not {14, 18} & plain.keys()


def test_words_of_dllama_are_letters_and_numbers():
    data = dllama_tokenizer(30)
    magic, size = struct.unpack_from("<ii", data)
    words = []
    while size < len(data):
        _, length = struct.unpack_from("<fI", data, size)
        words.append(data[size + 8 : size + 8 + length].decode())
        size += 8 + length

    assert magic == 0x567124
    assert words == [*"abcdefghijklmnopqrstuvwxyz", "<t26>", "<t27>", "<t28>", "<t29>"]


class Gguf:
    """A GGUF file, read by its specification."""

    def __init__(self, path):
        self.data, self.at = path.read_bytes(), 0
        assert self.take("<4sI") == (b"GGUF", 3)
        tensors, facts = self.take("<QQ")
        self.facts = {self.text(): self.value() for _ in range(facts)}
        self.places = {}
        for _ in range(tensors):
            name, (count,) = self.text(), self.take("<I")
            sizes = self.take(f"<{count}Q")
            self.places[name] = (sizes, *self.take("<IQ"))
        self.start = -(-self.at // 32) * 32

    def take(self, kinds):
        found = struct.unpack_from(kinds, self.data, self.at)
        self.at += struct.calcsize(kinds)
        return found

    def text(self):
        (length,) = self.take("<Q")
        return self.take(f"<{length}s")[0].decode()

    def value(self):
        (kind,) = self.take("<I")
        return self.text() if kind == 8 else self.take({4: "<I", 6: "<f"}[kind])[0]

    def read(self, name):
        """Return [out, in], or a vector."""
        sizes, kind, offset = self.places[name]
        assert offset % 32 == 0
        count, begin = math.prod(sizes), self.start + offset
        if kind == Q4_0:
            return numbers(self.data[begin : begin + count // 32 * 18]).reshape(sizes[::-1])
        return np.frombuffer(self.data, np.float32, count, begin)


@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_has_every_tensor_by_its_name(tmp_path, tied):
    model = llama(tied=tied)
    path = written(tmp_path / "m.h5", model)
    export(path, tmp_path / "m.gguf")

    found = Gguf(tmp_path / "m.gguf")

    assert found.facts["general.architecture"] == "llama"
    assert found.facts["llama.attention.head_count_kv"] == KV_HEADS
    assert found.facts["llama.vocab_size"] == 40
    theirs = {"token_embd": "embedding", "output_norm": "final_norm", **({} if tied else {"output": "head"})}
    layer = {
        "attn_norm": "attention/norm", "attn_q": "attention/query", "attn_k": "attention/key",
        "attn_v": "attention/value", "attn_output": "attention/output", "ffn_norm": "mlp/norm",
        "ffn_gate": "mlp/gate", "ffn_up": "mlp/up", "ffn_down": "mlp/down",
    }  # fmt: skip
    theirs |= {f"blk.{n}.{name}": f"layers/{n}/{ours}" for n in range(2) for name, ours in layer.items()}
    assert found.places.keys() == {f"{name}.weight" for name in theirs} | {"rope_freqs.weight"}
    with DecoderFile(path) as weights:
        for name, ours in theirs.items():
            assert np.array_equal(found.read(f"{name}.weight"), as_they_lie(weights, f"{ours}/weight")), name
    theta = found.facts["llama.rope.freq_base"]
    turned = theta ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM) / found.read("rope_freqs.weight")
    assert turned == pytest.approx(frequencies(), rel=1e-6)


def test_what_other_engines_cannot_say_is_refused(tmp_path, capsys, kept):
    with pytest.raises(HeptiError) as raised:
        check_llama(with_attention(qk_norm=True))
    kept(raised.value)
    with pytest.raises(HeptiError, match="positions that are learned"):
        check_llama(with_attention(rope=None))
    with pytest.raises(HeptiError, match="windows"):
        check_llama(with_attention(window=8))
    with pytest.raises(HeptiError, match="no multiples of 32"):
        check_llama(llama(hidden=48))
    with pytest.raises(HeptiError, match=r"epsilon 0\.001, distributed-llama with 1e-05 or 1e-06"):
        dllama_header(llama(norm_eps=1e-3))
    with pytest.raises(HeptiError, match="other frequencies"):
        dllama_header(with_attention(rope=Rope(frequencies=(*(0.3**n for n in range(7)), 1e-9))))
    path = written(tmp_path / "m.h5", llama(), "int8")

    assert main(["export", str(path), str(tmp_path / "m.gguf")]) == 2
    kept(capsys.readouterr().err)
    assert main(["export", str(path), str(tmp_path / "m.bin")]) == 2
    kept(capsys.readouterr().err)
