"""What lies beside a checkpoint's words: tokenizer_config.json and its older companions, as transformers reads them.

transformers 5.24 is what this follows: which file goes before which, and which keys change ids at all. Every key of
tokenizer_config.json is in one of the tables below, or has the form of a special token (`*_token`); another is refused
by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError
from weights.file.json_files import read_json

# Those that change ids, or what a text is cut to. Classes that do not know one of them pass it over, as transformers.
HONOURED = (
    "add_bos_token", "add_eos_token", "add_prefix_space", "added_tokens_decoder", "additional_special_tokens",
    "chat_template", "do_lower_case", "extra_special_tokens", "legacy", "max_len", "model_max_length",
    "model_specific_special_tokens", "split_special_tokens", "strip_accents", "tokenize_chinese_chars",
    "tokenizer_class", "truncation_side",
)  # fmt: skip
# Those that change no id of a text or prompt: of padding, offsets, pairs of texts, decoding, saving and loading.
WITHOUT_EFFECT = (
    "__type", "_commit_hash", "_name_or_path", "auto_map", "backend", "chat_control_tokens",
    "clean_text", "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", "device_map", "do_basic_tokenize",
    "errors", "files_loaded", "from_slow", "is_local", "local_files_only", "max_length", "merges_file",
    "model_input_names", "name_or_path", "never_split", "offset", "pad_to_multiple_of", "pad_token_type", "padding",
    "padding_side", "processor_class", "response_schema", "response_template", "return_token_type_ids",
    "slow_tokenizer_class", "sp_model_kwargs", "spaces_between_special_tokens", "special_tokens_map_file", "stride",
    "tokenizer_file", "tokenizer_type", "transformers_version", "trim_offsets", "truncation", "truncation_strategy",
    "unk_id", "use_default_system_prompt", "use_fast", "verbose", "vocab_file", "vocab_size", "wordpieces_prefix",
)  # fmt: skip
# Those that are refused unless they have one of these values.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "fix_mistral_regex": (False, None),
    "init_inputs": ([], None),
    "fast_tokenizer_files": (["tokenizer.json"], [], None),
    "vocab": (None,),
    "merges": (None,),
    "dropout": (None, 0, 0.0),
}
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip")


@dataclass(frozen=True, slots=True)
class Added:
    """A token that is found in a text before it is cut into pieces."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = True

    @classmethod
    def of(cls, value: Any, special: bool | None = None) -> Added:
        """Read one, as a text (which is a special one) or as an object.

        Raises
        ------
        HeptiError
            If it is neither.
        """
        if isinstance(value, Added):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
            raise HeptiError(f"tokenizer_config.json: {value!r} is no token: a text, or an object with content")
        marked = bool(value.get("special", False)) if special is None else special
        normalized = bool(value.get("normalized", not marked))
        flags = {flag: bool(value.get(flag)) for flag in _FLAGS}
        return cls(value["content"], **flags, normalized=normalized, special=marked)


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """All that the files beside a checkpoint's words say of them.

    Parameters
    ----------
    options
        Keys that change ids, by name.
    named
        Special tokens by what they are for, in transformers' order; None: there is none.
    extra
        Further special tokens.
    added
        Added tokens by their ids.
    stored
        What tokenizer.json says; None where there is none.
    extra_counts
        Whether `extra` counts beside the tokens that a SentencePiece model has itself.
    """

    options: Mapping[str, Any]
    named: Mapping[str, Added | None]
    extra: tuple[Added, ...]
    added: Mapping[int, Added]
    stored: Mapping[str, Any] | None = field(default=None, repr=False)
    extra_counts: bool = True

    def with_defaults(self, names: Mapping[str, str | Added]) -> TokenizerSettings:
        """Return it with a class's own special tokens, where the files name no other."""
        ours = {name: Added.of(text) for name, text in names.items()}
        return replace(self, named={**dict.fromkeys(NAMED), **ours, **self.named})

    def text(self, name: str) -> str | None:
        """Return the text of a special token."""
        token = self.named.get(name)
        return token.content if token else None


def read_settings(directory: Path) -> TokenizerSettings:
    """Read the files of a checkpoint directory.

    Raises
    ------
    HeptiError
        If one is unreadable, or has a key that Hepti does not know.
    """
    path = directory / "tokenizer.json"
    stored = read_json(path) if path.is_file() else None
    said = read_json(directory / "tokenizer_config.json", optional=True)
    _refuse_unknown(said)
    if stored is not None:  # its own last step says so
        said = {key: value for key, value in said.items() if key not in ("add_bos_token", "add_eos_token")}
    own = said
    added: dict[int, Added] = {}
    if "added_tokens_decoder" in said:
        added = {int(number): Added.of(token) for number, token in said["added_tokens_decoder"].items()}
    else:
        said = said | _of_map(read_json(directory / "special_tokens_map.json", optional=True))
        special = {_content(token) for token in (*map(said.get, NAMED), *_extra(said))}
        for text, number in read_json(directory / "added_tokens.json", optional=True).items():
            is_special = text in special
            added[int(number)] = Added(text, normalized=not is_special, special=is_special)
        for token in (stored or {}).get("added_tokens") or ():
            added[int(token["id"])] = Added.of(token)
    known = {token.content: token for token in added.values()}
    named: dict[str, Added | None] = {}
    for name in (*NAMED, *(name for name in said if name not in NAMED and name.endswith("_token"))):
        if name in NAMED and name in said:
            named[name] = None if said[name] is None else known.get(_content(said[name]) or "", _named(said[name]))
        elif name in said and isinstance(said[name], str | Mapping | Added):
            named[name] = _named(said[name])
    named |= {name: _named(token) for name, token in (said.get("model_specific_special_tokens") or {}).items()}
    extra = _extra(said)
    if isinstance(extra, Mapping):
        named |= {name: _named(token) for name, token in extra.items()}
        extra = ()
    counts = bool(_extra(own) or said.get("extra_special_tokens"))
    return TokenizerSettings(said, named, tuple(map(_named, extra)), added, stored, counts)


def max_length(settings: Mapping[str, Any]) -> int | None:
    """Return how many ids a text may have, as tokenizer_config.json says."""
    said = settings.get("model_max_length", settings.get("max_len"))
    return None if said is None else int(said)


def _extra(said: Mapping[str, Any]) -> Any:
    return said.get("extra_special_tokens") or said.get("additional_special_tokens") or ()


def _of_map(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return special_tokens_map.json, whose tokens are special whatever it says of them."""
    return {key: Added.of(value, special=True) if _is_token(key, value) else value for key, value in said.items()}


def _is_token(key: str, value: Any) -> bool:
    return isinstance(value, Mapping) and key != "extra_special_tokens"


def _named(value: Any) -> Added:
    """Read a special token, which is one even where its object does not say so."""
    return Added.of(value, special=True)


def _content(value: Any) -> str | None:
    if value is None:
        return None
    return value if isinstance(value, str) else value.content if isinstance(value, Added) else value.get("content")


def _refuse_unknown(said: Mapping[str, Any]) -> None:
    for key, value in said.items():
        if key in ONLY and value not in ONLY[key]:
            raise HeptiError(f"tokenizer_config.json: {key} is {value!r}, Hepti computes only {ONLY[key][0]!r}")
        if value and key not in (*HONOURED, *WITHOUT_EFFECT, *ONLY) and not _names_token(key):
            raise HeptiError(
                f"tokenizer_config.json: Hepti does not know the key {key}, which may change what a text becomes: "
                f"take it out if it does not"
            )


def _names_token(key: str) -> bool:
    """Tell whether a key is of a special token: `image_token`, or its id, `bos_token_id`."""
    return key.endswith(("_token", "_token_id", "_tokens")) and not key.startswith(("add_", "split_"))
