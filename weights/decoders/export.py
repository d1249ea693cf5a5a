"""Files of other engines, with the same levels and scales: distributed-llama's `.m` and `.t`, llama.cpp's GGUF.

Both take Llama's architecture and blocks of int4: 32 numbers, a float16 scale and 16 bytes, of which byte i has number
i in its low and number i + 16 in its high bits (Q40 there, Q4_0 here). Both turn columns 2 i and 2 i + 1 of a head
where we turn i and i + d / 2: rows of query and key are put in that order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from solver.base.command import check_path, whole_file
from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.model.decoder import Decoder
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.weight import BLOCK
from weights.decoders.file import DecoderFile
from weights.decoders.quantise import Levels, Scales
from weights.file.disk import check_space

ENDINGS = (".m", ".gguf")
BLOCK_BYTES = 2 + BLOCK // 2
ROWS = 4096  # of a matrix at a time
LETTERS = 26
GGUF_ALIGNMENT = 32
FLOAT32, Q4_0 = 0, 2  # types of tensors, of GGUF and, by chance, of distributed-llama
# Llama 3's scaling of long waves, the only one that distributed-llama has: below and above which share of the context
# that it was trained at waves are stretched, and that context.
LOW, HIGH, TRAINED = 1, 4, 8192

# The matrices of a layer in distributed-llama's order, then its norms; with their names in GGUF.
MATRICES = {
    "attention/query": "attn_q", "attention/key": "attn_k", "attention/value": "attn_v",
    "attention/output": "attn_output", "mlp/gate": "ffn_gate", "mlp/down": "ffn_down", "mlp/up": "ffn_up",
}  # fmt: skip
NORMS = {"attention/norm": "attn_norm", "mlp/norm": "ffn_norm"}


def export(model: Path, out: Path) -> None:
    """Write a language model as the ending of `out` says: .m, with a .t beside it, or .gguf.

    The .t has no words of a language: 26 letters, which are the ids from 0 on, and `<t26>` and so on. So a prompt of
    letters is a prompt of known ids, and every id can be read off an answer.

    Raises
    ------
    HeptiError
        If the model is not in int4 blocks or of another architecture than Llama's, or the file cannot be written.
    """
    check_path(out, ENDINGS)
    with DecoderFile(model) as weights:
        if weights.precision != "int4":
            raise HeptiError(f"{model} is in {weights.precision}, {out.suffix} files are written of int4")
        check_llama(weights.model)
        check_space(out, 5 * model.stat().st_size)  # an embedding in float32 may be most of it
        with whole_file(out) as temporary, temporary.open("wb") as file:
            (_dllama if out.suffix == ".m" else _gguf)(weights, file)
        if out.suffix == ".m":
            with whole_file(out.with_suffix(".t")) as temporary:
                temporary.write_bytes(dllama_tokenizer(weights.model.vocab))


def llama_blocks(model: Decoder) -> tuple[Attention, Mlp]:
    """Return what the first layer of a model of Llama's architecture consists of; errors as `check_llama`."""
    match model.layers[0]:
        case [Attention() as attention, Mlp() as mlp]:
            return attention, mlp
    raise HeptiError(f"{model.name} has other layers than attention and mlp: only models of Llama's are written")


def check_llama(model: Decoder) -> None:
    """Refuse what is not Llama's architecture, in whole blocks."""
    attention, mlp = llama_blocks(model)
    width = attention.heads * attention.head_dim
    others = {
        "layers of several kinds": len(set(model.layers)) > 1,
        "layer norms": model.norm != "rms",
        "norms after its halves": model.post_norms,
        "a scaled embedding": model.embedding_scale != 1,
        "positions that are learned": model.learned_positions or attention.rope is None,
        "soft caps": bool(model.head_softcap or attention.softcap),
        "windows": bool(attention.window),
        "scores of another scale": attention.scale not in (0, 1 / math.sqrt(attention.head_dim)),
        "biases": attention.bias or attention.output_bias or mlp.bias,
        "norms of queries and keys": attention.qk_norm,
        "heads that turn in part": attention.rope is not None and attention.rope.width != attention.head_dim,
        "another MLP": not mlp.gated or mlp.activation != "silu",
        f"widths that are no multiples of {BLOCK}": bool(model.hidden % BLOCK or mlp.ffn % BLOCK or width % BLOCK),
    }
    for what, has in others.items():
        if has:
            raise HeptiError(f"{model.name} has {what}: only models of Llama's architecture are written for others")


def q4_0(blocks: Levels, scales: Scales) -> NDArray[np.uint8]:
    """Return blocks [out, b, 16] and their scales [out, b] as [out, b, 18] bytes."""
    found = np.empty((*blocks.shape[:2], BLOCK_BYTES), np.uint8)
    found[..., :2] = np.ascontiguousarray(scales)[..., None].view(np.uint8)
    first, second = blocks[..., : BLOCK // 4], blocks[..., BLOCK // 4 :]  # of two numbers each
    found[..., 2::2] = first & 15 | (second & 15) << 4
    found[..., 3::2] = first >> 4 | second & 0xF0
    return found


def in_pairs(rows: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Return the rows of whole heads so that those that turn together lie side by side."""
    return rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def rope_base(rope: Rope) -> float:
    """Return theta, by the second frequency, which no scaling changes; the first is always 1."""
    return 10000.0 if rope.width < 4 else float(rope.frequencies[1] ** (-rope.width / 2))


def stretched(rope: Rope) -> NDArray[np.float64]:
    """Return by how much every wave is longer than theta alone makes it."""
    base = rope_base(rope) ** (-2 * np.arange(rope.width // 2) / rope.width)
    longer: NDArray[np.float64] = base / np.array(rope.frequencies)
    return longer


def _matrix(weights: DecoderFile, name: str, head_dim: int = 0) -> Iterator[bytes]:
    """Yield a matrix [out, in] in Q4_0, some rows at a time; with a `head_dim`, of heads in pairs."""
    weight = weights.tensors[name]
    if weight.summed == 0:
        blocks, scales = weights.read_blocks(name)
        yield q4_0(blocks.swapaxes(0, 1), scales.T).tobytes()
        return
    for rows in _pieces(weight.shape[0], head_dim or 1):
        blocks, scales = weights.read_blocks(name, rows)
        if head_dim:
            blocks, scales = in_pairs(blocks, head_dim), in_pairs(scales, head_dim)
        yield q4_0(blocks, scales).tobytes()


def _pieces(length: int, unit: int) -> Iterator[Span]:
    """Yield spans of about `ROWS`, cut between units."""
    step = max(unit, ROWS // unit * unit)
    for start in range(0, length, step):
        yield Span(start, min(length, start + step))


def _dllama(weights: DecoderFile, file: BinaryIO) -> None:
    """Write distributed-llama's model: header, embedding in float32, layers, final norm, head."""
    model = weights.model
    pairs = b"".join(struct.pack("<ii", *pair) for pair in dllama_header(model).items())
    file.write(struct.pack("<ii", 0xA00ABCD, 8 + len(pairs)) + pairs)
    for rows in _pieces(model.vocab, 1):
        file.write(weights.read("embedding/weight", rows).tobytes())
    for number in range(len(model.layers)):
        for name in MATRICES:
            file.writelines(_matrix(weights, f"layers/{number}/{name}/weight", _turns(model, name)))
        for name in NORMS:
            file.write(weights.read(f"layers/{number}/{name}/weight").tobytes())
    file.write(weights.read("final_norm/weight").tobytes())
    file.writelines(_matrix(weights, model.head))


def dllama_header(model: Decoder) -> dict[int, int]:
    """Return the header's numbers by their keys in distributed-llama's src/llm.hpp.

    Raises
    ------
    HeptiError
        If it has no such norm or no such rotation.
    """
    attention, mlp = llama_blocks(model)
    epsilons = {1e-5: 5, 1e-6: 6}
    if model.norm_eps not in epsilons:
        raise HeptiError(f"{model.name} norms with epsilon {model.norm_eps:g}, distributed-llama with 1e-05 or 1e-06")
    assert attention.rope is not None
    factor = _llama3_factor(model.name, attention.rope)
    return {
        0: 0,  # version
        1: 0xABCD00,  # Llama
        2: model.hidden,
        3: mlp.ffn,
        4: len(model.layers),
        5: attention.heads,
        6: attention.kv_heads,
        7: 0,  # experts
        8: 0,
        9: model.vocab,
        10: model.positions,
        11: 1,  # SiLU
        12: round(rope_base(attention.rope)),
        13: Q4_0,
        **({14: factor, 15: LOW, 16: HIGH, 17: TRAINED, 18: 2} if factor != 1 else {}),
        19: attention.head_dim,
        20: epsilons[model.norm_eps],
    }


def _llama3_factor(name: str, rope: Rope) -> int:
    """Return the factor of Llama 3's scaling that gives a rotation's frequencies; 1: none."""
    longer = stretched(rope)
    factor = round(float(longer[-1]))
    waves = TRAINED * np.array(rope.frequencies) * longer / (2 * math.pi)  # in the trained context
    smooth = np.clip((waves - LOW) / (HIGH - LOW), 0, 1)
    if rope.factor != 1 or not np.allclose(1 / longer, (1 - smooth) / factor + smooth, rtol=1e-4, atol=0):
        raise HeptiError(f"{name} turns by other frequencies than Llama and Llama 3, distributed-llama has no others")
    return factor


def dllama_tokenizer(vocab: int) -> bytes:
    """Return distributed-llama's .t for so many ids, the last of which it takes for the beginning of a text."""
    letters = min(LETTERS, vocab - 1)
    words = [chr(ord("a") + number).encode() for number in range(letters)]
    words += [f"<t{number}>".encode() for number in range(letters, vocab)]
    longest = max(map(len, words))
    # By their keys in src/tokenizer.hpp: version, ids, longest, bos, how many eos, whether it begins with bos.
    pairs = b"".join(
        struct.pack("<ii", *pair) for pair in {0: 1, 1: vocab, 2: longest, 3: vocab - 1, 9: 0, 10: 0}.items()
    )
    head = struct.pack("<ii", 0x567124, 8 + len(pairs)) + pairs
    return head + b"".join(struct.pack("<fI", 0.0, len(word)) + word for word in words)


def _gguf(weights: DecoderFile, file: BinaryIO) -> None:
    """Write GGUF version 3: what it says of itself, the tensors' places, the tensors."""
    model = weights.model
    attention, _ = llama_blocks(model)
    assert attention.rope is not None
    names = {"token_embd.weight": "embedding/weight", "output_norm.weight": "final_norm/weight"}
    if not model.tied:
        names["output.weight"] = "head/weight"
    for number in range(len(model.layers)):
        for name, theirs in (MATRICES | NORMS).items():
            names[f"blk.{number}.{theirs}.weight"] = f"layers/{number}/{name}/weight"
    facts = b"".join(_text(name) + value for name, value in gguf_facts(model).items())
    frequencies = stretched(attention.rope).astype(np.float32)
    places, offset = [_place("rope_freqs.weight", frequencies.shape, FLOAT32, 0)], _aligned(frequencies.nbytes)
    for theirs, name in names.items():
        weight = weights.tensors[name]
        # Sizes from the one whose neighbours lie side by side; matrices are [out, in].
        sizes = weight.shape[::-1] if weight.summed else weight.shape
        kind = FLOAT32 if weight.summed is None else Q4_0
        places.append(_place(theirs, sizes, kind, offset))
        count = math.prod(sizes)
        offset = _aligned(offset + (4 * count if kind == FLOAT32 else count // BLOCK * BLOCK_BYTES))
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(places), len(gguf_facts(model))) + facts + b"".join(places))
    _align(file)
    file.write(frequencies.tobytes())
    for name in names.values():
        _align(file)
        if weights.tensors[name].summed is None:
            file.write(weights.read(name).tobytes())
        else:
            file.writelines(_matrix(weights, name, _turns(model, name.partition("/weight")[0])))
    _align(file)


def gguf_facts(model: Decoder) -> Mapping[str, bytes]:
    """Return what a GGUF says of itself, as type and value; it has no words."""
    attention, mlp = llama_blocks(model)
    assert attention.rope is not None

    def whole(number: int) -> bytes:
        return struct.pack("<II", 4, number)

    def real(number: float) -> bytes:
        return struct.pack("<If", 6, number)

    def text(words: str) -> bytes:
        return struct.pack("<I", 8) + _text(words)

    return {
        "general.architecture": text("llama"),
        "general.name": text(model.name),
        "general.file_type": whole(2),  # mostly Q4_0
        "llama.context_length": whole(model.positions),
        "llama.embedding_length": whole(model.hidden),
        "llama.block_count": whole(len(model.layers)),
        "llama.feed_forward_length": whole(mlp.ffn),
        "llama.attention.head_count": whole(attention.heads),
        "llama.attention.head_count_kv": whole(attention.kv_heads),
        "llama.attention.key_length": whole(attention.head_dim),
        "llama.attention.value_length": whole(attention.head_dim),
        "llama.attention.layer_norm_rms_epsilon": real(model.norm_eps),
        "llama.rope.dimension_count": whole(attention.head_dim),
        "llama.rope.freq_base": real(rope_base(attention.rope)),
        "llama.vocab_size": whole(model.vocab),
        "tokenizer.ggml.model": text("no_vocab"),
    }


def _turns(model: Decoder, name: str) -> int:
    """Return the width of a matrix' heads, where these turn, or 0."""
    return llama_blocks(model)[0].head_dim if name.endswith(("attention/query", "attention/key")) else 0


def _text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def _place(name: str, sizes: tuple[int, ...], kind: int, offset: int) -> bytes:
    return _text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def _aligned(offset: int) -> int:
    return -(-offset // GGUF_ALIGNMENT) * GGUF_ALIGNMENT


def _align(file: BinaryIO) -> None:
    file.write(bytes(_aligned(file.tell()) - file.tell()))
