"""Tables of tensors: their axes, what a share weighs, and how matrices lie."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.model.kinds.part import TensorUse
from solver.model.named import named_model
from solver.model.precision import FLOAT32, INT8
from solver.model.spec import attention_block, mlp_block, tensor_shapes

BLOCKS = st.one_of(
    st.builds(lambda heads, d: attention_block(heads * d, heads), st.integers(1, 16), st.integers(1, 64)),
    st.builds(mlp_block, hidden=st.integers(1, 300), ffn=st.integers(1, 300)),
)


@given(BLOCKS)
def test_units_times_their_count_are_the_first_dimension(block):
    assert all(tensor.shape[0] == block.inner.count * block.inner.unit for tensor in block.shared)
    assert {tensor.units for tensor in block.shared} == {block.inner.count}
    assert block.kind.inner_columns == block.inner.count * block.inner.unit


@given(BLOCKS, st.sampled_from([FLOAT32, INT8]))
def test_a_tensor_weighs_what_its_units_or_its_columns_weigh(block, precision):
    for tensor in block.shared:
        whole = tensor.held_bytes(precision)
        assert whole == tensor.units * tensor.held_bytes(precision, units=1)
        if tensor.weight.summed is not None:
            assert whole == tensor.shape[1] * tensor.held_bytes(precision, columns=1)


@given(BLOCKS)
def test_matrices_are_shared_out_and_vectors_only_where_they_lie_along_the_axis(block):
    """What is summed over the axis is a matrix of the second product; the residual's vectors are everybody's."""
    for tensor in block.tensors:
        assert (tensor.weight.summed is None) == (len(tensor.shape) == 1)
        assert (tensor.axis == "") == (tensor.weight.summed is None and tensor.use is not TensorUse.INTO)


@pytest.mark.parametrize("name", ["bert-base", "vit-large", "bert-base-decoupled"])
def test_the_tensors_of_all_blocks_are_those_of_the_layers(name):
    spec = named_model(name)
    layers = {name: shape for name, shape in tensor_shapes(spec).items() if name.startswith("layers/")}

    found = sum(run.layers * run.parts * math.prod(tensor.shape) for run in spec.runs for tensor in run.tensors)

    assert found == sum(map(math.prod, layers.values()))


@pytest.mark.parametrize(("norm", "counts"), [("pre", (4, 2)), ("post", (2, 4))])
def test_a_norm_belongs_to_the_sub_layer_that_computes_it(norm, counts):
    """The first of the sub-layers of an MLP has up and its bias, and a norm that stands before it."""
    block = mlp_block(8, 32, norm=norm)
    numbers = [tensor.half(block.stream) for tensor in block.tensors]

    assert (numbers.count(0), numbers.count(1)) == counts
