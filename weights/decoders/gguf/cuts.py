"""How text is cut up before it becomes tokens, by the names that GGUF files have for it.

Which name means what is llama.cpp's (`src/llama-vocab.cpp`); the expressions are those of the models' own
tokenizer.json. Names that are not here are of tokenizers that need code of their own there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"


def _llama(digits: str) -> str:
    return rf"{_SHORT}|{_LETTERS}|{digits}|{_SIGNS}|{_END}"


_LLAMA_3, _QWEN_2 = _llama(r"\p{N}{1,3}"), _llama(r"\p{N}")
_QWEN_35 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_END}"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_SIGNS_AND_SLASHES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_END}"
_TEKKEN = rf"{_LOWER}|{_UPPER}|\p{{N}}|{_SIGNS_AND_SLASHES}"
_GPT_4O = rf"{_LOWER}{_SHORT}?|{_UPPER}{_SHORT}?|\p{{N}}{{1,3}}|{_SIGNS_AND_SLASHES}"
_HAN_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"  # noqa: RUF001
_DEEPSEEK_WORDS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK = rf"{_DEEPSEEK_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_END}"
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"  # noqa: RUF001


@dataclass(frozen=True, slots=True)
class CutWay:
    """A way to cut up text.

    Parameters
    ----------
    steps
        Expressions: what each finds in the pieces of those before becomes a piece.
    whole_words
        Whether a piece that is a word of the vocabulary is not cut any more.
    begins
        Whether a text begins with bos where the file does not say.
    normalises
        Whether letters are composed first (NFC).
    """

    steps: tuple[str, ...]
    whole_words: bool = False
    begins: bool = False
    normalises: bool = False


# What llama.cpp takes, with a warning, where a file does not say.
DEFAULT = "default"
_BY_CUT: tuple[tuple[CutWay, tuple[str, ...]], ...] = (
    (CutWay((r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")), (DEFAULT,)),
    (
        CutWay((_LLAMA_3,), whole_words=True, begins=True),
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    ),
    (CutWay((_LLAMA_3,)), ("smaug-bpe", "dbrx", "glm4", "chatglm-bpe")),
    (CutWay((r"\p{N}{1,3}", _llama(r"\p{N}+")), whole_words=True), ("minicpm5",)),
    (CutWay((_QWEN_2,), normalises=True), ("qwen2",)),
    (
        CutWay((_QWEN_2,)),
        ("deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "hunyuan", "solar-open", "megrez", "grok-2"),
    ),
    (CutWay((_QWEN_35,), normalises=True), ("qwen35",)),
    (CutWay((r"[^\n]+|[\n]+", _QWEN_2)), ("laguna",)),
    (CutWay((rf"{_LETTERS}|\p{{N}}|{_SIGNS}|{_END}",)), ("ufakzeka",)),
    (CutWay((rf"{_SHORT}|{_LETTERS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_END}",)), ("seed-coder",)),
    (
        CutWay((
            rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
            r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )),
        ("exaone-moe",),
    ),
    (
        CutWay((
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
            r"\s+(?!\S)|\s+",
        )),
        ("bailingmoe", "bailingmoe2", "llada-moe"),
    ),
    (CutWay((_TEKKEN,), whole_words=True, begins=True), ("tekken",)),
    (CutWay((_GPT_4O,)), ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2")),
    (CutWay((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O)), ("tiny_aya", "cohere2moe")),
    (CutWay((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK)), ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4")),
    (
        CutWay((
            r"\p{N}{1,3}", _HAN_AND_KANA, rf"{_DEEPSEEK_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+", r"\p{N}",
        )),
        ("spark2_5",),
    ),
    (CutWay((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")), ("deepseek-coder",)),
    (CutWay((r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]")), ("falcon",)),
    (
        CutWay((r"\p{N}", GPT_2)),
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    (CutWay((_BLOOM,)), ("bloom", "poro-chat", "gpt3-finnish")),
    (CutWay((_BLOOM, r"\p{N}")), ("viking",)),
    (
        CutWay((GPT_2,)),
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "jina-es", "jina-de", "jina-v2-es",
         "jina-v2-de", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4"),
    ),
)  # fmt: skip
CUTS: Mapping[str, CutWay] = {name: cut for cut, names in _BY_CUT for name in names}
