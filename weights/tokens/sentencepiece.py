"""SentencePiece models: the few fields of their protocol buffer that a tokenizer needs, and what they make.

The fields' numbers are those of sentencepiece_model.proto. Its library is not needed: it would be one more wheel on
every machine that converts.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError, explained
from weights.file.json_files import refuse_pointer
from weights.tokens import parts
from weights.tokens.parts import SPACE, TokenizerPart
from weights.tokens.settings import Added

_NORMAL, _UNKNOWN, _CONTROL, _USER = 1, 2, 3, 4  # kinds of pieces
_UNIGRAM = 1  # kind of model; 2 is of byte pairs
_VARINT, _WIDE, _BYTES, _FOUR = 0, 1, 2, 5  # kinds of fields


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What a `.model` file holds.

    Parameters
    ----------
    pieces
        Text, score and kind of each.
    unigram
        Whether pieces are chosen by their scores, not merged by pairs.
    special
        Texts of its bos, eos and unk pieces, where it has them.
    """

    pieces: tuple[tuple[str, float, int], ...]
    unigram: bool
    unknown: int
    byte_fallback: bool
    special: Mapping[str, str]
    charsmap: bytes
    dummy_prefix: bool
    single_spaces: bool
    escapes_spaces: bool

    @property
    def added(self) -> tuple[Added, ...]:
        """Control pieces, which are special tokens, and those of users, which are none."""
        return tuple(
            Added(text, special=kind == _CONTROL) for text, _, kind in self.pieces if kind in (_CONTROL, _USER)
        )

    @property
    def charsmap_text(self) -> str:
        """What normalises characters, as tokenizer.json has it."""
        return base64.b64encode(self.charsmap).decode()


def read_model(path: Path) -> SentencePieceModel:
    """Read a `.model` file.

    Raises
    ------
    HeptiError
        If it is unreadable, or no SentencePiece model.
    """
    refuse_pointer(path)
    with explained(f"cannot read {path}", OSError):
        data = path.read_bytes()
    try:
        return _model(data)
    except (ValueError, IndexError, struct.error) as error:
        raise HeptiError(f"{path} is no SentencePiece model, or is damaged") from error


def _model(data: bytes) -> SentencePieceModel:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normal: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(value))
            pieces.append((piece[1].decode(), _float(piece.get(2)), piece.get(3, _NORMAL)))
        elif number in (2, 3):
            (trainer if number == 2 else normal).update(_fields(value))
    if not pieces:
        raise ValueError("no piece")
    names = {"bos_token": (41, 1, 46, "<s>"), "eos_token": (42, 2, 47, "</s>"), "unk_token": (40, 0, 45, "<unk>")}
    special = {
        name: trainer[text].decode() if text in trainer else default
        for name, (place, usual, text, default) in names.items()
        if _signed(trainer.get(place, usual)) >= 0
    }
    return SentencePieceModel(
        tuple(pieces), trainer.get(3, _UNIGRAM) == _UNIGRAM, _signed(trainer.get(40, 0)), bool(trainer.get(35)),
        special, normal.get(2, b""), bool(normal.get(3, 1)), bool(normal.get(4, 1)), bool(normal.get(5, 1)),
    )  # fmt: skip


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of every field of a message."""
    at = 0
    value: Any
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("cut short")
            value, at = data[at : at + size], at + size
        elif kind in (_WIDE, _FOUR):
            size = 8 if kind == _WIDE else 4
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"a field of kind {kind}")
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _float(value: bytes | None) -> float:
    return float(struct.unpack("<f", value)[0]) if value is not None else 0.0


def merges_of(vocabulary: Mapping[str, int], skipped: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the merges of a vocabulary that comes without: of every word all pairs of words, in their order."""
    found = []
    for word, number in vocabulary.items():
        if word in skipped:
            continue
        halves = [(word[:cut], word[cut:]) for cut in range(1, len(word))]
        known = [
            (left, right)
            for left, right in halves
            if left in vocabulary and right in vocabulary and left not in skipped and right not in skipped
        ]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(number, left, right) for left, right in known]
    found.sort(key=lambda one: (one[0], len(one[1]), len(one[2])))
    return [(left, right) for _, left, right in found]


def generic_tokenizer(model: SentencePieceModel, names: Mapping[int, str], legacy: bool) -> TokenizerPart:
    """Return the tokenizer of a model as it says itself, for classes that make no steps of their own.

    Parameters
    ----------
    names
        Other texts of pieces by their ids, as added_tokens_decoder has them.
    legacy
        Whether every part between added tokens gets a space in front, not the first alone.
    """
    texts = [text for text, _, _ in model.pieces]
    texts = texts if model.unigram else _renamed(texts, names)
    users = [text for text, (_, _, kind) in zip(texts, model.pieces, strict=True) if kind == _USER]
    if model.unigram:
        scored = [(text, score) for text, (_, score, _) in zip(texts, model.pieces, strict=True)]
        made = parts.unigram(scored, model.unknown, model.byte_fallback)
    else:
        made = parts.pairs(
            {text: number for number, text in enumerate(texts)}, _ranked(texts, model), fuse_unk=True,
            unk_token=model.special.get("unk_token", "<unk>"), byte_fallback=model.byte_fallback,
            ignore_merges=bool(users),
        )  # fmt: skip
    before = [parts.metaspace("always" if legacy else "first", splits=False)] if model.dummy_prefix else []
    if users:
        pattern = "|".join(re.escape(text) for text in sorted(users, key=len, reverse=True))
        before.append(parts.split({"Regex": pattern}))
    normalizer = {"type": "Sequence", "normalizers": _normalizers(model, legacy)}
    decoders = parts.sequence("decoders", _decoders(model))
    return parts.tokenizer(made, normalizer, parts.sequence("pretokenizers", before), decoders)


def _renamed(texts: Sequence[str], names: Mapping[int, str]) -> list[str]:
    kept = {text for number, text in enumerate(texts) if number not in names}
    return [names[n] if n in names and names[n] not in kept else text for n, text in enumerate(texts)]


def _ranked(texts: Sequence[str], model: SentencePieceModel) -> list[tuple[str, str]]:
    """Return the merges in the order of the pieces' scores."""
    normal = {
        text: (score, number)
        for number, (text, (_, score, kind)) in enumerate(zip(texts, model.pieces, strict=True))
        if kind == _NORMAL
    }
    ranked = [
        (-score, number, text[:cut], text[cut:])
        for text, (score, number) in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    return [(left, right) for _, _, left, right in sorted(ranked)]


def _normalizers(model: SentencePieceModel, legacy: bool) -> list[TokenizerPart]:
    """Return the steps before the model, in SentencePiece's order."""
    steps = [{"type": "Precompiled", "precompiled_charsmap": model.charsmap_text}] if model.charsmap else []
    if model.single_spaces:
        steps += [parts.replace({"Regex": r"\A +| +\z"}, ""), parts.replace({"Regex": " {2,}"}, " ")]
    if model.escapes_spaces:
        steps.append(parts.replace({"String": " "}, SPACE))
    if model.dummy_prefix and legacy:
        steps.append(parts.replace({"Regex": rf"\A{SPACE}"}, SPACE * 2))
    return steps


def _decoders(model: SentencePieceModel) -> list[TokenizerPart]:
    steps = [parts.replace({"String": SPACE}, " ")]
    if model.byte_fallback:
        steps.append({"type": "ByteFallback"})
    if model.dummy_prefix:
        steps += [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    elif model.byte_fallback:
        steps.append({"type": "Fuse"})
    return steps
