"""GGUF files of tiny transformers models, as llama.cpp's convert_hf_to_gguf.py writes them."""

import gguf
import numpy as np
import torch
import transformers

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
GEMMA = {"query_pre_attn_scalar": 24, "sliding_window": 7}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1 + number / 10 for number in range(6)],
    "long_factor": [4.0] * 6, "partial_rotary_factor": 0.75,
}  # fmt: skip
GRANITE = {
    "head_dim": 16, "embedding_multiplier": 6.0, "attention_multiplier": 0.1, "residual_multiplier": 0.22,
    "logits_scaling": 4.0,
}  # fmt: skip
GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_token_id": 2}
CASES = {
    "llama": ("Llama", "llama", {}),
    "llama tied, biased": (
        "Llama", "llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    ),
    "llama 3": ("Llama", "llama", {"rope_parameters": LLAMA_3}),
    "llama linear": ("Llama", "llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "mistral": ("Mistral", "llama", {"sliding_window": None, "rms_norm_eps": 1e-5}),
    "qwen2": ("Qwen2", "qwen2", {"head_dim": 16, "rms_norm_eps": 1e-5}),
    "qwen2 yarn": ("Qwen2", "qwen2", {"head_dim": 16, "rope_parameters": YARN}),
    "qwen3": ("Qwen3", "qwen3", {"tie_word_embeddings": True}),
    "gemma2": (
        "Gemma2", "gemma2", {**GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    ),
    "gemma3": (
        "Gemma3", "gemma3",
        {**GEMMA, "num_hidden_layers": 6, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }},
    ),
    "phi3": ("Phi3", "phi3", {"hidden_size": 96, "head_dim": 24, "sliding_window": 7, "rms_norm_eps": 1e-5}),
    "phi3 longrope": (
        "Phi3", "phi3",
        {"head_dim": 16, "rope_parameters": LONGROPE, "original_max_position_embeddings": 32},
    ),
    "olmo2": ("Olmo2", "olmo2", {"head_dim": 16}),
    "granite": ("Granite", "granite", GRANITE),
    "smollm3": ("SmolLM3", "smollm3", {"head_dim": 16, "num_hidden_layers": 4}),
    "gpt2": ("GPT2", "gpt2", GPT2),
    "wide": ("Llama", "llama", {"hidden_size": 256, "num_hidden_layers": 1}),  # a block of k-quants a row
}  # fmt: skip
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
TOP = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "transformer.wte":
    "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
}  # fmt: skip


def random_model(case):
    """Return a transformers model of random numbers, norms and biases included."""
    stem, _, settings = CASES[case]
    settings = {**({} if stem == "GPT2" else SIZES), **settings}
    config = getattr(transformers, f"{stem}{'Text' if stem == 'Gemma3' else ''}Config")(
        **settings, attn_implementation="eager"
    )
    torch.manual_seed(5)
    model = getattr(transformers, "GPT2LMHeadModel" if stem == "GPT2" else f"{stem}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + 0.5 * (parameter.ndim == 1))
    return model


def their_tensors(case, model):
    """Return the tensors of a model by their names in GGUF, as they lie there."""
    architecture, config, found = CASES[case][1], model.config, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, leaf = name.rpartition(".")
        values = tensor.float().numpy()
        if architecture == "gpt2" and stem.endswith(("c_attn", "c_proj", "c_fc")) and leaf == "weight":
            values = values.T
        if architecture.startswith("gemma") and stem.endswith("norm"):
            values = values + np.float32(1)
        if architecture in ("llama", "granite", "smollm3") and stem.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if stem.endswith("q_proj") else config.num_key_value_heads
            values = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:]).swapaxes(1, 2)
            values = values.reshape(tensor.shape)
        if stem in TOP:
            found[f"{TOP[stem]}.{leaf}"] = values
        else:
            _, _, number, rest = stem.split(".", 3)
            names = NAMES | GEMMA_NAMES if architecture.startswith(("gemma", "olmo2")) else NAMES
            found[f"blk.{number}.{names[rest]}.{leaf}"] = values
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        found["rope_freqs.weight"] = llama_3_divisors(config.head_dim, rope)
    if rope.get("rope_type") == "longrope":
        for name in ("long", "short"):
            found[f"rope_factors_{name}.weight"] = np.array(rope[f"{name}_factor"], np.float32)
    return found


def llama_3_divisors(width, rope):
    """Return how much slower every frequency is, in the converter's own words."""
    base = rope["rope_theta"] ** (np.arange(0, width, 2, dtype=np.float32) / width)
    factors = []
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for wavelength in 2 * np.pi * base:
        if wavelength < high:
            factors.append(1)
        elif wavelength > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def add_settings(writer, case, model):
    """Write what a config.json says."""
    config, architecture = model.config, CASES[case][1]
    heads = config.num_attention_heads
    writer.add_name(f"odd {case}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    if architecture == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    if head_dim != config.hidden_size // heads:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if CASES[case][2].get("sliding_window"):
        writer.add_sliding_window(config.sliding_window)
    for name in ("attn", "final"):
        if cap := getattr(config, f"{name}_logit_softcapping", None):
            getattr(writer, f"add_{name}_logit_softcapping")(cap)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    writer.add_rope_freq_base(rope["rope_theta"])
    if architecture in ("llama", "phi3"):
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        factor = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(np.sqrt(1 + np.log(factor) / np.log(original)))


def write_gguf(path, case, kind="F32", raw=None, add=lambda writer: None):
    """Write a GGUF file of a random model; return the model.

    Parameters
    ----------
    kind
        What matrices are stored as.
    raw
        Bytes [rows, bytes] and kind of tensors that get others, by their names.
    add
        Adds further facts.
    """
    model = random_model(case)
    writer = gguf.GGUFWriter(path, CASES[case][1])
    add_settings(writer, case, model)
    add(writer)
    for name, values in their_tensors(case, model).items():
        vectors = values.ndim == 1 or name == "position_embd.weight"
        stored = gguf.GGMLQuantizationType["F32" if vectors else kind]
        data = gguf.quants.quantize(np.ascontiguousarray(values), stored)
        data, stored = (raw or {}).get(name, (data, stored))
        writer.add_tensor(name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
