"""The tokenizer of a GGUF file as the text of a tokenizer.json, and the tokens that begin and end.

A GGUF file has words, their types, and merges or scores, and only the name of how text is cut up before. As
transformers (`integrations/gguf/gguf_tokenizer_mapping.py`) and llama.cpp (`src/llama-vocab.cpp`) understand it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from weights.decoders.gguf.cuts import CUTS, DEFAULT
from weights.decoders.texts import DecoderTexts
from weights.inputs.tokenize import PromptTokenizer

Json = dict[str, Any]
_CONTROL, _USER_DEFINED = 3, 4  # types of words
# Of Phi-3, which swallows white space after all others that it names (llama.cpp, by the model's name).
_NOT_SWALLOWING = ("<unk>", "<s>", "<|endoftext|>")
# Words with a meaning, by the file's names for them.
_MEANINGS = {"bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unk": "unknown", "pad": "padding"}
_TEXTS = ("bos", "eos", "unk", "pad")  # that templates use
_LAST = ("eos", "eot", "eom")
_SAMPLING = {
    "temperature": "general.sampling.temp", "top_p": "general.sampling.top_p", "top_k": "general.sampling.top_k",
}  # fmt: skip
# Words that end an answer, too, beside eos: llama.cpp finds them by their text.
_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",  # noqa: RUF001
)  # fmt: skip
# Words for filling in, which end an answer, too: where the file does not say, by their text.
_FILLING = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
# What llama.cpp takes where a file of pieces does not say.
_USUAL = {"bos": 1, "eos": 2, "unk": 0}


def gguf_texts(facts: Mapping[str, Any], architecture: str) -> tuple[DecoderTexts, str]:
    """Return what a file says of text, and why its tokenizer could not be made; empty if it could.

    Raises
    ------
    HeptiError
        If a first or last token is none of its words.
    """
    words: Sequence[str] = facts.get("tokenizer.ggml.tokens") or ()
    named = {name: _word(words, facts, theirs) for name, theirs in _MEANINGS.items()}
    if facts.get("tokenizer.ggml.model") == "llama":
        for name, token in _USUAL.items():
            if named[name] is None and token < len(words):
                named[name] = token
    if facts.get("tokenizer.ggml.add_bos_token") and words and named["bos"] is None:
        raise HeptiError("tokenizer.ggml.add_bos_token is true, and tokenizer.ggml.bos_token_id is missing")
    problem, tokenizer = "", None
    try:
        tokenizer = facts.get("tokenizer.huggingface.json") or _tokenizer(facts, architecture, named["unk"])
        PromptTokenizer(tokenizer)
    except HeptiError as error:
        problem, tokenizer = str(error), None
    template = facts.get("tokenizer.chat_template")
    suppressed = facts.get("tokenizer.ggml.suppress_tokens")
    texts = DecoderTexts(
        tokenizer,
        template if isinstance(template, str) and template else None,
        {name: facts[theirs] for name, theirs in _SAMPLING.items() if theirs in facts},
        {f"{name}_token": words[named[name]] for name in _TEXTS if words and named[name] is not None},
        named["bos"] if _begins(facts) else None,
        tuple(dict.fromkeys(token for token in (*map(named.get, _LAST), *_ends(facts, words)) if token is not None)),
        () if suppressed is None else tuple(int(token) for token in suppressed if 0 <= token < len(words)),
    )
    return texts, problem


def missing_facts(facts: Mapping[str, Any]) -> list[str]:
    """Say which facts of text are missing where llama.cpp warns, each as the file "has" it, and what is taken."""
    kind = facts.get("tokenizer.ggml.model")
    found: list[str] = []
    if facts.get("tokenizer.ggml.tokens") is None:
        return found
    if kind == "gpt2" and not facts.get("tokenizer.ggml.pre"):
        found.append(f"has no tokenizer.ggml.pre: its text is cut up as {DEFAULT!r}, which may not be the model's way")
    if kind == "gpt2" and facts.get("tokenizer.ggml.eos_token_id") is None:
        found.append("has no tokenizer.ggml.eos_token_id: only words that are known to end an answer end one")
    return found


def _ends(facts: Mapping[str, Any], words: Sequence[str]) -> list[int]:
    """Return the words that end an answer by their text, and those for filling in."""
    numbers = {text: number for number, text in enumerate(words)}
    found = [numbers[text] for text in _ENDS if text in numbers]
    for name, texts in _FILLING.items():
        token = _word(words, facts, name)
        named = [numbers[text] for text in texts if text in numbers]
        found += [token] if token is not None else named[:1]
    ends = {words[token] for token in found}
    # Of models that call functions, which go on after what ends a part (as llama.cpp has it).
    calls = {"<|call|>", "<|calls|>"} & ends
    not_ends = {"<|end|>"} if calls and {"<|return|>", "<|flush|>"} & ends else set()
    if "<|tool_response>" in ends:
        not_ends.add("</s>")
    return [token for token in found if words[token] not in not_ends]


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
    cut = CUTS.get(facts.get("tokenizer.ggml.pre") or DEFAULT)
    kind = facts.get("tokenizer.ggml.model")
    return kind == "llama" or (kind == "gpt2" and cut is not None and cut.begins)


def _tokenizer(facts: Mapping[str, Any], architecture: str, unknown: int | None) -> str:
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
        made = _of_pieces(facts, words, architecture, unknown)
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
    way = facts.get("tokenizer.ggml.pre") or DEFAULT
    if way not in CUTS:
        raise HeptiError(f"it cuts up text as {way!r} does, which Hepti does not know{did_you_mean(way, CUTS)}")
    cut, letters = CUTS[way], {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps: list[Json] = [
        {"type": "Split", "pattern": {"Regex": step}, "behavior": "Isolated", "invert": False} for step in cut.steps
    ]
    return {
        "normalizer": {"type": "NFC"} if cut.normalises else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, {**letters, "use_regex": False}]},
        "decoder": {**letters, "use_regex": True},
        "model": _bpe(words, _given_merges(facts), ignore_merges=cut.whole_words),
    }


def _of_pieces(facts: Mapping[str, Any], words: Sequence[str], architecture: str, unknown: int | None) -> Json:
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
