"""Plans as a person might write them: every block cut in another way, shares very uneven, some of them empty."""

import json

import numpy as np

# Cut, and whether the residual is added where rows lie.
CUTS = [("rows", True), ("output", False), ("output", True), ("unit", False), ("unit", True), ("to_rows", True)]


# Plans: a good one for two ranks, and what a slip of the pen makes of it.

PLAN = {
    "format": "hepti-plan/2",
    "model": {"name": "bert"},
    "stages": [
        {
            "devices": ["a", "b"],
            "runs": [
                {
                    "layers": [0, 3],
                    "attention": {"cut": "heads", "heads": [4, 1]},
                    "mlp": {"cut": "rows", "rows": [0.7, 0.3]},
                }
            ],
        }
    ],
}


def changed(path, value):
    """Return the plan with another value at a path like "attention heads"."""
    plan = json.loads(json.dumps(PLAN))
    run = plan["stages"][0]["runs"][0]
    table = {"plan": plan, "stage": plan["stages"][0], "run": run}.get(path.split()[0], run.get(path.split()[0]))
    table[path.split()[1]] = value
    return plan


def write_mixed_plan(path, checkpoint, ranks, seed):
    """Write a random plan for a converted checkpoint; no two layers need be cut the same way."""
    rng, config = np.random.default_rng(seed), checkpoint.model.config
    heads, hidden = config.num_attention_heads, config.hidden_size
    ratio = getattr(config, "mlp_ratio", 0)  # DINOv2's; `hidden_dim` is DistilBERT's word
    ffn = int(ratio * config.hidden_size) or getattr(config, "intermediate_size", None) or config.hidden_dim
    runs = [
        {
            "layers": [layer, layer + 1],
            "attention": block(rng, "heads", heads, hidden, ranks),
            "mlp": block(rng, "columns", ffn, hidden, ranks),
        }
        for layer in range(config.num_hidden_layers)
    ]
    stage = {"devices": [f"board-{rank}" for rank in range(ranks)], "runs": runs}
    path.write_text(json.dumps({"format": "hepti-plan/2", "model": {"name": checkpoint.family}, "stages": [stage]}))
    return path


def block(rng, unit, total, hidden, ranks):
    cut, by_rows = CUTS[rng.integers(len(CUTS))]
    table = {"cut": unit if cut == "unit" else cut}
    if cut != "rows":
        table[unit] = counts(rng, total, ranks)
    if cut == "to_rows":
        table["groups"] = int(rng.integers(1, 4))
    if cut == "output":
        table["output"] = counts(rng, hidden, ranks)
    if by_rows:
        table["rows"] = shares(rng, ranks)
    return table


def counts(rng, total, ranks):
    """Cut an axis at random places, often at the same one."""
    stops = np.sort(rng.integers(0, total, ranks - 1, endpoint=True))
    return np.diff(stops, prepend=0, append=total).tolist()


def shares(rng, ranks):
    weights = rng.pareto(0.7, ranks) * (rng.random(ranks) < 0.7)
    weights[rng.integers(ranks)] += 0.1
    return (weights / weights.sum()).tolist()
