"""Every fact of a GGUF that llama.cpp reads is honoured, known to be without effect, or refused by its name."""

import math
import re

import gguf
import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from solver.base.errors import HeptiError
from solver.model.rotary import rope_of
from tests.kit.gguf_files import write_gguf
from tests.weights.decoders.test_gguf_tokenizer import CORPUS, TEXTS, facts_of, of_bytes, of_pieces
from weights.decoders.gguf import open_gguf
from weights.decoders.gguf.cuts import CUTS, GPT_2
from weights.decoders.gguf.keys import _WITHOUT_EFFECT
from weights.decoders.gguf.tokenizer import gguf_texts, missing_facts
from weights.inputs.tokenize import PromptTokenizer

ODD = {  # values that would change something, where 3 is none
    "rope.scaling.type": "strange", "block_count": 2, "attention.key_length": 12, "tensor_data_layout": "x",
    "classifier.output_labels": ["a"], "hidden_activation": "relu",
    "attention.causal": False, "use_parallel_residual": True, "rope.dimension_sections": [4, 4, 4, 4],
    "attention.sliding_window": 7, "rope.scaling.finetuned": True, "attention.sliding_window_pattern": [True, False],
}  # fmt: skip


def their_keys():
    """Return all facts of an architecture that the package gguf knows, without its name, and some older spellings."""
    found = {"rope.scale_linear", "rope.scaling.yarn_attn_factor", "rope.scaling.alpha", "attention.value_scale"}
    for group in vars(gguf.Keys).values():
        if isinstance(group, type):
            found |= {
                value.removeprefix("{arch}.")
                for value in vars(group).values()
                if isinstance(value, str) and value.startswith("{arch}.")
            }
    return sorted(found)


def opened(path, facts, case="llama"):
    """Return the checkpoint of a random model with some facts more, or other ones."""
    architecture = {"llama": "llama"}.get(case, case)

    def add(writer):
        for name, value in facts.items():
            key = name if name.startswith(("tokenizer.", "general.")) else f"{architecture}.{name}"
            kind = gguf.GGUFValueType.get_type(value)
            sub = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
            writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue(value=value, type=kind, sub_type=sub)

    write_gguf(path, case, add=add)
    with open_gguf(path) as checkpoint:
        return checkpoint


def ropes(checkpoint):
    return [attention.rope for attention, _ in checkpoint.model.layers]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("plain") / "m.gguf", {})


@pytest.mark.parametrize("key", their_keys())
def test_no_fact_is_passed_over_in_silence(tmp_path, plain, key):
    """A value that would change something: the model is another one, or the key is named, or it has no effect."""
    try:
        found = opened(tmp_path / "m.gguf", {key: ODD.get(key, 3)})
    except HeptiError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:  # shapes that do not fit name the tensor
        assert re.search(rf"{re.escape(key)}|tensor |value_length|layers|heads|experts|hidden_size", refused), refused
        return

    changed = found.model != plain.model
    assert changed or key in _WITHOUT_EFFECT or any(key in note for note in found.remarks) or key in YARN_ONLY


YARN_ONLY = {  # which say something where the type is yarn only
    "rope.scaling.original_context_length", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow", "attention.layer_norm_epsilon",
}  # fmt: skip
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}


@pytest.mark.parametrize("name", ["original_context_length", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"])
def test_what_only_yarn_reads_changes_yarn(tmp_path, name):
    before = opened(tmp_path / "a.gguf", YARN)
    after = opened(tmp_path / "b.gguf", {**YARN, f"rope.scaling.{name}": 0.5 if name == "yarn_beta_fast" else 3})

    assert ropes(before) != ropes(after)


@pytest.mark.parametrize(
    ("facts", "settings", "factor"),
    [
        ({"rope.scaling.factor": 4.0}, {"type": "linear", "factor": 4.0}, 1),
        ({"rope.scale_linear": 4.0}, {"type": "linear", "factor": 4.0}, 1),
        ({"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0}, {"type": "linear", "factor": 4.0}, 1),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}, 1),
        ({"rope.scaling.factor": 0.0}, {}, 1),
        ({"rope.scaling.attn_factor": 1.5}, {}, 1.5),
        ({**YARN, "rope.scaling.attn_factor": 1.5}, {"type": "yarn", "factor": 4.0}, 1.5 * (0.1 * math.log(4) + 1)),
    ],
)
def test_positions_are_scaled_as_in_llama_cpp(tmp_path, facts, settings, factor):
    (found,) = set(ropes(opened(tmp_path / "m.gguf", facts)))
    wanted = rope_of(24, 1e4, {**settings, "original_max_position_embeddings": 16}, 64)

    np.testing.assert_allclose(found.frequencies, wanted.frequencies, rtol=1e-6)
    assert found.factor == pytest.approx(factor)


@pytest.mark.parametrize("name", ["attention.layer_norm_rms_epsilon", "context_length"])
def test_what_llama_cpp_asks_for_is_asked_for(tmp_path, monkeypatch, name):
    write = gguf.GGUFWriter.add_key_value
    monkeypatch.setattr(
        gguf.GGUFWriter, "add_key_value", lambda self, key, *rest, **more: key.endswith(name) or write(
            self, key, *rest, **more)
    )  # fmt: skip
    with pytest.raises(HeptiError, match=rf"does not say llama\.{name}"):
        opened(tmp_path / "m.gguf", {})


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"tokenizer.ggml.add_eos_token": True}, "tokenizer.ggml.add_eos_token"),
        ({"tokenizer.ggml.add_sep_token": True}, "tokenizer.ggml.add_sep_token"),
        ({"final_logit_softcapping": 30.0}, "llama.final_logit_softcapping is 30.0"),
        ({"attention.scale": 0.2}, "llama.attention.scale is 0.2"),
    ],
)
def test_what_is_not_done_is_refused_by_name(tmp_path, facts, named):
    with pytest.raises(HeptiError, match=named):
        opened(tmp_path / "m.gguf", facts)


def test_of_what_is_passed_over_it_is_told(tmp_path):
    found = opened(tmp_path / "m.gguf", {"general.sampling.min_p": 0.1, "shiny_new_key": 1, "logit_scale": 1.0})

    assert [note for note in found.notes("float32") if "min_p" in note]
    assert [note for note in found.notes("float32") if "llama.shiny_new_key" in note]


def test_tokens_that_are_never_said_are_taken_over(tmp_path):
    facts = of_bytes("gpt-2") | facts_of(suppress_tokens=np.array([5, 9, 9999]))

    assert gguf_texts(facts, "llama")[0].suppressed == (5, 9)


@pytest.mark.parametrize("missing", ["pre", "eos_token_id"])
def test_where_llama_cpp_warns_of_a_missing_fact_it_is_told(missing):
    facts = of_bytes("gpt-2")
    assert not missing_facts(facts)
    del facts[f"tokenizer.ggml.{missing}"]

    (note,) = missing_facts(facts)
    assert f"tokenizer.ggml.{missing}" in note


def test_pieces_without_first_and_last_tokens_have_the_usual_ones():
    facts = {name: value for name, value in of_pieces().items() if not name.endswith("s_token_id")}
    texts, _ = gguf_texts(facts, "llama")

    assert (texts.bos, texts.eos[0]) == (1, 2)


def reference_cut(way, text):
    """Return the pieces of a text, by a walk of our own over the expressions, which knows only `Split`."""
    parts = [text]
    for step in CUTS[way].steps:
        cut = pre_tokenizers.Split(Regex(step), "isolated")
        parts = [piece for part in parts for piece, _ in cut.pre_tokenize_str(part)]
    return parts


@pytest.mark.parametrize("way", CUTS)
def test_text_is_cut_up_as_the_file_says(way):
    """Pieces never become one token, and every text comes back as it was."""
    texts, problem = gguf_texts(of_bytes(way), "llama")
    assert not problem
    ours = PromptTokenizer(texts.tokenizer)
    made = Tokenizer.from_str(texts.tokenizer)
    for text in (*CORPUS[:3], "1234567 8", "don't DON'T", "né ए३ 你好 한국"):
        pieces = [text[a:b] for _, (a, b) in made.pre_tokenizer.pre_tokenize_str(text)]
        assert "".join(pieces) == text
        assert pieces == reference_cut(way, text)
        stream = ours.stream()
        assert "".join(map(stream.step, ours.encode(text))) + stream.rest() == text


PIECES = {  # as llama.cpp cuts them up (its tests/test-tokenizer-random, by hand)
    "default": [("it's 12345", ["it", "'", "s", " ", "123", "45"]), ("a+b", ["a", "+", "b"])],
    "llama4": [("HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"])],
    "qwen35": [("12 né", ["1", "2", " né"]), ("ne\u0301e", ["ne\u0301e"])],
    "qwen2": [("ne\u0301e", ["ne", "\u0301e"])],
    "gpt-2": [("it's 12345", ["it", "'s", " 12345"])],
    "falcon": [("a 12345`", ["a", " ", "123", "45", "`"])],
    "deepseek-v3": [("12345 你好x", ["123", "45", " ", "你好", "x"])],
}  # fmt: skip


@pytest.mark.parametrize("way", PIECES)
def test_pieces_by_hand(way):
    for text, pieces in PIECES[way]:
        assert reference_cut(way, text) == pieces


def test_without_a_way_text_is_cut_up_by_llama_cpps_default():
    facts = of_bytes("default")
    wanted = gguf_texts(facts, "llama")[0].tokenizer
    del facts["tokenizer.ggml.pre"]

    assert gguf_texts(facts, "llama")[0].tokenizer == wanted


def test_letters_of_bytes_by_one_expression_are_those_of_the_library():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in TEXTS:
        theirs = [text[a:b] for _, (a, b) in made.pre_tokenizer.pre_tokenize_str(text)]
        assert [piece for piece, _ in pre_tokenizers.Split(Regex(GPT_2), "isolated").pre_tokenize_str(text)] == theirs


def test_words_that_fill_in_end_an_answer():
    facts = of_bytes("gpt-2")
    facts["tokenizer.ggml.tokens"][10] = "<|file_sep|>"

    assert 10 in gguf_texts(facts, "llama")[0].eos
