"""What a checkpoint's generation_config.json asks for: honoured, without effect, or said by its name.

As transformers' `generate` acts on it. Where there is no such file, it takes the same settings from config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError
from weights.file.json_files import read_json

# Defaults of drawing, in transformers too, where a checkpoint draws and does not say.
_DRAWN: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 50}
# What `generate` would do, and Hepti does not; with the values that ask for nothing. A conversion says so.
_NOT_DONE: Mapping[str, tuple[Any, ...]] = {
    "repetition_penalty": (1,), "encoder_repetition_penalty": (1,), "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,), "min_length": (0,), "min_new_tokens": (0,), "forced_bos_token_id": (),
    "forced_eos_token_id": (), "begin_suppress_tokens": ([],), "sequence_bias": ({}, []), "stop_strings": ("", []),
    "exponential_decay_length_penalty": (), "num_beams": (1,), "num_beam_groups": (1,), "penalty_alpha": (0,),
    "dola_layers": (), "guidance_scale": (1,), "constraints": ([],), "force_words_ids": ([],),
    "token_healing": (False,), "watermarking_config": (), "max_time": (),
}  # fmt: skip
# The same, of what is looked at only where tokens are drawn.
_NOT_DRAWN: Mapping[str, tuple[Any, ...]] = {
    "min_p": (0,), "top_h": (), "typical_p": (1,), "epsilon_cutoff": (0,), "eta_cutoff": (0,),
}  # fmt: skip
# Nothing that is said depends on these: lengths, which who asks chooses; how fast it is computed; what is returned.
WITHOUT_EFFECT = (
    "max_length", "max_new_tokens", "early_stopping", "length_penalty", "diversity_penalty", "use_cache", "use_mtp",
    "cache_implementation", "cache_config", "max_cache_len", "renormalize_logits", "remove_invalid_values",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate", "pad_token_id", "bos_token_id", "decoder_start_token_id", "is_assistant",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind",
    "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "compile_config", "disable_compile",
    "continuous_batching_config", "low_memory", "prefill_chunk_size", "_from_model_config", "transformers_version",
    "trust_remote_code", "custom_generate",
)  # fmt: skip
HONOURED = ("eos_token_id", "do_sample", *_DRAWN, "suppress_tokens", "bad_words_ids")
_OF_CONFIG = (*HONOURED, *_NOT_DONE, *_NOT_DRAWN)


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """How a checkpoint wants its answers.

    Parameters
    ----------
    drawing
        Temperature, top_p and top_k; empty where it wants the likeliest token.
    eos, suppressed
        As of `Decoder`.
    notes
        What it asks for that is not done, each as it "has" it.
    """

    drawing: Mapping[str, float]
    eos: tuple[int, ...]
    suppressed: tuple[int, ...]
    notes: tuple[str, ...]


def read_generation(directory: Path, config: Mapping[str, Any]) -> GenerationDefaults:
    """Read the generation_config.json beside a config.json.

    Raises
    ------
    HeptiError
        If it is unreadable, or says something that is none.
    """
    path = directory / "generation_config.json"
    asks = read_json(path) if path.is_file() else {key: value for key, value in config.items() if key in _OF_CONFIG}
    draws = bool(asks.get("do_sample"))
    drawing = {key: _or(asks.get(key), usual) for key, usual in _DRAWN.items()} if draws else {}
    if drawing.get("temperature", 1) <= 0:
        raise HeptiError(f"{path}: temperature is {drawing['temperature']}, must be above 0 where do_sample is true")
    eos = asks.get("eos_token_id", config.get("eos_token_id"))
    suppressed, longer = list(asks.get("suppress_tokens") or ()), 0
    for words in asks.get("bad_words_ids") or ():
        if len(words) == 1:
            suppressed += [words[0]] if words[0] not in _list(eos) else []
        else:
            longer += 1
    not_done = {**_NOT_DONE, **(_NOT_DRAWN if draws else {})}
    odd = {key: value for key, value in asks.items() if key in not_done and value not in (None, *not_done[key])}
    if longer:
        odd["bad_words_ids"] = f"{longer} of several tokens"
    odd |= {
        key: value for key, value in asks.items()
        if key not in (*HONOURED, *WITHOUT_EFFECT, *_NOT_DONE, *_NOT_DRAWN) and value is not None
    }  # fmt: skip
    return GenerationDefaults(
        drawing, tuple(int(token) for token in _list(eos)), tuple(sorted({int(token) for token in suppressed})),
        tuple(f"has {key} {value} among its defaults of answers, which is not done" for key, value in odd.items()),
    )  # fmt: skip


def _or(value: Any, usual: float) -> float:
    return usual if value is None else value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
