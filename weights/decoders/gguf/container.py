"""The container GGUF, versions 2 and 3: what it says of itself, and its tensors as they lie, mapped into memory.

Read here since the package `gguf` takes 10 s and 700 MB for the words of Llama 3 (128,000 and 280,000 merges, seen with
0.19.0; here 0.5 s). Of that package are the formats of numbers that are not ours; it is asked for only where a file has
them. The only address of gguf.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array
from solver.base.environment import install
from solver.base.errors import HeptiError, explained
from solver.model.kinds.weight import BLOCK
from weights.decoders.quantise import Levels, Scales, dequantise

VERSIONS = (2, 3)
MAGIC = b"GGUF"
Bytes = NDArray[np.uint8]
# Numbers of types of facts: how they are unpacked.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_MOST_AXES = 4
_DAMAGES = (struct.error, UnicodeDecodeError, MemoryError, OverflowError, RecursionError)
_LOW_HALF = BLOCK // 2  # numbers of a block of Q4_0 that stand in low bits


@dataclass(frozen=True, slots=True)
class Kind:
    """How a tensor's numbers are stored: so many of a row together, in so many bytes."""

    name: str
    numbers: int
    bytes: int


_OURS = {
    0: Kind("F32", 1, 4), 1: Kind("F16", 1, 2), 2: Kind("Q4_0", BLOCK, 2 + BLOCK // 2),
    3: Kind("Q4_1", BLOCK, 4 + BLOCK // 2),
    8: Kind("Q8_0", BLOCK, 2 + BLOCK), 30: Kind("BF16", 1, 2),
}  # fmt: skip
# Kinds whose blocks are ours in another order of bits.
SAME_BLOCKS = {"Q4_0": "int4", "Q8_0": "int8", "Q4_1": "int4m"}


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """A tensor as it lies.

    Parameters
    ----------
    shape
        From the outermost axis on.
    data
        [rows, bytes]: all axes but the last are rows.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    data: Bytes

    def numbers(self, rows: NDArray[np.intp], start: int, stop: int) -> Array:
        """Return columns of some rows as float32, [rows, stop - start].

        Raises
        ------
        HeptiError
            If the package that knows this kind does not know how to read it.
        """
        size = self.kind.numbers
        first, last = start // size, -(-stop // size)
        data = self.data[rows, first * self.kind.bytes : last * self.kind.bytes]
        return _numbers(self, data)[:, start - first * size : stop - first * size]

    def blocks(self, rows: NDArray[np.intp], start: int, stop: int, held: str) -> tuple[Levels, Scales]:
        """Return blocks [rows, stop - start, bytes] and scales [rows, stop - start] as ours are, of `can_be`."""
        size = self.kind.bytes
        return _repacked(self.kind, self.data[rows, start * size : stop * size], held)

    def can_be(self, held: str) -> bool:
        """Return whether blocks are those of what a matrix is held in, number by number."""
        return held in _REPACKED.get(self.kind.name, ())


class GgufFile:
    """A GGUF file, open for reading.

    Parameters
    ----------
    path
        The file.

    Attributes
    ----------
    facts
        What it says of itself; lists of numbers are arrays.
    tensors
        By their names.

    Raises
    ------
    HeptiError
        If there is none, it is cut short, or of a version or kind of numbers that is not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with explained(f"cannot read {path}", (OSError, ValueError)), path.open("rb") as file:
            if not path.stat().st_size:  # of which nothing can be mapped
                raise ValueError("it is empty")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        with explained(f"{path} is cut short or damaged", _DAMAGES):
            tensors, facts = self._header()
            self.facts = dict(self._fact() for _ in range(facts))
            places = [self._place() for _ in range(tensors)]
        alignment = self.facts.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1:
            raise HeptiError(f"{path} is damaged: its alignment is {alignment!r}")
        begin = -(-self._at // alignment) * alignment
        self.tensors = {name: self._tensor(name, begin + offset, shape, kind) for name, offset, shape, kind in places}

    def _header(self) -> tuple[int, int]:
        """Return how many tensors and facts there are."""
        if self._map[:4] != MAGIC:
            raise HeptiError(f"{self.path} is no GGUF file")
        self._at = 4
        (version,) = self._take("I")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
            if swapped in VERSIONS:
                raise HeptiError(f"{self.path} is a GGUF file for big-endian computers: convert it for little-endian")
            raise HeptiError(f"{self.path} is a GGUF file of version {version}, this version reads 2 and 3")
        tensors, facts = self._take("QQ")
        return tensors, facts

    def _take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + form, self._map, self._at)
        self._at += struct.calcsize("<" + form)
        return found

    def _text(self) -> str:
        (size,) = self._take("Q")
        return str(self._bytes(size), "utf-8")

    def _bytes(self, size: int) -> bytes:
        if self._at + size > len(self._map):
            raise struct.error(f"{size} bytes from {self._at} on, the file has {len(self._map)}")
        self._at += size
        return self._map[self._at - size : self._at]

    def _fact(self) -> tuple[str, Any]:
        name = self._text()
        return name, self._value(self._take("I")[0])

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._take("IQ")
            if inner in _SCALARS:
                dtype = np.dtype(f"<{_SCALARS[inner]}")
                return np.frombuffer(self._bytes(count * dtype.itemsize), dtype)
            return [self._value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise struct.error(f"a fact of type {kind}")
        (value,) = self._take(_SCALARS[kind])
        # As it was written: 1e-06 and not 9.99999997e-07.
        return float(str(np.float32(value))) if kind == _FLOAT32 else value

    def _place(self) -> tuple[str, int, tuple[int, ...], int]:
        """Return a tensor's name, offset, shape and the number of its kind."""
        name = self._text()
        (axes,) = self._take("I")
        if axes > _MOST_AXES:
            raise struct.error(f"tensor {name} has {axes} axes")
        sizes = self._take(f"{axes}Q")
        kind, offset = self._take("IQ")
        return name, offset, sizes[::-1] or (1,), kind

    def _tensor(self, name: str, start: int, shape: tuple[int, ...], number: int) -> GgufTensor:
        kind = _OURS.get(number) or _foreign(f"{self.path}: tensor {name}", number)
        if shape[-1] % kind.numbers:
            raise HeptiError(
                f"{self.path} is damaged: rows of {name} have {shape[-1]} numbers, {kind.name} has blocks of "
                f"{kind.numbers}"
            )
        size = shape[-1] // kind.numbers * kind.bytes
        stop = start + math.prod(shape[:-1]) * size
        if stop > len(self._map):
            raise HeptiError(
                f"{self.path} is cut short: tensor {name} ends at byte {stop}, the file has {len(self._map)}"
            )
        data = np.frombuffer(self._map, np.uint8, stop - start, start)
        return GgufTensor(name, kind, shape, data.reshape(math.prod(shape[:-1]), size))


def _package(what: str) -> Any:
    try:
        import gguf  # here, as it takes 0.2 s, and few files need it
    except ModuleNotFoundError:
        raise HeptiError(f"{what} needs the package gguf: {install('gguf')}") from None
    return gguf


def _foreign(where: str, number: int) -> Kind:
    """Return a kind that the package knows."""
    package = _package(f"{where} is stored as kind {number}: reading it")
    try:
        kind = package.GGMLQuantizationType(number)
    except ValueError:
        raise HeptiError(f"{where} is stored as kind {number}, which is unknown") from None
    return Kind(kind.name, *package.GGML_QUANT_SIZES[kind])


# What blocks can be held in without a number changing.
_REPACKED = {"Q4_0": ("int4", "int4m", "int8m"), "Q4_1": ("int4m", "int8m"), "Q8_0": ("int8", "int8m")}


def _repacked(kind: Kind, data: Bytes, held: str) -> tuple[Levels, Scales]:
    """Return rows of Q4_0, Q4_1 or Q8_0 [rows, bytes] as our blocks and scales."""
    blocks = data.reshape(len(data), -1, kind.bytes)
    scales = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0]
    minima = np.zeros_like(scales)
    levels = blocks[..., 2:]
    if kind.name == "Q8_0":
        levels = levels ^ np.uint8(0x80)
        return (levels, scales) if held == "int8" else (levels, np.stack([scales, minima], -1))
    if kind.name == "Q4_1":
        minima = np.ascontiguousarray(levels[..., :2]).view("<f2")[..., 0]
        levels = levels[..., 2:]
    if held == "int8m":  # byte i has numbers i and i + 16
        zero = 128 - 8 * (kind.name == "Q4_0")
        found = np.concatenate([levels & 15, levels >> 4], -1) + np.uint8(zero)
        return found, np.stack([scales, minima], -1)
    # Theirs: byte i has numbers i and i + 16. Ours: 2 i and 2 i + 1.
    found = np.empty(levels.shape, np.uint8)
    first, second = levels[..., 0::2], levels[..., 1::2]
    found[..., : _LOW_HALF // 2] = first & 15 | second << 4
    found[..., _LOW_HALF // 2 :] = first >> 4 | second & 0xF0
    if held == "int4":
        return found, scales
    if kind.name == "Q4_0":  # whose level 0 means -8 scales, a float16 too
        minima = -8 * scales
    return found, np.stack([scales, minima], -1)


def _numbers(tensor: GgufTensor, data: Bytes) -> Array:
    name = tensor.kind.name
    data = np.ascontiguousarray(data)
    if name in SAME_BLOCKS:
        length = data.shape[1] // tensor.kind.bytes * BLOCK
        return dequantise(*_repacked(tensor.kind, data, SAME_BLOCKS[name]), 1, length, SAME_BLOCKS[name])
    if name in _FLOATS:
        return _FLOATS[name](data)
    package = _package(f"tensor {tensor.name}, stored as {name},")
    try:
        found: Array = package.quants.dequantize(data, package.GGMLQuantizationType[name])
    except NotImplementedError:
        raise HeptiError(f"tensor {tensor.name} is stored as {name}, which the package gguf cannot read") from None
    return found


_FLOATS: dict[str, Callable[[Bytes], Array]] = {
    "F32": lambda data: data.view("<f4"),
    "F16": lambda data: data.view("<f2").astype(np.float32),
    "BF16": lambda data: (data.view("<u2").astype(np.uint32) << 16).view(np.float32),
}
