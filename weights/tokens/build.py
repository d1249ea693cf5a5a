"""The tokenizer of a checkpoint directory, as the tokenizer.json that transformers would make of all its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError, explained
from weights.file.json_files import read_json, read_text
from weights.tokens import parts
from weights.tokens.classes import CLASSES, TokenizerClass, Words, class_of
from weights.tokens.parts import TokenizerPart
from weights.tokens.sentencepiece import SentencePieceModel, generic_tokenizer, merges_of, read_model
from weights.tokens.settings import Added, TokenizerSettings, max_length, read_settings

_GENERIC = TokenizerClass("", lambda words, settings: {}, files=("tokenizer.model",))
# Files of words of which Hepti makes nothing.
_OTHERS = ("tekken.json", "tiktoken.model", "spiece.model", "spm.model", "bpe.codes", "vocab.bin")

_STRANGE = (TypeError, ValueError, LookupError, AttributeError)  # what a part of another form than usual raises


@dataclass(frozen=True, slots=True)
class BuiltTokenizer:
    """A checkpoint's tokenizer.

    Parameters
    ----------
    text
        Of a tokenizer.json; None: the checkpoint has none.
    max_rows
        How many ids a text may have, where the files say so.
    special
        Texts of special tokens by what they are for, the class's own included.
    """

    text: str | None
    max_rows: int | None
    special: Mapping[str, str]


def build_tokenizer(directory: Path, config: Mapping[str, Any]) -> BuiltTokenizer:
    """Make the tokenizer of a checkpoint directory.

    Parameters
    ----------
    config
        The checkpoint's config.json.

    Raises
    ------
    HeptiError
        If a file is damaged, or says something that Hepti does not compute.
    """
    settings = read_settings(directory)
    limit = max_length(settings.options)
    name = class_of(config, settings.options, settings.stored)
    if settings.stored is not None:
        with explained(f"{directory / 'tokenizer.json'}: the tokenizer is damaged or of a newer version", _STRANGE):
            made: TokenizerPart | None = _from_json(name, settings)
    else:
        made = _from_words(directory, name, settings)
    named = settings.with_defaults(CLASSES[name].special if name else {}).named
    special = {key: token.content for key, token in named.items() if token}
    if made is None:
        return BuiltTokenizer(None, limit, special)
    side = settings.options.get("truncation_side") or (made.get("truncation") or {}).get("direction") or "right"
    if side.lower() not in ("left", "right"):
        raise HeptiError(f"tokenizer_config.json: truncation_side is {side!r}, must be left or right")
    made["truncation"] = {
        "direction": side.capitalize(), "max_length": 512, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    made["padding"] = None
    _check_unknown(made["model"])
    return BuiltTokenizer(json.dumps(made, ensure_ascii=False), limit, special)


def _check_unknown(model: Mapping[str, Any]) -> None:
    """Refuse words that have none for what is unknown: the first such text would end in an error."""
    unknown = model.get("unk_token")
    if model.get("type") == "WordPiece" and unknown not in model["vocab"]:
        raise HeptiError(f"tokenizer_config.json: unk_token is {unknown}, which is no word of the vocabulary")


def _from_json(name: str, settings: TokenizerSettings) -> TokenizerPart:
    """Make a tokenizer of a tokenizer.json, all or its words alone."""
    stored = dict(settings.stored or {})
    if not name:
        made = stored | {"added_tokens": list(stored.get("added_tokens") or ())}
        return _finished(made, settings, _GENERIC)
    kind, model = CLASSES[name], stored.get("model") or {}
    found = model.get("type") or ("Unigram" if isinstance(model.get("vocab"), list) else kind.model)
    if found != kind.model:
        raise HeptiError(
            f"tokenizer.json has a model of kind {found}, tokenizer_class {name}Tokenizer is {kind.model}: write "
            f"PreTrainedTokenizerFast into tokenizer_config.json to take it as it is"
        )
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or ()]
    facts: dict[str, Any] = {"charsmap": _charsmap(stored.get("normalizer")), "last_step": stored.get("post_processor")}
    facts |= {"pieces": model["vocab"]} if kind.model == "Unigram" else {"ids": model["vocab"], "merges": merges}
    return _built(kind, Words(**facts), settings)


def _from_words(directory: Path, name: str, settings: TokenizerSettings) -> TokenizerPart | None:
    """Make a tokenizer of older files of words; None where there are none."""
    kind = CLASSES.get(name, _GENERIC)
    paths = [directory / file for file in kind.files]
    if kind.model != "WordPiece" and not paths[0].is_file() and (directory / "tokenizer.model").is_file():
        paths = [directory / "tokenizer.model"]
    if not all(path.is_file() for path in paths):
        _refuse_others(directory, kind)
        return None
    if paths[0].suffix == ".model":
        return _from_sentencepiece(read_model(paths[0]), name, settings)
    if paths[0].suffix == ".txt":
        lines = read_text(paths[0]).removesuffix("\n").split("\n")
        return _built(kind, Words({line.rstrip(): number for number, line in enumerate(lines)}), settings)
    return _built(kind, Words(read_json(paths[0]), _merges(read_text(paths[1]))), settings)


def _from_sentencepiece(model: SentencePieceModel, name: str, settings: TokenizerSettings) -> TokenizerPart:
    if not name:
        settings = settings.with_defaults(model.special)
        names = {number: token.content for number, token in settings.added.items()}
        made = generic_tokenizer(model, names, bool(settings.options.get("legacy", True)))
        extra = _extra(settings) or tuple(token for token in model.added if token.special)
        added = settings.added
        if model.dummy_prefix:  # each part between added tokens gets its own space in front
            added = {number: replace(token, normalized=False) for number, token in added.items()}
        return _finished(made, replace(settings, extra=extra, added=added), _GENERIC)
    kind = CLASSES[name]
    settings = replace(settings, extra=_extra(settings) or model.added)
    if kind.model == "BPE":
        vocabulary = {text: number for number, (text, _, _) in enumerate(model.pieces)}
        return _built(kind, Words(vocabulary, merges_of(vocabulary)), settings)
    pieces = [(text, score) for text, score, _ in model.pieces]
    special = settings.with_defaults(kind.special)
    first = [(special.text(of) or "", 0.0) for of in ("bos_token", "pad_token", "eos_token", "unk_token")]
    if name == "Camembert":
        first = [("<s>NOTUSED", 0.0), first[1], ("</s>NOTUSED", 0.0), first[3], ("<unk>NOTUSED", -100.0)]
    pieces = [*first, *pieces[1 if name == "Camembert" else 3 :], (special.text("mask_token") or "", 0.0)]
    return _built(kind, Words(pieces=pieces, charsmap=model.charsmap_text), settings)


def _extra(settings: TokenizerSettings) -> tuple[Added, ...]:
    """Return further special tokens, without those that special_tokens_map.json alone calls additional ones."""
    return settings.extra if settings.extra_counts else ()


def _built(kind: TokenizerClass, words: Words, settings: TokenizerSettings) -> TokenizerPart:
    """Make a tokenizer of words and settings, as its class in transformers does."""
    settings = settings.with_defaults(kind.special)
    if kind is CLASSES["MPNet"]:
        settings = _as_mpnet(settings)
    if not settings.extra and kind.extra:
        settings = replace(settings, extra=tuple(map(Added, kind.extra)))
    made = kind.build(words, settings)
    made["post_processor"] = words.last_step
    return _finished(made, settings, kind)


def _finished(made: TokenizerPart, settings: TokenizerSettings, kind: TokenizerClass) -> TokenizerPart:
    """Add tokens and the last step."""
    present = [Added.of(token) for token in made["added_tokens"]]
    tokens = [token for _, token in sorted(settings.added.items()) if token not in present]
    seen = {token.content for token in (*present, *tokens)}
    named = [token for token in settings.named.values() if token]
    names = {token.content for token in named}
    tokens += [token for token in (*named, *settings.extra) if token.content not in seen]
    parts.add_tokens(made, [replace(token, special=True) if token.content in names else token for token in tokens])
    if kind is CLASSES["Qwen2"]:  # marks all of them as special once more
        parts.add_tokens(made, [Added(token.content) for token in (*named, *settings.extra)])
    if kind.last is not None:
        made["post_processor"] = kind.last(made, settings)
    elif made["post_processor"] is None or {"add_bos_token", "add_eos_token"} & settings.options.keys():
        made["post_processor"] = _last_step(made, settings)
    if settings.options.get("split_special_tokens"):
        made["added_tokens"] = [token for token in made["added_tokens"] if not token["special"]]
    return made


def _as_mpnet(settings: TokenizerSettings) -> TokenizerSettings:
    """Let a mask token that stands there as a text take the space before it, as MPNet's class does."""
    mask = settings.named["mask_token"]
    if not isinstance(settings.options.get("mask_token"), str) or mask is None or mask in settings.added.values():
        return settings
    return replace(settings, named={**settings.named, "mask_token": replace(mask, lstrip=True)})


def _last_step(made: TokenizerPart, settings: TokenizerSettings) -> TokenizerPart:
    """Return the last step that add_bos_token and add_eos_token ask for."""
    bos = settings.text("bos_token") if settings.options.get("add_bos_token") else None
    eos = settings.text("eos_token") if settings.options.get("add_eos_token") else None
    ids = {token: parts.id_of(made, token) for token in (bos, eos) if token is not None}
    single = [*([f"{bos}:0"] if bos else []), "$A:0", *([f"{eos}:0"] if eos else [])]
    second = [*([f"{bos}:1"] if bos else []), "$B:1", *([f"{eos}:1"] if eos else [])]
    return parts.template(single, [*single, *second], ids)


def _charsmap(normalizer: Mapping[str, Any] | None) -> str:
    """Return how SentencePiece normalises characters, where a tokenizer.json says so."""
    steps = (normalizer or {}).get("normalizers") or [normalizer or {}]
    return next((str(step["precompiled_charsmap"]) for step in steps if step.get("precompiled_charsmap")), "")


def _merges(text: str) -> list[list[str]]:
    """Return the merges of a merges.txt, whose first line is a version."""
    lines = (line.strip() for line in text.split("\n"))
    return [line.split() for line in lines if line and not line.startswith("#version")]


def _refuse_others(directory: Path, kind: TokenizerClass) -> None:
    known = {file for one in CLASSES.values() for file in one.files} | set(_OTHERS)
    found = sorted(file for file in known if (directory / file).is_file())
    if found:
        raise HeptiError(
            f"{directory} has {' and '.join(found)} and no tokenizer.json: Hepti makes a tokenizer of "
            f'{" and ".join(kind.files)} there; make a tokenizer.json with transformers: python -c "from transformers '
            f"import AutoTokenizer as T; T.from_pretrained(r'{directory}').save_pretrained(r'{directory}')\""
        )
