"""Every family's checkpoints, tiny and of awkward sizes: our logits are those of transformers."""

import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from solver.base.errors import HeptiError
from weights.decoders.convert import open_checkpoint, write_checkpoint
from weights.decoders.file import DecoderFile
from weights.decoders.forward import logits

SIZES = {
    "vocab_size": 90, "hidden_size": 60, "intermediate_size": 83, "num_hidden_layers": 3, "num_attention_heads": 5,
    "num_key_value_heads": 1, "head_dim": 24, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
WINDOWS = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
GEMMA = {
    "sliding_window": 7,
    "query_pre_attn_scalar": 20,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 2.0,
}
PHI3 = {"hidden_size": 120, "sliding_window": 7}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1 + number / 10 for number in range(9)],
    "long_factor": [4.0] * 9, "partial_rotary_factor": 0.75,
}  # fmt: skip
OLMO2 = {"hidden_size": 80}
GRANITE = {
    "hidden_size": 120, "embedding_multiplier": 6.0, "attention_multiplier": 0.1, "residual_multiplier": 0.22,
    "logits_scaling": 4.0, "attention_bias": True,
}  # fmt: skip
GPT2 = {
    "vocab_size": 90, "n_embd": 60, "n_layer": 3, "n_head": 5, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CASES = {
    "llama": ("Llama", {}),
    "llama-tied-biased": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}}),
    "llama-gelu": ("Llama", {"hidden_act": "gelu"}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "mistral-all": ("Mistral", {"sliding_window": None, "num_key_value_heads": 5}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-windows": ("Qwen2", WINDOWS),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3-biased-windows": ("Qwen3", {"attention_bias": True, **WINDOWS}),
    "gemma2": ("Gemma2", GEMMA),
    "gemma2-untied": ("Gemma2", {**GEMMA, "tie_word_embeddings": False}),
    "gemma3_text": ("Gemma3", {"sliding_window": 7, "sliding_window_pattern": 2, "query_pre_attn_scalar": 20}),
    "gemma3_text-types": (
        "Gemma3",
        {
            **GEMMA,
            "layer_types": ["full_attention", *["sliding_attention"] * 2],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            },
        },
    ),
    "phi3": ("Phi3", PHI3),
    "phi3-longrope": (
        "Phi3",
        {**PHI3, "rope_parameters": LONGROPE, "original_max_position_embeddings": 32, "tie_word_embeddings": True},
    ),
    "olmo2": ("Olmo2", OLMO2),
    "olmo2-yarn": ("Olmo2", {**OLMO2, "num_key_value_heads": 5, "rope_parameters": YARN, "attention_bias": True}),
    "granite": ("Granite", GRANITE),
    "granite-plain": ("Granite", {"hidden_size": 120, "attention_multiplier": 0.5, "tie_word_embeddings": True}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1], "hidden_size": 120}),
    "smollm3-windows": ("SmolLM3", {"hidden_size": 120, "no_rope_layer_interval": 2, **WINDOWS}),
    "gpt2": ("GPT2", {}),
    "gpt2-untied": ("GPT2", {"tie_word_embeddings": False, "n_inner": 83, "scale_attn_weights": False}),
}


def made(folder, case, dtype=torch.float32, **sizes):
    """Save a tiny random model of a family, of these sizes where they are given; return it."""
    stem, settings = CASES[case]
    text = "Text" if stem == "Gemma3" else ""
    settings = {**(GPT2 if stem == "GPT2" else SIZES), **settings, **sizes}
    config = getattr(transformers, f"{stem}{text}Config")(**settings, attn_implementation="eager")
    torch.manual_seed(5)
    model = getattr(transformers, "GPT2LMHeadModel" if stem == "GPT2" else f"{stem}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # also norms and biases, which begin as ones and zeros
            parameter.copy_(torch.randn_like(parameter) * 0.2 + 0.5 * (parameter.ndim == 1))
    model.to(dtype).save_pretrained(folder)
    return model


def converted(folder, path, **options):
    with open_checkpoint(folder) as checkpoint:
        write_checkpoint(checkpoint, path, **options)


def ours(path, tokens):
    with DecoderFile(path) as weights:
        return logits(weights.model, weights.read, tokens)


def theirs(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


TOKENS = np.random.default_rng(1).integers(0, 90, 30).tolist()


def assert_close(found, expected):
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(tmp_path, case):
    model = made(tmp_path / "checkpoint", case)

    converted(tmp_path / "checkpoint", tmp_path / "model.h5")

    assert_close(ours(tmp_path / "model.h5", TOKENS), theirs(model, TOKENS))


class TestOldConfigs:
    """config.json as transformers 4 wrote it, of the same tensors."""

    @staticmethod
    def rewrite(folder, gone, **settings):
        path = folder / "config.json"
        config = json.loads(path.read_text())
        for key in gone:
            config.pop(key, None)
        path.write_text(json.dumps(config | settings))

    @pytest.mark.parametrize(
        ("case", "gone", "settings"),
        [
            ("llama", ["rope_parameters"], {"rope_theta": 10000.0, "rope_scaling": None}),
            ("llama", ["rope_parameters", "tie_word_embeddings", "hidden_act", "attention_bias"], {}),
            (
                "llama3",
                ["rope_parameters"],
                {"rope_theta": 500.0, "rope_scaling": {key: LLAMA3[key] for key in LLAMA3 if key != "rope_theta"}},
            ),
            (
                "qwen2-yarn",
                ["rope_parameters", "layer_types"],
                {
                    "rope_theta": 100.0,
                    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
                },
            ),
            ("qwen2-windows", ["layer_types", "rope_parameters"], {}),
            ("gemma2", ["layer_types", "rope_parameters", "tie_word_embeddings"], {"hidden_act": "gelu"}),
            ("gemma2", ["layer_types", "rope_parameters", "hidden_activation"], {"hidden_activation": None}),
            (
                "gemma3_text-types",
                ["rope_parameters"],
                {
                    "rope_theta": 300.0, "rope_local_base_freq": 30.0,
                    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                },
            ),
            ("gemma3_text", ["rope_parameters", "layer_types"], {"sliding_window_pattern": 2}),
            ("llama", [], {"sliding_window": 7, "attn_logit_softcapping": 3.0}),  # Llama's class reads neither
            (
                "phi3-longrope",
                ["rope_parameters"],
                {
                    "rope_theta": 100.0, "partial_rotary_factor": 0.75,
                    "rope_scaling": {
                        "type": "longrope", "short_factor": LONGROPE["short_factor"], "long_factor": [4.0] * 9
                    },
                },
            ),
        ],
    )  # fmt: skip
    def test_mean_the_same(self, tmp_path, case, gone, settings):
        made(tmp_path, case)
        with open_checkpoint(tmp_path) as checkpoint:
            expected = checkpoint.model

        self.rewrite(tmp_path, gone, **settings)

        with open_checkpoint(tmp_path) as checkpoint:
            assert checkpoint.model == expected


class TestStorage:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_may_be_half_precision(self, tmp_path, dtype):
        made(tmp_path / "checkpoint", "qwen3", dtype)
        model = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.float32)

        converted(tmp_path / "checkpoint", tmp_path / "model.h5")

        assert_close(ours(tmp_path / "model.h5", TOKENS), theirs(model, TOKENS))

    def test_may_be_in_shards(self, tmp_path):
        model = made(tmp_path / "one", "llama")
        model.save_pretrained(tmp_path / "many", max_shard_size="50KB")
        assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 1

        converted(tmp_path / "many", tmp_path / "model.h5")

        assert_close(ours(tmp_path / "model.h5", TOKENS), theirs(model, TOKENS))

    @pytest.mark.parametrize("case", ["llama-tied-biased", "gpt2"])
    def test_may_be_of_the_model_below_its_head(self, tmp_path, case):
        """GPT-2's own checkpoint on the hub has no prefix, and constants among its tensors."""
        model = made(tmp_path / "one", case)
        model.base_model.save_pretrained(tmp_path / "base")
        path = tmp_path / "base" / "model.safetensors"
        constants = {"h.0.attn.bias": np.ones((1, 1, 64, 64), np.float32)} if case == "gpt2" else {}
        save_file(load_file(path) | constants, path)

        converted(tmp_path / "base", tmp_path / "model.h5")

        assert_close(ours(tmp_path / "model.h5", TOKENS), theirs(model, TOKENS))

    @pytest.mark.parametrize("old", [False, True])
    def test_may_be_the_text_part_of_a_model_of_images(self, tmp_path, old):
        text = transformers.Gemma3TextConfig(
            **{**SIZES, "vocab_size": 300}, sliding_window=7, query_pre_attn_scalar=20, attn_implementation="eager"
        )
        vision = {
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14,
        }  # fmt: skip
        config = transformers.Gemma3Config(
            text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4, image_token_index=299,
            boi_token_index=297, eoi_token_index=298,
        )  # fmt: skip
        torch.manual_seed(5)
        model = transformers.Gemma3ForConditionalGeneration(config).eval()
        model.save_pretrained(tmp_path / "checkpoint")
        if old:  # as google/gemma-3-4b-it has it
            path = tmp_path / "checkpoint" / "model.safetensors"
            tensors = load_file(path)
            save_file(
                {key.replace("model.language_model.", "language_model.model."): tensors[key] for key in tensors}, path
            )

        converted(tmp_path / "checkpoint", tmp_path / "model.h5")

        assert_close(ours(tmp_path / "model.h5", TOKENS), theirs(model, TOKENS))

    @pytest.mark.parametrize(("precision", "bound"), [("int8", 0.03), ("int4", 0.6)])
    @pytest.mark.parametrize("case", ["llama", "gemma2", "phi3", "gpt2"])
    def test_in_blocks_is_near_the_same(self, tmp_path, case, precision, bound):
        model = made(tmp_path / "checkpoint", case)

        converted(tmp_path / "checkpoint", tmp_path / "model.h5", precision=precision)

        found, expected = ours(tmp_path / "model.h5", TOKENS), theirs(model, TOKENS)
        error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
        assert 0 < error < bound


class TestRefusals:
    @pytest.mark.parametrize(
        "settings",
        [
            {"model_type": "qwen4"},
            {"model_type": "zamba"},
            {"model_type": None},
            {"model_type": "mixtral", "num_local_experts": 8},
            {"quantization_config": {"bits": 4}},
            {"architectures": ["LlamaForSequenceClassification"]},
            {"hidden_act": "quick_gelu"},
            {"rope_parameters": {"rope_type": "spiral"}},
            {"rope_parameters": {"rope_type": "llama3"}},
            {"num_attention_heads": "many"},
            {"num_key_value_heads": 2},
            {"intermediate_size": 84},
            {"hidden_size": 61},
            {"num_hidden_layers": 4},
            {"num_hidden_layers": 2},
            {"model_type": "gemma2"},
        ],
    )
    def test_of_a_config_are_one_line(self, tmp_path, settings, kept):
        made(tmp_path, "llama")
        path = tmp_path / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))

        with pytest.raises(HeptiError) as caught:
            converted(tmp_path, tmp_path / "model.h5")
        kept(caught.value)

        assert "\n" not in str(caught.value)
        assert not (tmp_path / "model.h5").exists()

    @pytest.mark.parametrize(
        ("kinds", "line"),
        [
            (["full_attention"] * 2, "layer_types has 2, of 3 layers"),
            (["conv"] * 3, "layer_types has conv, of 3 layers"),
        ],
    )
    def test_of_kinds_of_layers_name_them(self, tmp_path, kinds, line):
        made(tmp_path, "qwen2-windows")
        path = tmp_path / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"layer_types": kinds}))

        with pytest.raises(HeptiError, match=line):
            converted(tmp_path, tmp_path / "model.h5")

    @pytest.mark.parametrize("gone", ["model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"])
    def test_of_a_tensor_that_is_missing_names_it(self, tmp_path, gone, kept):
        made(tmp_path, "llama")
        path = tmp_path / "model.safetensors"
        tensors = load_file(path)
        del tensors[gone]
        save_file(tensors, path)

        with pytest.raises(HeptiError) as raised:
            converted(tmp_path, tmp_path / "model.h5")
        kept(raised.value)

    def test_of_a_tensor_that_no_layer_has_names_it(self, tmp_path, kept):
        """Attention sinks, say."""
        made(tmp_path, "llama")
        path = tmp_path / "model.safetensors"
        save_file(load_file(path) | {"model.layers.1.self_attn.sinks": np.zeros(5, np.float32)}, path)

        with pytest.raises(HeptiError) as raised:
            converted(tmp_path, tmp_path / "model.h5")
        kept(raised.value)

    def test_of_a_file_that_is_cut_short_leave_nothing(self, tmp_path):
        made(tmp_path, "llama")
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1000])

        with pytest.raises(HeptiError, match="cannot read"):
            converted(tmp_path, tmp_path / "model.h5")

        assert not list(tmp_path.glob("*.h5*"))
