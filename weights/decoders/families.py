"""The families of language models: how each names its settings and its tensors, and which settings are computed.

One `DecoderFamily` a `model_type`. A config.json leaves out what its library's class has as the default, hence
`defaults`; a setting that is there counts, also as null. Transformers 5 has rotary positions in `rope_parameters`, one
set for all layers or one for each kind of layer; transformers 4 in `rope_theta`, `rope_scaling` and the like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from solver.base.errors import HeptiError, explained
from solver.base.phrases import did_you_mean
from solver.model.decoder import Decoder
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.mlp import Mlp
from solver.model.rotary import rope_of

Facts = Mapping[str, Any]
Getter = Callable[[str], Any]  # a setting by its name
_FULL, _SLIDING = "full_attention", "sliding_attention"

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
}  # fmt: skip
# Settings that change what a model computes, with the values that are computed.
_COMPUTED: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "use_bidirectional_attention": (False, None),
    "add_cross_attention": (False, None),
    "scale_attn_by_inverse_layer_idx": (False, None),
    "num_local_experts": (None, 0, 1),
    "num_experts": (None, 0, 1),
    "is_encoder_decoder": (False, None),
}
_LLAMA = {
    "attention/norm": "input_layernorm", "attention/query": "self_attn.q_proj", "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj", "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm", "attention/output": "self_attn.o_proj",
    "mlp/norm": "post_attention_layernorm", "mlp/gate": "mlp.gate_proj", "mlp/up": "mlp.up_proj",
    "mlp/down": "mlp.down_proj", "layers": "layers", "embedding": "embed_tokens", "final_norm": "norm",
    "head": "lm_head",
}  # fmt: skip
_GEMMA = _LLAMA | {
    "attention/post_norm": "post_attention_layernorm", "mlp/norm": "pre_feedforward_layernorm",
    "mlp/post_norm": "post_feedforward_layernorm",
}  # fmt: skip
_OLMO2 = {name: theirs for name, theirs in _LLAMA.items() if name not in ("attention/norm", "mlp/norm")} | {
    "attention/post_norm": "post_attention_layernorm", "mlp/post_norm": "post_feedforward_layernorm",
}  # fmt: skip
_PHI3 = _LLAMA | {
    **{f"attention/{name}": "self_attn.qkv_proj" for name in ("query", "key", "value")},
    "mlp/gate": "mlp.gate_up_proj", "mlp/up": "mlp.gate_up_proj",
}  # fmt: skip
_GPT2 = {
    **{f"attention/{name}": "attn.c_attn" for name in ("query", "key", "value")},
    "attention/norm": "ln_1", "attention/output": "attn.c_proj", "mlp/norm": "ln_2", "mlp/up": "mlp.c_fc",
    "mlp/down": "mlp.c_proj", "layers": "h", "embedding": "wte", "positions": "wpe", "final_norm": "ln_f",
    "head": "lm_head",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """What one `model_type` calls things, and what its class does.

    Parameters
    ----------
    names
        Its tensors by our names without the layer; several of ours in one of its own lie there one after the other.
    defaults
        Of all settings that its class reads, in Llama's words.
    words
        Its word for a setting, where it is not Llama's.
    matrices_turned
        Whether matrices of layers lie as [in, out], as GPT-2's.
    one_plus
        Whether norms multiply by 1 + weight.
    attention, mlp, model
        What every model of the family has, in the words of `Attention`, `Mlp` and `Decoder`.
    """

    names: Mapping[str, str]
    defaults: Facts
    words: Mapping[str, str] = field(default_factory=dict)
    matrices_turned: bool = False
    one_plus: bool = False
    attention: Facts = field(default_factory=dict)
    mlp: Facts = field(default_factory=dict)
    model: Facts = field(default_factory=dict)

    def get(self, config: Facts, key: str) -> Any:
        """Return a setting, or its default; None of what the family does not read."""
        return config.get(self.words.get(key, key), self.defaults[key]) if key in self.defaults else None

    def factor(self, config: Facts, name: str) -> float:
        """Return what a tensor is multiplied by: of Granite's last norm what its logits are divided by."""
        return 1 / float(self.get(config, "logits_scaling") or 1) if name == "final_norm/weight" else 1.0


_BASE = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "rope_theta": 1e4, "tie_word_embeddings": False, "head_dim": None, "num_key_value_heads": None,
    "partial_rotary_factor": None, "original_max_position_embeddings": None, "rope_parameters": None,
    "rope_scaling": None,
}  # fmt: skip
_QWEN = _BASE | {
    "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
    "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None,
}  # fmt: skip
_GEMMA_BASE = _BASE | {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
    "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "tie_word_embeddings": True, "attention_bias": False, "layer_types": None, "final_logit_softcapping": None,
}  # fmt: skip
DECODER_FAMILIES: Mapping[str, DecoderFamily] = {
    "llama": DecoderFamily(_LLAMA, _BASE | {"attention_bias": False, "mlp_bias": False}),
    # With layer_types transformers takes its Ministral class for model_type mistral, too.
    **dict.fromkeys(
        ("mistral", "ministral"),
        DecoderFamily(
            _LLAMA,
            _BASE | {
                "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
                "sliding_window": 4096, "layer_types": None,
            },
        ),
    ),
    "qwen2": DecoderFamily(_LLAMA, _QWEN, attention={"bias": True}),
    "qwen3": DecoderFamily(_LLAMA, _QWEN | {"head_dim": 128, "attention_bias": False}, attention={"qk_norm": True}),
    "gemma2": DecoderFamily(
        _GEMMA,
        _GEMMA_BASE | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window_pattern": 2},
        words={"hidden_act": "hidden_activation"}, one_plus=True, model={"post_norms": True},
    ),
    "gemma3_text": DecoderFamily(
        _GEMMA,
        _GEMMA_BASE | {
            "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6, "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
        },
        words={"hidden_act": "hidden_activation"}, one_plus=True, attention={"qk_norm": True},
        model={"post_norms": True},
    ),
    "olmo2": DecoderFamily(
        _OLMO2,
        _BASE | {"vocab_size": 50304, "rms_norm_eps": 1e-5, "attention_bias": False},
        attention={"qk_norm": True, "whole_norms": True}, model={"pre_norms": False, "post_norms": True},
    ),
    "granite": DecoderFamily(
        _LLAMA,
        _BASE | {
            "attention_bias": False, "mlp_bias": False, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
            "attention_multiplier": 1.0, "logits_scaling": 1.0, "rope": True,
        },
    ),
    "smollm3": DecoderFamily(
        _LLAMA,
        _BASE | {
            "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
            "num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6, "tie_word_embeddings": True,
            "attention_bias": False, "mlp_bias": False, "use_sliding_window": False, "sliding_window": None,
            "layer_types": None, "no_rope_layers": None, "no_rope_layer_interval": 4,
        },
    ),
    "phi3": DecoderFamily(
        _PHI3,
        _BASE | {
            "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "sliding_window": None,
        },
    ),
    "gpt2": DecoderFamily(
        _GPT2,
        {
            "vocab_size": 50257, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "hidden_act": "gelu_new",
            "tie_word_embeddings": True, "scale_attn_weights": True, "intermediate_size": None,
        },
        words={
            "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions", "rms_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function", "intermediate_size": "n_inner",
        },
        matrices_turned=True, attention={"bias": True, "output_bias": True}, mlp={"gated": False, "bias": True},
        model={"norm": "layer", "learned_positions": True},
    ),
}  # fmt: skip


def find_decoder_family(config: Facts) -> tuple[DecoderFamily, Facts]:
    """Return the family of a config.json, and the settings of its text part.

    Raises
    ------
    HeptiError
        If the family is unknown, or a setting is one that is not computed.
    """
    whole, kind = config, config.get("model_type")
    if kind == "gemma3":
        config = {**whole["text_config"], "architectures": whole.get("architectures")}
        kind = "gemma3_text"
    for key, computed in _COMPUTED.items():
        if config.get(key) not in computed:
            raise HeptiError(f"config.json: {key} is {config[key]!r}, Hepti computes only {computed[0]!r}")
    if not isinstance(kind, str) or kind not in DECODER_FAMILIES:
        hint = did_you_mean(kind, DECODER_FAMILIES) if isinstance(kind, str) else ""
        raise HeptiError(f"config.json: model_type {kind!r} is no language model that Hepti computes{hint}")
    for name in config.get("architectures") or ():
        if not name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Model")):
            raise HeptiError(
                f"config.json: architecture {name} has another head than words: Hepti computes ForCausalLM"
            )
    kinds = config.get("layer_types") or ()
    if "layer_types" not in DECODER_FAMILIES[kind].defaults and set(kinds) - {_FULL}:
        raise HeptiError(f"config.json: layer_types has {', '.join(sorted(set(kinds)))}: {kind} computes {_FULL} only")
    return DECODER_FAMILIES[kind], config


def build_decoder(name: str, family: DecoderFamily, config: Facts) -> Decoder:
    """Return the description of a checkpoint's model, without first and last tokens.

    Raises
    ------
    HeptiError
        If a setting fits no other, or is not computed.
    """
    get = partial(family.get, config)
    hidden, activation = get("hidden_size"), get("hidden_act") or family.defaults["hidden_act"]
    if activation not in _ACTIVATIONS:
        raise HeptiError(f"config.json: activation {activation!r} is not one of {', '.join(_ACTIVATIONS)}")
    mlp = Mlp(
        **{"bias": bool(get("mlp_bias")), **family.mlp}, ffn=get("intermediate_size") or 4 * hidden,
        activation=_ACTIVATIONS[activation],
    )  # fmt: skip
    kinds = [*zip(_layer_kinds(get), _turning_layers(get), strict=True)]
    layers = {kind: (_attention(family, get, *kind), mlp) for kind in set(kinds)}
    # Granite adds r times what a block computes, x + r f(norm(x)): of y = x / r that is y + f(norm(y)), with
    # another epsilon. So the stream begins 1 / r as large, and nothing else needs to know.
    residual = _scale_of(get, "residual_multiplier")
    return Decoder(
        **family.model, name=name, hidden=hidden, vocab=get("vocab_size"), positions=_positions(get),
        layers=tuple(layers[kind] for kind in kinds), norm_eps=float(get("rms_norm_eps")) / residual**2,
        embedding_scale=(math.sqrt(hidden) if family.one_plus else _scale_of(get, "embedding_multiplier")) / residual,
        head_softcap=float(get("final_logit_softcapping") or 0), tied=bool(get("tie_word_embeddings")),
    )  # fmt: skip


def _scale_of(get: Getter, key: str) -> float:
    """Return a factor of a family's own; 1 where it has none."""
    found = get(key)
    if found is None:
        return 1.0
    if isinstance(found, bool) or not isinstance(found, int | float) or found <= 0:
        raise HeptiError(f"config.json: {key} is {found!r}, must be a number above 0")
    return float(found)


def _turning_layers(get: Getter) -> list[bool]:
    """Return of every layer whether its heads turn by their positions."""
    count, given, interval = get("num_hidden_layers"), get("no_rope_layers"), get("no_rope_layer_interval")
    if given is not None:
        if len(given) < count:
            raise HeptiError(f"config.json: no_rope_layers has {len(given)} numbers, of {count} layers")
        return [bool(turns) for turns in given[:count]]
    turns = get("rope") is not False
    return [turns and not (interval and (number + 1) % interval == 0) for number in range(count)]


def _layer_kinds(get: Getter) -> list[str]:
    """Return for every layer "full_attention" or "sliding_attention"."""
    count, kinds = get("num_hidden_layers"), get("layer_types")
    if not get("sliding_window") or get("use_sliding_window") is False:
        return [_FULL] * count
    if kinds is None:
        pattern = get("sliding_window_pattern")  # every so many layers one sees all
        first = get("max_window_layers") or 0
        full = [number < first or bool(pattern and (number + 1) % pattern == 0) for number in range(count)]
        kinds = [_FULL if sees_all else _SLIDING for sees_all in full]
    strange = set(kinds) - {_FULL, _SLIDING}
    if strange or len(kinds) != count:
        raise HeptiError(f"config.json: layer_types has {', '.join(sorted(strange)) or len(kinds)}, of {count} layers")
    return list(kinds)


def _attention(family: DecoderFamily, get: Getter, kind: str, turns: bool) -> Attention:
    heads, bias, scalar = get("num_attention_heads"), bool(get("attention_bias")), get("query_pre_attn_scalar")
    head_dim = get("head_dim") or get("hidden_size") // heads
    scale = 1.0 if get("scale_attn_weights") is False else 0.0
    return Attention(
        **{"bias": bias, "output_bias": bias, **family.attention}, heads=heads,
        kv_heads=get("num_key_value_heads") or heads, head_dim=head_dim,
        rope=_rope(get, kind, head_dim) if turns and not family.model.get("learned_positions") else None,
        window=get("sliding_window") if kind == _SLIDING else 0, softcap=float(get("attn_logit_softcapping") or 0),
        scale=scalar**-0.5 if scalar else scale if get("attention_multiplier") is None else
        _scale_of(get, "attention_multiplier"),
    )  # fmt: skip


def _rope(get: Getter, kind: str, head_dim: int) -> Rope:
    settings = _rope_settings(get, kind)
    width = int(head_dim * settings["partial_rotary_factor"])
    with explained("config.json: rotary positions", KeyError):
        return rope_of(width, settings["rope_theta"], settings, get("max_position_embeddings"))


def _rope_settings(get: Getter, kind: str) -> dict[str, Any]:
    """Return rotary positions of a kind of layer, in the words of transformers 5."""
    settings, theta = dict(get("rope_parameters") or {}), get("rope_theta")
    if {_FULL, _SLIDING} & settings.keys():
        settings = dict(settings[kind])
    elif kind == _SLIDING and get("rope_local_base_freq"):
        theta = get("rope_local_base_freq")
    else:
        settings = settings or dict(get("rope_scaling") or {})
    settings.setdefault("rope_theta", theta)
    settings.setdefault("partial_rotary_factor", get("partial_rotary_factor") or 1.0)
    settings.setdefault("original_max_position_embeddings", get("max_position_embeddings"))
    if get("original_max_position_embeddings") is not None:
        settings["original_max_position_embeddings"] = get("original_max_position_embeddings")
    return settings


def _positions(get: Getter) -> int:
    """Return the longest context: with longrope the original one, whose factors are taken, with yarn all it reaches."""
    positions = int(get("max_position_embeddings"))
    settings = _rope_settings(get, _FULL)
    kind, original = settings.get("rope_type", settings.get("type")), settings["original_max_position_embeddings"]
    if kind in ("longrope", "su"):
        return min(positions, int(original))
    return max(positions, int(original * (settings.get("factor") or 1))) if kind == "yarn" else positions
