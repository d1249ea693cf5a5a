"""Parts of a tokenizer.json: its models, steps and added tokens, as the `tokenizers` library writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from weights.tokens.settings import Added

TokenizerPart = dict[str, Any]
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what stands for a space in a word of SentencePiece


def tokenizer(
    model: TokenizerPart,
    normalizer: TokenizerPart | None,
    pre_tokenizer: TokenizerPart | None,
    decoder: TokenizerPart | None,
) -> TokenizerPart:
    """Return a tokenizer.json without added tokens and last step."""
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder, "model": model,
    }  # fmt: skip


def word_piece(vocabulary: Mapping[str, int], unknown: str) -> TokenizerPart:
    """Return a model of words and their pieces."""
    return {
        "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": dict(vocabulary),
    }  # fmt: skip


def pairs(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], **facts: Any) -> TokenizerPart:
    """Return a model of byte pairs."""
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": dict(vocabulary), "merges": [list(merge) for merge in merges],
    } | facts  # fmt: skip


def unigram(vocabulary: Sequence[Sequence[Any]], unknown: int, byte_fallback: bool = False) -> TokenizerPart:
    """Return a model of pieces and their scores."""
    return {"type": "Unigram", "unk_id": unknown, "vocab": [list(piece) for piece in vocabulary],
            "byte_fallback": byte_fallback}  # fmt: skip


def sequence(kind: str, steps: Iterable[TokenizerPart]) -> TokenizerPart | None:
    """Return several steps as one: `kind` is normalizers, pretokenizers or decoders; no step is None."""
    found = list(steps)
    return {"type": "Sequence", kind: found} if found else None


def replace(pattern: TokenizerPart, content: str) -> TokenizerPart:
    """Return a step that replaces a pattern, {"String": …} or {"Regex": …}."""
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern: TokenizerPart, behavior: str = "Isolated") -> TokenizerPart:
    """Return a step that splits at a pattern."""
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


def byte_level(add_prefix_space: bool = True, use_regex: bool = True) -> TokenizerPart:
    """Return the step of GPT-2, before the model and after it."""
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def metaspace(prepend: str, splits: bool = True) -> TokenizerPart:
    """Return the step of SentencePiece, before the model and after it."""
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": prepend, "split": splits}


def bert_normalizer(settings: Mapping[str, Any]) -> TokenizerPart:
    """Return the step that cleans a text for BERT."""
    return {
        "type": "BertNormalizer", "clean_text": True,
        "handle_chinese_chars": bool(settings.get("tokenize_chinese_chars", True)),
        "strip_accents": settings.get("strip_accents"), "lowercase": bool(settings.get("do_lower_case", True)),
    }  # fmt: skip


def template(single: Sequence[str], pair: Sequence[str], ids: Mapping[str, int | None]) -> TokenizerPart:
    """Return a last step: words are special tokens, but "$A" and "$B" are texts; ":1" after one is its type."""

    def step(word: str) -> TokenizerPart:
        word, _, kind = word.rpartition(":")
        if word in ("$A", "$B"):
            return {"Sequence": {"id": word[1:], "type_id": int(kind)}}
        return {"SpecialToken": {"id": word, "type_id": int(kind)}}

    return {
        "type": "TemplateProcessing", "single": [*map(step, single)], "pair": [*map(step, pair)],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in ids.items()},
    }  # fmt: skip


def id_of(made: TokenizerPart, text: str | None) -> int | None:
    """Return the id of a token: of an added one, or a word of the model."""
    for token in made["added_tokens"]:
        if token["content"] == text:
            return int(token["id"])
    vocabulary = made["model"]["vocab"]
    if isinstance(vocabulary, list):
        return next((number for number, piece in enumerate(vocabulary) if piece[0] == text), None)
    found = vocabulary.get(text)
    return None if found is None else int(found)


def add_tokens(made: TokenizerPart, tokens: Iterable[Added]) -> None:
    """Add tokens as the `tokenizers` library does: one that is a word keeps its id, others get the next free ones."""
    added: dict[int, TokenizerPart] = {int(token["id"]): dict(token) for token in made["added_tokens"]}
    places = {token["content"]: number for number, token in added.items()}
    vocabulary = made["model"]["vocab"]
    scored = isinstance(vocabulary, list)
    words = {piece[0]: number for number, piece in enumerate(vocabulary)} if scored else vocabulary
    for token in tokens:
        if not token.content:
            continue
        number = places.get(token.content, words.get(token.content))
        if number is None:
            number = max(len(words), *(place + 1 for place in added)) if added else len(words)
        added[number] = {"id": number, **asdict(token)}
        places[token.content] = number
    made["added_tokens"] = [added[number] for number in sorted(added)]
