"""Cross-encoders: classifiers of two texts at once, and what sentence-transformers says of their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError
from solver.model.spec import ModelSpec, TextInput
from weights.file.json_files import read_json

_ACTIVATIONS = {"Identity": "identity", "Sigmoid": "sigmoid"}
_TYPES = "token_type_ids"
_TYPED = ("BertTokenizer", "ElectraTokenizer")  # of transformers 5: its general class hands on none


def with_pairs(spec: ModelSpec, directory: Path, encoder: Path, config: Mapping[str, Any]) -> ModelSpec:
    """Return the spec of a classifier of texts with what it makes of pairs; of any other model, as it is.

    Parameters
    ----------
    directory, encoder
        Of the checkpoint, and within it of the classifier itself.
    config
        Its config.json.

    Raises
    ------
    HeptiError
        If the library's settings ask for what is not computed.
    """
    source = spec.input
    if not isinstance(source, TextInput) or not spec.labels:
        return spec
    source = replace(source, pair_types=_reads_types(read_json(encoder / "tokenizer_config.json", optional=True)))
    return replace(spec, input=source, pair_scores=_scores(directory, config) if len(spec.labels) == 1 else "")


def _reads_types(settings: Mapping[str, Any]) -> bool:
    """Return whether the library hands token types to the model: as the file says, else as its tokenizer's class."""
    inputs = settings.get("model_input_names")
    if inputs is not None:
        return _TYPES in inputs
    return str(settings.get("tokenizer_class") or _TYPED[0]).removesuffix("Fast") in _TYPED


def _scores(directory: Path, config: Mapping[str, Any]) -> str:
    """Return what makes a score of a pair's one logit, as the library's CrossEncoder chooses it."""
    name = "config_sentence_transformers.json"
    library = read_json(directory / name, optional=True)
    if prompt := library.get("default_prompt_name"):
        raise HeptiError(f"{name}: default_prompt_name is {prompt!r}: prompts are not added to pairs")
    own = (config.get("sentence_transformers") or {}).get("activation_fn")
    older = config.get("sbert_ce_default_activation_function")
    said = {
        f"{name}: activation_fn": library.get("activation_fn"),
        "config.json: sentence_transformers.activation_fn": own,
        "config.json: sbert_ce_default_activation_function": older,
    }
    setting, activation = next(((key, value) for key, value in said.items() if value is not None), ("", "Sigmoid"))
    leaf = str(activation).rsplit(".", 1)[-1]
    if leaf not in _ACTIVATIONS:
        raise HeptiError(f"{setting} is {activation!r}, of a cross-encoder Hepti computes {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[leaf]
