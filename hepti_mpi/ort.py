"""The backend on onnxruntime: weights packed once, activations fused. The only address of onnxruntime and onnx.

numpy packs the weights anew at every call, which costs as much for 8 rows as for 24 more; onnxruntime packs constants
when the session is made. Six weights [1024, 4096] float32 on one x86 core, ms: 14.8 against 6.2 at 8 rows, 37.4 against
28.1 at 53, 130.3 against 128.3 at 256.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from hepti_mpi.arrays import Array
from hepti_mpi.products import Product, numpy_product

# Of the C library: from which size on an allocation is a mapping of its own, given back when it is freed. Its default
# grows with what is freed, and the weights that onnxruntime has packed and freed would stay in the heap: 2.1 times the
# weights resident instead of 1.0.
M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 1 << 20

GELU_DOMAIN = "com.microsoft"
# Activations as (operator, its attributes, its domain).
ACTIVATIONS: dict[str, tuple[str, dict[str, str], str]] = {
    "gelu": ("Gelu", {}, GELU_DOMAIN),
    "gelu_tanh": ("FastGelu", {}, GELU_DOMAIN),
    "relu": ("Relu", {}, ""),
    "tanh": ("Tanh", {}, ""),
}


def onnxruntime_product(weight: Array, bias: Array | None, activation: str = "identity") -> Product:
    """Make a product of a graph of one GEMM; arguments as in `products.Backend`.

    The session keeps a packed copy of the weights: `weight` may be freed.
    """
    if not weight.size:
        return numpy_product(weight, bias, activation)
    session = _session(weight, bias, activation)
    width = weight.shape[1] if bias is None else weight.shape[0]

    def product(x: Array, out: Array | None = None) -> Array:
        y = np.empty((x.shape[0], width), np.float32) if out is None else out
        if y.size:
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
            session.run_with_iobinding(binding)
        return y

    return product


def _session(weight: Array, bias: Array | None, activation: str) -> onnxruntime.InferenceSession:
    """Make a session of y = act(x Wᵀ + b), or y = x W where there is no bias."""
    _give_back_large_blocks()
    width = weight.shape[1] if bias is None else weight.shape[0]
    inputs = ["x", "w"] if bias is None else ["x", "w", "b"]
    constants = [_external("w", weight)] + ([] if bias is None else [numpy_helper.from_array(bias, "b")])
    last = "y" if activation == "identity" else "h"
    nodes = [helper.make_node("Gemm", inputs, [last], transB=int(bias is not None))]
    if activation != "identity":
        operator, attributes, domain = ACTIVATIONS[activation]
        nodes.append(helper.make_node(operator, ["h"], ["y"], domain=domain, **attributes))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", weight.shape[int(bias is not None)]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", width])
    graph = helper.make_graph(nodes, "product", [x], [y], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(GELU_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # one arena a session would hold what all sessions need only in turn
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would eat a CPU quota
    options.add_external_initializers(["w"], [onnxruntime.OrtValue.ortvalue_from_numpy(weight)])
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _external(name: str, array: Array) -> TensorProto:
    """Describe a constant that the session takes from memory instead of from the graph, which would be a copy."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", name), ("offset", "0"), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _give_back_large_blocks() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
