"""Random clusters, models and lengths, as people might have them: what one planner is held against another on."""

from __future__ import annotations

import numpy as np

from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.model.named import named_model
from solver.model.spec import ModelSpec, TextInput

MODELS = ("bert-base", "bert-large", "minilm-l6", "distilbert", "vit-base")
PATCHES = 197  # rows of an image


def instance(seed: int) -> tuple[ModelSpec, Cluster, int]:
    """Return a model, one to six boards of 20 to 2500 Mbps, some links narrow, memory plentiful or scarce, and rows."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    speeds = rng.choice([5, 10, 24.6, 24.6, 35, 70, 120], n) * rng.uniform(0.85, 1.15, n)
    memory = rng.choice([8, 8, 2, 1, 0.75], 1)[0] * rng.uniform(0.8, 1.2, n)
    mbps = between(rng, 20, 2500)
    own = [between(rng, 20, 2500) * 1e6 / 8 if rng.random() < 0.2 else None for _ in range(n)]
    boards = zip(speeds, memory, own, strict=True)
    devices = tuple(Device(f"d{i}", float(v) * 1e9, round(float(m) * GIB), o) for i, (v, m, o) in enumerate(boards))
    latency_s, links = between(rng, 5e-5, 5e-3), {}
    if n > 2 and rng.random() < 0.3:
        one, other = rng.choice(n, 2, replace=False)
        narrow = Link(mbps * 1e6 / 8 * float(rng.uniform(0.05, 0.5)), 2 * latency_s)
        links[frozenset((f"d{one}", f"d{other}"))] = narrow
    spec, rows = named_model(str(rng.choice(MODELS))), int(rng.choice([4, 16, 50, 128, 197, 256, 384]))
    rows = min(rows, spec.input.max_rows) if isinstance(spec.input, TextInput) else PATCHES
    return spec, Cluster(devices, Link(mbps * 1e6 / 8, latency_s), links), rows


def between(rng: np.random.Generator, least: float, most: float) -> float:
    """Return a number whose logarithm is equally likely everywhere."""
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))
