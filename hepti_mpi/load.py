"""Load a rank's share of the weights: from its own file, or from rank 0 where it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hepti_mpi.arrays import Array
from hepti_mpi.comm import Group
from hepti_mpi.layers import BlockWeights, LayerWeights
from solver.model import ModelSpec
from solver.plan import Plan
from solver.shares import TensorSlice, layer_slices, rank_slices
from weights.store import WeightsFile

# What rank 0 holds at a time of a share that it streams to a rank without the file.
STREAM_BYTES = 4 << 20

Read = Callable[[TensorSlice, Array], object]


def open_weights(path: Path, fingerprint: str, group: Group) -> WeightsFile | None:
    """Open this rank's own weights file; None where it has none, and rank 0 must send it its share.

    Raises
    ------
    HeptiError
        If the file is damaged, or is another than rank 0's.
    """


def load(
    spec: ModelSpec, plan: Plan, source: WeightsFile | None, fileless: Sequence[int], group: Group, done: Callable[[int], object]
) -> tuple[dict[str, Array], list[LayerWeights]]: ...
