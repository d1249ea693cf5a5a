"""The tokenizer of a GGUF file as the text of a tokenizer.json, and the tokens that begin and end.

A GGUF file has words, their types, and merges or scores, and only the name of how text is cut up before. As
transformers (`integrations/gguf/gguf_tokenizer_mapping.py`) and llama.cpp (`src/llama-vocab.cpp`) understand it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from solver.base.errors import HeptiError
from weights.decoders.texts import DecoderTexts
from weights.inputs.tokenize import PromptTokenizer

Json = dict[str, Any]
_CONTROL, _USER_DEFINED = 3, 4  # types of words
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace("{1,3}", "")
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORTENED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_TEKKEN = rf"{_LOWER}|{_UPPER}|\p{{N}}|{_SIGNS}"
_GPT_4O = rf"{_LOWER}{_SHORTENED}|{_UPPER}{_SHORTENED}|\p{{N}}{{1,3}}|{_SIGNS}"
# How text is cut up by the file's name for it; None: as GPT-2 does.
_CUTS: Mapping[str, str | None] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN_2),
    "tekken": _TEKKEN,
    "gpt-4o": _GPT_4O,
    **dict.fromkeys(("gpt-2", "smollm"), None),
}
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")  # a word of the vocabulary is not cut
# Of Phi-3, which swallows white space behind all others that it names (llama.cpp, by the model's name).
_NOT_SWALLOWING = ("<unk>", "<s>", "<|endoftext|>")
_BEGIN = ("llama-bpe", "llama3", "llama-v3", "falcon3")  # with bos, where the file does not say so
# Words with a meaning, by the file's names for them.
_MEANINGS = {"bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unk": "unknown", "pad": "padding"}
_TEXTS = ("bos", "eos", "unk", "pad")  # that templates use
_LAST = ("eos", "eot", "eom")
_SAMPLING = {
    "temperature": "general.sampling.temp", "top_p": "general.sampling.top_p", "top_k": "general.sampling.top_k",
}  # fmt: skip
# Words that end an answer, too, beside eos: llama.cpp finds them by their text.
_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "< EOT >",
    "_<EOT>",
)  # fmt: skip


def gguf_texts(facts: Mapping[str, Any], architecture: str) -> tuple[DecoderTexts, str]:
    """Return what a file says of text, and why its tokenizer could not be made; empty if it could.

    Raises
    ------
    HeptiError
        If a first or last token is none of its words.
    """
    words: Sequence[str] = facts.get("tokenizer.ggml.tokens") or ()
    named = {name: _word(words, facts, theirs) for name, theirs in _MEANINGS.items()}
    problem, tokenizer = "", None
    try:
        tokenizer = facts.get("tokenizer.huggingface.json") or _tokenizer(facts, architecture)
        PromptTokenizer(tokenizer)
    except HeptiError as error:
        problem, tokenizer = str(error), None
    template = facts.get("tokenizer.chat_template")
    texts = DecoderTexts(
        tokenizer,
        template if isinstance(template, str) and template else None,
        {name: facts[theirs] for name, theirs in _SAMPLING.items() if theirs in facts},
        {f"{name}_token": words[named[name]] for name in _TEXTS if words and named[name] is not None},
        named["bos"] if _begins(facts) else None,
        tuple(dict.fromkeys(token for token in (*map(named.get, _LAST), *_ends(facts, words)) if token is not None)),
    )
    return texts, problem


def _ends(facts: Mapping[str, Any], words: Sequence[str]) -> list[int]:
    """Return the words that end an answer by their text."""
    types = facts.get("tokenizer.ggml.token_type")
    if types is None:
        return []
    return [words.index(text) for text in _ENDS if text in words and types[words.index(text)] == _CONTROL]


def _word(words: Sequence[str], facts: Mapping[str, Any], name: str) -> Any:
    """Return the id of a word with a meaning, or None."""
    token = facts.get(f"tokenizer.ggml.{name}_token_id")
    if token is not None and words and not (type(token) is int and 0 <= token < len(words)):
        raise HeptiError(f"its {name} token is {token}, it has {len(words)} words")
    return token


def _begins(facts: Mapping[str, Any]) -> bool:
    given = facts.get("tokenizer.ggml.add_bos_token")
    if given is not None:
        return bool(given)
    return facts.get("tokenizer.ggml.model") == "llama" or facts.get("tokenizer.ggml.pre") in _BEGIN


def _tokenizer(facts: Mapping[str, Any], architecture: str) -> str:
    """Return the text of a tokenizer.json.

    Raises
    ------
    HeptiError
        If the file does not say enough, or cuts up text in a way that is not known.
    """
    model = facts.get("tokenizer.ggml.model")
    words = facts.get("tokenizer.ggml.tokens")
    if not words:
        raise HeptiError("it has no words")
    if model == "gpt2":
        made = _of_bytes(facts, words)
    elif model == "llama":
        made = _of_pieces(facts, words, architecture)
    else:
        raise HeptiError(f"its tokenizer is of kind {model!r}, Hepti makes 'gpt2' and 'llama'")
    made = {"version": "1.0", "truncation": None, "padding": None, "post_processor": None, **made}
    made["added_tokens"] = _added(facts, words, made["model"]["vocab"])
    if architecture == "phi3" and model == "llama":
        for word in made["added_tokens"]:
            word["rstrip"] = word["content"] not in _NOT_SWALLOWING
    return json.dumps(made, ensure_ascii=False)


def _bpe(words: Sequence[str], merges: Sequence[Sequence[str]], **how: Any) -> Json:
    vocabulary = {word: number for number, word in enumerate(words)}
    return {"type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **how,
            "vocab": vocabulary, "merges": [list(merge) for merge in merges]}  # fmt: skip


def _of_bytes(facts: Mapping[str, Any], words: Sequence[str]) -> Json:
    """Bytes as letters, as GPT-2 began it."""
    way = facts.get("tokenizer.ggml.pre", "gpt-2")
    if way not in _CUTS:
        raise HeptiError(f"it cuts up text as {way!r} does, Hepti knows {', '.join(_CUTS)}")
    cut, letters = _CUTS[way], {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps: list[Json] = []
    if way == "smollm":
        steps = [{"type": "Digits", "individual_digits": True}]
    elif cut is not None:
        steps = [{"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}]
    return {
        "normalizer": {"type": "NFC"} if way == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, {**letters, "use_regex": cut is None}]},
        "decoder": {**letters, "use_regex": True},
        "model": _bpe(words, _given_merges(facts), ignore_merges=way in _WHOLE_WORDS),
    }


def _of_pieces(facts: Mapping[str, Any], words: Sequence[str], architecture: str) -> Json:
    """Pieces of SentencePiece, whose spaces are ▁, and bytes for letters that it does not have."""
    gemma = architecture.startswith("gemma")
    if gemma:  # which writes spaces as they are, and merges in the order of its words
        words = ["▁" * len(word) if word and not word.strip(" ") else word for word in words]
    scores = [-number for number in range(len(words))] if gemma else facts.get("tokenizer.ggml.scores")
    if "tokenizer.ggml.merges" in facts:
        merges = _given_merges(facts)
    elif scores is not None and len(scores) == len(words):
        merges = _merges_of(words, scores)
    else:
        raise HeptiError("it has neither merges nor scores for its words")
    in_front = facts.get("tokenizer.ggml.add_space_prefix", not gemma)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    front = [{"type": "Prepend", "prepend": "▁"}] if in_front else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if in_front else []
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    unknown = _word(words, facts, "unknown")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*front, spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": _bpe(
            words, merges, unk_token=None if unknown is None else words[unknown], fuse_unk=True, byte_fallback=True
        ),
    }  # fmt: skip


def _given_merges(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    merges = [tuple(merge.split(" ")) for merge in facts.get("tokenizer.ggml.merges") or ()]
    if any(len(merge) != 2 for merge in merges):
        raise HeptiError("its merges are not of two words each")
    return merges


def _merges_of(words: Sequence[str], scores: Any) -> list[tuple[str, ...]]:
    """Return all ways to make a word of two others, those of the best scores first."""
    known = {word: number for number, word in enumerate(words)}
    found = []
    for word, number in known.items():
        pairs = [(word[:cut], word[cut:]) for cut in range(1, len(word))]
        ways = [(left, right) for left, right in pairs if left in known and right in known]
        found += [
            (float(scores[number]), left, right)
            for left, right in sorted(ways, key=lambda way: (known[way[0]], known[way[1]]))
        ]
    found.sort(key=lambda way: (way[0], len(way[1]), len(way[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _added(facts: Mapping[str, Any], words: Sequence[str], vocabulary: Mapping[str, int]) -> list[Json]:
    """Return words that stand for themselves wherever a text has them; control words say nothing."""
    types = facts.get("tokenizer.ggml.token_type")
    if types is None or len(types) != len(words):
        return []
    return [
        {"id": number, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": int(types[number]) == _CONTROL}
        for number, word in enumerate(words)
        if types[number] in (_CONTROL, _USER_DEFINED) and word and vocabulary.get(word) == number
    ]  # fmt: skip
