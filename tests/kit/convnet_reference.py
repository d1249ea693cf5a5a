"""A canonical network as one plain ONNX model: what everybody's slabs and sessions are compared with."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from solver.model.convnet import ConvNet, Node

IR_VERSION = 10


def to_onnx(net: ConvNet, tensors: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Write the whole network, values with their batch of 1, each canonical node as ONNX's own."""
    constants = {name: tensors[name] for name in net.tensors}
    unbatched = {node.output for node in net.nodes if not node.attributes.get("batch", True)}
    dtypes = {node.output: np.dtype(node.attributes.get("dtype", "float32")) for node in net.nodes}

    def constant(name: str, value: np.ndarray) -> str:
        constants[name] = value
        return name

    nodes = [_plain(net, node, constant) for node in net.nodes]
    outputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(dtypes.get(name, np.dtype(np.float32))),
            list(net.shapes[name] if name in unbatched else (1, *net.shapes[name])),
        )
        for name in dict.fromkeys(net.outputs)
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(net.input, TensorProto.FLOAT, [1, *net.shapes[net.input]])],
        outputs,
        [numpy_helper.from_array(np.array(value, order="C"), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", net.opset)], ir_version=IR_VERSION)


def run(model: onnx.ModelProto | str, image: np.ndarray) -> list[np.ndarray]:
    """Compute a model of one image [C, H, W] in one session, without optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: image[None]})


def compute(net: ConvNet, tensors: dict[str, np.ndarray], image: np.ndarray) -> list[np.ndarray]:
    """Compute a canonical network of one image."""
    found = dict(zip(dict.fromkeys(net.outputs), run(to_onnx(net, tensors), image), strict=True))
    return [found[name] for name in net.outputs]


def _plain(net: ConvNet, node: Node, constant) -> onnx.NodeProto:
    given = dict(node.attributes)
    op, inputs, outputs = node.op, list(node.inputs), [node.output]

    def extra(role: str, value, dtype=np.int64) -> str:
        return constant(f"{node.output}/{role}", np.array(value, dtype))

    if op.startswith("Verbatim:"):
        op, number = op.removeprefix("Verbatim:"), given["output"]
        outputs = [f"{node.output}/unused {before}" for before in range(given.get("outputs", number + 1))]
        outputs[number] = node.output
        given = given["attributes"]
    elif op == "AveragePool" or op == "MaxPool":
        given["pads"] = _pads(net, node)
        if op == "AveragePool" and set(given["dilations"]) == {1}:
            del given["dilations"]  # an attribute from opset 19 on
    elif op == "Clip":
        inputs += [extra(name, given.pop(name), np.float32) for name in ("min", "max")]
    elif op == "Slice":
        inputs += [extra(name, [value]) for name, value in (*given.items(), ("axes", 1))]
        given = {}
    elif op == "Concat":
        given = {"axis": 1}
    elif op == "Gemm":
        given = {"transB": 1}
    elif op == "Pad":
        top, left, bottom, right = given["pads"]
        inputs += [extra("pads", [0, 0, top, left, 0, 0, bottom, right]), extra("value", given["value"], np.float32)]
        given = {"mode": "constant"}
    elif op == "Resize":
        del given["exact"]
        inputs += ["", extra("scales", [1, 1, *given.pop("factors")], np.float32)]
    elif op == "Flatten":
        given = {"axis": 1}
    return helper.make_node(op, inputs, outputs, node.name, **given)


def _pads(net: ConvNet, node: Node) -> list[int]:
    """Return a pool's padding; at the end, what the wanted shape takes (it may be more or less than the model's)."""
    pads = list(node.attributes["pads"])
    if node.attributes.get("count_include_pad"):
        return pads
    for axis in (0, 1):
        into, out = net.shapes[node.inputs[0]][1 + axis], net.shapes[node.output][1 + axis]
        reach = (node.attributes["kernel_shape"][axis] - 1) * node.attributes["dilations"][axis] + 1
        pads[axis + 2] = max((out - 1) * node.attributes["strides"][axis] + reach - pads[axis] - into, 0)
    return pads
