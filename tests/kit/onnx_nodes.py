"""ONNX files made node by node, and what they compute by our ranks beside onnxruntime."""

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

from tests.kit.convnets import emulate, plan_of
from weights.networks.convert import read_network

UNEVEN = (0.2, 0.5, 0.3)
DISABLED = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def node(op, inputs, outputs, domain="", **attributes):
    """Return a node; inputs and outputs are names with blanks between them."""
    return helper.make_node(op, inputs.split(), outputs.split(), domain=domain, **attributes)


def write(path, nodes, tensors=None, size=(1, 3, 12, 10), opset=17, ir=8, listed=False, outputs="y", kind="float32"):
    """Write nodes as a file of one image `x`; outputs are names, and ":type" where they are not float32.

    `listed`: with the weights among the inputs, as files of IR 3 have to.
    """
    tensors = {name: np.asarray(array) for name, array in (tensors or {}).items()}
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in tensors.items()}
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), size)]
    inputs += [helper.make_tensor_value_info(name, types[name], tensors[name].shape) for name in types if listed]
    graph = helper.make_graph(
        nodes,
        "net",
        inputs,
        [_output(*name.split(":")) for name in outputs.split()],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir)
    path.write_bytes(model.SerializeToString())
    return path


def _output(name, kind="float32"):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None)


def random_weights(*shape, seed=0):
    """Return weights that keep the size of what they multiply."""
    draw = np.random.default_rng((seed, *shape))
    return (draw.standard_normal(shape) * np.sqrt(2 / max(np.prod(shape[1:]), 1))).astype(np.float32)


def pixels_for(net, seed=0):
    """Return random pixels."""
    return np.random.default_rng(seed).integers(0, 256, net.shapes[net.input], np.uint8)


def by_onnxruntime(path, pixels, *, optimised=False, turned=False):
    """Return what onnxruntime computes of the file itself, which takes pixels / 255, or bytes; turned: as [H, W, C]."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = DISABLED
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (image,) = (value for value in session.get_inputs() if value.name == "x")
    array = pixels if image.type == "tensor(uint8)" else pixels.astype(np.float32) / np.float32(255)
    return session.run(None, {"x": np.ascontiguousarray(array.transpose(1, 2, 0) if turned else array)[None]})


def converted(path, **options):
    """Return the network and its tensors."""
    return read_network(path, **options)[:2]


def by_ranks(net, tensors, pixels):
    """Return what three uneven ranks compute where every node is a segment of its own, and where they are one."""
    count = len(net.nodes)
    plans = [plan_of(net, [(stop, "rows", UNEVEN) for stop in stops], 3) for stops in (range(1, count + 1), [count])]
    return [[found[name] for name in net.outputs] for found in (emulate(net, tensors, p, pixels) for p in plans)]


def check(path, *, off=2e-5, turned=False, seed=0, **options):
    """Convert a file, and hold every number of uneven ranks against onnxruntime; return the network."""
    net, tensors = converted(path, **options)
    pixels = pixels_for(net, seed)
    expected = by_onnxruntime(path, pixels, turned=turned)
    for found in by_ranks(net, tensors, pixels):
        assert len(found) == len(expected)
        for one, two in zip(found, expected, strict=True):
            most = np.abs(two.astype(np.float64)).max()
            assert one.size == two.size
            assert most > 0
            assert np.abs(one.ravel() - two.ravel()).max() <= off * most
    return net
