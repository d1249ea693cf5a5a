"""Sentence encoders as the sentence-transformers library saves them: modules.json and one folder a module.

Both layouts are read: the older (max_seq_length in sentence_bert_config.json, pooling_mode_mean_tokens: true) and that
of version 6 (model_max_length in tokenizer_config.json, pooling_mode: mean).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError
from weights.file.json_files import read_any_json, read_json
from weights.tokens.build import build_tokenizer
from weights.tokens.settings import max_length

# Those of the pooling modes that are computed, in the older and the newer words.
_POOLINGS = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
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
# Keys of the files: those that are read, those without effect on an embedding, and those refused unless they have one
# of these values. Prompts that nobody asks for by name have no effect; the one by default has.
_MODEL_KEYS = ("default_prompt_name", "prompts", "truncate_dim")
_MODEL_UNSEEN = ("__version__", "similarity_fn_name")
_MODEL_ONLY: Mapping[str, tuple[Any, ...]] = {"model_type": ("SentenceTransformer", None)}
_ENCODER_KEYS = ("max_seq_length", "do_lower_case")
_ENCODER_UNSEEN = ("unpad_inputs", "query_length", "document_length", "backend")
_NOTHING: tuple[Any, ...] = (None, {}, [], "")
_ENCODER_ONLY: Mapping[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction", "sequence-classification", None),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, *_NOTHING),
    "module_output_name": ("token_embeddings", None),
    **dict.fromkeys(
        ("query_expansion", "processing_kwargs", "processor_kwargs", "tokenizer_args", "config_kwargs", "config_args",
         "tokenizer_name_or_path"), _NOTHING,
    ),
    "model_kwargs": _NOTHING, "model_args": _NOTHING,
}  # fmt: skip
_POOLING_KEYS = ("pooling_mode", "include_prompt", *_OLD_POOLINGS)
_POOLING_UNSEEN = ("embedding_dimension", "word_embedding_dimension")
_DENSE_KEYS = ("activation_function", "bias")
_DENSE_UNSEEN = ("in_features", "out_features")
_DENSE_ONLY: Mapping[str, tuple[Any, ...]] = {
    "use_residual": (False, None),
    "module_input_name": ("sentence_embedding", None),
    "module_output_name": ("sentence_embedding", None),
}


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A dense layer after the pooling."""

    folder: Path
    activation: str
    bias: bool


@dataclass(frozen=True, slots=True)
class SentenceHead:
    """What stands around the encoder: a prompt, pooling, perhaps dense layers, a normalisation, fewer columns."""

    pooling: str
    dense: tuple[DenseModule, ...] = ()
    normalize: bool = False
    prompt: str = ""
    first_columns: int = 0


def sentence_modules(directory: Path) -> tuple[Path, SentenceHead | None]:
    """Return the folder of the encoder itself, and what follows it.

    A directory without modules.json is its own encoder and has no such head.

    Raises
    ------
    HeptiError
        If the modules are others than Transformer, Pooling, any number of Dense, and Normalize, in this order, or one
        of their settings is not computed.
    """
    if not (directory / "modules.json").is_file():
        return directory, None
    entries = read_any_json(directory / "modules.json")
    try:
        modules = [(entry["type"].rsplit(".", 1)[-1], directory / entry["path"]) for entry in entries]
    except (TypeError, KeyError, AttributeError) as error:
        raise HeptiError(f"{directory / 'modules.json'} is not a list of modules with type and path") from error
    modules = [(kind, folder) for kind, folder in modules if kind != "Dropout"]  # it does nothing outside training
    kinds = [kind for kind, _ in modules]
    if kinds == ["Transformer"]:  # a cross-encoder: a classifier like any other
        return modules[0][1], None
    behind = kinds[2:-1] if kinds[-1:] == ["Normalize"] else kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or set(behind) - {"Dense"}:
        raise HeptiError(
            f"{directory / 'modules.json'}: {', '.join(kinds)}: Hepti computes Transformer, Pooling, Dense, Normalize"
        )
    path = directory / "config_sentence_transformers.json"
    said = read_json(path, optional=True)
    _check(path.name, said, _MODEL_KEYS, _MODEL_UNSEEN, _MODEL_ONLY)
    prompt = _prompt(said)
    pooling = _pooling(modules[1][1], prompt)
    dense = tuple(_dense(folder) for kind, folder in modules if kind == "Dense")
    head = SentenceHead(pooling, dense, kinds[-1] == "Normalize", prompt, int(said.get("truncate_dim") or 0))
    return modules[0][1], head


def _check(
    file: str, said: Mapping[str, Any], read: Iterable[str], unseen: Iterable[str], only: Mapping[str, tuple[Any, ...]]
) -> None:
    """Refuse keys that change an embedding and are not computed, and those that nobody here knows."""
    for key, value in said.items():
        if key in only and value not in only[key]:
            raise HeptiError(f"{file}: {key} is {value!r}, Hepti computes only {only[key][0]!r}")
        if value not in _NOTHING and value is not False and key not in (*read, *unseen, *only):
            raise HeptiError(f"{file}: Hepti does not know the key {key}, which may change what a text becomes")


def _prompt(said: Mapping[str, Any]) -> str:
    """Return what stands before every text, unless asked otherwise."""
    name = said.get("default_prompt_name")
    if name is None:
        return ""
    prompts = {"query": "", "document": ""} | dict(said.get("prompts") or {})
    if name not in prompts:
        raise HeptiError(f"config_sentence_transformers.json: default_prompt_name {name!r} is none of its prompts")
    return str(prompts[name] or "")


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
    said = read_json(paths[0]) if paths else {}
    _check(paths[0].name if paths else "", said, _ENCODER_KEYS, _ENCODER_UNSEEN, _ENCODER_ONLY)
    return said


def _pooling(folder: Path, prompt: str) -> str:
    config = read_json(folder / "config.json")
    _check(f"{folder.name}/config.json", config, _POOLING_KEYS, _POOLING_UNSEEN, {})
    if prompt and not config.get("include_prompt", True):
        raise HeptiError(
            f"{folder.name}/config.json: include_prompt is False, Hepti computes only True where there is a prompt"
        )
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_POOLINGS.items() if config.get(key)] or ["mean"]
    if isinstance(modes, str):
        modes = [modes]
    if not modes or set(modes) - _POOLINGS.keys():
        raise HeptiError(f"{folder / 'config.json'}: pooling {modes} is not of {', '.join(_POOLINGS)}")
    return "+".join(_POOLINGS[mode] for mode in modes)


def _dense(folder: Path) -> DenseModule:
    config = read_json(folder / "config.json")
    activation = str(config.get("activation_function", "torch.nn.Tanh"))
    name = activation.rsplit(".", 1)[-1]
    if name not in _DENSE or not activation.startswith("torch.nn."):
        raise HeptiError(
            f"{folder / 'config.json'}: activation_function {activation} is not one of {', '.join(_DENSE)} of torch.nn"
        )
    _check(f"{folder.name}/config.json", config, _DENSE_KEYS, _DENSE_UNSEEN, _DENSE_ONLY)
    return DenseModule(folder, _DENSE[name], bool(config.get("bias", True)))
