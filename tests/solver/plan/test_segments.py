"""Plans of convolutional networks: what fits a network is checked, and refused in one line."""

from dataclasses import replace

from tests.kit import refused
from tests.kit.chains import chain
from tests.kit.convnets import plan_of


def test_what_adds_up_nothing_is_not_cut_by_sums(kept):
    """A convolution in groups, and a pool; one that is in none adds up over its channels."""
    net = chain(("conv", 4), ("conv", 4), ("pool",), size=8)
    node = net.nodes[1]
    grouped = replace(node, attributes=node.attributes | {"group": 4})
    net = replace(net, nodes=(net.nodes[0], grouped, net.nodes[2]))
    every = [
        plan_of(net, [(at, "rows", (1, 0)), (at + 1, "sums", (0.5, 0.5)), (3, "rows", (1, 0))][at == 0 :], 2)
        for at in range(3)
    ]

    every[0].check(net, ranks=2)
    kept(refused.said(lambda plan: plan.check(net, ranks=2), every[1:]))
