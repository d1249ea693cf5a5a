"""Small odd models, weights files of random numbers, and the command line from outside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from solver.base.spans import Span
from solver.model.spec import ImageInput, ModelSpec, TextInput, encoder, tensor_shapes
from solver.plan.holdings import TensorSlice
from tests.kit import inside
from weights.cli import main
from weights.file.store import WeightsFile, WeightsWriter

ROOT = Path(__file__).resolve().parents[2]

Tensors = dict[str, np.ndarray]


@pytest.fixture
def text_spec() -> ModelSpec:
    """Return sizes that are multiples of nothing: 5 heads of 13, 83 columns, 90 words."""
    source = TextInput(vocab=90, positions=40, max_rows=32, token_types=2)
    labels = ("no", "yes", "måske")
    return encoder("odd", 65, 83, 5, 3, input=source, dense="tanh", dense_width=65, labels=labels)


@pytest.fixture
def image_spec() -> ModelSpec:
    source = ImageInput(height=12, width=20, patch=4, prefix=2)
    return encoder(
        "odd-vit", 21, 31, 7, 2, input=source, norm="pre", embedding_norm=False, final_norm=True,
        labels=("a", "b"), classifier_rows=2,
    )  # fmt: skip


@pytest.fixture
def random_tensors() -> Callable[[ModelSpec], Tensors]:
    def make(spec: ModelSpec) -> Tensors:
        generator = np.random.default_rng(7)
        return {
            name: generator.standard_normal(shape, dtype=np.float32) * 0.1
            for name, shape in tensor_shapes(spec).items()
        }

    return make


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[..., Path]:
    """Write tensors as a weights file."""

    def write(spec: ModelSpec, tensors: Tensors, name: str = "model.h5", **options: str) -> Path:
        path = tmp_path / name
        with WeightsWriter(path, spec, "test", **options) as weights:
            for key, values in tensors.items():
                weights.write(key, 0, values)
        return path

    return write


@pytest.fixture
def read_all() -> Callable[[Path], Tensors]:
    """Read every tensor of a weights file."""

    def read(path: Path) -> Tensors:
        with WeightsFile(path) as weights:
            return {
                name: weights.read(TensorSlice(name, Span(0, shape[0]), shape))
                for name, shape in tensor_shapes(weights.spec).items()
            }

    return read


@pytest.fixture
def run_weights() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m weights` within this process."""
    return partial(inside.run, main)


@pytest.fixture
def weights_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m weights` as a user does."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "weights", *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.fixture
def long_labels_spec(text_spec: ModelSpec) -> ModelSpec:
    """Return a model whose description is above the 64 KiB that HDF5 keeps in its headers."""
    return replace(text_spec, labels=tuple(f"label number {number}" for number in range(9000)))
