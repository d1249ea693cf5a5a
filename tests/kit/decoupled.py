"""Plans of decoupled models: sub-blocks of any shares, and the layers that are not decoupled, cut in any way."""

import numpy as np

from solver.base.spans import Partition
from solver.model.blocks import Cut
from solver.plan.plan import BlockPlan, StreamLayout, layer_by_rows
from tests.kit.encoders import CUTS, TEXTS, random_layer, shares

WHOLE = tuple(BlockPlan(block.name, Cut.WHOLE) for block in TEXTS.blocks)
ORIGINALS = ("whole", "tensor-parallel", "one device")


def sub_blocks(spec, kind, ranks, rng):
    own = Partition.of_shares(shares(kind, ranks, rng), spec.sub_blocks)
    return tuple(BlockPlan(block.name, Cut.SUB_BLOCKS, own, norm=StreamLayout.COLS) for block in spec.part_blocks)


def original(spec, how, kind, ranks, rng):
    if how == "whole":
        return WHOLE
    if how == "one device":
        return layer_by_rows(spec.blocks, np.eye(ranks)[rng.integers(ranks)].tolist())
    if how == "any":
        attention, mlp = (CUTS[rng.integers(len(CUTS))] for _ in range(2))
    else:
        attention = mlp = (Cut.BLOCK, StreamLayout.FULL)
    return random_layer(spec, attention, mlp, kind, ranks, rng)


def random_layers(spec, how, kind, ranks, rng):
    """Return the cuts of all layers; the sub-blocks change hands from group to group."""
    layers = []
    for number in range(spec.layers):
        if spec.run(number).parts == 1:
            layers.append(original(spec, how, kind, ranks, rng))
        elif number and spec.run(number - 1).parts > 1:
            layers.append(layers[-1])
        else:
            layers.append(sub_blocks(spec, kind, ranks, rng))
    return layers
