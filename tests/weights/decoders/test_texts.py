"""What lies beside a checkpoint's tensors: tokenizer, chat template, first and last tokens, defaults."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from solver.base.errors import HeptiError
from weights.decoders.texts import read_texts


def tokenizer(*steps):
    """Return one of bytes, with two special tokens, and these last steps."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    if steps:
        made.post_processor = processors.Sequence(list(steps)) if len(steps) > 1 else steps[0]
    return made


BEGINS = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
ENDS = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 257)])
BYTES = processors.ByteLevel(trim_offsets=False)


@pytest.fixture
def checkpoint(tmp_path):
    """Write JSON and text files of a checkpoint."""

    def write(**files):
        for name, content in files.items():
            ending = "jinja" if name == "chat_template" and isinstance(content, str) else "json"
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"{name}.{ending}").write_text(text)
        return tmp_path

    return write


class TestFirstToken:
    @pytest.mark.parametrize(
        ("steps", "settings", "first"),
        [
            ((), {}, None),
            ((BYTES,), {}, None),
            ((BEGINS,), {}, 256),
            ((BYTES, BEGINS), {}, 256),
            ((BEGINS,), {"add_bos_token": True}, 256),
            # transformers 5 reads this key only where there is no tokenizer.json.
            ((BEGINS,), {"add_bos_token": False}, 256),
            ((), {"add_bos_token": True, "bos_token": "<s>"}, None),
        ],
    )
    def test_is_what_the_tokenizer_really_adds(self, checkpoint, steps, settings, first):
        folder = checkpoint(tokenizer=tokenizer(*steps).to_str(), tokenizer_config=settings)

        assert read_texts(folder, {"bos_token_id": 1}).bos == first

    def test_what_follows_every_text_is_refused(self, checkpoint):
        with pytest.raises(HeptiError, match="post_processor puts </s> after every text"):
            read_texts(checkpoint(tokenizer=tokenizer(ENDS).to_str()), {})

    def test_is_none_without_a_tokenizer(self, checkpoint):
        found = read_texts(checkpoint(), {"bos_token_id": 1})

        assert (found.bos, found.tokenizer, found.chat_template, dict(found.special)) == (None, None, None, {})


class TestLastTokens:
    @pytest.mark.parametrize(
        ("generation", "config", "last"),
        [
            (None, {}, ()),
            (None, {"eos_token_id": 7}, (7,)),
            (None, {"eos_token_id": None}, ()),
            ({"eos_token_id": [8, 9]}, {"eos_token_id": 7}, (8, 9)),
            ({"eos_token_id": 8}, {"eos_token_id": 7}, (8,)),
            ({"do_sample": True}, {"eos_token_id": [7, 6]}, (7, 6)),
        ],
    )
    def test_are_those_of_the_generation_first(self, checkpoint, generation, config, last):
        folder = checkpoint() if generation is None else checkpoint(generation_config=generation)

        assert read_texts(folder, config).eos == last


class TestGeneration:
    def test_has_the_defaults_of_drawing(self, checkpoint):
        folder = checkpoint(
            generation_config={"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": None, "max_length": 9}
        )

        assert read_texts(folder, {}).generation == {"temperature": 0.6, "top_p": 0.9, "top_k": 50}

    def test_has_none_where_the_likeliest_is_wanted(self, checkpoint):
        assert read_texts(checkpoint(generation_config={"temperature": 0.6, "do_sample": False}), {}).generation == {}

    def test_says_what_is_asked_for_and_not_computed(self, checkpoint):
        asked = {"repetition_penalty": 1.05, "num_beams": 1, "min_p": None, "no_repeat_ngram_size": 3, "max_length": 9}

        notes = read_texts(checkpoint(generation_config=asked), {}).notes

        assert [key for key in asked if any(key in note for note in notes)] == [
            "repetition_penalty", "no_repeat_ngram_size",
        ]  # fmt: skip


class TestChatTemplate:
    @pytest.mark.parametrize(
        ("files", "template"),
        [
            ({"chat_template": "{{ a }}", "tokenizer_config": {"chat_template": "{{ b }}"}}, "{{ a }}"),
            ({"tokenizer_config": {"chat_template": "{{ b }}"}}, "{{ b }}"),
            ({"tokenizer_config": {"chat_template": ""}}, None),
            (
                {
                    "tokenizer_config": {
                        "chat_template": [
                            {"name": "tool_use", "template": "{{ t }}"}, {"name": "default", "template": "{{ d }}"}
                        ]
                    }
                },
                "{{ d }}",
            ),
            ({"chat_template": {"chat_template": "{{ j }}"}}, "{{ j }}"),
        ],
    )  # fmt: skip
    def test_is_found_where_it_lies(self, checkpoint, files, template):
        assert read_texts(checkpoint(**files), {}).chat_template == template


def test_special_tokens_are_texts(checkpoint):
    folder = checkpoint(
        special_tokens_map={"unk_token": "<u>", "eos_token": "old"},
        tokenizer_config={
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "pad_token": None,
            "add_bos_token": True,
        },
    )

    assert read_texts(folder, {}).special == {"unk_token": "<u>", "eos_token": "old", "bos_token": "<s>"}


def test_a_tokenizer_that_is_none_is_one_line(checkpoint, kept):
    with pytest.raises(HeptiError) as raised:
        read_texts(checkpoint(tokenizer={"version": "1.0"}), {})
    kept(raised.value)
