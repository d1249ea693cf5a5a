"""What lies beside a language model's tensors: tokenizer, chat template, first and last tokens, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError, explained
from weights.decoders.generation import read_generation
from weights.file.json_files import read_json
from weights.inputs.tokenize import PromptTokenizer
from weights.tokens.build import build_tokenizer


@dataclass(frozen=True, slots=True)
class DecoderTexts:
    """Parameters as of `DecoderFile`; `bos`, `eos` and `suppressed` as of `Decoder`.

    `notes` say what the defaults of answers ask for and is not done.
    """

    tokenizer: str | None
    chat_template: str | None
    generation: Mapping[str, float]
    special: Mapping[str, str]
    bos: int | None
    eos: tuple[int, ...]
    suppressed: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def read_texts(directory: Path, config: Mapping[str, Any]) -> DecoderTexts:
    """Read the files beside a checkpoint's config.json.

    Raises
    ------
    HeptiError
        If one is unreadable, or tokenizer.json describes no tokenizer.
    """
    settings = read_json(directory / "tokenizer_config.json", optional=True)
    if settings.get("split_special_tokens"):
        raise HeptiError("tokenizer_config.json: split_special_tokens is True: no chat template could be read so")
    generation = read_generation(directory, config)
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
    return DecoderTexts(
        tokenizer, _chat_template(directory, settings), generation.drawing, built.special, bos, generation.eos,
        generation.suppressed, generation.notes,
    )  # fmt: skip


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
