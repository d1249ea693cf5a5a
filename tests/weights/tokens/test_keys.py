"""Files beside a checkpoint's words: each key is changed alone, and ids stay transformers', or it is refused."""

import json

import pytest
import sentencepiece
from tokenizers import Tokenizer as Library

from solver.base.errors import HeptiError
from tests.kit.tokenizers import SORTS, TEXTS, byte_pairs, theirs, write
from weights.convert.sentence_encoders import tokenizer_text
from weights.inputs.tokenize import PromptTokenizer, Tokenizer
from weights.tokens.build import build_tokenizer
from weights.tokens.settings import HONOURED, WITHOUT_EFFECT

ENT = {"content": "<ent>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
# Values of every key that changes ids, for some class or other.
VALUES = {
    "tokenizer_class": [None],
    "do_lower_case": [True, False],
    "strip_accents": [True, False],
    "tokenize_chinese_chars": [True, False],
    "add_prefix_space": [True, False],
    "legacy": [True, False],
    "truncation_side": ["left", "right"],
    "model_max_length": [5],
    "max_len": [5],
    "split_special_tokens": [True],
    "add_bos_token": [True, False],
    "add_eos_token": [True],
    "added_tokens_decoder": [
        {"500": ENT}, {"1": ENT}, {"500": {**ENT, "lstrip": True, "rstrip": True}},
        {"500": {**ENT, "special": False, "normalized": True}}, {"500": {**ENT, "single_word": True}},
    ],
    "additional_special_tokens": [["<ent>"]],
    "extra_special_tokens": [["<ent>"], {"x_token": "<ent>"}],
    "model_specific_special_tokens": [{"x_token": "<ent>"}],
    "chat_template": ["{{ messages }}"],
    "image_token": ["<ent>"],
    "cls_token": ["hello"],
    "sep_token": ["world"],
    "unk_token": ["[UNK]"],
    "bos_token": ["hello", "<ent>", {"__type": "AddedToken", **ENT}],
    "eos_token": ["<ent>"],
    "pad_token": ["<ent>"],
    "mask_token": ["<mask>", {"__type": "AddedToken", **ENT, "lstrip": True}],
}  # fmt: skip
# Values that would show if one of these keys did something, where it has another form than a text.
UNSEEN = {
    "never_split": ["hello"], "do_basic_tokenize": False, "stride": 2, "model_input_names": ["input_ids"],
    "files_loaded": [], "sp_model_kwargs": {}, "auto_map": {}, "padding_side": "left", "max_length": 5,
    "device_map": None, "_commit_hash": None, "name_or_path": "x", "is_local": True, "local_files_only": True,
    "chat_control_tokens": ["hello"], "trim_offsets": False, "use_fast": False, "pad_to_multiple_of": 8,
    "clean_up_tokenization_spaces": True,
}  # fmt: skip
OLDER = [
    {"added_tokens": {"<ent>": 500}},
    {"special_tokens_map": {"additional_special_tokens": ["<ent>"]}},
    {"special_tokens_map": {"bos_token": "<ent>"}},
    {"special_tokens_map": {"mask_token": {**ENT, "lstrip": True, "normalized": True}}},
]
CORPUS = ["hello world it's 12.5 and more", "the cafe café CAFÉ Hello World ab", "hello worlds boards small"] * 20


def changes():
    """Yield what tokenizer_config.json says otherwise, and further files."""
    yield from (({key: value}, {}) for key, values in VALUES.items() for value in values)
    yield from (({}, files) for files in OLDER)
    yield {"added_tokens_decoder": {}}, {"special_tokens_map": {"bos_token": "<ent>"}}
    yield {"additional_special_tokens": ["<ent>"]}, {"added_tokens": {"<ent>": 500}}


def ours(folder):
    said = json.loads((folder / "tokenizer_config.json").read_text())
    made = Tokenizer(tokenizer_text(folder), said.get("model_max_length", said.get("max_len", 64)))
    return [list(made(text).ids) for text in TEXTS]


def differences(tmp_path, sort, keys, prepare=lambda folder: None):
    """Return the changes whose ids are not transformers'."""
    found = []
    for number, (settings, files) in enumerate(keys):
        folder = write(tmp_path / str(number), sort, settings, **files)
        prepare(folder)
        try:
            wanted = theirs(folder)
        except (ValueError, TypeError, AttributeError):  # transformers itself refuses it
            continue
        if ours(folder) != wanted:
            found.append((settings, files))
    return found


@pytest.mark.parametrize("sort", SORTS)
def test_ids_are_those_of_transformers_whatever_a_key_says(tmp_path, sort):
    assert differences(tmp_path, sort, changes()) == []


def test_every_key_that_counts_is_tried():
    assert set(HONOURED) <= VALUES.keys()


@pytest.mark.parametrize("sort", ["BertTokenizer", "RobertaTokenizer"])
def test_keys_without_effect_have_none_in_transformers_either(tmp_path, sort):
    keys = [key for key in WITHOUT_EFFECT if key not in ("__type", "backend", "padding", "truncation", "from_slow")]

    assert differences(tmp_path, sort, (({key: UNSEEN.get(key, "x")}, {}) for key in keys)) == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"surprise": 1}, "does not know the key surprise"),
        ({"fix_mistral_regex": True}, "fix_mistral_regex is True"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class BertJapaneseTokenizer"),
        ({"tokenizer_class": "XLMRobertaTokenizer"}, "of kind BPE"),
        ({"unk_token": {"content": 3}}, "is no token"),
        ({"truncation_side": "top"}, "truncation_side is 'top'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path, said, words):
    with pytest.raises(HeptiError, match=words):
        tokenizer_text(write(tmp_path, "RobertaTokenizer", said))


def words_of(folder):
    """Take a checkpoint's tokenizer.json away, and return its model."""
    path = folder / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    path.unlink()
    return model


def as_vocab_txt(folder):
    words = words_of(folder)["vocab"]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in sorted(words, key=words.get)))


def as_byte_pairs(folder):
    model = words_of(folder)
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{' '.join(pair)}\n" for pair in model["merges"]))


@pytest.mark.parametrize(
    ("sort", "prepare"),
    [
        ("BertTokenizer", as_vocab_txt), ("DistilBertTokenizerFast", as_vocab_txt), ("MPNetTokenizer", as_vocab_txt),
        ("RobertaTokenizer", as_byte_pairs), ("GPT2Tokenizer", as_byte_pairs), ("Qwen2Tokenizer", as_byte_pairs),
    ],
)  # fmt: skip
def test_a_tokenizer_is_built_of_older_files_of_words(tmp_path, sort, prepare):
    assert differences(tmp_path, sort, [({}, {}), *changes()], prepare) == []


@pytest.fixture(scope="module")
def sentence_pieces(tmp_path_factory):
    """Train a small SentencePiece model; return what puts it into a checkpoint in place of tokenizer.json."""
    folder = tmp_path_factory.mktemp("pieces")

    def made(file, **settings):
        name = folder / f"{len(list(folder.iterdir()))}"
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS), model_prefix=str(name), hard_vocab_limit=False, minloglevel=2, **settings
        )

        def put(checkpoint):
            words_of(checkpoint)
            (checkpoint / file).write_bytes(name.with_suffix(".model").read_bytes())

        return put

    return made


BYTES = {"model_type": "bpe", "vocab_size": 330, "byte_fallback": True}
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}


@pytest.mark.parametrize(
    ("sort", "file", "settings"),
    [
        ("XLMRobertaTokenizer", "sentencepiece.bpe.model", {"model_type": "unigram", "vocab_size": 60}),
        ("CamembertTokenizer", "sentencepiece.bpe.model", {"model_type": "unigram", "vocab_size": 60}),
        ("LlamaTokenizer", "tokenizer.model", BYTES),
        ("LlamaTokenizer", "tokenizer.model", {**BYTES, **PLAIN, "user_defined_symbols": ["<ent>", "  "]}),
        ("GemmaTokenizer", "tokenizer.model", BYTES),
        ("PreTrainedTokenizerFast", "tokenizer.model", {"model_type": "unigram", "vocab_size": 60}),
        ("PreTrainedTokenizerFast", "tokenizer.model", {**BYTES, **PLAIN, "user_defined_symbols": ["<ent>"]}),
        (
            "PreTrainedTokenizerFast",
            "tokenizer.model",
            {"model_type": "bpe", "vocab_size": 60, "add_dummy_prefix": False},
        ),
    ],
)
def test_a_tokenizer_is_built_of_a_sentencepiece_model(tmp_path, sentence_pieces, sort, file, settings):
    assert differences(tmp_path, sort, [({}, {}), *changes()], sentence_pieces(file, **settings)) == []


def test_words_of_which_none_is_built_are_named(tmp_path):
    folder = write(tmp_path, "PreTrainedTokenizerFast")
    (folder / "tokenizer.json").rename(folder / "tekken.json")

    with pytest.raises(HeptiError, match=r"has tekken.json and no tokenizer.json"):
        tokenizer_text(folder)


def test_a_git_lfs_pointer_says_what_it_is(tmp_path):
    folder = write(tmp_path, "BertTokenizer")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (folder / "tokenizer.json").write_text(pointer)

    with pytest.raises(HeptiError, match="is a Git LFS pointer"):
        tokenizer_text(folder)


def test_a_prompt_begins_with_all_first_tokens(tmp_path):
    """As GLM's templates have it; the second one comes with the first."""
    made = byte_pairs(("<a>", "<b>"), last=False)
    text = json.loads(made.to_str())
    first = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("<a>", "<b>")]
    text["post_processor"] = {
        "type": "TemplateProcessing", "single": [*first, {"Sequence": {"id": "A", "type_id": 0}}], "pair": first,
        "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for i, n in enumerate(("<a>", "<b>"))},
    }  # fmt: skip
    prompts = PromptTokenizer(json.dumps(text))

    assert prompts.encode("hello", 0) == (0, 1, *prompts.encode("hello"))
    assert prompts.encode("hello", 2) == (2, *prompts.encode("hello"))


def test_what_is_built_is_a_tokenizer_json_as_the_library_writes_it(tmp_path):
    text = build_tokenizer(write(tmp_path, "BertTokenizer"), {"model_type": "bert"}).text

    assert json.loads(Library.from_str(text).to_str())["model"] == json.loads(text)["model"]
