"""Small tokenizers of every class, as checkpoints have them, and what transformers makes of their files."""

import json
import os
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
WORDS = ("hello", "Hello", "world", "World", "cafe", "café", "##s")
LETTERS = "abcdefghijklmnopqrstuvwxyzé漢字"
PAIRS = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"))
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
# What can tell two tokenizers apart: casing, accents, Chinese, spaces, added and special tokens, digits, an emoji.
TEXTS = (
    "Hello World", "hello", " hello  world", "cafés CAFÉ", "ab漢字cd", "<ent> hello", "hello<ent>world",
    "<s>[CLS]hello", "it's 12.5\tand\n more", "", "hello </s> [SEP] world", "😀 ok", "< ent > <ENT>",
    "[MASK] the<mask>x", "▁hello",
)  # fmt: skip


def wordpiece(special=BERT):
    """Return a tokenizer as BERT's."""
    letters = [*LETTERS, *LETTERS.upper(), *"0123456789.'<>/▁"]
    words = dict.fromkeys([*special, *WORDS, *letters, *(f"##{letter}" for letter in letters)])
    made = Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    made.add_special_tokens(list(special))
    first, last = (special[2], special[3]) if special == BERT else ("<s>", "</s>")
    ids = [(word, made.token_to_id(word)) for word in (first, last)]
    made.post_processor = processors.TemplateProcessing(single=f"{first} $A {last}", special_tokens=ids)
    return made


def byte_pairs(special=ROBERTA, last=True):
    """Return a tokenizer as RoBERTa's, or as GPT-2's where it has no last step."""
    merged = ["".join(pair) for pair in PAIRS]
    words = {word: n for n, word in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *merged])}
    made = Tokenizer(models.BPE(words, list(PAIRS)))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(list(special))
    if last:
        made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return made


def unigram(special=("<s>", "<pad>", "</s>", "<unk>")):
    """Return a tokenizer as XLM-R's."""
    words = [f"{SPACE}hello", f"{SPACE}world", SPACE, "hello", *LETTERS, *"HW.'0125<>"]
    pieces = [
        *((word, 0.0) for word in special),
        *((word, -1.0 - n / 10) for n, word in enumerate(words)),
        ("<mask>", 0.0),
    ]
    made = Tokenizer(models.Unigram(pieces, unk_id=3))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(word, made.token_to_id(word)) for word in ("<s>", "</s>")]
    )
    return made


def llama():
    """Return a tokenizer as Llama 2's, of byte pairs with spaces in front and bytes where there is no word."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{n:02X}>" for n in range(256)),
        SPACE,
        *LETTERS,
        *"HW",
        "he",
        "ll",
        "hell",
        "hello",
    ]
    ids = {word: n for n, word in enumerate([*words, f"{SPACE}hello"])}
    pairs = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), (SPACE, "hello")]
    made = Tokenizer(models.BPE(ids, pairs, fuse_unk=True, byte_fallback=True, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


# Of every class: its model_type, its tokenizer, and what tokenizer_config.json says of it.
SORTS = {
    "BertTokenizer": ("bert", wordpiece),
    "DistilBertTokenizerFast": ("distilbert", wordpiece),
    "ElectraTokenizer": ("electra", wordpiece),
    "MPNetTokenizer": ("mpnet", lambda: wordpiece(("<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"))),
    "RobertaTokenizer": ("roberta", byte_pairs),
    "XLMRobertaTokenizer": ("xlm-roberta", unigram),
    "CamembertTokenizer": (
        "camembert",
        lambda: unigram(("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")),
    ),
    "GPT2Tokenizer": ("gpt2", lambda: byte_pairs(("<|endoftext|>",), last=False)),
    "Qwen2Tokenizer": ("qwen2", lambda: byte_pairs(("<|endoftext|>", "<|im_start|>"), last=False)),
    "LlamaTokenizer": ("llama", llama),
    "GemmaTokenizer": ("gemma2", llama),
    "PreTrainedTokenizerFast": ("llama", lambda: byte_pairs(("<|endoftext|>",), last=False)),
}


def write(folder, sort, settings=None, **files):
    """Write a checkpoint's files of words: tokenizer.json, tokenizer_config.json with `settings`, and others."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kind, make = SORTS[sort]
    make().save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": sort, "model_max_length": 64, **(settings or {})}
    contents = {"config": {"model_type": kind}, "tokenizer_config": said, **files}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def theirs(folder, texts=TEXTS):
    """Return what transformers makes of texts."""
    made = AutoTokenizer.from_pretrained(folder)
    return [made(text, truncation=True)["input_ids"] for text in texts]
