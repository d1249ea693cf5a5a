"""What generation_config.json asks for is honoured, without effect, or said by its name, as transformers acts on it."""

import json

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from solver.base.errors import HeptiError
from weights.decoders.generation import _NOT_DONE, _NOT_DRAWN, HONOURED, WITHOUT_EFFECT, read_generation


def read(folder, asks, config=None):
    if asks is not None:
        (folder / "generation_config.json").write_text(json.dumps(asks))
    return read_generation(folder, config or {})


def test_every_setting_of_transformers_is_known():
    assert {*GenerationConfig().to_dict()} <= {*HONOURED, *WITHOUT_EFFECT, *_NOT_DONE, *_NOT_DRAWN}


def generated(asks):
    """Return the tokens that transformers says after a prompt, under some settings, without drawing."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    prompt, usual = torch.tensor([[1, 5, 9]]), {"do_sample": False, "max_new_tokens": 12, "eos_token_id": 39}
    return model.generate(prompt, generation_config=GenerationConfig(**{**usual, **asks}))[0, 3:].tolist()


ASKS = {  # what changes what is said without drawing
    "repetition_penalty": 1.7, "encoder_repetition_penalty": 9.0, "no_repeat_ngram_size": 1, "min_new_tokens": 12,
    "forced_eos_token_id": 7, "begin_suppress_tokens": [*range(30, 39)], "sequence_bias": [[[7], 9.0]],
    "suppress_tokens": [*range(20)], "bad_words_ids": [[number] for number in range(20)],
    "exponential_decay_length_penalty": [0, 99.0], "eos_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize("key", ASKS)
def test_what_changes_an_answer_of_transformers_is_honoured_or_said(tmp_path, key):
    eos = generated({})[3]
    asks = {key: eos if key == "eos_token_id" else ASKS[key]}
    if key in ("min_new_tokens", "exponential_decay_length_penalty"):
        assert generated({"eos_token_id": eos}) != generated({"eos_token_id": eos, **asks})
    else:
        assert generated({}) != generated(asks)

    before, found = read(tmp_path, {}), read(tmp_path, asks)
    honoured = (found.eos, found.suppressed) != (before.eos, before.suppressed)
    assert honoured != any(key in note for note in found.notes)


def test_single_bad_words_are_suppressed_and_longer_ones_named(tmp_path):
    found = read(tmp_path, {"bad_words_ids": [[7], [2], [3, 4]], "suppress_tokens": [9], "eos_token_id": [2, 5]})

    assert (found.suppressed, found.eos) == ((7, 9), (2, 5))
    assert [note for note in found.notes if "bad_words_ids 1 " in note]


def test_drawing_without_numbers_has_those_of_transformers(tmp_path):
    assert read(tmp_path, {"do_sample": True}).drawing == {"temperature": 1.0, "top_p": 1.0, "top_k": 50}
    assert read(tmp_path, {"temperature": 0.3}).drawing == {}
    with pytest.raises(HeptiError, match="temperature is 0"):
        read(tmp_path, {"do_sample": True, "temperature": 0})


def test_what_matters_only_where_tokens_are_drawn_is_said_only_there(tmp_path):
    assert not read(tmp_path, {"min_p": 0.1}).notes
    assert [note for note in read(tmp_path, {"min_p": 0.1, "do_sample": True}).notes if "min_p 0.1" in note]


def test_without_the_file_the_settings_are_those_of_config_json(tmp_path):
    found = read(tmp_path, None, {"do_sample": True, "eos_token_id": 3, "hidden_size": 8, "repetition_penalty": 1.2})

    assert (found.eos, found.drawing["temperature"]) == ((3,), 1.0)
    assert ["repetition_penalty" in note for note in found.notes] == [True]
