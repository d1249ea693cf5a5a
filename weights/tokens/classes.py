"""The tokenizer classes of transformers 5 that Hepti builds, each from its words and settings.

Such a class makes all steps itself, and of tokenizer.json takes only the words: what do_lower_case, strip_accents or
add_prefix_space say counts, whatever the steps in tokenizer.json are. `GENERIC` classes take tokenizer.json as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from solver.base.errors import HeptiError
from weights.tokens import parts
from weights.tokens.parts import SPACE, TokenizerPart
from weights.tokens.settings import Added, TokenizerSettings


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a tokenizer, from whichever file.

    Parameters
    ----------
    ids
        By word.
    pieces
        With their scores, of a class that has no ids by word.
    merges
        Of byte pairs.
    charsmap
        How SentencePiece normalises characters, in base64; "": it does not.
    last_step
        What tokenizer.json does after the model; None where there is none.
    """

    ids: Mapping[str, int] = field(default_factory=dict)
    merges: Sequence[Sequence[str]] = ()
    pieces: Sequence[Sequence[Any]] = ()
    charsmap: str = ""
    last_step: TokenizerPart | None = None


Build = Callable[[Words, TokenizerSettings], TokenizerPart]
Last = Callable[[TokenizerPart, TokenizerSettings], TokenizerPart | None]


@dataclass(frozen=True, slots=True)
class TokenizerClass:
    """What one class of transformers makes.

    Parameters
    ----------
    model
        Its kind of words, as tokenizer.json calls it.
    build
        Makes all but added tokens and the last step.
    special
        Its own special tokens.
    last
        Makes its last step; None: that of tokenizer.json stays.
    extra
        Further special tokens of its own, where the files name none.
    files
        What its words lie in where there is no tokenizer.json.
    """

    model: str
    build: Build
    special: Mapping[str, str | Added] = field(default_factory=dict)
    last: Last | None = None
    extra: tuple[str, ...] = ()
    files: tuple[str, ...] = ("vocab.json", "merges.txt")


def _wordpiece(words: Words, settings: TokenizerSettings) -> TokenizerPart:
    return parts.tokenizer(
        parts.word_piece(words.ids, settings.text("unk_token") or ""),
        parts.bert_normalizer(settings.options), {"type": "BertPreTokenizer"},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
    )  # fmt: skip


def _bytes(words: Words, settings: TokenizerSettings) -> TokenizerPart:
    model = parts.pairs(words.ids, words.merges, continuing_subword_prefix="", end_of_word_suffix="")
    first = parts.byte_level(bool(settings.options.get("add_prefix_space", False)))
    return parts.tokenizer(model, None, first, parts.byte_level())


# Of Qwen2: what is a word before byte pairs are looked for.
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _qwen(words: Words, settings: TokenizerSettings) -> TokenizerPart:
    model = parts.pairs(words.ids, words.merges, continuing_subword_prefix="", end_of_word_suffix="")
    first = parts.byte_level(bool(settings.options.get("add_prefix_space")), use_regex=False)
    steps = [parts.split({"Regex": _QWEN_WORDS}), first]
    return parts.tokenizer(model, {"type": "NFC"}, parts.sequence("pretokenizers", steps), parts.byte_level())


def _pieces(words: Words, settings: TokenizerSettings, unknown: int) -> TokenizerPart:
    """Make a tokenizer of pieces with scores, as XLM-R's."""
    space = parts.metaspace("always" if settings.options.get("add_prefix_space", True) else "never")
    charsmap = {"type": "Precompiled", "precompiled_charsmap": words.charsmap} if words.charsmap else None
    steps = parts.sequence("pretokenizers", [{"type": "WhitespaceSplit"}, space])
    return parts.tokenizer(parts.unigram(words.pieces, unknown), charsmap, steps, space)


def _xlm_roberta(words: Words, settings: TokenizerSettings) -> TokenizerPart:
    return _pieces(words, settings, 3)


def _camembert(words: Words, settings: TokenizerSettings) -> TokenizerPart:
    unknown = settings.text("unk_token")
    number = next((number for number, piece in enumerate(words.pieces) if piece[0] == unknown), 0)
    return _pieces(words, settings, number)


def _llama(words: Words, settings: TokenizerSettings) -> TokenizerPart:
    prefix = settings.options.get("add_prefix_space")
    prefix = True if prefix is None else bool(prefix)
    scheme = ("always" if settings.options.get("legacy", False) else "first") if prefix else "never"
    steps = [parts.replace({"String": SPACE}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    steps += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * prefix
    model = parts.pairs(words.ids, words.merges, fuse_unk=True, byte_fallback=True)
    return parts.tokenizer(model, None, parts.metaspace(scheme, splits=False), parts.sequence("decoders", steps))


def _gemma(words: Words, settings: TokenizerSettings) -> TokenizerPart:
    unknown = settings.text("unk_token")
    model = parts.pairs(words.ids, words.merges, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    steps = [parts.replace({"String": SPACE}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    return parts.tokenizer(
        model, parts.replace({"String": " "}, SPACE), parts.split({"String": " "}, "MergedWithPrevious"),
        parts.sequence("decoders", steps),
    )  # fmt: skip


def _bert_last(made: TokenizerPart, settings: TokenizerSettings) -> TokenizerPart:
    cls, sep = str(settings.text("cls_token")), str(settings.text("sep_token"))
    ids = {cls: parts.id_of(made, cls), sep: parts.id_of(made, sep)}
    single = [f"{cls}:0", "$A:0", f"{sep}:0"]
    return parts.template(single, [*single, "$B:1", f"{sep}:1"], ids)


def _roberta_last(made: TokenizerPart, settings: TokenizerSettings) -> TokenizerPart:
    cls, sep = str(settings.text("cls_token")), str(settings.text("sep_token"))
    return {
        "type": "RobertaProcessing", "sep": [sep, parts.id_of(made, sep)], "cls": [cls, parts.id_of(made, cls)],
        "trim_offsets": True, "add_prefix_space": bool(settings.options.get("add_prefix_space", False)),
    }  # fmt: skip


def _xlm_roberta_last(made: TokenizerPart, settings: TokenizerSettings) -> TokenizerPart:
    bos, eos = str(settings.text("bos_token")), str(settings.text("eos_token"))
    ids = {bos: parts.id_of(made, bos), eos: parts.id_of(made, eos)}
    single = [f"{bos}:0", "$A:0", f"{eos}:0"]
    return parts.template(single, [*single, f"{eos}:0", "$B:0", f"{eos}:0"], ids)


_MPNET: Mapping[str, str | Added] = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "[UNK]",
    "pad_token": "<pad>",
}  # fmt: skip
_ROBERTA: Mapping[str, str | Added] = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
    "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
_BERT = TokenizerClass(
    "WordPiece", _wordpiece,
    {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"},
    _bert_last, files=("vocab.txt",),
)  # fmt: skip
_ENDS = "<|endoftext|>"
_SENTENCEPIECE = "sentencepiece.bpe.model"
CLASSES: Mapping[str, TokenizerClass] = {
    **dict.fromkeys(("Bert", "DistilBert", "Electra", "MobileBert", "SqueezeBert", "LayoutLM"), _BERT),
    "MPNet": TokenizerClass(
        "WordPiece", _wordpiece,
        {**_MPNET, "mask_token": Added("<mask>", lstrip=True)},
        _roberta_last, files=("vocab.txt",),
    ),
    **dict.fromkeys(("Roberta", "Bart", "Longformer"), TokenizerClass("BPE", _bytes, _ROBERTA, _roberta_last)),
    "XLMRoberta": TokenizerClass("Unigram", _xlm_roberta, _ROBERTA, _xlm_roberta_last, files=(_SENTENCEPIECE,)),
    "Camembert": TokenizerClass(
        "Unigram", _camembert, {**_ROBERTA, "mask_token": Added("<mask>", lstrip=True)}, _xlm_roberta_last,
        ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"), (_SENTENCEPIECE,),
    ),
    "GPT2": TokenizerClass("BPE", _bytes, {"unk_token": _ENDS, "bos_token": _ENDS, "eos_token": _ENDS}),
    "Qwen2": TokenizerClass("BPE", _qwen, {"unk_token": _ENDS, "eos_token": _ENDS, "pad_token": _ENDS}),
    "Llama": TokenizerClass(
        "BPE", _llama, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}, files=("tokenizer.model",)
    ),
    "Gemma": TokenizerClass(
        "BPE", _gemma,
        {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
         "mask_token": "<mask>"},
        files=("tokenizer.model",),
    ),
}  # fmt: skip
# Names of classes that take tokenizer.json as it is.
GENERIC = ("PreTrained", "TokenizersBackend", "PythonBackend", "Bloom")
# The class of a model_type that says nothing of it, in transformers 5.24; GENERIC where it is none of these.
OF_TYPE = {
    "bert": "Bert", "distilbert": "Bert", "electra": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert", "mpnet": "MPNet", "gpt2": "GPT2", "qwen2": "Qwen2", "qwen3": "Qwen2",
    "gemma": "Gemma", "gemma2": "Gemma", "gemma3": "Gemma", "gemma3_text": "Gemma",
    "mistral": "TokenizersBackend", "ministral": "TokenizersBackend", "phi3": "TokenizersBackend",
    "olmo2": "TokenizersBackend", "olmo3": "TokenizersBackend", "granite": "TokenizersBackend",
}  # fmt: skip
# Model types whose published tokenizer_class is wrong: transformers takes that of the type.
_WRONG = ("qwen2", "phi3")
_MISTRAL = ("mistral", "ministral")


def class_of(config: Mapping[str, Any], said: Mapping[str, Any], stored: Mapping[str, Any] | None) -> str:
    """Return the name of a checkpoint's class in `CLASSES`; "" where tokenizer.json is taken as it is.

    Raises
    ------
    HeptiError
        If transformers makes of it what Hepti does not.
    """
    kind = str(config.get("model_type"))
    of_type = OF_TYPE.get(kind)
    named = said.get("tokenizer_class") or config.get("tokenizer_class")
    if named is None:
        return _known(of_type or GENERIC[0])
    named = str(named).removesuffix("Fast").removesuffix("Tokenizer")
    if named == "Llama" and kind not in (*_MISTRAL, *_WRONG) and _has_byte_level(stored):
        return ""
    if of_type is not None and of_type != named:
        if of_type in GENERIC or (kind not in _WRONG and named in GENERIC):
            return ""
        return _known(of_type if kind in _WRONG else named)
    return _known(named)


def _known(name: str) -> str:
    if name in GENERIC:
        return ""
    if name not in CLASSES:
        raise HeptiError(
            f"tokenizer_config.json: Hepti does not build tokenizer_class {name}Tokenizer: where tokenizer.json "
            f"is right as it is, write PreTrainedTokenizerFast there"
        )
    return name


def _has_byte_level(stored: Mapping[str, Any] | None) -> bool:
    """Tell whether a tokenizer.json works on bytes, in any of its steps."""

    def types(part: Any) -> bool:
        if isinstance(part, Mapping):
            return part.get("type") == "ByteLevel" or any(types(value) for value in part.values())
        return isinstance(part, list) and any(map(types, part))

    steps = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    return stored is not None and any(types(stored.get(step)) for step in steps)
