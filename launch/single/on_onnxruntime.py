"""The layers of a model as one onnxruntime session: fused operators, weights packed once, in float32 or int8."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from launch.single.command import LayersProgram, LayerWeights
from solver.base.arrays import Array
from solver.base.environment import int8_overflows, omp_threads
from solver.model.spec import ModelSpec, encoder_blocks

FUSED = "com.microsoft"
ACTIVATIONS = {"gelu": ("Gelu", FUSED), "gelu_tanh": ("FastGelu", FUSED), "relu": ("Relu", ""), "tanh": ("Tanh", "")}


def prepare(spec: ModelSpec, layers: Sequence[LayerWeights], precision: str) -> LayersProgram:
    """Return the program [S, H] -> [S, H]."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = omp_threads() or 0  # 0: one a core
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would eat a CPU quota
    options.log_severity_level = 3
    if int8_overflows():
        options.add_session_config_entry("session.x64quantprecision", "1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layers.onnx"
        # Weights beside the graph: a protobuf ends at 2 GiB.
        onnx.save(graph(spec, layers), path, save_as_external_data=True, location="layers.onnx.data")
        if precision == "int8":
            exact, path = path, Path(folder) / "layers-int8.onnx"
            # The types of fused operators are not inferred.
            extra = {"DefaultTensorType": TensorProto.FLOAT}
            quantize_dynamic(
                exact, path, per_channel=True, weight_type=QuantType.QInt8, use_external_data_format=True,
                extra_options=extra,
            )  # fmt: skip
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(x: Array) -> Array:
        (y,) = session.run(None, {"x": x[None]})
        result: Array = y[0]
        return result

    return run


def graph(spec: ModelSpec, layers: Sequence[LayerWeights]) -> onnx.ModelProto:
    """Return the stack of layers; what else can be fused, onnxruntime fuses when it makes the session."""
    (own_attention, own_mlp), stream = encoder_blocks(spec), spec.blocks[-1].stream
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def add(operator: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], domain=domain, **attributes))
        return output

    def norm(x: str, layer: int, name: str) -> str:
        scales = [f"{layer}/{name}", f"{layer}/{name}_bias"]
        return add("LayerNormalization", [x, *scales], f"{layer}/{name}/y", epsilon=stream.eps)

    def product(x: str, layer: int, name: str) -> str:
        y = add("MatMul", [x, f"{layer}/{name}"], f"{layer}/{name}/x")
        return add("Add", [y, f"{layer}/{name}_bias"], f"{layer}/{name}/y")

    def attention(x: str, layer: int) -> str:
        # Of one bert-large layer on one x86 core 73.6 ms; 76.9 with the operator that holds the product, too.
        q_k_v = [f"{layer}/q", f"{layer}/k", f"{layer}/v"]
        nodes.append(helper.make_node("Split", [product(x, layer, "qkv")], q_k_v, axis=2, num_outputs=3))
        context = add("MultiHeadAttention", q_k_v, f"{layer}/context", FUSED, num_heads=own_attention.heads)
        return product(context, layer, "out")

    def mlp(x: str, layer: int) -> str:
        operator, domain = ACTIVATIONS[own_mlp.activation]
        return product(add(operator, [product(x, layer, "up")], f"{layer}/h", domain), layer, "down")

    x = "x"
    for layer, weights in enumerate(layers):
        constants += [numpy_helper.from_array(value, f"{layer}/{name}") for name, value in weights.items()]
        for name, block in (("attention", attention), ("mlp", mlp)):
            if stream.pre_norms:
                x = add("Add", [x, block(norm(x, layer, f"{name}_norm"), layer)], f"{layer}/{name}/sum")
            else:
                x = norm(add("Add", [x, block(x, layer)], f"{layer}/{name}/sum"), layer, f"{name}_norm")
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, "rows", spec.hidden]) for end in ("x", x)]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(FUSED, 1)]
    return helper.make_model(
        helper.make_graph(nodes, spec.name, ends[:1], ends[1:], constants), opset_imports=opsets, ir_version=9
    )
