"""Reading a checkpoint directory as the transformers library saves it: JSON files and safetensors, sharded or not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy, which safetensors then reads
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from solver.base.errors import HeptiError, explained
from weights.file.json_files import read_json, refuse_pointer

_named = partial(explained, errors=(SafetensorError, OSError, TypeError, ValueError))  # what safetensors raises
# What settings of a kind that nobody thought of raise: a text as `num_channels`, a patch of 0 pixels.
STRANGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
_FLOATS = ("F64", "F32", "F16", "BF16")


class StoredTensor:
    """One tensor of a checkpoint, read slice by slice as float32: `tensor[4:8]`, `tensor[:, 4:8]`."""

    def __init__(self, path: Path, key: str, source: Any) -> None:
        self.label = f"{path}: tensor {key}"
        self._source = source
        with _named(self.label):
            self.shape: tuple[int, ...] = tuple(source.get_shape())
            self.dtype: str = source.get_dtype()

    def __getitem__(self, index: Any) -> npt.NDArray[np.float32]:
        if self.dtype not in _FLOATS:
            raise HeptiError(f"{self.label} is {self.dtype}, not one of {', '.join(_FLOATS)}: save it unquantized")
        with _named(self.label):
            return np.asarray(self._source[index]).astype(np.float32, copy=False)


class StoredTensors(dict[str, StoredTensor]):
    """The tensors of one or more safetensors files by the name that `rename` gives them; close after use."""

    def __init__(self) -> None:
        super().__init__()
        self._files = ExitStack()

    def add(self, paths: list[Path], rename: Callable[[str], str]) -> None:
        """Open files and take in their tensors.

        Raises
        ------
        HeptiError
            If a file is missing, cut short or damaged.
        """
        for path in paths:
            refuse_pointer(path)
            with _named(f"cannot read {path}"):
                file = self._files.enter_context(safe_open(path, framework="np"))
                for key in file.keys():  # noqa: SIM118  not a dict
                    self[rename(key)] = StoredTensor(path, key, file.get_slice(key))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._files.close()


def check_folder(directory: Path) -> None:
    """Refuse a folder that holds no checkpoint, before anything is said or made of it.

    Raises
    ------
    HeptiError
        With the files that are looked for.
    """
    if any((directory / name).is_file() for name in ("config.json", "modules.json")):
        return
    others = sorted(path.name for path in directory.iterdir() if path.suffix in (".gguf", ".onnx", ".h5"))
    mend = f"it has {others[0]}: name that" if others else "hf download NAME --local-dir DIR gets a whole one"
    raise HeptiError(
        f"{directory} holds no checkpoint, which is config.json and model.safetensors, as transformers saves them, "
        f"or modules.json and folders: {mend}"
    )


def weight_files(directory: Path, architecture: str) -> list[Path]:
    """Return the safetensors files of a checkpoint directory.

    Raises
    ------
    HeptiError
        If there are none; says how to make them from a pytorch_model.bin.
    """
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise HeptiError(f"{index} has no weight_map")
        return [directory / name for name in sorted(set(shards.values()))]
    if any(directory.glob("pytorch_model*.bin")):
        raise HeptiError(
            f"{directory} has only pytorch_model.bin; make a model.safetensors of it with PyTorch: python -c "
            f"\"from transformers import {architecture} as M; M.from_pretrained(r'{directory}')"
            f".save_pretrained(r'{directory}')\""
        )
    raise HeptiError(f"{directory} has neither model.safetensors nor model.safetensors.index.json")
