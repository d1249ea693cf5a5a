"""Graphs of networks by numpy: whatever an operator is, it gives what onnxruntime gives, or is refused by name."""

import warnings
from contextlib import suppress

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnxruntime.capi import onnxruntime_pybind11_state as state

from hepti_mpi.kernels import evaluated
from hepti_mpi.kernels.evaluated import AS_THEY_ARE, OURS, check_operators, evaluator
from solver.base.errors import HeptiError
from solver.model.kinds.operator import REACH
from tests import sweeps
from tests.kit import convnet_reference
from tests.kit.convnets import Builder, emulate, plan_of, random_net, random_plan

NO_KERNEL = (state.NotImplemented, state.Fail, state.InvalidGraph, state.RuntimeException)
NUMBERS = {helper.np_dtype_to_tensor_dtype(np.dtype(of)) for of in (*"?bBhHiIlLefd",)}
# The oldest version of ONNX that networks have, and each test's own: the evaluator has some operators for either.
OPSETS = (13, None)
WINDOW = {"kernel_shape": [3, 2], "strides": [2, 3], "dilations": [1, 2], "pads": [1, 0, 2, 1]}


@pytest.mark.parametrize(("seed", "tiles"), sweeps.cycled(24, sweeps.seeds(24, 600), [False, True]))
def test_random_networks_by_numpy(seed, tiles):
    """Rows, channels, sums, and tiles with their strips, on one to five ranks."""
    rng = np.random.default_rng(seed)
    net, tensors = random_net(rng, verbatim=seed % 3 == 0)

    check(net, tensors, random_plan(net, rng, 1 + seed % 5, tiles=tiles))


def check(net, tensors, plan):
    """Compare what ranks compute by numpy with one session of onnxruntime."""
    pixels = np.random.default_rng(0).integers(0, 256, net.shapes["x"], dtype=np.uint8)
    check_operators(net.nodes)
    found = emulate(net, tensors, plan, pixels, make=evaluator)
    expected = convnet_reference.compute(net, tensors, pixels.astype(np.float32) / np.float32(255))
    for value, array in zip(net.outputs, expected, strict=True):
        np.testing.assert_allclose(found[value], array[0], rtol=0, atol=1e-5 * max(np.abs(array).max(), 1e-6))


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_groups_of_several_channels_are_convolved_each_by_its_own(op, group):
    build = Builder(np.random.default_rng(group), channels=4, height=11, width=10)
    weight = build.tensor(*((8, 4 // group) if op == "Conv" else (4, 8 // group)), 3, 2)
    more = {} if op == "Conv" else {"output_padding": [1, 2]}
    shape = (8, 6, 3) if op == "Conv" else (8, 21, 31)
    net = build.net([build.add(op, ["x", weight, build.tensor(8)], shape, group=group, **WINDOW, **more)])

    check(net, build.tensors, plan_of(net, [(1, "rows", [0.3, 0.7])], 2))


@pytest.mark.parametrize(
    ("mode", "place", "nearest"),
    sweeps.cycled(
        8,
        ["nearest", "linear"],
        ["half_pixel", "pytorch_half_pixel", "asymmetric"],
        ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"],
    ),
)
def test_an_enlargement_takes_the_pixels_that_onnxruntime_takes(mode, place, nearest):
    build = Builder(np.random.default_rng(0), height=7, width=5)
    facts = {"mode": mode, "coordinate_transformation_mode": place, "nearest_mode": nearest}
    net = build.net([build.add("Resize", ["x"], (3, 14, 15), factors=[2, 3], exact=False, **facts)])

    check(net, {}, plan_of(net, [(1, "rows", [0.3, 0.7])], 2))


@pytest.fixture(scope="module")
def cases():
    """Return onnx's own tests of one node each, by the operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are meant to overflow
        found = collect_testcases(None)
    by_operator = {}
    for case in found:
        if len(case.model.graph.node) == 1:
            by_operator.setdefault(case.model.graph.node[0].op_type, []).append(case)
    return by_operator


@pytest.mark.parametrize("opset", OPSETS)
def test_an_operator_is_onnxruntimes_in_all_tests_that_onnx_has_of_it(cases, opset):
    """Of numbers, where onnxruntime has a kernel for them. Those with windows, and enlargements, are tested above."""
    names = (AS_THEY_ARE | REACH.keys()) - {own.__name__ for own in OURS} - {"Resize"}
    compared = set()
    for name in names:
        for case in cases[name]:
            for ours, wanted in both(case, opset):
                compared.add(name)
                for one, other in zip(ours, wanted, strict=True):
                    assert (one.dtype, one.shape) == (other.dtype, other.shape), case.name
                    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5, err_msg=case.name)

    assert compared == names or opset is not None


def both(case, opset):
    """Yield what the evaluator and onnxruntime give for each of a case's inputs, if that has a kernel for it."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    if opset is not None:
        model.opset_import[0].version, model.ir_version = opset, 8
    kinds = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    for arrays, _ in case.data_sets if kinds <= NUMBERS else ():
        arrays = [numpy_helper.to_array(of) if isinstance(of, onnx.TensorProto) else np.asarray(of) for of in arrays]
        given = dict(zip((value.name for value in model.graph.input), arrays, strict=True))
        with suppress(*NO_KERNEL), np.errstate(all="ignore"):
            wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
            yield evaluated.ReferenceEvaluator(model, new_ops=OURS).run(None, given), wanted


def test_an_operator_that_numpy_has_not_is_refused_by_name():
    build = Builder(np.random.default_rng(0))
    facts = {"attributes": {}, "output": 0, "batch": True, "dtype": "float32"}
    build.add("Verbatim:GridSample", ["x", build.tensor(1)], (3, 5, 5), **facts)

    with pytest.raises(HeptiError, match="numpy does not compute GridSample"):
        check_operators(build.nodes)
