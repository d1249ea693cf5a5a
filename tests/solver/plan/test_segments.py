"""Plans of convolutional networks: what fits a network is checked, and refused in one line."""

from dataclasses import replace

from tests.kit import refused
from tests.kit.chains import chain
from tests.kit.convnets import plan_of
from weights.networks_zoo import zoo_network


def test_shares_of_fewer_rows_than_devices_have_some_are_told(kept):
    """A device without a share is none of them, and neither is one of whose rows a pool sums."""
    net, _ = zoo_network("resnet18", size=64)
    pool = next(number for number, node in enumerate(net.nodes) if node.op == "GlobalAveragePool") + 1
    told = plan_of(net, [(pool, "rows", (1, 1, 0)), (len(net.nodes), "rows", (2, 1, 0))], 3)
    few = plan_of(net, [(pool, "rows", (1, 1, 1)), (len(net.nodes), "channels", (1, 1, 1))], 3)

    kept("\n".join(told.unheeded(net) + few.unheeded(net)))


def test_the_plan_of_another_network_is_refused(kept):
    net = chain(("conv", 4), size=8)
    plan = replace(plan_of(net, [(1, "rows", (1, 0))], 2), model_name="chian")

    kept(refused.said(plan.check, [(net, 2)]))


def test_what_adds_up_nothing_is_not_cut_by_sums(kept):
    """A convolution in groups, and a pool; one that is in none adds up over its channels."""
    net = chain(("conv", 4), ("conv", 4), ("pool",), size=8)
    node = net.nodes[1]
    grouped = replace(node, attributes=node.attributes | {"group": 4})
    net = replace(net, nodes=(net.nodes[0], grouped, net.nodes[2]))
    every = [
        plan_of(net, [(at, "rows", (1, 0)), (at + 1, "input_channels", (0.5, 0.5)), (3, "rows", (1, 0))][at == 0 :], 2)
        for at in range(3)
    ]

    every[0].check(net, ranks=2)
    kept(refused.said(lambda plan: plan.check(net, ranks=2), every[1:]))
