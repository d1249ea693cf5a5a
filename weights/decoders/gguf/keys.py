"""What a GGUF file says of its model: every fact is honoured, without effect, or refused by its name.

The facts are those that llama.cpp reads (`src/llama-arch.cpp`, `LLM_KV_NAMES`; which architecture reads which:
`src/models/`). Of one that llama.cpp does not read at all nothing can depend there, so it is only named in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from solver.base.errors import HeptiError
from solver.base.phrases import counted

GgufFacts = Mapping[str, Any]
_WINDOWS = ("attention.sliding_window", "attention.sliding_window_pattern")
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_SCALES = ("logit_scale", "residual_scale", "embedding_scale", "attention.scale")
# Honoured for every architecture, after its name.
_HONOURED = (
    "embedding_length", "feed_forward_length", "block_count", "context_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon", "expert_count", "rope.freq_base", "rope.dimension_count", "rope.scale_linear",
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
)  # fmt: skip
_HONOURED_BY: Mapping[str, tuple[str, ...]] = {
    "gemma2": (*_WINDOWS, *_CAPS),
    "gemma3": (*_WINDOWS, "final_logit_softcapping", "rope.freq_base_swa"),
    "phi3": ("attention.sliding_window",),
    "granite": (*_SCALES, "rope.scaling.finetuned"),
}
# Nothing that is computed of text depends on them: they count words or experts, where there are none, say how a model
# was made or what embeddings are pooled to, or turn parts of a head by places that are the same for text.
_WITHOUT_EFFECT = (
    "vocab_size", "tensor_data_layout", "rope.dimension_sections", "rope.scaling.finetuned", "rope.freq_base_swa",
    "pooling_type", "embedding_length_out", "dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in",
    "dense_3_feat_out", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length",
    "expert_chunk_feed_forward_length", "expert_shared_count", "expert_group_count", "expert_group_used_count",
    "expert_weights_scale", "expert_weights_norm", "expert_gating_func", "expert_group_scale", "experts_per_group",
    "leading_dense_block_count", "moe_every_n_layers", "moe_latent_size", "interleave_moe_layer_step",
    "router_logit_softcapping",
)  # fmt: skip
# What would change the answer, and is not computed where it says more than nothing, or than what stands here.
_REFUSED = (
    *_WINDOWS, *_CAPS, *_SCALES, "use_parallel_residual", "hidden_activation", "swin_norm", "rescale_every_n_layers",
    "attention.max_alibi_bias", "attention.clamp_kqv", "attention.causal", "attention.value_length",
    "attention.output_scale", "attention.value_scale", "attention.temperature_length", "attention.temperature_scale",
    "attention.key_length_mla", "attention.value_length_mla", "attention.key_length_swa", "attention.value_length_swa",
    "attention.group_norm_epsilon", "attention.group_norm_groups", "attention.q_lora_rank", "attention.kv_lora_rank",
    "attention.decay_lora_rank", "attention.iclr_lora_rank", "attention.value_residual_mix_lora_rank",
    "attention.gate_lora_rank", "attention.relative_buckets_count", "attention.shared_kv_layers",
    "attention.recurrent_layers", "attention.output_group_count", "attention.output_lora_rank",
    "attention.compress_rope_freq_base", "attention.compress_ratios", "attention.indexer.head_count",
    "attention.indexer.key_length", "attention.indexer.top_k", "rope.dimension_count_swa", "rope.scaling.alpha",
    "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor", "embedding_length_per_layer_input",
    "features_length", "swiglu_clamp_exp", "swiglu_clamp_shexp", "nextn_predict_layers", "n_deepstack_layers",
    "deepstack_mapping", "decoder_start_token_id", "decoder_block_count", "time_mix_extra_dim",
    "time_decay_extra_dim", "token_shift_count", "full_attention_interval", "hyper_connection.count",
    "hyper_connection.sinkhorn_iterations", "hyper_connection.epsilon", "hash_layer_count", "ssm.conv_kernel",
    "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count", "ssm.dt_b_c_rms", "kda.head_dim",
    "wkv.head_size", "posnet.embedding_length", "posnet.block_count", "convnext.embedding_length",
    "convnext.block_count", "classifier.output_labels", "target_layers", "target_hidden_size", "norm_before_residual",
    "shortconv.l_cache",
)  # fmt: skip
_SAME = {"silu": ("silu", "swish", "swiglu"), "gelu_tanh": ("gelu", "geglu", "gelu_tanh", "gelu_pytorch_tanh")}
_ACTIVATION = {"gemma2": "gelu_tanh", "gemma3": "gelu_tanh", "gpt2": "gelu_tanh"}
# Of text: after "tokenizer.ggml." or whole.
_TEXT_HONOURED = (
    "model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id", "eot_token_id",
    "eom_token_id", "unknown_token_id", "padding_token_id", "add_bos_token", "add_space_prefix", "suppress_tokens",
    "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id",
)  # fmt: skip
# Tokens of other jobs, and what only tokenizers of other kinds look at (WPM, Unigram).
_TEXT_WITHOUT_EFFECT = (
    "token_type_count", "seperator_token_id", "cls_token_id", "mask_token_id", "fim_pre_token_id", "fim_suf_token_id",
    "fim_mid_token_id", "prefix_token_id", "suffix_token_id", "middle_token_id", "remove_extra_whitespaces",
    "precompiled_charsmap", "normalizer.lowercase", "normalizer.strip_accents",
)  # fmt: skip
_TEXT_REFUSED = ("add_eos_token", "add_sep_token")
_OTHER_TEXT = ("tokenizer.huggingface.json", "tokenizer.chat_template", "tokenizer.chat_templates")
_IDLE_DRAWING = {  # defaults of drawing that Hepti does not have, and what they say where they do nothing
    "general.sampling.min_p": 0, "general.sampling.xtc_probability": 0, "general.sampling.penalty_repeat": 1,
    "general.sampling.mirostat": 0,
}  # fmt: skip


def check_facts(facts: GgufFacts, architecture: str) -> tuple[str, ...]:
    """Refuse facts that change an answer and are not computed; return what is to be said of others, each as it "has".

    Raises
    ------
    HeptiError
        Naming the first such fact, and what it says.
    """
    prefix = f"{architecture}."
    own = {name.removeprefix(prefix): value for name, value in facts.items() if name.startswith(prefix)}
    honoured = {*_HONOURED, *_HONOURED_BY.get(architecture, ())}
    unknown = []
    for name, value in own.items():
        if name in honoured or name in _WITHOUT_EFFECT:
            continue
        if name not in _REFUSED:
            unknown.append(prefix + name)
        elif not (_says_nothing(value) or _fits(name, value, own, architecture)):
            raise HeptiError(f"{prefix}{name} is {_short(value)}, which Hepti does not compute in {architecture}")
    for name in facts:
        if name.startswith("xielu."):
            raise HeptiError(f"{name} is {_short(facts[name])}, which Hepti does not compute in {architecture}")
    return tuple(_notes(facts, unknown + _check_text(facts)))


def _fits(name: str, value: Any, own: GgufFacts, architecture: str) -> bool:
    """Return whether a fact says what is computed anyway."""
    heads = own.get("attention.head_count")
    width = own.get("attention.key_length")
    if width is None and isinstance(heads, int) and heads:
        width = own.get("embedding_length", 0) // heads
    if name in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"):
        return bool(value == width)
    if name == "rope.dimension_count_swa":
        return bool(value == own.get("rope.dimension_count", width))
    if name == "rope.scaling.yarn_ext_factor":  # below 0: as the kind of scaling has it
        return value < 0 or (value == 1 and own.get("rope.scaling.type") == "yarn")
    if name == "hidden_activation":
        return value in _SAME[_ACTIVATION.get(architecture, "silu")]
    if name == "attention.causal":
        return bool(value)
    if name == "attention.sliding_window":
        return bool(value >= own.get("context_length", 0))
    return name in _SCALES and name != "attention.scale" and value == 1


def _says_nothing(value: Any) -> bool:
    """Return whether a fact is 0, false, empty or a list of such; a fact that is false may still say something."""
    if isinstance(value, np.ndarray):
        return not value.any()
    return value is not False and not value


def _check_text(facts: GgufFacts) -> list[str]:
    """Refuse what text depends on and is not done; return facts of text that nobody knows."""
    unknown = []
    for name, value in facts.items():
        short = name.removeprefix("tokenizer.ggml.")
        if short in _TEXT_REFUSED and value:
            raise HeptiError(f"{name} is {value}: Hepti puts no such token after a prompt")
        known = short in (*_TEXT_HONOURED, *_TEXT_WITHOUT_EFFECT, *_TEXT_REFUSED) or name in _OTHER_TEXT
        if name.startswith("tokenizer.") and not known and not name.startswith("tokenizer.chat_template."):
            unknown.append(name)
    return unknown


def _notes(facts: GgufFacts, unknown: list[str]) -> list[str]:
    found = [
        f"has {name} {_short(facts[name])}, which Hepti passes over where tokens are drawn"
        for name, idle in _IDLE_DRAWING.items()
        if facts.get(name, idle) != idle
    ]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        named = ", ".join(sorted(unknown)[:3])
        found.append(f"has {counted(len(unknown), 'fact')} that neither llama.cpp nor Hepti reads: {named}{more}")
    return found


def _short(value: Any) -> str:
    text = ", ".join(map(str, value[:8])) if isinstance(value, np.ndarray | list) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"
