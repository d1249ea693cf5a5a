"""What lies beside a language model's tensors: tokenizer, chat template, first and last tokens, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError, explained
from weights.convert.checkpoint import read_json
from weights.inputs.tokenize import PromptTokenizer
from weights.tokens.build import build_tokenizer

_GENERATION = ("temperature", "top_p", "top_k")
# Keys of generation_config.json that change which tokens are drawn, with the values that change nothing. Hepti computes
# none of them: what has another value is said at conversion, since a request may say how it is to be answered itself.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "repetition_penalty": (1, 1.0), "encoder_repetition_penalty": (1, 1.0), "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,), "bad_words_ids": (), "sequence_bias": (), "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],), "forced_bos_token_id": (), "forced_eos_token_id": (), "min_length": (0,),
    "min_new_tokens": (0,), "min_p": (0, 0.0), "typical_p": (1, 1.0), "top_h": (), "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0), "num_beams": (1,), "num_beam_groups": (1,), "diversity_penalty": (0, 0.0),
    "penalty_alpha": (0, 0.0), "guidance_scale": (1, 1.0), "stop_strings": (), "watermarking_config": (),
    "exponential_decay_length_penalty": (), "num_return_sequences": (1,), "dola_layers": (), "constraints": (),
    "force_words_ids": (), "remove_invalid_values": (False,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecoderTexts:
    """Parameters as of `DecoderFile`; `bos` and `eos` as of `Decoder`; `notes` as of `DecoderCheckpoint`."""

    tokenizer: str | None
    chat_template: str | None
    generation: Mapping[str, float]
    special: Mapping[str, str]
    bos: int | None
    eos: tuple[int, ...]
    notes: tuple[str, ...] = ()


def read_texts(directory: Path, config: Mapping[str, Any]) -> DecoderTexts:
    """Read the files beside a checkpoint's config.json.

    Raises
    ------
    HeptiError
        If one is unreadable, or tokenizer.json describes no tokenizer.
    """
    settings = read_json(directory / "tokenizer_config.json", optional=True)
    generation = read_json(directory / "generation_config.json", optional=True)
    if settings.get("split_special_tokens"):
        raise HeptiError("tokenizer_config.json: split_special_tokens is True: no chat template could be read so")
    built = build_tokenizer(directory, config)
    tokenizer, bos = built.text, None
    if tokenizer is not None:
        with explained(f"{directory}: tokenizer.json", HeptiError):
            begins, ends = PromptTokenizer(tokenizer).around()  # refuses what no rank could use
        if ends:
            raise HeptiError(
                f"tokenizer.json: post_processor puts {', '.join(ends)} after every text, and an answer would follow "
                f"its end: take that out of it"
            )
        bos = next(iter(begins), None)
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return DecoderTexts(
        tokenizer, _chat_template(directory, settings), _defaults(generation), built.special, bos,
        tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),), _notes(generation),
    )  # fmt: skip


def _notes(generation: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what generation_config.json asks for and is not computed."""
    asked = [
        f"{key} {value!r}"
        for key, value in generation.items()
        if key in _NEUTRAL and value is not None and value not in _NEUTRAL[key]
    ]
    return (f"asks in generation_config.json for {', '.join(asked)}, without which Hepti answers",) if asked else ()


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        with explained(f"cannot read {path}", (OSError, UnicodeDecodeError)):
            return path.read_text("utf-8")
    template = settings.get("chat_template")
    template = template or read_json(directory / "chat_template.json", optional=True).get("chat_template")
    if isinstance(template, list):  # several, each with a name
        named = {one["name"]: one["template"] for one in template}
        template = named.get("default")
    return template or None


def _defaults(generation: Mapping[str, Any]) -> dict[str, float]:
    """Return how a checkpoint wants tokens to be drawn; nothing where it wants the likeliest."""
    if not generation.get("do_sample"):
        return {}
    return {key: generation[key] for key in _GENERATION if generation.get(key) is not None}
