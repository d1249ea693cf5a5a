"""The backend on onnxruntime: weights packed once, activations fused. The only address of onnxruntime.

numpy packs the weights anew at every call, which costs as much for 8 rows as for 24 more; onnxruntime packs constants
when the session is made. Six weights [1024, 4096] float32 on one x86 core, ms: 14.8 against 6.2 at 8 rows, 37.4 against
28.1 at 53, 130.3 against 128.3 at 256.

Attention with 16 heads of 64, one x86 core, ms, numpy / `attend` / `attend_part`, rows by keys: 256 by 256 5.4 / 3.7 /
4.5, 49 by 256 1.3 / 1.1 / 1.0, 20 by 256 0.80 / 0.63 / 0.51, 49 by 139 0.90 / 0.63 / 0.64, 12 by 12 0.32 / 0.11 / 0.13.
The residual and its normalisation stay numpy's, 0.45 ms for 256 rows of 1024: SkipLayerNormalization takes 1.34.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from hepti_mpi.base.arrays import Array
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.products import Backend, Product, numpy_product
from solver.base.threads import omp_threads

CONTRIBUTED = "com.microsoft"  # the domain of onnxruntime's own operators
# Activations as (operator, its domain).
ACTIVATIONS: dict[str, tuple[str, str]] = {
    "gelu": ("Gelu", CONTRIBUTED),
    "gelu_tanh": ("FastGelu", CONTRIBUTED),
    "relu": ("Relu", ""),
    "tanh": ("Tanh", ""),
}
Numbers = NDArray[Any]
# The most scores that `attend_part` holds at a time; `attend` holds none.
SCORES = 1 << 22


def onnxruntime_product(weight: Array, bias: Array | None, activation: str = "identity") -> Product:
    """Make a product of a graph of one GEMM; arguments as in `products.MakeProduct`."""
    if not weight.size:
        return numpy_product(weight, bias, activation)
    inner, width = weight.shape if bias is None else weight.shape[::-1]
    constants = [] if bias is None else [numpy_helper.from_array(bias, "b")]
    inputs = ["x", "w"] if bias is None else ["x", "w", "b"]
    last = "y" if activation == "identity" else "h"
    nodes = [helper.make_node("Gemm", inputs, [last], transB=int(bias is not None)), *activate(activation)]
    return product_of(nodes, constants, weight, inner, width)


def activate(activation: str) -> list[NodeProto]:
    """Return the node from h to y that applies an activation; none for the identity."""
    if activation == "identity":
        return []
    operator, domain = ACTIVATIONS[activation]
    return [helper.make_node(operator, ["h"], ["y"], domain=domain)]


def product_of(
    nodes: Sequence[NodeProto], constants: Sequence[TensorProto], weight: Numbers, inner: int, width: int
) -> Product:
    """Make a product of the nodes from x [rows, inner] to y [rows, width].

    The graph keeps a packed copy of the constant w: `weight` may be freed.
    """
    graph = _graph(nodes, [_rows("x", inner)], [_rows("y", width)], constants, weight)

    def product(x: Array, out: Array | None = None) -> Array:
        y = np.empty((x.shape[0], width), np.float32) if out is None else out
        if y.size:
            graph.run({"x": x}, {"y": y})
        return y

    # A session's first run allocates what it keeps. Behind the tensors of many rows that would leave a hole in the heap
    # for every product: of 12 layers of bert-large, 256 rows, 150 MiB in int8 and 60 in float32.
    product(np.zeros((1, inner), np.float32))
    return product


def attend(q: Array, k: Array, v: Array, pieces: Iterable[tuple[slice, slice]], head_dim: int) -> Array:
    """Return softmax(q kᵀ / √d) v for every head and request; arguments as in `numpy_kernels.attend`."""
    context = np.empty(q.shape, np.float32)
    for rows, keys in pieces:
        inputs = {"q": q[rows], "k": k[keys], "v": v[keys]}
        if context[rows].size:
            _attention(q.shape[1] // head_dim).run(inputs, {"y": context[rows]}, batch=(1,))
    return context


def attend_part(q: Array, k: Array, v: Array, head_dim: int, out: Array | None = None) -> tuple[Array, Array]:
    """Attend to some of the keys of one request; as `numpy_kernels.attend_part`."""
    if not (q.size and len(k)):
        return numpy_kernels.attend_part(q, k, v, head_dim, out)
    rows, heads = q.shape[0], q.shape[1] // head_dim
    context = np.empty(q.shape, np.float32) if out is None else out
    lse = np.empty((rows, heads), np.float32)
    k, v = np.ascontiguousarray(k), np.ascontiguousarray(v)
    step = max(1, SCORES // (heads * len(k)))
    for start in range(0, rows, step):
        some = slice(start, start + step)
        inputs, outputs = {"q": q[some], "k": k, "v": v}, {"y": context[some], "l": lse[some]}
        _partial_attention(heads, head_dim).run(inputs, outputs)
    return context, lse


def cast(into: Numbers, x: Numbers) -> None:
    """Copy between float32 and float16 as `np.copyto` does: 0.04 ms for 512 Ki numbers on one x86 core, numpy 1.3."""
    if x.size:
        _caster(into.dtype == np.float16).run({"x": x.reshape(-1)}, {"y": into.reshape(-1, copy=False)})


class Graph:
    """A session, and which arrays its inputs and outputs lie in: a run binds those that lie elsewhere than the last.

    A small product took 13 us with a new binding each time, where the session itself, bound before, takes 4.
    """

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}  # address and shape, by name

    def run(self, inputs: Mapping[str, Numbers], outputs: Mapping[str, Numbers], batch: tuple[int, ...] = ()) -> None:
        """Run on arrays, without copies of those that are contiguous; `batch` goes before every shape."""
        held = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        for name, array in held.items():
            self._bind(self._binding.bind_input, name, array, batch)
        for name, array in outputs.items():
            assert array.flags.c_contiguous
            self._bind(self._binding.bind_output, name, array, batch)
        self._session.run_with_iobinding(self._binding)

    def _bind(self, bind: Callable[..., None], name: str, array: Numbers, batch: tuple[int, ...]) -> None:
        place = (array.ctypes.data, array.shape)
        if self._bound.get(name) != place:
            bind(name, "cpu", 0, array.dtype, (*batch, *array.shape), place[0])
            self._bound[name] = place


FLOAT32 = Backend(onnxruntime_product, attend, attend_part, cast)


@cache
def _attention(heads: int) -> Graph:
    """Make a graph of one fused operator, which keeps no scores [heads, rows, keys]."""
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain=CONTRIBUTED, num_heads=heads)
    rows = {"q": "rows", "k": "keys", "v": "keys", "y": "rows"}
    q, k, v, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, of, "width"]) for n, of in rows.items())
    return _graph([node], [q, k, v], [y])


@cache
def _partial_attention(heads: int, head_dim: int) -> Graph:
    """Make a graph of the context and the log-sum-exp, which no fused operator gives.

    The largest weight of a row is exp(largest score - lse): the fused softmax serves, and its sum need not be known.
    """
    width = heads * head_dim
    node, one, two, three = helper.make_node, "one", "two", "three"
    nodes = [
        split
        for name in ("q", "k", "v")
        for split in (
            node("Reshape", [name, three], [f"{name}3"]),
            node("Transpose", [f"{name}3"], [f"{name}h"], perm=[1, 0, 2]),
        )
    ]
    nodes += [
        node("FusedMatMul", ["qh", "kh"], ["scores"], domain=CONTRIBUTED, transB=1, alpha=head_dim**-0.5),
        node("ReduceMax", ["scores", one], ["largest"], keepdims=0),
        node("Softmax", ["scores"], ["weights"]),
        node("ReduceMax", ["weights", one], ["heaviest"], keepdims=0),
        node("Log", ["heaviest"], ["below"]),
        node("Sub", ["largest", "below"], ["lh"]),
        node("Transpose", ["lh"], ["l"], perm=[1, 0]),
        node("MatMul", ["weights", "vh"], ["context"]),
        node("Transpose", ["context"], ["yh"], perm=[1, 0, 2]),
        node("Reshape", ["yh", two], ["y"]),
    ]
    shapes = {one: [-1], two: [-1, width], three: [-1, heads, head_dim]}
    constants = [numpy_helper.from_array(np.array(shape, np.int64), name) for name, shape in shapes.items()]
    inputs = [_rows("q", width), _rows("k", width, "keys"), _rows("v", width, "keys")]
    return _graph(nodes, inputs, [_rows("y", width), _rows("l", heads)], constants)


@cache
def _caster(to_half: bool) -> Graph:
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT16)
    source, target = kinds if to_half else kinds[::-1]
    x, y = (helper.make_tensor_value_info(name, kind, ["n"]) for name, kind in (("x", source), ("y", target)))
    return _graph([helper.make_node("Cast", ["x"], ["y"], to=target)], [x], [y])


def _graph(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Sequence[TensorProto] = (),
    weight: Numbers | None = None,
) -> Graph:
    """Make a graph ready to run; `weight` is its constant w, if it has one."""
    if weight is not None:
        constants = [*constants, _external("w", weight)]
    graph = helper.make_graph(nodes, "share", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(CONTRIBUTED, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = omp_threads() or 1
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # one arena a session would hold what all sessions need only in turn
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would eat a CPU quota
    if int8_overflows():
        options.add_session_config_entry("session.x64quantprecision", "1")
    if weight is not None:
        options.add_external_initializers(["w"], [onnxruntime.OrtValue.ortvalue_from_numpy(weight)])
    return Graph(onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]))


@cache
def int8_overflows() -> bool:
    """Return whether sums of int8 products pass through int16 here: on x86 without instructions for dot products.

    Weights as uint8 help, but make a product 2.2 times as slow where there are such instructions.
    """
    cpu = Path("/proc/cpuinfo")
    return platform.machine() in ("x86_64", "AMD64") and not (cpu.is_file() and "vnni" in cpu.read_text())


def _rows(name: str, width: int, rows: str = "rows") -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width])


def _external(name: str, array: Numbers) -> TensorProto:
    """Describe a constant that the session takes from memory instead of from the graph, which would be a copy."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", name), ("offset", "0"), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor
