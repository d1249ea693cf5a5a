"""From a checkpoint directory to a weights file, slice by slice: never a whole model in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from solver.base.arrays import Array
from solver.base.errors import HeptiError, explained
from solver.base.progress import progress
from solver.base.spans import Span
from solver.model.spec import ModelSpec, TextInput, inputs_first, tensor_shapes
from weights.convert.checkpoint import STRANGE, StoredTensors, weight_files
from weights.convert.cross_encoders import with_pairs
from weights.convert.families import build_spec, find_family, skipped_positions
from weights.convert.positions import interpolated, patch_grid
from weights.convert.sentence_encoders import SentenceHead, max_rows, sentence_modules, tokenizer_text
from weights.file.json_files import read_json
from weights.file.layout import row_spans
from weights.file.store import WeightsWriter
from weights.inputs.tokenize import Tokenizer

_QKV_BIASES = ("attention/query/bias", "attention/key/bias", "attention/value/bias")


@dataclass(frozen=True, slots=True)
class Source:
    """Where one of our tensors comes from: its shape, and a function that reads some of its rows."""

    shape: tuple[int, ...]
    rows: Callable[[Span], Array]


@dataclass(frozen=True, slots=True, eq=False)
class EncoderCheckpoint:
    """An encoder's checkpoint, whose tensors can be read.

    Parameters
    ----------
    label
        Its name and architecture.
    tokenizer
        Text of its tokenizer.json.
    sources
        Of every tensor of the model.
    """

    spec: ModelSpec
    label: str
    tokenizer: str | None
    sources: dict[str, Source]


def convert(directory: Path, path: Path, dtype: str = "float32") -> ModelSpec:
    """Write the weights file of a checkpoint directory, as `open_encoder` and `write_encoder`; return what it is."""
    with open_encoder(directory) as checkpoint:
        write_encoder(checkpoint, path, dtype)
    return checkpoint.spec


def write_encoder(checkpoint: EncoderCheckpoint, path: Path, dtype: str = "float32") -> None:
    """Write the weights file of a checkpoint, in float32 or float16.

    Raises
    ------
    HeptiError
        If a tensor is damaged, or the file cannot be written; nothing is left behind.
    """
    with WeightsWriter(path, checkpoint.spec, checkpoint.label, dtype, checkpoint.tokenizer) as weights:
        _copy(checkpoint.sources, weights)


@contextmanager
def open_encoder(directory: Path) -> Iterator[EncoderCheckpoint]:
    """Open a checkpoint directory, as the transformers or the sentence-transformers library saves it.

    Raises
    ------
    HeptiError
        If it is incomplete, damaged or of an architecture that is not computed.
    """
    if not directory.is_dir():
        raise HeptiError(f"no checkpoint directory {directory}")
    with StoredTensors() as tensors:
        with explained(f"{directory}: a setting in its JSON files is not as it should be", STRANGE):
            encoder, head = sentence_modules(directory)
            config = read_json(encoder / "config.json")
            family, architecture = find_family(config)
            tensors.add(weight_files(encoder, architecture), family.rename)
            _use_sentence_head(tensors, head)
            name = Path(config.get("_name_or_path") or directory.resolve().name).name
            spec = build_spec(
                name, family, config, read_json(encoder / "preprocessor_config.json", optional=True), tensors
            )
            spec = _with_text_limit(_with_sentence_head(spec, head, tensors), encoder)
            spec = with_pairs(spec, directory, encoder, config)
            biases = _QKV_BIASES if not family.text and config.get("qkv_bias") is False else ()
            for number, dense in enumerate(head.dense if head else ()):
                biases = (*biases, *([] if dense.bias else [f"{_dense_name(number)}bias"]))
            skip = skipped_positions(family, config)
            grid = patch_grid(spec.input) if family.interpolates else None
            sources = {
                name: _source(name, shape, name in inputs_first(spec), tensors, biases, skip, grid, directory)
                for name, shape in tensor_shapes(spec).items()
            }
            _check_shapes(spec, sources, directory)
            tokenizer = None
            if isinstance(spec.input, TextInput) and (tokenizer := tokenizer_text(encoder)) is not None:
                Tokenizer(tokenizer, spec.input.max_rows)  # refuses what no rank could use
        yield EncoderCheckpoint(spec, f"{name} ({architecture})", tokenizer, sources)


def _use_sentence_head(tensors: StoredTensors, head: SentenceHead | None) -> None:
    """Put the sentence encoder's own head in the place of the checkpoint's, which takes no part in an embedding."""
    if head is None:
        return
    for name in [key for key in tensors if key.startswith(("dense/", "classifier/"))]:
        del tensors[name]
    for number, dense in enumerate(head.dense):
        tensors.add(weight_files(dense.folder, "AutoModel"), partial(_of_dense, number))


def _of_dense(number: int, key: str) -> str:
    return key.replace("linear.", _dense_name(number))


def _dense_name(number: int) -> str:
    return f"dense/{number}/" if number else "dense/"


def _with_sentence_head(spec: ModelSpec, head: SentenceHead | None, tensors: StoredTensors) -> ModelSpec:
    if head is None:
        return spec
    widths = [tensors[f"{_dense_name(number)}weight"].shape[0] for number in range(len(head.dense))]
    first, *more = [dense.activation for dense in head.dense] or [""]
    if isinstance(spec.input, TextInput):
        spec = replace(spec, input=replace(spec.input, prompt=head.prompt))
    return replace(
        spec, pooling=head.pooling, dense=first, dense_width=widths[0] if widths else 0, more_dense=tuple(more),
        more_widths=tuple(widths[1:]), normalize=head.normalize, first_columns=head.first_columns,
    )  # fmt: skip


def _with_text_limit(spec: ModelSpec, encoder: Path) -> ModelSpec:
    if not isinstance(spec.input, TextInput):
        return spec
    return replace(spec, input=replace(spec.input, max_rows=max_rows(encoder, spec.input.positions)))


def _source(
    name: str, shape: tuple[int, ...], turned: bool, tensors: StoredTensors, zero_biases: tuple[str, ...], skip: int,
    grid: tuple[int, int] | None, directory: Path,
) -> Source:  # fmt: skip
    """Say how one of our tensors is read: as it is, turned, cut, or put together from several."""
    if zero_biases and name.endswith(zero_biases):  # what the file has of them is not used
        return Source(shape, lambda rows: np.zeros(rows.size, np.float32))
    folder, _, leaf = name.rpartition("/")
    if leaf == "relative" and "relative" in tensors:  # one of all layers, [buckets, heads]
        vector = tensors["relative"][:].T.reshape(-1)
        return Source(vector.shape, lambda rows: vector[rows.slice])
    if (scale := name.split("/")[:-2]) and (scaled := "/".join([*scale, "scale"])) in tensors:
        factors = tensors[scaled][:]
        if name.endswith(("attention/output/bias", "mlp/down/bias")):
            return Source(shape, lambda rows: tensors[name][rows.slice] * factors[rows.slice])
        if turned:
            return Source(tensors[name].shape[::-1], lambda rows: tensors[name][:, rows.slice].T * factors)
    parts = [tensors[key] for key in (f"{name}/0", f"{name}/1") if key in tensors]
    if name == "embeddings/prefix" and parts:  # the class token, and DeiT's distillation token
        return Source(
            (len(parts), parts[0].shape[-1]),
            lambda rows: np.concatenate([part[:].reshape(1, -1) for part in parts])[rows.slice],
        )
    heads = [tensors[key] for key in (f"{folder}/0/{leaf}", f"{folder}/1/{leaf}") if key in tensors]
    if len(heads) == 2:  # DeiT's two classifiers, whose mean is the answer
        if leaf == "bias":
            return Source(heads[0].shape, lambda rows: (heads[0][rows.slice] + heads[1][rows.slice]) * np.float32(0.5))
        return Source(
            (heads[0].shape[0], sum(head.shape[-1] for head in heads)),
            lambda rows: np.concatenate([head[rows.slice] for head in heads], axis=1) * np.float32(0.5),
        )
    if name not in tensors:
        raise HeptiError(f"{directory} has no tensor for {name}: the checkpoint is incomplete")
    tensor = tensors[name]
    if turned:
        return Source(tensor.shape[::-1], lambda rows: tensor[:, rows.slice].T)
    if name == "embeddings/patch/weight":  # [H, channels, patch, patch]
        width = math.prod(tensor.shape[1:])
        return Source((tensor.shape[0], width), lambda rows: tensor[rows.slice].reshape(rows.size, width))
    if name == "embeddings/position" and len(tensor.shape) == 3 and grid and tensor.shape[1] != shape[0]:
        table = interpolated(tensor[0:1][0], grid)
        return Source(table.shape, lambda rows: table[rows.slice])
    if name == "embeddings/position" and len(tensor.shape) == 3:  # [1, rows, H]
        return Source(tensor.shape[1:], lambda rows: tensor[0:1, rows.slice][0])
    if name == "embeddings/position":
        return Source(
            (tensor.shape[0] - skip, *tensor.shape[1:]), lambda rows: tensor[rows.start + skip : rows.stop + skip]
        )
    return Source(tensor.shape, lambda rows: tensor[rows.slice])


def _check_shapes(spec: ModelSpec, sources: dict[str, Source], directory: Path) -> None:
    """Refuse a checkpoint whose tensors do not fit its config.json, before anything is written."""
    for name, shape in tensor_shapes(spec).items():
        if sources[name].shape != shape:
            raise HeptiError(f"{directory}: {name} is {sources[name].shape}, config.json makes it {shape}")


def _copy(sources: dict[str, Source], weights: WeightsWriter) -> None:
    total = sum(4 * math.prod(source.shape) for source in sources.values())
    with progress("converting", total) as advance:
        for name, source in sources.items():
            for rows in row_spans(source.shape):
                block = source.rows(rows)
                weights.write(name, rows.start, block)
                advance(block.nbytes)
