"""From a GGUF file to a language model's checkpoint, whose blocks of Q4_0 and Q8_0 stay as they are.

A GGUF file says in its own words what a config.json says, so its settings are put in those words, and what they mean is
known in one place. Two things are its own: of Llama's architecture the rows of query and key lie so that those that
turn together are neighbours, and Llama 3's long waves stand as a tensor of divisors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array
from solver.base.errors import HeptiError, explained
from solver.base.spans import Span
from solver.model.blocks import BlockKind
from solver.model.decoder import Decoder, blocks_of, decoder_tensors
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.weight import BLOCK, PRECISIONS, Weight
from weights.convert.checkpoint import STRANGE
from weights.convert.convert import Source
from weights.decoders.convert import BlockSource, DecoderCheckpoint, scaled_source
from weights.decoders.export import MATRICES, NORMS
from weights.decoders.families import DECODER_FAMILIES, build_decoder
from weights.decoders.gguf.container import SAME_BLOCKS, GgufFile, GgufTensor
from weights.decoders.gguf.keys import check_facts
from weights.decoders.gguf.tokenizer import gguf_texts, missing_facts
from weights.decoders.quantise import Levels, Scales

# Their architectures in the words of config.json.
_FAMILIES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3_text", "phi3": "phi3",
    "gpt2": "gpt2", "olmo2": "olmo2", "granite": "granite", "smollm3": "smollm3",
}  # fmt: skip
_PAIRED = ("llama", "granite", "smollm3")  # whose rows of query and key that turn together are neighbours
# Facts, after the architecture's name, in the words of config.json.
_SETTINGS = {
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.layer_norm_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta", "rope.freq_base_swa": "rope_local_base_freq",
    "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
    "attention.sliding_window": "sliding_window", "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling", "rope.scaling.original_context_length": "original_max_position_embeddings",
}  # fmt: skip
_NEEDED = ("embedding_length", "feed_forward_length", "block_count", "attention.head_count", "context_length")
# Where 0 is none.
_MAY_BE_NONE = (
    "residual_multiplier", "embedding_multiplier", "attention_multiplier", "sliding_window", "attn_logit_softcapping",
    "final_logit_softcapping",
)  # fmt: skip
_NORM = {"gpt2": "attention.layer_norm_epsilon"}  # needed, too; of others:
_RMS_NORM = "attention.layer_norm_rms_epsilon"
_THETA = 10000.0  # where a file does not say, whatever the architecture
_WITH_WINDOWS = ("gemma2", "gemma3", "phi3")
_USUAL_WINDOWS = ("gemma2",)  # where a file does not say
# Of these sizes scores are scaled by the stream's width a head, as llama.cpp knows by the number of layers (27B).
_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
_NAMES = {
    **MATRICES, **NORMS, "attention/query_norm": "attn_q_norm", "attention/key_norm": "attn_k_norm",
    "attention/post_norm": "post_attention_norm", "mlp/post_norm": "post_ffw_norm",
}  # fmt: skip
_TOP = {"embedding": "token_embd", "positions": "position_embd", "final_norm": "output_norm", "head": "output"}
_FUSED = {**dict.fromkeys(("attn_q", "attn_k", "attn_v"), "attn_qkv"), "ffn_gate": "ffn_up"}
_DIVISORS = "rope_freqs.weight"
_SCALINGS = ("none", "linear", "yarn", "longrope")
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
# What blocks of other kinds are nearest to; kinds of 5 bits and more lose least as int8.
_NEAREST = {"F32": "float32", "F16": "float32", "BF16": "float32", **SAME_BLOCKS}
_MORE_BITS = ("Q5", "Q6", "Q8")


@dataclass(frozen=True, slots=True)
class GgufCheckpoint(DecoderCheckpoint):
    """A GGUF file as a checkpoint.

    Parameters
    ----------
    kinds
        Of our matrices, as the file stores them.
    problem
        Why there is no tokenizer; empty if there is one.
    remarks
        What is to be said of its facts, each as it "has" it.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def precision(self) -> str:
        """What most of its matrices are in, or nearest to: float32, int8, int4 or int4m."""
        most = Counter(map(_nearest, self.kinds.values()))
        return max(most, key=most.__getitem__)

    def loses(self, precision: str) -> bool:
        """Return whether matrices get other numbers in a precision."""
        return precision != "float32" and bool(self._others(precision))

    def _others(self, precision: str) -> Counter[str]:
        """Count the kinds of matrices that are not in a precision as they are."""
        return Counter(
            kind for name, kind in self.kinds.items()
            if name not in self.blocks or precision not in self.blocks[name].precisions
        )  # fmt: skip

    def notes(self, precision: str) -> list[str]:
        """Say which matrices get other numbers, and why there is no tokenizer."""
        found = [*self.remarks]
        if self.problem:
            found.append(f"has no tokenizer, as {self.problem}: the model will read token ids only")
        if self.loses(precision):
            others = self._others(precision)
            kinds = ", ".join(f"{count} in {kind}" for kind, count in others.most_common())
            found.append(f"has {sum(others.values())} of {len(self.kinds)} matrices that are quantised anew: {kinds}")
        return found


@contextmanager
def open_gguf(path: Path) -> Iterator[GgufCheckpoint]:
    """Open a GGUF file of a language model.

    Raises
    ------
    HeptiError
        If it is damaged, or of a model that is not computed.
    """
    file = GgufFile(path)
    with explained(str(path), HeptiError), explained("a setting is not as it should be", STRANGE):
        architecture = file.facts.get("general.architecture")
        if architecture not in _FAMILIES:
            raise HeptiError(f"architecture {architecture!r} is none of {', '.join(_FAMILIES)}")
        if (parts := file.facts.get("split.count", 1)) > 1:
            raise HeptiError(f"it is one of {parts} files: join them with llama-gguf-split --merge")
        remarks = check_facts(file.facts, architecture)
        model = _model(file, architecture)
        texts, problem = gguf_texts(file.facts, architecture)
        model = replace(model, bos=texts.bos, eos=texts.eos, suppressed=texts.suppressed)
        found = _parts(file, model, architecture)
    sources = {name: Source(part.weight.shape, part.numbers) for name, part in found.items()}
    if (smaller := file.facts.get("granite.logit_scale", 1)) != 1:
        sources["final_norm/weight"] = scaled_source(sources["final_norm/weight"], np.float32(1 / smaller))
    yield GgufCheckpoint(
        model,
        f"{model.name} (GGUF, {architecture})",
        sources,
        texts,
        {
            name: BlockSource(part.precisions, part.blocks)
            for name, part in found.items()
            if part.weight.summed is not None and part.precisions
        },
        {name: part.tensor.kind.name for name, part in found.items() if part.weight.summed is not None},
        problem,
        (*remarks, *missing_facts(file.facts)),
    )


def _nearest(kind: str) -> str:
    return _NEAREST.get(kind, "int8" if kind.startswith(_MORE_BITS) else "int4")


def _model(file: GgufFile, architecture: str) -> Decoder:
    """Return the description of a file's model, without first and last tokens."""
    family = DECODER_FAMILIES[_FAMILIES[architecture]]
    name = " ".join(str(file.facts.get("general.name") or file.path.stem).split())
    config = {family.words.get(key, key): value for key, value in _config(file, architecture).items()}
    model = build_decoder(name, family, config)
    if (divisors := file.tensors.get(_DIVISORS)) is not None:
        model = _with_ropes(model, partial(_slowed, _numbers(divisors)))
    larger = file.facts.get(f"{architecture}.rope.scaling.attn_factor", 1)  # than the kind of scaling has it
    return _with_ropes(model, lambda rope: replace(rope, factor=rope.factor * float(larger)))


def _config(file: GgufFile, architecture: str) -> dict[str, Any]:
    """Return a file's settings in Llama's words."""
    prefix = f"{architecture}."
    facts = {name.removeprefix(prefix): value for name, value in file.facts.items() if name.startswith(prefix)}
    for name in (*_NEEDED, _NORM.get(architecture, _RMS_NORM)):
        if name not in facts:
            raise HeptiError(f"it does not say {prefix}{name}")
    if facts.get("expert_count"):
        raise HeptiError(f"it has {facts['expert_count']} experts a layer, Hepti computes one")
    config = {word: _one(prefix + name, facts[name]) for name, word in _SETTINGS.items() if name in facts}
    for word, value in config.items():
        if word in _MAY_BE_NONE and value == 0:
            config[word] = None
        elif not isinstance(value, int | float) or value <= 0:
            raise HeptiError(f"{word} is {value!r}, must be a number above 0")
    if config["num_hidden_layers"] > len(file.tensors):
        raise HeptiError(f"it says {config['num_hidden_layers']} layers, and has {len(file.tensors)} tensors")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    config.setdefault("head_dim", hidden // heads)
    config.setdefault("rope_theta", _THETA)
    config.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    if architecture not in _WITH_WINDOWS:
        config.pop("sliding_window", None)
    elif architecture not in _USUAL_WINDOWS:
        config.setdefault("sliding_window", None)
    if architecture == "granite":
        if "logits_scaling" not in config:
            raise HeptiError(f"it does not say {prefix}logit_scale")
        config.setdefault("attention_multiplier", None)  # as usual
        config["rope"] = bool(facts.get("rope.scaling.finetuned", True))
    if architecture in _BY_WIDTH:
        by_width = config["num_hidden_layers"] == _BY_WIDTH[architecture]
        config["query_pre_attn_scalar"] = hidden / heads if by_width else config["head_dim"]
        config |= _pattern(facts.get("attention.sliding_window_pattern"))
    embedding = file.tensors.get("token_embd.weight")
    config["vocab_size"] = 0 if embedding is None else embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_output.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    turning = facts.get("rope.dimension_count", config["head_dim"])
    if architecture in _PAIRED and turning != config["head_dim"]:
        raise HeptiError(
            f"{prefix}rope.dimension_count is {turning}, a head has {config['head_dim']} columns: Hepti turns all"
        )
    return config | {"partial_rotary_factor": turning / config["head_dim"], "rope_scaling": _scaling(file, facts)}


def _one(name: str, value: Any) -> Any:
    """Return a fact that may stand once for every layer."""
    if isinstance(value, np.ndarray):
        if len(set(value.tolist())) != 1:
            raise HeptiError(f"{name} differs from layer to layer: {', '.join(map(str, value[:8].tolist()))} …")
        return value[0].item()
    return value


def _pattern(given: Any) -> dict[str, Any]:
    """Return which layers have windows, where a file says so."""
    if isinstance(given, np.ndarray):
        return {"layer_types": ["sliding_attention" if window else "full_attention" for window in given.tolist()]}
    return {} if given is None else {"sliding_window_pattern": given}


def _scaling(file: GgufFile, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how rotary positions are scaled, in the words of config.json.

    As llama.cpp has it: without a type it is "linear", and `rope.scale_linear` is what `rope.scaling.factor` was
    called; a factor of 0 is none.
    """
    kind = facts.get("rope.scaling.type", "linear")
    if kind not in _SCALINGS:
        raise HeptiError(f"rope.scaling.type is {kind!r}, must be one of {', '.join(_SCALINGS)}")
    factor = facts.get("rope.scaling.factor", facts.get("rope.scale_linear", 0)) or 1
    if not isinstance(factor, int | float) or factor < 0:
        raise HeptiError(f"rope.scaling.factor is {factor!r}, must be a number above 0")
    if kind == "longrope" or _SHORT in file.tensors:
        if _SHORT not in file.tensors:
            raise HeptiError(f"rope.scaling.type is {kind!r}, and there is no tensor {_SHORT}")
        if factor != 1:
            raise HeptiError(f"rope.scaling.factor is {factor}, which Hepti does not compute beside {_SHORT}")
        return {"type": "longrope", "short_factor": _numbers(file.tensors[_SHORT]).tolist(), "attention_factor": 1.0}
    if kind == "none" or (kind == "linear" and factor == 1):
        return None
    return {
        "type": kind,
        "factor": factor,
        "attention_factor": facts.get("rope.scaling.yarn_attn_factor"),
        "beta_fast": facts.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": facts.get("rope.scaling.yarn_beta_slow"),
    }


def _with_ropes(model: Decoder, changed: Callable[[Rope], Rope]) -> Decoder:
    """Return a model whose rotary positions are changed."""

    def turned(kind: BlockKind) -> BlockKind:
        if not isinstance(kind, Attention) or kind.rope is None:
            return kind
        return replace(kind, rope=changed(kind.rope))

    layers = {layer: tuple(map(turned, layer)) for layer in set(model.layers)}
    return replace(model, layers=tuple(layers[layer] for layer in model.layers))


def _slowed(divisors: Array, rope: Rope) -> Rope:
    """Return frequencies that are divided."""
    if len(divisors) != len(rope.frequencies):
        raise HeptiError(f"{_DIVISORS} has {len(divisors)} numbers, of {len(rope.frequencies)} frequencies")
    return replace(rope, frequencies=tuple(map(float, np.array(rope.frequencies, np.float32) / divisors)))


def _numbers(tensor: GgufTensor) -> Array:
    """Return all numbers of a tensor in a row."""
    return tensor.numbers(np.arange(len(tensor.data)), 0, tensor.shape[-1]).ravel()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One of our tensors, in one of theirs.

    Parameters
    ----------
    outputs
        Where ours lie among theirs.
    """

    tensor: GgufTensor
    weight: Weight
    outputs: NDArray[np.intp]

    def numbers(self, rows: Span) -> Array:
        """Read rows of ours as float32."""
        columns = self.tensor.shape[-1]
        if len(self.weight.shape) == 1:
            return _numbers(self.tensor)[self.outputs[rows.slice]]
        if self.weight.summed == 0:
            return self.tensor.numbers(self.outputs, rows.start, rows.stop).T
        return self.tensor.numbers(self.outputs[rows.slice], 0, columns)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Of files that take its blocks as they are."""
        return tuple(
            name for name, precision in PRECISIONS.items() if self.tensor.can_be(self.weight.held_in(precision).name)
        )

    def blocks(self, rows: Span, precision: str) -> tuple[Levels, Scales]:
        """Read rows of ours, whole blocks of an [in, out] matrix, as blocks and scales."""
        held = self.weight.held_in(PRECISIONS[precision]).name
        if self.weight.summed == 0:
            levels, scales = self.tensor.blocks(self.outputs, rows.start // BLOCK, rows.stop // BLOCK, held)
            return np.ascontiguousarray(levels.swapaxes(0, 1)), np.ascontiguousarray(scales.swapaxes(0, 1))
        return self.tensor.blocks(self.outputs[rows.slice], 0, self.tensor.shape[-1] // BLOCK, held)


def _parts(file: GgufFile, model: Decoder, architecture: str) -> dict[str, _Part]:
    """Say where each of our tensors lies, and refuse tensors that are missing, too many or of other shapes."""
    weights = decoder_tensors(model)
    places: dict[str, tuple[str, int]] = {}  # the tensor of theirs that each of ours lies in, and where it begins
    taken: dict[str, int] = {}  # outputs of a tensor that are ours
    for name, weight in weights.items():
        theirs = _their_name(file, name)
        if theirs not in file.tensors:
            raise HeptiError(f"it has no tensor {theirs}")
        places[name] = theirs, taken.get(theirs, 0)
        taken[theirs] = places[name][1] + _outputs(weight)
    for name, weight in weights.items():
        theirs, _ = places[name]
        _check_shape(file.tensors[theirs], weight, taken[theirs])
    unknown = file.tensors.keys() - taken.keys() - {_DIVISORS, _LONG, _SHORT}
    if unknown:
        raise HeptiError(f"it has a tensor {min(unknown)}, which Hepti does not know in architecture {architecture}")
    found: dict[str, _Part] = {}
    head_dim = blocks_of(model, Attention)[0].head_dim
    for name, weight in weights.items():
        theirs, start = places[name]
        outputs = np.arange(_outputs(weight))
        if architecture in _PAIRED and ("/query/" in name or "/key/" in name):
            outputs = outputs.reshape(-1, head_dim // 2, 2).swapaxes(1, 2).ravel()
        found[name] = _Part(file.tensors[theirs], weight, start + outputs)
    return found


def _outputs(weight: Weight) -> int:
    return weight.shape[1] if weight.summed == 0 else weight.shape[0]


def _check_shape(tensor: GgufTensor, weight: Weight, outputs: int) -> None:
    """Refuse a tensor of another shape than its outputs, and what they are summed of, make it."""
    shape: tuple[int, ...] = (outputs, *weight.shape[1:])
    if weight.summed is not None:
        shape = (outputs, weight.shape[weight.summed])
    if tensor.shape != shape:
        raise HeptiError(f"tensor {tensor.name} is {tensor.shape}, its settings make it {shape}")


def _their_name(file: GgufFile, name: str) -> str:
    """Return their name of one of our tensors; several of ours may lie in one, one after the other."""
    folder, _, leaf = name.rpartition("/")
    if not folder.startswith("layers/"):
        return f"{_TOP[folder]}.{leaf}"
    _, number, half = folder.split("/", 2)
    theirs = f"blk.{number}.{_NAMES[half]}.{leaf}"
    if theirs not in file.tensors and _NAMES[half] in _FUSED:
        return f"blk.{number}.{_FUSED[_NAMES[half]]}.{leaf}"
    return theirs
