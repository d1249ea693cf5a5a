"""DeeperThings' integer program against all choices, and what its plans send."""

import numpy as np
import pytest

from solver.plan.segments import SegmentCut
from solver.programs.integer import Way, least_traffic
from solver.schedule.networks.segment_steps import weights_of
from solver.schedule.networks.steps import moved_between, unrolled
from solver.systems.convnets import plan_network
from solver.systems.convnets.deeperthings import late_layers
from tests.kit.chains import boards, chain
from tests.sweeps import seeds

O, I, F, S = Way  # noqa: E741


def all_ways(layers):
    """Return all choices for so many layers."""
    if layers <= 0:
        return [[]] if layers == 0 else []
    alone = [[way, *rest] for way in (O, I) for rest in all_ways(layers - 1)]
    return alone + [[F, S, *rest] for rest in all_ways(layers - 2)]


def traffic(ways, inputs, outputs, summands, n):
    """Return the numbers sent, by the paper's formulas."""
    total = 0.0
    for layer, way in enumerate(ways):
        m, own = inputs[layer], inputs[layer] / n if layer and ways[layer - 1] is O else 0
        if way is O:
            total += (m - own) * (n - 1) + outputs[layer] * (n - 1) / n
        elif way is I:
            total += m * (n - 1) / n + summands[layer] * (n - 1)
        else:
            total += (m - own) * (n - 1) if way is F else summands[layer] * (n - 1)
    return total


@pytest.mark.parametrize("seed", seeds(6, 12))
def test_the_program_finds_the_least_of_all_choices(seed):
    rng = np.random.default_rng(seed)
    layers, n = int(rng.integers(1, 7)), int(rng.integers(2, 7))
    inputs, outputs, summands = rng.integers(1, 5000, (3, layers)).tolist()
    adds = (rng.random(layers) < 0.8).tolist()
    legal = [
        ways for ways in all_ways(layers) if all(add or way in (O, F) for add, way in zip(adds, ways, strict=True))
    ]

    found = least_traffic(inputs, outputs, summands, adds, n)

    assert found in legal
    costs = [traffic(ways, inputs, outputs, summands, n) for ways in legal]
    assert traffic(found, inputs, outputs, summands, n) == pytest.approx(min(costs))


def test_late_layers_have_more_weights_than_maps():
    """Of 3 × 64 × 9 = 1728 weights and 67 × 256 numbers not, of 64 × 64 × 9 and 128 × 64 yes; so are matrices."""
    net = chain(("conv", 64), ("pool",), ("conv", 64), ("relu",), ("flatten",), ("gemm", 9), size=16)

    assert [(nodes.start, nodes.stop) for nodes in late_layers(net)] == [(2, 5), (5, 6)]


def test_a_pair_shares_out_weights_and_sends_nothing_between():
    """Two fused layers of 64 channels on 4 boards: 64 × 16 pixels go out to 3, and as many summands come back of 3."""
    net = chain(("conv", 64), ("pool",), ("conv", 64), ("conv", 64), ("relu",), size=8)

    plan = plan_network("deeperthings", net, boards(1.0, 1.0, 1.0, 1.0))

    cuts = [(part.nodes.start, part.nodes.stop, part.cut) for part in plan.segments]
    assert cuts[-3:] == [(2, 3, SegmentCut.CHANNELS), (3, 4, SegmentCut.INPUT_CHANNELS), (4, 5, SegmentCut.ROWS)]
    weights = weights_of(net, plan)
    assert weights == [4 * (3 * 64 * 9 + 2 * 64 * 64 * 9 // 4)] * 4
    sent = [
        moved_between(net, own.before, own.needs, plan.wire).sum()
        for own in unrolled(net, plan)
        if own.segment.nodes.start >= 2
    ]
    assert sent == [4 * 3 * 64 * 16, 0, 4 * 3 * 64 * 16]
    # The program's ways of the last two layers.
    size = 64 * 16
    assert traffic([F, S], [size] * 2, [size] * 2, [size] * 2, 4) == sum(sent) / 4


def test_a_network_without_late_layers_is_by_rows():
    plan = plan_network("deeperthings", chain(("conv", 4), ("conv", 4), ("mean",), size=24), boards(1.0, 1.0))

    assert {part.cut for part in plan.segments} == {SegmentCut.ROWS}
    assert plan.segments[0].shares == (0.5, 0.5)
