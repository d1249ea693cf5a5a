"""Where graphs can be cut, and shares that finish together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.model.convnet import ConvNet, Node
from solver.systems.convnets.common import chain_points, cut_points, finish_together, halo, rows_end
from tests.kit.chains import chain, window


def test_segments_begin_where_neighbours_are_needed():
    """The activation and the pool stay with the convolution before them, the matrix comes after the rows."""
    net = chain(("conv", 4), ("relu",), ("conv", 4), ("pool",), ("conv", 4), ("mean",), ("flatten",), ("gemm", 5))

    assert rows_end(net) == 6
    assert cut_points(net) == chain_points(net) == [0, 2, 4, 6]


def test_a_residual_block_is_one_layer_of_a_chain():
    conv = lambda name, value: Node(name, "Conv", (value, "w"), name, window(3, 1, 1) | {"group": 1})
    nodes = (conv("a", "x"), conv("b", "a"), conv("c", "b"), Node("d", "Add", ("c", "a"), "d"), conv("e", "d"))
    net = ConvNet("block", "x", ("e",), nodes, dict.fromkeys("xabcde", (4, 8, 8)), {"w": (4, 4, 3, 3)})

    assert cut_points(net) == [0, 1, 2, 4, 5]
    assert chain_points(net) == [0, 1, 4, 5]


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "expected"),
    [(3, 1, 1, (1, 1)), (3, 2, 1, (1, 0)), (7, 2, 3, (3, 2)), (5, 1, 0, (0, 4)), (2, 2, 0, (0, 0)), (1, 2, 0, (0, 0))],
)
def test_halos_by_hand(kernel, stride, pad, expected):
    size = (16 + 2 * pad - kernel) // stride + 1
    node = Node("a", "MaxPool", ("x",), "a", window(kernel, stride, pad))
    net = ConvNet("one", "x", ("a",), (node,), {"x": (1, 16, 16), "a": (1, size, size)}, {})

    assert halo(net, 0) == expected


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 9)), min_size=1, max_size=6))
def test_all_who_have_a_share_finish_together(devices):
    """Who has none would begin later than that."""
    fixed, slope = np.array(devices).T

    shares = finish_together(fixed, slope)

    ends = fixed + slope * shares
    assert shares.sum() == pytest.approx(1)
    assert np.allclose(ends[shares > 0], ends[shares > 0].max())
    assert (fixed[shares == 0] >= ends[shares > 0].max() - 1e-9).all()
