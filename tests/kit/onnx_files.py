"""ONNX files of two nodes, good ones and such as cannot be converted."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CONV = helper.make_node("Conv", ["x", "w"], ["a"], name="c", pads=[1, 1, 1, 1])
RELU = helper.make_node("Relu", ["a"], ["y"], name="r")
ODD = helper.make_node("Odd", ["a"], ["y"], name="odd one", domain="mine")


def onnx_file(path, *, last=RELU, channels=3, sides=(8, 8), weights=1.0, opset=17, external=False):
    """Write a network of two nodes."""
    tensor = numpy_helper.from_array(np.full((4, channels, 3, 3), weights, np.float32), "w")
    shapes = {"x": (1, channels, *sides), "y": (1, 4, *sides)}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph([CONV, last], "g", ends[:1], ends[1:], [tensor])
    domains = [helper.make_opsetid("", opset), *([helper.make_opsetid("mine", 1)] if last.domain else [])]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="data", size_threshold=0)
    if external:
        path.with_name("data").unlink()
