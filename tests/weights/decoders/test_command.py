"""`python -m weights` of language models."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.kit import inside
from weights.cli import main
from weights.decoders.file import DecoderFile


@pytest.fixture
def checkpoint(tmp_path):
    """Save a tiny Llama with a tokenizer of words."""
    config = transformers.LlamaConfig(
        vocab_size=70, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=50, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(1)
    folder = tmp_path / "tiny-llama"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(70)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


class TestConvert:
    def test_says_what_it_made(self, run_weights, checkpoint, tmp_path, kept):
        run = run_weights("convert", checkpoint, tmp_path / "m.h5")

        assert (run.returncode, run.stderr) == (0, "")
        kept(run.stdout)
        assert "error" not in run.stdout
        with DecoderFile(tmp_path / "m.h5") as weights:
            assert (weights.model.eos, weights.chat_template) == ((2,), "{{ messages }}")

    @pytest.mark.parametrize("options", [("--precision", "int8"), ("--precision", "int4"), ("--dtype", "float16")])
    def test_says_what_is_lost_layer_by_layer(self, run_weights, checkpoint, tmp_path, options):
        run = run_weights("convert", checkpoint, tmp_path / "m.h5", *options)

        assert run.returncode == 0, run.stderr
        assert "of 50 tokens of random words" in run.stdout
        for line in ("embedding", "layer 0", "layer 1", "logits"):
            assert line in run.stdout
        assert "perplexity" not in run.stdout

    @pytest.mark.parametrize("precision", ["float32", "int4"])
    def test_says_the_perplexity_of_a_text(self, run_weights, checkpoint, tmp_path, precision):
        text = tmp_path / "text.txt"
        text.write_text("w3 w4 w5 " * 10)

        run = run_weights("convert", checkpoint, tmp_path / "m.h5", "--precision", precision, "--text", text)

        assert run.returncode == 0, run.stderr
        assert "perplexity of 30 tokens of text.txt: " in run.stdout
        assert ("layer 1" in run.stdout) == (precision == "int4")

    def test_says_that_a_tokenizer_is_missing(self, run_weights, checkpoint, tmp_path, kept):
        (checkpoint / "tokenizer.json").unlink()

        run = run_weights("convert", checkpoint, tmp_path / "m.h5")

        assert run.returncode == 0
        kept(run.stderr)

    def test_refuses_in_one_line(self, run_weights, checkpoint, tmp_path, kept):
        config = json.loads((checkpoint / "config.json").read_text())
        (checkpoint / "config.json").write_text(
            json.dumps(config | {"model_type": "mamba", "architectures": ["MambaForCausalLM"]})
        )

        run = run_weights("convert", checkpoint, tmp_path / "m.h5")

        assert (run.returncode, run.stdout) == (2, "")
        assert run.stderr.count("\n") == 1
        kept(run.stderr)

    def test_of_an_encoder_refuses_a_precision(self, run_weights, tmp_path, kept):
        config = transformers.BertConfig(
            vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        transformers.BertModel(config).save_pretrained(tmp_path / "bert")

        run = run_weights("convert", tmp_path / "bert", tmp_path / "m.h5", "--precision", "int8")

        assert run.returncode == 2
        kept(run.stderr)


class TestFiles:
    @pytest.fixture(scope="class")
    def made(self, tmp_path_factory):
        path = tmp_path_factory.mktemp("made") / "s.h5"
        run = inside.run(main, "synthesize", "smollm2-135m", path, "--layers", "1", "--precision", "int4")
        assert "smollm2-135m, 1 layer, hidden 576" in run.stdout
        return path

    @pytest.fixture
    def model(self, made, tmp_path):
        return Path(shutil.copy(made, tmp_path))

    def test_are_shown(self, run_weights, model):
        run = run_weights("inspect", model)

        assert run.returncode == 0, run.stderr
        for words in ("smollm2-135m, 1 layer", "int4 in blocks of 32", "up to 8192 tokens", "49152 × 576"):  # noqa: RUF001
            assert words in " ".join(run.stdout.replace("│", " ").split())

    def test_are_shown_as_json(self, run_weights, model):
        facts = json.loads(run_weights("inspect", "--json", model).stdout)

        assert (facts["precision"], facts["model"]["kind"], facts["tokenizer"]) == ("int4", "decoder", False)
        assert facts["tensors"]["embedding/weight"]["shape"] == [49152, 576]
        assert facts["parameters"] == 49152 * 576 + 2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576 + 3 * 576

    def test_are_verified(self, run_weights, model):
        run = run_weights("verify", model)

        assert run.returncode == 0, run.stderr
        assert "s.h5: 11 tensors are whole, int4, " in run.stdout

    def test_that_are_damaged_are_named(self, run_weights, model, kept):
        data = bytearray(model.read_bytes())
        place = len(data) // 2
        data[place : place + 100] = bytes(100)
        model.write_bytes(bytes(data))

        run = run_weights("verify", model)

        assert run.returncode == 2
        kept(run.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ("bert-base", "--precision", "int4"),
        ("gpt2", "--size", "224"),
        ("gpt-2",),
        ("gpt2", "--precision", "int3"),
    ],
)
def test_synthesize_refuses_in_one_line(run_weights, tmp_path, arguments, kept):
    name, *options = arguments

    run = run_weights("synthesize", name, tmp_path / "m.h5", *options)

    assert run.returncode == 2
    kept(run.stderr)
