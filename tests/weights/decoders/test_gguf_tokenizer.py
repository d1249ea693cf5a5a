"""Words, merges and scores of a GGUF become the tokenizer that transformers makes of them."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from solver.base.errors import HeptiError
from weights.decoders.gguf.tokenizer import gguf_texts
from weights.inputs.tokenize import PromptTokenizer

CORPUS = [
    "the small board at home splits a model over its slow network and it is warm tonight",
    "The price was 12345 in 2024, wasn't it?  I'll ask; they've said so...\n\n  def f(x):\n    return x + 1\n",
    "the café naïve über straße 你好 世界 мир 👩‍👩‍👧 end of the text, the end",
] * 3
TEXTS = [
    *CORPUS[:3], "Hello  world", "a", "1234567 8", "don't DON'T we'Re", "tabs\tand\n\nlines \n x",
    "<|im_start|>user hi<|im_end|>", "ends with spaces   ", "né e\u0301", "<think>deep</think>",
]  # fmt: skip
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
ALPHABET = pre_tokenizers.ByteLevel.alphabet()
TYPES = [2, 3, 3, 3, 3]


def facts_of(**facts):
    return {f"tokenizer.ggml.{name}": value for name, value in facts.items()}


def of_bytes(pre):
    """Return what a file says of a small tokenizer whose letters are bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=360,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=SPECIAL,
            show_progress=False,
        ),
    )
    model = json.loads(made.to_str())["model"]
    words = [*sorted(model["vocab"], key=model["vocab"].__getitem__), "<think>"]
    return facts_of(
        model="gpt2", pre=pre, tokens=words, merges=[" ".join(merge) for merge in model["merges"]],
        token_type=np.array([*TYPES, *[1] * (len(words) - len(TYPES) - 1), 4]), bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def of_pieces():
    """Return what a file says of a small tokenizer of SentencePiece's kind."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, special_tokens=[*SPECIAL, *bytes_], show_progress=False)
    )
    vocabulary = made.get_vocab()
    words = [word for word in sorted(vocabulary, key=vocabulary.__getitem__) if len(word) < 12 or word in SPECIAL]
    letters = [word for word in words[261:] if len(word) == 1]
    longer = [word for word in words[261:] if len(word) > 1]
    words = [*words[:261], *longer, *letters]
    scores = [0.0] * 261 + [-float(number) for number in range(len(words) - 261)]
    types = [*TYPES, *[6] * 256, *[1] * (len(words) - 261)]
    return facts_of(
        model="llama", tokens=words, scores=np.array(scores, np.float32), token_type=np.array(types),
        bos_token_id=1, eos_token_id=2, unknown_token_id=0,
    )  # fmt: skip


def theirs(facts, architecture):
    names = {"model": "tokenizer_type", "pre": "pre_tokenizer_type"}
    short = {
        name.removeprefix("tokenizer.ggml."): value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in facts.items()
    }
    return convert_gguf_tokenizer(architecture, {names.get(name, name): value for name, value in short.items()})[0]


def check(facts, architecture, texts=TEXTS):
    """Hold ours against transformers'."""
    texts_of_file, problem = gguf_texts(facts, architecture)
    assert not problem
    ours, reference = PromptTokenizer(texts_of_file.tokenizer), theirs(facts, architecture)
    for text in texts:
        ids = list(ours.encode(text))
        assert ids == reference.encode(text, add_special_tokens=False).ids, text
        stream = ours.stream()
        assert "".join(map(stream.step, ids)) + stream.rest() == reference.decode(ids, skip_special_tokens=True), text


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "tekken", "gpt-4o"])
def test_letters_of_bytes_are_as_in_transformers(pre):
    check(of_bytes(pre), "llama")


def test_qwen_normalises_text_first():
    """As its own tokenizer.json does, and transformers' reading of a GGUF does not."""
    facts = of_bytes("qwen2")
    check(facts, "qwen2", [text for text in TEXTS if "\u0301" not in text])
    ours = PromptTokenizer(gguf_texts(facts, "qwen2")[0].tokenizer)

    assert ours.encode("e\u0301") == ours.encode("é")


def test_smollm_cuts_digits_apart():
    facts = of_bytes("smollm")
    model = json.loads(gguf_texts(facts, "llama")[0].tokenizer)["model"]
    reference = Tokenizer(models.BPE(model["vocab"], [tuple(merge) for merge in model["merges"]]))
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    reference.decoder = decoders.ByteLevel()
    ours = PromptTokenizer(gguf_texts(facts, "llama")[0].tokenizer)

    for text in ("The price was 12345 in 2024", "1234567 8", "the end 7"):
        assert list(ours.encode(text)) == reference.encode(text).ids


@pytest.mark.parametrize("architecture", ["phi3", "gemma2", "gemma3"])
def test_pieces_are_as_in_transformers(architecture):
    """Merges come of scores, of Gemma's of the order of words."""
    check(of_pieces(), architecture)


def test_pieces_of_llama_are_as_in_transformers():
    check(of_pieces(), "llama", [text for text in TEXTS if "<" not in text])


def test_behind_a_special_token_a_text_begins_anew():
    """As llama.cpp and Llama 2's own tokenizer.json have it, with a space in front."""
    ours = PromptTokenizer(gguf_texts(of_pieces(), "llama")[0].tokenizer)

    assert ours.encode("<|im_start|>the") == (3, *ours.encode("the"))


def test_words_of_phi_3_swallow_white_space_behind_them():
    """Its template writes line ends that its own tokenizer drops."""
    ours = PromptTokenizer(gguf_texts(of_pieces(), "phi3")[0].tokenizer)

    assert ours.encode("<|im_start|>\nthe<|im_end|>\n") == ours.encode("<|im_start|>the<|im_end|>")
    assert ours.encode("<s>\nthe") != ours.encode("<s>the")


def test_what_a_file_says_of_first_and_last_tokens():
    facts = of_bytes("llama-bpe")
    texts, _ = gguf_texts(facts, "llama")
    assert (texts.bos, texts.eos) == (1, (2, 4))  # <|im_end|> ends, too
    assert texts.special == {"bos_token": "<s>", "eos_token": "</s>"}
    assert gguf_texts({**facts, "tokenizer.ggml.add_bos_token": False}, "llama")[0].bos is None
    assert gguf_texts(of_bytes("qwen2"), "qwen2")[0].bos is None
    assert gguf_texts(of_pieces(), "llama")[0].bos == 1
    assert gguf_texts({**facts, "tokenizer.ggml.eot_token_id": 3}, "llama")[0].eos == (2, 3, 4)


def test_template_and_defaults_are_taken_over():
    facts = {**of_bytes("gpt-2"), "tokenizer.chat_template": "{{ x }}", "general.sampling.temp": 0.6,
             "general.sampling.top_k": 20}  # fmt: skip
    texts, _ = gguf_texts(facts, "llama")

    assert texts.chat_template == "{{ x }}"
    assert texts.generation == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize(
    "changed",
    [
        {"pre": "whale"},
        {"model": "t5"},
        {"model": "no_vocab", "tokens": None},
        {"model": "llama", "merges": None},
        {"merges": ["a b c"]},
        {"merges": ["a nowhere"]},
    ],
)
def test_what_cannot_be_made_is_said(changed, kept):
    facts = {**of_bytes("gpt-2"), **facts_of(**changed)}
    facts = {name: value for name, value in facts.items() if value is not None}
    texts, found = gguf_texts(facts, "llama")

    assert texts.tokenizer is None
    kept(found)


def test_a_first_token_that_is_no_word_is_refused(kept):
    facts = of_bytes("gpt-2")
    with pytest.raises(HeptiError) as raised:
        gguf_texts({**facts, "tokenizer.ggml.bos_token_id": 99999}, "llama")
    kept(raised.value)
