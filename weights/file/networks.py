"""The weights file of a convolutional network: the same format as a transformer's, with a graph as its description.

A tensor's first axis is that of output channels wherever a rank may have a share of them, and it is contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from solver.base.errors import HeptiError, explained
from solver.base.spans import Span
from solver.model.convnet import ConvNet
from weights.file.layout import row_chunk, row_spans
from weights.file.store import NETWORK, TensorFile, TensorWriter


def write_network(path: Path, net: ConvNet, tensors: Mapping[str, NDArray[Any]], source: str) -> None:
    """Write a network's weights file.

    Parameters
    ----------
    path
        The file to make; one that exists is replaced at the end.
    tensors
        All that the network names; floating-point numbers are stored as float32, others as they are.
    source
        Where they come from.

    Raises
    ------
    HeptiError
        If the file cannot be written, or a number is NaN or infinite; nothing is left behind.
    """
    shapes = {name: _stored(shape) for name, shape in net.tensors.items()}
    dtypes = {name: tensors[name].dtype for name in shapes if tensors[name].dtype.kind != "f"}
    with _NetworkWriter(path, net.to_json(), shapes, source, dtypes=dtypes) as weights:
        for name, shape in shapes.items():
            array = tensors[name].reshape(shape)
            for rows in row_spans(shape):
                weights.write(name, rows.start, array[rows.slice])


class NetworkFile(TensorFile):
    """A network's weights file, open for reading: `with NetworkFile(path) as weights`.

    Attributes
    ----------
    net
        The graph.
    fingerprint, source
        Of everything that the file says; where the numbers come from.

    Raises
    ------
    HeptiError
        As `TensorFile`, or if it holds something else.
    """

    def _describe(self, model: str) -> Mapping[str, tuple[int, ...]]:
        self._need(NETWORK)
        with explained(str(self.path), HeptiError):
            self.net = ConvNet.from_json(model)
        return {name: _stored(shape) for name, shape in self.net.tensors.items()}

    def _address(self, name: str) -> str:
        return _address(name)

    def _fits(self, dtype: np.dtype[Any]) -> bool:
        return super()._fits(dtype) or dtype.kind in "iub"

    @property
    def odd_types(self) -> Mapping[str, np.dtype[Any]]:  # noqa: D102
        return {name: dtype for name in self._shapes if (dtype := self.type_of(name)) != np.float32}

    def read(self, name: str, first: Span | None = None) -> NDArray[Any]:
        """Read a tensor, or a span of its first axis; as `read_rows`."""
        block = self.read_rows(name, first)
        return block if self.net.tensors[name] else block.reshape(())


class _NetworkWriter(TensorWriter):
    def _address(self, name: str) -> str:
        return _address(name)

    def _chunk(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return row_chunk(shape)


def _address(name: str) -> str:
    """Return a name that HDF5 takes as one, whatever it is made of: "a", "a/b" and "." may stand side by side."""
    return f"tensor {quote(name, safe='')}"


def _stored(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape or (1,)
