"""Frequencies of rotary positions as checkpoints' settings scale them.

In float32 as transformers does, to the last bit or two: at position 100,000 a bit turns a head by a hundredth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from solver.base.arrays import Array
from solver.model.blocks import one_of
from solver.model.kinds.attention import Rope

Settings = Mapping[str, Any]


def rope_of(width: int, theta: float, settings: Settings | None = None, positions: int = 0) -> Rope:
    """Return the rotary positions of a model.

    Parameters
    ----------
    width
        Columns of a head that turn.
    theta
        The base.
    settings
        What a config.json calls rope_scaling or rope_parameters; None: nothing is scaled.
    positions
        The longest context that the checkpoint names, for those kinds whose factor is its ratio to the original one.

    Raises
    ------
    HeptiError
        If the kind of scaling is unknown.
    KeyError
        If a setting that the kind needs is missing.
    """
    settings = settings or {}
    kind = settings.get("rope_type", settings.get("type")) or "default"
    one_of("rope_type", kind, tuple(_KINDS))
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    plain: Array = np.float32(1) / np.power(np.float32(theta), exponents, dtype=np.float32)
    frequencies, factor = _KINDS[kind](plain, settings, theta, positions)
    return Rope(frequencies=tuple(map(float, frequencies.astype(np.float32))), factor=factor)


def _default(plain: Array, settings: Settings, theta: float, positions: int) -> tuple[Array, float]:
    return plain, 1.0


def _linear(plain: Array, settings: Settings, theta: float, positions: int) -> tuple[Array, float]:
    return plain / np.float32(settings["factor"]), 1.0


def _llama3(plain: Array, settings: Settings, theta: float, positions: int) -> tuple[Array, float]:
    """Leave what turns often within the original context, slow what turns seldom, blend between."""
    factor, low, high = (float(settings[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = settings["original_max_position_embeddings"] / (2 * math.pi / plain)
    blend = ((turns - low) / (high - low)).clip(0, 1).astype(np.float32)
    return (1 - blend) * plain / np.float32(factor) + blend * plain, 1.0


def _yarn(plain: Array, settings: Settings, theta: float, positions: int) -> tuple[Array, float]:
    original = settings.get("original_max_position_embeddings") or positions
    factor = float(settings.get("factor") or positions / original)
    width = 2 * len(plain)

    def column(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    ends = [column(settings.get("beta_fast") or 32), column(settings.get("beta_slow") or 1)]
    if settings.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], width - 1)
    columns: Array = np.arange(len(plain), dtype=np.float32)
    slow: Array = ((columns - first) / (last - first or 0.001)).clip(0, 1)
    return plain / np.float32(factor) * slow + plain * (1 - slow), _yarn_factor(settings, factor)


def _yarn_factor(settings: Settings, factor: float) -> float:
    """Return the factor of cosines and sines: given, or the paper's 0.1 log(factor) + 1 with the weights given."""
    if (given := settings.get("attention_factor")) is not None:
        return float(given)

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    above, below = settings.get("mscale"), settings.get("mscale_all_dim")
    return scale(above) / scale(below) if above and below else scale(1)


def _longrope(plain: Array, settings: Settings, theta: float, positions: int) -> tuple[Array, float]:
    """Take the factors of the original context: those of longer ones would turn the cached keys anew."""
    original = settings["original_max_position_embeddings"]
    factor = float(settings.get("factor") or positions / original)
    given = settings.get("attention_factor")
    if given is None:
        given = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    divisors: Array = np.array(settings["short_factor"], np.float32)
    return plain / divisors, float(given)


_KINDS: Mapping[str, Callable[[Array, Settings, float, int], tuple[Array, float]]] = {
    "default": _default,
    "dynamic": _default,  # which scales what lies beyond the longest context only
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
