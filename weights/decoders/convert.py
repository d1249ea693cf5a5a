"""From a language model's checkpoint directory to a weights file, slice by slice: never a whole model in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from solver.base.arrays import Array
from solver.base.errors import HeptiError, explained
from solver.base.progress import progress
from solver.base.spans import Span
from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.weight import BLOCK, Weight
from weights.convert.checkpoint import STRANGE, StoredTensor, StoredTensors, weight_files
from weights.convert.convert import Source
from weights.decoders.families import DECODER_FAMILIES, DecoderFamily, build_decoder, find_decoder_family
from weights.decoders.file import DecoderWriter
from weights.decoders.quantise import Levels, Scales
from weights.decoders.texts import DecoderTexts, read_texts
from weights.file.json_files import read_json
from weights.file.layout import row_spans

_UNUSED = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")  # constants of old versions


@dataclass(frozen=True, slots=True)
class BlockSource:
    """Where the blocks and scales of a matrix come from, by the precisions of files that take them as they are.

    `rows` gives those for a precision; spans are of the matrix as it lies, those of an [in, out] matrix whole blocks.
    """

    precisions: tuple[str, ...]
    rows: Callable[[Span, str], tuple[Levels, Scales]]


@dataclass(frozen=True, slots=True)
class DecoderCheckpoint:
    """A language model's checkpoint, whose tensors can be read.

    Parameters
    ----------
    label
        Its name and architecture.
    sources
        Of every tensor of the model.
    blocks
        Of matrices that are in blocks already.
    """

    model: Decoder
    label: str
    sources: Mapping[str, Source]
    texts: DecoderTexts
    blocks: Mapping[str, BlockSource] = field(default_factory=dict)

    @property
    def precision(self) -> str:
        """What its matrices are in, or nearest to: float32, int8, int4 or int4m."""
        return "float32"

    def loses(self, precision: str) -> bool:
        """Return whether matrices get other numbers in a precision."""
        return precision != "float32"

    def notes(self, precision: str) -> list[str]:
        """Say what one should know of it, and of converting it to a precision: what it "has", in a line each."""
        missing = [] if self.texts.tokenizer else ["has no tokenizer.json: the model will read token ids only"]
        return [*self.texts.notes, *missing]

    def read(self, name: str, rows: Span | None = None) -> Array:
        """Read a tensor, or some rows of it, as the checkpoint has it."""
        source = self.sources[name]
        return source.rows(rows or Span(0, source.shape[0]))


def is_language_model(directory: Path) -> bool:
    """Return whether a checkpoint directory is a language model, known or not, and no sentence encoder of one."""
    if not (directory / "config.json").is_file() or (directory / "modules.json").is_file():
        return False
    config = read_json(directory / "config.json")
    architectures = map(str, config.get("architectures") or ())
    return config.get("model_type") in (*DECODER_FAMILIES, "gemma3") or any(
        name.endswith("ForCausalLM") for name in architectures
    )


@contextmanager
def open_checkpoint(directory: Path) -> Iterator[DecoderCheckpoint]:
    """Open a checkpoint directory as transformers saves it.

    Raises
    ------
    HeptiError
        If it is incomplete, damaged, or of a model that is not computed.
    """
    with StoredTensors() as tensors:
        with explained(f"{directory}: a setting in its JSON files is not as it should be", STRANGE):
            whole = read_json(directory / "config.json")
            with explained(str(directory), HeptiError):
                family, config = find_decoder_family(whole)
                name = Path(whole.get("_name_or_path") or directory.resolve().name).name
                model = build_decoder(name, family, config)
            texts = read_texts(directory, config)
            model = replace(model, bos=texts.bos, eos=texts.eos, suppressed=texts.suppressed)
            architecture = (config.get("architectures") or ["AutoModelForCausalLM"])[0]
            tensors.add(weight_files(directory, architecture), lambda key: key)
            sources = _sources(model, family, config, tensors, directory)
        yield DecoderCheckpoint(model, f"{name} ({architecture})", sources, texts)


def write_checkpoint(
    checkpoint: DecoderCheckpoint, path: Path, precision: str = "float32", dtype: str = "float32"
) -> None:
    """Write the weights file of a checkpoint.

    Parameters
    ----------
    path
        The file to make.
    precision, dtype
        As of `DecoderWriter`.

    Raises
    ------
    HeptiError
        If it cannot be written, or read; nothing is left behind.
    """
    texts, tensors = checkpoint.texts, decoder_tensors(checkpoint.model)
    total = sum(4 * math.prod(source.shape) for source in checkpoint.sources.values())
    with (
        DecoderWriter(
            path, checkpoint.model, checkpoint.label, precision, dtype, texts.tokenizer, texts.chat_template,
            texts.generation, texts.special,
        ) as weights,
        progress("converting", total) as advance,
    ):  # fmt: skip
        for name, source in checkpoint.sources.items():
            blocks = checkpoint.blocks.get(name)
            for rows in row_spans(source.shape):
                if blocks is not None and precision in blocks.precisions:
                    start = rows.start if tensors[name].summed else rows.start // BLOCK
                    weights.write_blocks(name, start, *blocks.rows(rows, precision))
                else:
                    weights.write(name, rows.start, source.rows(rows))
                advance(4 * rows.size * math.prod(source.shape[1:]))


def _sources(
    model: Decoder, family: DecoderFamily, config: Mapping[str, Any], tensors: StoredTensors, directory: Path
) -> dict[str, Source]:
    """Say how each of our tensors is read, and refuse tensors that are missing, too many or of other shapes."""
    keys = _keys(model, family, tensors, directory)
    found: dict[str, Source] = {}
    taken: dict[str, int] = {}  # outputs of a tensor that are ours
    for name, weight in decoder_tensors(model).items():
        key = keys[name]
        if key not in tensors:
            raise HeptiError(f"{directory} has no tensor {key}: the checkpoint is incomplete")
        start = taken.get(key, 0)
        taken[key] = start + (weight.shape[1] if weight.summed == 0 else weight.shape[0])
        found[name] = _source(weight, tensors[key], start, _is_turned(family, name, weight), _adds_one(family, name))
        if (factor := np.float32(family.factor(config, name))) != 1:
            found[name] = scaled_source(found[name], factor)
    for name, weight in decoder_tensors(model).items():
        tensor, outputs = tensors[keys[name]], taken[keys[name]]
        needed = (outputs, *weight.shape[1:]) if weight.summed is None else (outputs, weight.shape[weight.summed])
        if _is_turned(family, name, weight):
            needed = needed[::-1]
        if tensor.shape != needed:
            raise HeptiError(f"{tensor.label} is {tensor.shape}, config.json makes it {needed}")
    return found


def _keys(model: Decoder, family: DecoderFamily, tensors: StoredTensors, directory: Path) -> dict[str, str]:
    """Return the checkpoint's names of our tensors; refuse tensors of layers that are none of ours."""
    end = f"{family.names['embedding']}.weight"
    stems = sorted((key.removesuffix(end) for key in tensors if f".{key}".endswith(f".{end}")), key=len)
    if not stems:
        raise HeptiError(f"{directory} has no tensor {end}: the checkpoint is incomplete")
    keys = {name: _key(family, stems[0], name) for name in decoder_tensors(model)}
    if not model.tied:
        end = f"{family.names['head']}.weight"
        keys["head/weight"] = next((key for key in tensors if f".{key}".endswith(f".{end}")), end)
    others = tensors.keys() - keys.values()
    for key in sorted(others):
        if key.startswith(f"{stems[0]}{family.names['layers']}.") and not key.endswith(_UNUSED):
            raise HeptiError(
                f"{directory} has a tensor {key}, which no {len(model.layers)} layers of its model_type have"
            )
    return keys


def _is_turned(family: DecoderFamily, name: str, weight: Weight) -> bool:
    """Return whether a checkpoint has a matrix as [in, out]."""
    return family.matrices_turned and name.startswith("layers/") and weight.summed is not None


def _adds_one(family: DecoderFamily, name: str) -> bool:
    return family.one_plus and name.endswith("norm/weight")


def _key(family: DecoderFamily, stem: str, name: str) -> str:
    """Return the checkpoint's name of one of our tensors."""
    folder, _, leaf = name.rpartition("/")
    parts = folder.split("/", 2)
    if parts[0] != "layers":
        return f"{stem}{family.names[folder]}.{leaf}"
    return f"{stem}{family.names['layers']}.{parts[1]}.{family.names[parts[2]]}.{leaf}"


def scaled_source(source: Source, factor: np.float32) -> Source:
    """Return a tensor multiplied by a factor."""
    return Source(source.shape, lambda span: source.rows(span) * factor)


def _source(weight: Weight, tensor: StoredTensor, start: int, turned: bool, one_plus: bool) -> Source:
    """Say how rows of one of our tensors are read of one whose outputs it has from `start` on."""

    def rows(span: Span) -> Array:
        ours = slice(start + span.start, start + span.stop)
        if weight.summed == 0:
            outputs = slice(start, start + weight.shape[1])
            return tensor[span.slice] if turned else tensor[outputs, span.slice].T
        if turned:
            return tensor[:, ours].T
        return tensor[ours] + np.float32(1) if one_plus else tensor[ours]

    return Source(weight.shape, rows)
