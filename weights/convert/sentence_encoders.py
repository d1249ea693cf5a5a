"""Sentence encoders as the sentence-transformers library saves them: modules.json and one folder a module.

Both layouts are read: the older (max_seq_length in sentence_bert_config.json, pooling_mode_mean_tokens: true) and that
of version 6 (model_max_length in tokenizer_config.json, pooling_mode: mean).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError
from weights.convert.checkpoint import read_any_json, read_json
from weights.tokens.build import build_tokenizer
from weights.tokens.settings import max_length

# Those of the pooling modes that are computed, in the older and the newer words.
_POOLINGS = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "lasttoken": "lasttoken",
}
_OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_DENSE = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}


@dataclass(frozen=True, slots=True)
class SentenceHead:
    """What follows the encoder: pooling, perhaps a dense layer, perhaps a normalisation."""

    pooling: str
    dense: str = ""
    dense_folder: Path | None = None
    dense_bias: bool = True
    normalize: bool = False


def sentence_modules(directory: Path) -> tuple[Path, SentenceHead | None]:
    """Return the folder of the encoder itself, and what follows it.

    A directory without modules.json is its own encoder and has no such head.

    Raises
    ------
    HeptiError
        If the modules are others than Transformer, Pooling, Dense, Normalize, in this order.
    """
    if not (directory / "modules.json").is_file():
        return directory, None
    entries = read_any_json(directory / "modules.json")
    try:
        modules = [(entry["type"].rsplit(".", 1)[-1], directory / entry["path"]) for entry in entries]
    except (TypeError, KeyError, AttributeError) as error:
        raise HeptiError(f"{directory / 'modules.json'} is not a list of modules with type and path") from error
    kinds = [kind for kind, _ in modules if kind != "Dropout"]  # which does nothing outside training
    allowed = [["Transformer", "Pooling", *dense, *norm] for dense in ([], ["Dense"]) for norm in ([], ["Normalize"])]
    if kinds == ["Transformer"]:  # a cross-encoder: a classifier like any other
        return modules[0][1], None
    if kinds not in allowed:
        raise HeptiError(
            f"{directory / 'modules.json'}: {', '.join(kinds)}: Hepti computes Transformer, Pooling, Dense, Normalize"
        )
    folders = dict(modules)
    default = read_json(directory / "config_sentence_transformers.json", optional=True).get("default_prompt_name")
    if default:
        raise HeptiError(
            f"config_sentence_transformers.json: default_prompt_name is {default!r}: prompts are not added"
        )
    facts: dict[str, Any] = {"pooling": _pooling(folders["Pooling"]), "normalize": "Normalize" in folders}
    if "Dense" in folders:
        facts |= _dense(folders["Dense"])
    return folders["Transformer"], SentenceHead(**facts)


def max_rows(directory: Path, positions: int) -> int:
    """Return how many rows a text may have: what the directory's files say, at most `positions`."""
    own = _encoder_config(directory).get("max_seq_length")
    limit = own or max_length(read_json(directory / "tokenizer_config.json", optional=True)) or positions
    return min(int(limit), positions)


def tokenizer_text(directory: Path) -> str | None:
    """Return the text of a tokenizer.json, made lower-casing if the sentence encoder asks; None without words.

    Raises
    ------
    HeptiError
        If the files beside the words say what Hepti does not compute.
    """
    text = build_tokenizer(directory, read_json(directory / "config.json", optional=True)).text
    if text is None or not _encoder_config(directory).get("do_lower_case"):
        return text
    tokenizer = json.loads(text)
    present = tokenizer.get("normalizer")
    steps = present["normalizers"] if (present or {}).get("type") == "Sequence" else [present] if present else []
    if all(step["type"] != "Lowercase" for step in steps):
        tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
    return json.dumps(tokenizer, ensure_ascii=False)


def _encoder_config(directory: Path) -> Mapping[str, Any]:
    """Return what sentence_bert_config.json says, or sentence_roberta_config.json and the like of older versions."""
    paths = sorted(directory.glob("sentence_*_config.json"))
    return read_json(paths[0]) if paths else {}


def _pooling(folder: Path) -> str:
    config = read_json(folder / "config.json")
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_POOLINGS.items() if config.get(key)] or ["mean"]
    if isinstance(modes, str):
        modes = [modes]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise HeptiError(f"{folder / 'config.json'}: pooling {modes} is not one of {', '.join(_POOLINGS)}")
    return _POOLINGS[modes[0]]


def _dense(folder: Path) -> Mapping[str, Any]:
    config = read_json(folder / "config.json")
    activation = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
    if activation not in _DENSE:
        raise HeptiError(
            f"{folder / 'config.json'}: activation_function {activation} is not one of {', '.join(_DENSE)}"
        )
    if config.get("use_residual"):
        raise HeptiError(f"{folder / 'config.json'}: use_residual is True, Hepti computes only False")
    return {
        "dense": _DENSE[activation],
        "dense_folder": folder,
        "dense_bias": bool(config.get("bias", True)),
    }
