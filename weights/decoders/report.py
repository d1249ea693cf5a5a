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
from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.weight import Weight
from weights.decoders.file import DecoderFile
from weights.decoders.loss import Loss
from weights.file.layout import row_spans
from weights.file.store import stored_facts


def sentence(model: Decoder) -> str:
    """Return what a model is: "llama-3.2-1b, 16 layers, hidden 2048, …"."""
    attention, mlp = model.layers[0].attention, model.layers[0].mlp
    return (
        f"{model.name}, {counted(len(model.layers), 'layer')}, hidden {model.hidden}, ffn {mlp.ffn}, "
        f"{counted(attention.heads, 'head')} of {attention.head_dim} ({attention.kv_heads} of keys and values), "
        f"vocabulary {model.vocab}, {_parameters(decoder_tensors(model)) / 1e6:.1f} million parameters"
    )


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
        table = FittedTable("behind", "error")
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
    attention, mlp = model.layers[0].attention, model.layers[0].mlp
    windows = sorted({layer.attention.window for layer in model.layers} - {0})
    reads = f"up to {model.positions} tokens"
    if windows:
        few = sum(layer.attention.window > 0 for layer in model.layers)
        reads += f"; {counted(few, 'layer')} of the last {' or '.join(map(str, windows))} only"
    norms = ["norms of query and key"] * attention.qk_norm + ["of all heads at once"] * attention.whole_norms
    norms += ["norms behind half layers"] * model.post_norms + ["none before them"] * (not model.pre_norms)
    begins = "none" if model.bos is None else str(model.bos)
    table = FittedTable("", "", title=str(weights.path), show_header=False, title_justify="left")
    for name, value in (
        ("model", sentence(model)),
        ("source", weights.source),
        ("reads", reads),
        ("norm, activation", ", ".join([f"{model.norm} norm", mlp.activation, *norms])),
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
