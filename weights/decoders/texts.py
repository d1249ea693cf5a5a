"""What lies beside a language model's tensors: tokenizer, chat template, first and last tokens, defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError, explained
from weights.convert.checkpoint import read_json
from weights.decoders.generation import read_generation
from weights.inputs.tokenize import PromptTokenizer


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
    generation = read_generation(directory, config)
    special = _special({**read_json(directory / "special_tokens_map.json", optional=True), **settings})
    path, tokenizer, bos = directory / "tokenizer.json", None, None
    if path.is_file():
        with explained(f"cannot read {path}", (OSError, UnicodeDecodeError)):
            tokenizer = path.read_text("utf-8")
        with explained(str(path), HeptiError):
            PromptTokenizer(tokenizer)  # refuses what no rank could use
        bos = _bos(read_json(path), settings.get("add_bos_token"), special.get("bos_token"))
    return DecoderTexts(
        tokenizer, _chat_template(directory, settings), generation.drawing, special, bos, generation.eos,
        generation.suppressed, generation.notes,
    )  # fmt: skip


def _special(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of special tokens: as they are, or as `content` beside how they are matched."""
    found = {}
    for name, token in settings.items():
        text = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


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


def _bos(tokenizer: Mapping[str, Any], wanted: bool | None, text: str | None) -> int | None:
    """Return the token that a tokenizer puts before every text.

    `add_bos_token` says whether; where it is missing, the tokenizer's own last step does.
    """
    if wanted is False:
        return None
    for step in _steps(tokenizer.get("post_processor")):
        first = next(iter(step.get("single") or ()), None)
        if isinstance(first, dict) and "SpecialToken" in first:
            return int(step["special_tokens"][first["SpecialToken"]["id"]]["ids"][0])
    if wanted:
        ids = [token["id"] for token in tokenizer.get("added_tokens") or () if token["content"] == text]
        return ids[0] if ids else None
    return None


def _steps(step: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    """Yield the steps of a tokenizer's post_processor."""
    if step is None:
        return
    for inner in step.get("processors") or ():
        yield from _steps(inner)
    yield step
