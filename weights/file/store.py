"""The weights file `hepti-weights/1`: HDF5, one dataset a tensor, every byte under a checksum.

Root attributes `format`, `model` (the ModelSpec as JSON), `model_sha256`, `source`, `dtype` and `fingerprint`; the
dataset `tokenizer` holds the text of a tokenizer.json; every other dataset is a tensor, named and shaped as
`solver.model.spec.tensor_shapes` says. The tensors' bytes carry fletcher32; groups, attributes and chunk indices carry
HDF5's own checksums, which exist from the layout of HDF5 1.10 on.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
import numpy.typing as npt

from solver.base.arrays import Array, Numbers
from solver.base.errors import HeptiError, explained
from solver.base.hub import MAKE_ONE, missing
from solver.base.spans import Span
from solver.model.spec import ModelSpec, inputs_first, tensor_shapes
from solver.plan.holdings import TensorSlice
from weights.file.disk import Disk, check_space, uninterrupted
from weights.file.json_files import refuse_pointer
from weights.file.layout import STEP_BYTES, chunk_shape, is_finite, steps, widen

FORMAT = "hepti-weights/1"
DTYPES = ("float32", "float16")
_named = partial(explained, errors=(OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError))  # of h5py
SIGNATURE = b"\x89HDF\r\n\x1a\n"  # at the beginning of every HDF5 file of ours


# What a file holds, by how its description begins.
KINDS = {'{"kind": "convnet"': "a convolutional network", '{"kind": "decoder"': "a language model"}
NETWORK, LANGUAGE_MODEL = KINDS.values()
ENCODER = "an encoder"


def command_for(kind: str) -> str:
    """Return the command that runs a kind of model."""
    return "hepti generate" if kind == LANGUAGE_MODEL else "hepti run"


class TensorFile:
    """A file of tensors, open for reading: `with TensorFile(path) as tensors`. What they are of, its classes know.

    Parameters
    ----------
    path
        The file; it is never locked, so that it may lie on NFS.

    Raises
    ------
    HeptiError
        If the file is missing, cut short, damaged, or not a weights file of this version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # A matrix and its scales: each that is open holds chunks of up to 8 MiB.
        self._dataset = lru_cache(2)(self._opened)
        with _named(f"cannot read weights file {path}"):
            if path == Path():  # of an empty word
                raise HeptiError(f"no weights file is named: {MAKE_ONE}")
            if path.is_dir():
                raise HeptiError(f"{path} is a folder, no weights file: hepti convert {path} {path.name}.h5 makes one")
            if not path.is_file():
                raise HeptiError(missing(path))
            refuse_pointer(path)
            with path.open("rb") as file:
                if file.read(len(SIGNATURE)) != SIGNATURE:
                    raise HeptiError(f"{path} is not a weights file: {MAKE_ONE}")
        with _named(f"{path} is cut short or damaged, copy or convert the file again"):
            self._file = h5py.File(path, "r", locking=False)
        try:
            with _named(f"{path} is damaged, copy or convert the file again"):
                foreign = "format" not in self._file.attrs
            if foreign:
                raise HeptiError(f"{path} is not a weights file: {MAKE_ONE}")
            found = self._attribute("format")
            if found != FORMAT:
                raise HeptiError(f"{path} is of format {found!r}, this version reads {FORMAT!r}: convert it again")
            model = self._attribute("model")
            if self._attribute("model_sha256") != _sha256(model):
                raise HeptiError(f"{path}: the model description is damaged: copy or convert the file again")
            self.kind = next((kind for begin, kind in KINDS.items() if model.startswith(begin)), ENCODER)
            self._shapes = self._describe(model)
            self.source = self._attribute("source")
            self.dtype = self._attribute("dtype")
            self.fingerprint = self._attribute("fingerprint")
        except BaseException:
            self.close()
            raise

    def _describe(self, model: str) -> Mapping[str, tuple[int, ...]]:
        """Read the model's description; return the shapes that its tensors are stored in."""
        return {}

    def _need(self, kind: str) -> None:
        """Refuse a file that holds something else."""
        if self.kind != kind:
            raise HeptiError(f"{self.path} is {self.kind}, here {kind} is needed: {command_for(self.kind)} takes it")

    def _text(self, name: str) -> str | None:
        """Return a text that lies beside the tensors; None where there is none."""
        with _named(f"{self.path}: the {name.replace('_', ' ')} is damaged"):
            return bytes(self._file[name][:]).decode() if name in self._file else None

    def _address(self, name: str) -> str:
        """Return the name of a tensor's dataset."""
        return name

    def _fits(self, dtype: np.dtype[Any]) -> bool:
        """Return whether a tensor may be stored so."""
        return bool(dtype == self.dtype)

    def _widens(self, name: str) -> bool:
        """Return whether numbers of half precision become float32."""
        return True

    @property
    def odd_types(self) -> Mapping[str, np.dtype[Any]]:
        """What tensors are read as, by their names, that the model does not say: what is not float32."""
        return {}

    def read_pieces(self, piece: TensorSlice, bytes_limit: int, out: Numbers | None = None) -> Iterator[Numbers]:
        """Yield a slice of a tensor in consecutive groups of rows, each of at most `bytes_limit` bytes.

        A group has at least one row, however many bytes that takes. It lies in `out`, or is a new array. Numbers of
        half precision become float32, but scales.
        """
        dataset = self._dataset(piece.name)
        dtype = self.type_of(piece.name)
        if out is not None and (out.shape != piece.shape or out.dtype != dtype or not out.flags.c_contiguous):
            raise ValueError(f"{piece.name}: {piece.shape} {dtype} does not fit into {out.shape} {out.dtype}")
        done = 0
        for rows in steps(piece, dataset.shape, bytes_limit // dtype.itemsize):
            stop = done + rows.size
            block = np.empty((rows.size, *piece.shape[1:]), dtype) if out is None else out[done:stop]
            self._read_rows(dataset, piece, rows, block)
            done = stop
            yield block

    def read_rows(self, name: str, rows: Span | None = None) -> Numbers:
        """Read a tensor, or some rows of it, as `read_pieces` does.

        Raises
        ------
        HeptiError
            If it is missing, damaged, of another shape, or not finite.
        """
        shape = self._shapes[name]
        rows = rows or Span(0, shape[0])
        block = np.empty((rows.size, *shape[1:]), self.type_of(name))
        for _ in self.read_pieces(TensorSlice(name, rows, block.shape), STEP_BYTES, block):
            pass
        return block

    def type_of(self, name: str) -> np.dtype[Any]:
        """Return the type of a tensor's numbers, as they are read."""
        dtype: np.dtype[Any] = self._dataset(name).dtype
        return np.dtype(np.float32) if dtype == np.float16 and self._widens(name) else dtype

    def stored_bytes(self, name: str) -> int:
        """Return how many bytes a tensor takes in the file."""
        return int(self._dataset(name).id.get_storage_size())

    def close(self) -> None:
        """Close the file; reading ends."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attribute(self, name: str) -> str:
        with _named(f"{self.path} is damaged, copy or convert the file again: attribute {name}"):
            return bytes(self._file.attrs[name]).decode()

    def _opened(self, name: str) -> Any:
        """Return a tensor's dataset; to open it is more than half of what reading a row takes."""
        with _named(f"{self.path}: tensor {name} is missing or damaged"):
            dataset = self._file[self._address(name)]
            shape, dtype = dataset.shape, dataset.dtype
        if shape != self._shapes[name] or not self._fits(dtype):
            raise HeptiError(
                f"{self.path}: tensor {name} is {shape} {dtype}, the model needs {self._shapes[name]} {self.dtype}"
            )
        return dataset

    def _read_rows(self, dataset: Any, piece: TensorSlice, rows: Span, out: Numbers) -> None:
        """Read some rows of a piece into `out` and refuse what is not finite."""
        start = (rows.start, piece.columns.start if piece.columns else 0, *[0] * (out.ndim - 2))[: out.ndim]
        half = dataset.dtype == np.float16 and out.dtype == np.float32
        target: npt.NDArray[Any] = np.empty(out.shape, np.float16) if half else out
        self._fill(dataset, piece.name, start, target)
        if half:
            widen(target, out)
        if out.dtype.kind == "f" and not is_finite(out, limit=65536.0 if half else math.inf):
            raise HeptiError(f"{self.path}: tensor {piece.name} has NaN or infinite values: convert it again")

    def _fill(self, dataset: Any, name: str, start: tuple[int, ...], out: npt.NDArray[Any]) -> None:
        """Read what lies in a dataset from `start` on, as it is stored."""
        with _named(f"{self.path}: tensor {name} is damaged, copy or convert the file again"):
            # h5py's own indexing costs 6 % of the reading time, here it is left out.
            selection = dataset.id.get_space()
            selection.select_hyperslab(start, out.shape)
            dataset.id.read(h5py.h5s.create_simple(out.shape), selection, out)


def stored_kind(path: Path) -> str:
    """Return what a weights file holds; "" where a path is no weights file."""
    try:
        with TensorFile(path) as file:
            return file.kind
    except HeptiError:
        return ""


def stored_facts(
    weights: TensorFile, stored: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Return what is known of any weights file, as JSON has it; `stored` are the bytes of its tensors."""
    return {
        "path": str(weights.path),
        "format": FORMAT,
        "source": weights.source,
        "dtype": weights.dtype,
        "fingerprint": weights.fingerprint,
        "bytes": weights.path.stat().st_size,
        "parameters": sum(map(math.prod, shapes.values())),
        "tensors": {name: {"shape": shape, "bytes": stored[name]} for name, shape in shapes.items()},
    }


class WeightsFile(TensorFile):
    """A transformer's weights file, open for reading: `with WeightsFile(path) as weights`.

    Raises
    ------
    HeptiError
        As `TensorFile`, or if it holds something else.
    """

    def _describe(self, model: str) -> Mapping[str, tuple[int, ...]]:
        self._need(ENCODER)
        with explained(str(self.path), HeptiError):
            self.spec = ModelSpec.from_json(model)
        return tensor_shapes(self.spec)

    @property
    def tokenizer(self) -> str | None:
        """Text of the checkpoint's tokenizer.json; None where it had none."""
        return self._text("tokenizer")

    def read(self, piece: TensorSlice, out: Array | None = None) -> Array:
        """Read a slice of a tensor as float32.

        Parameters
        ----------
        piece
            Which part of which tensor; rows are one contiguous read.
        out : float32, C-contiguous, of the piece's shape
            Where to put it; may be a view into a larger array. None: a new array.

        Returns
        -------
        `out`

        Raises
        ------
        HeptiError
            If the tensor is missing, damaged, of another shape, or not finite.
        """
        if out is None:
            out = np.empty(piece.shape, np.float32)
        for _ in self.read_pieces(piece, STEP_BYTES, out):
            pass
        return out


class TensorWriter:
    """Writes a weights file slice by slice: `with TensorWriter(path, …) as weights`.

    The file appears under its name when everything has been written; until then, and after any failure, only a
    temporary file lies beside it, and that is removed.

    Parameters
    ----------
    path
        The file to make; one that exists is replaced at the end.
    model
        Its description as JSON.
    shapes
        Of every tensor; all must be written.
    source
        Where the numbers come from.
    dtype
        float32 or float16, as stored.
    dtypes
        Of tensors that are stored as something else.
    texts
        What lies beside the tensors, such as the text of a tokenizer.json as `tokenizer`; None is left out.
    attributes
        Further ones of the file.

    Raises
    ------
    HeptiError
        If the folder is missing or too full, a value is NaN or infinite, or a tensor is left out.
    """

    def __init__(
        self,
        path: Path,
        model: str,
        shapes: Mapping[str, tuple[int, ...]],
        source: str,
        dtype: str = "float32",
        dtypes: Mapping[str, np.dtype[Any]] | None = None,
        texts: Mapping[str, str | None] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise HeptiError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        self.path = path
        self._dtypes = {**dict.fromkeys(shapes, np.dtype(dtype)), **(dtypes or {})}
        self._shapes = shapes
        self._texts = {
            name: np.frombuffer(text.encode(), np.uint8) for name, text in (texts or {}).items() if text is not None
        }
        self._attributes = {"format": FORMAT, "model": model, "source": source, "dtype": dtype, **(attributes or {})}
        # HDF5 keeps texts above 64 KiB, say 20,000 labels, where its own checksums do not reach.
        self._attributes["model_sha256"] = _sha256(model)
        self._written = dict.fromkeys(self._shapes, 0)
        self._hashes = {name: hashlib.sha256() for name in self._shapes}
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")

    def __enter__(self) -> Self:
        if not self.path.parent.is_dir():
            raise HeptiError(f"cannot write {self.path}: there is no folder {self.path.parent}")
        if self.path.is_dir():
            raise HeptiError(f"cannot write {self.path}: it is a folder, name a file in it")
        try:
            with self._failures():
                check_space(self.path, self._bytes())
                self._disk = Disk(self._temporary, "x+")
                # Groups and chunk indices have checksums of their own from 1.10 on.
                self._file = h5py.File(self._disk, "w", libver=("v110", "v110"))
                for name, text in self._texts.items():
                    self._create(name, text.shape, np.uint8)[:] = text
        except BaseException:
            self._discard()
            raise
        return self

    def write(self, name: str, start: int, block: npt.NDArray[Any]) -> None:
        """Write the rows of a tensor from `start` on; rows come in ascending order without gaps.

        Parameters
        ----------
        name
            The tensor.
        start
            First index along axis 0.
        block : [rows, …]
            Any float type; rounded to the file's.
        """
        if start != self._written[name]:
            raise ValueError(f"{name}: rows from {start} on, next are {self._written[name]}")
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(block, self._dtypes[name])
        if not np.isfinite(stored).all():
            lost = np.isfinite(block).all()
            problem = "does not fit float16: use --dtype float32" if lost else "has NaN or infinite values"
            raise HeptiError(f"tensor {name} of {self._attributes['source']} {problem}")
        with self._failures():
            self._put(name, start, stored)
        self._hashes[name].update(stored.data)
        self._written[name] += len(stored)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._discard()

    def _finish(self) -> None:
        for name, shape in self._shapes.items():
            if self._written[name] != shape[0]:
                raise HeptiError(f"tensor {name} is incomplete: {self._written[name]} of {shape[0]} rows written")
        with self._failures():
            for name, text in {**self._attributes, "fingerprint": self._fingerprint()}.items():
                # Fixed length: texts of variable length lie in a heap that has no checksum.
                self._file.attrs[name] = np.bytes_(text.encode())
            self._file.close()
            os.fsync(self._disk.fileno())  # NFS and delayed allocation report a full disk only here
            self._disk.close()
            self._temporary.replace(self.path)

    def _fingerprint(self) -> str:
        """Return sixteen hex digits of everything that the file says."""
        total = hashlib.sha256(self._attributes["model"].encode())
        for text in self._texts.values():
            total.update(text.data)
        for digest in self._hashes.values():
            total.update(digest.digest())
        return total.hexdigest()[:16]

    def _discard(self) -> None:
        """Remove the temporary file, if it is still there, and close it."""
        with uninterrupted():
            self._temporary.unlink(missing_ok=True)
            for opened in ("_file", "_disk"):
                if hasattr(self, opened):
                    getattr(self, opened).close()

    def _put(self, name: str, start: int, stored: npt.NDArray[Any]) -> None:
        """Write some rows; the dataset is closed, hence flushed, at the end."""
        address = self._address(name)
        dataset = self._file[address] if start else self._create(address, self._shapes[name], self._dtypes[name])
        dataset[start : start + len(stored)] = stored

    def _create(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        return self._file.create_dataset(name, shape, dtype, chunks=self._chunk(name, shape), fletcher32=True)

    def _address(self, name: str) -> str:
        """Return the name of a tensor's dataset."""
        return name

    def _chunk(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the pieces that a dataset is stored, and checked, in."""
        raise NotImplementedError

    def _bytes(self) -> int:
        return sum(self._dtypes[name].itemsize * math.prod(shape) for name, shape in self._shapes.items())

    @contextmanager
    def _failures(self) -> Iterator[None]:
        with _named(f"cannot write {self.path}"), uninterrupted():
            yield
            if self._disk.failure:
                raise self._disk.failure


class WeightsWriter(TensorWriter):
    """Writes a transformer's weights file: `with WeightsWriter(path, spec, …) as weights`.

    Parameters
    ----------
    spec
        The model; its tensors must all be written.
    path, source, dtype
        As of `TensorWriter`.
    tokenizer
        Text of a tokenizer.json, if the model reads text.
    """

    def __init__(
        self, path: Path, spec: ModelSpec, source: str, dtype: str = "float32", tokenizer: str | None = None
    ) -> None:
        texts = {"tokenizer": tokenizer}
        super().__init__(path, spec.to_json(), tensor_shapes(spec), source, dtype, texts=texts)
        self._inputs_first = inputs_first(spec)

    def _chunk(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return chunk_shape(shape, inputs_first=name in self._inputs_first)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
