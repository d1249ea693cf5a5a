"""What the command line says of a language model's weights file: inspect, verify, and one sentence."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from solver.base.phrases import counted, percent
from solver.base.progress import progress
from solver.base.tables import FittedTable
from solver.model.blocks import BlockKind
from solver.model.decoder import Decoder, blocks_of, decoder_tensors
from solver.model.kinds.attention import Attention
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.weight import Weight
from weights.decoders.file import DecoderFile
from weights.decoders.loss import Loss
from weights.file.layout import row_spans
from weights.file.store import stored_facts


def sentence(model: Decoder) -> str:
    """Return what a model is: "llama-3.2-1b, 16 layers, hidden 2048, …"."""
    kinds = dict.fromkeys(reversed(model.layers[0]))
    return (
        f"{model.name}, {counted(len(model.layers), 'layer')}, hidden {model.hidden}, {', '.join(map(_said, kinds))}, "
        f"vocabulary {model.vocab}, {_parameters(decoder_tensors(model)) / 1e6:.1f} million parameters"
    )


def _said(kind: BlockKind) -> str:
    match kind:
        case Attention() as own:
            return f"{counted(own.heads, 'head')} of {own.head_dim} ({own.kv_heads} of keys and values)"
        case Mlp() as own:
            return f"ffn {own.ffn}"
    return kind.name


def facts(path: Path) -> dict[str, Any]:
    """Return what is known of a file, as JSON has it."""
    with DecoderFile(path) as weights:
        stored = {name: weights.bytes_of(name) for name in weights.tensors}
        return {
            **stored_facts(weights, stored, {name: weight.shape for name, weight in weights.tensors.items()}),
            "precision": weights.precision,
            "tokenizer": weights.tokenizer is not None,
            "chat_template": weights.chat_template is not None,
            "generation": weights.generation,
            "special": weights.special,
            "model": json.loads(weights.model.to_json()),
        }


def show(path: Path) -> None:
    """Print what a file holds."""
    with DecoderFile(path) as weights:
        _print(weights)


def show_loss(found: Loss, of: str, text: bool) -> None:
    """Print what was lost by rounding, if anything was, and the perplexities where `of` is a text."""
    if found.logits:
        table = FittedTable("after", "error")
        table.add_row("embedding", percent(found.embedding))
        for number, error in enumerate(found.layers):
            table.add_row(f"layer {number}", percent(error))
        table.add_row("logits", percent(found.logits))
        print(f"error against the checkpoint, of {of}")
        Console(markup=False, emoji=False).print(table)
    if text:
        exact, rounded = found.perplexities
        print(f"perplexity of {of}: {rounded:.4g}, the checkpoint's {exact:.4g}")


def verify(path: Path) -> str:
    """Read all of a file; return what was found.

    Raises
    ------
    HeptiError
        Naming the first tensor that is damaged.
    """
    with DecoderFile(path) as weights:
        with progress("verifying", _parameters(weights.tensors), unit="numbers") as advance:
            for name, weight in weights.tensors.items():
                for rows in row_spans(weight.shape):
                    advance(weights.read(name, rows).size)
        texts = [
            text for text, there in (("the tokenizer", weights.tokenizer), ("the chat template", weights.chat_template))
            if there
        ]  # fmt: skip
        return (
            f"{path}: {' and '.join([f'{len(weights.tensors)} tensors', *texts])} are whole, {weights.precision}, "
            f"{path.stat().st_size / 2**20:.1f} MiB, fingerprint {weights.fingerprint}"
        )


def _print(weights: DecoderFile) -> None:
    model, size = weights.model, weights.path.stat().st_size
    attentions, mlps = blocks_of(model, Attention), blocks_of(model, Mlp)
    windows = sorted({own.window for own in attentions} - {0})
    reads = f"up to {model.positions} tokens"
    if windows:
        few = sum(own.window > 0 for own in attentions)
        reads += f"; {counted(few, 'layer')} of the last {' or '.join(map(str, windows))} only"
    norms = ["norms of query and key"] * any(own.qk_norm for own in attentions)
    norms += ["of all heads at once"] * any(own.whole_norms for own in attentions)
    norms += ["norms after blocks"] * model.post_norms + ["none before them"] * (not model.pre_norms)
    begins = "none" if model.bos is None else str(model.bos)
    table = FittedTable("", "", title=str(weights.path), show_header=False, title_justify="left")
    for name, value in (
        ("model", sentence(model)),
        ("source", weights.source),
        ("reads", reads),
        ("norm, activation", ", ".join([f"{model.norm} norm", *dict.fromkeys(own.activation for own in mlps), *norms])),
        ("head", "the embedding" if model.tied else "its own"),
        ("first token, last tokens", f"{begins}; {', '.join(map(str, model.eos)) or 'none'}"),
        ("tokenizer", "inside" if weights.tokenizer is not None else "none: reads token ids only"),
        ("chat template", "inside" if weights.chat_template is not None else "none"),
        ("generation", ", ".join(f"{key} {value:g}" for key, value in weights.generation.items()) or "greedy"),
        ("stored as", f"{_stored(weights)}, {size / 2**20:.1f} MiB"),
        ("fingerprint", weights.fingerprint),
    ):
        table.add_row(name, value)
    tensors = FittedTable("tensor", "shape", "count", "stored", title="tensors", title_justify="left")
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, weight in weights.tensors.items():
        group = re.sub(r"^layers/\d+/", "layers/…/", name)
        groups.setdefault((group, weight.shape), []).append(name)
    for (group, shape), names in groups.items():
        stored = sum(weights.bytes_of(name) for name in names) / 2**20
        tensors.add_row(group, " × ".join(map(str, shape)), str(len(names)), f"{stored:.1f} MiB")  # noqa: RUF001
    console = Console(markup=False, emoji=False)
    console.print(table)
    console.print(tensors)


def _stored(weights: DecoderFile) -> str:
    if weights.precision == "float32":
        return weights.dtype
    return f"{weights.precision} in blocks of 32, vectors {weights.dtype}"


def _parameters(tensors: dict[str, Weight]) -> int:
    return sum(math.prod(weight.shape) for weight in tensors.values())
