"""The backend on onnxruntime: weights packed once, activations fused. The only address of onnxruntime.

numpy packs the weights anew at every call, which costs as much for 8 rows as for 24 more; onnxruntime packs constants
when the session is made. Six weights [1024, 4096] float32 on one x86 core, ms: 14.8 against 6.2 at 8 rows, 37.4 against
28.1 at 53, 130.3 against 128.3 at 256.

Attention with 16 heads of 64, one x86 core, ms, numpy / `attend` / `attend_part`, rows by keys: 256 by 256 5.4 / 3.7 /
4.5, 49 by 256 1.3 / 1.1 / 1.0, 20 by 256 0.80 / 0.63 / 0.51, 49 by 139 0.90 / 0.63 / 0.64, 12 by 12 0.32 / 0.11 / 0.13.
The residual and its normalisation stay numpy's, 0.45 ms for 256 rows of 1024: SkipLayerNormalization takes 1.34.

onnxruntime is imported when the first session is made: it then has a thread of its own, and what a fork server forked
after that would wait for the thread at its end, and abort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from hepti_mpi.base.memory import give_back
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.kinds.held import Known
from hepti_mpi.kernels.products import AddBias, AddResidual, Backend, Graph, Linear, Norm, NumpyGraph, Operation
from solver.base.arrays import Array, Numbers
from solver.base.environment import int8_overflows, omp_threads

if TYPE_CHECKING:
    import onnxruntime

CONTRIBUTED = "com.microsoft"  # the domain of onnxruntime's own operators
# Activations as (operator, its domain).
ACTIVATIONS: dict[str, tuple[str, str]] = {
    "gelu": ("Gelu", CONTRIBUTED),
    "gelu_tanh": ("FastGelu", CONTRIBUTED),
    "relu": ("Relu", ""),
    "tanh": ("Tanh", ""),
}
# The most scores that `attend_part` holds at a time; `attend` holds none.
SCORES = 1 << 22


@dataclass(frozen=True, slots=True)
class Nodes:
    """One operation as nodes, and its constants; `packed` are those that may be large."""

    nodes: Sequence[NodeProto]
    constants: Mapping[str, Numbers]
    packed: Mapping[str, Numbers]


# Makes nodes of a product, between two values; the names of what is between them begin with the prefix.
MakeLinear = Callable[[Linear, str, str, str], Nodes]


def make_graph(operations: Sequence[Operation], linear: MakeLinear) -> Graph:
    """Make a graph of one session, which keeps packed copies of the weights: the arrays may be freed."""
    if any(isinstance(operation, Linear) and not operation.weight.size for operation in operations):
        return NumpyGraph(operations)
    values = ["x", *(f"h{number}" for number in range(1, len(operations))), "y"]
    parts = [
        _nodes(operation, linear, *ends, f"{number}.")
        for number, (operation, ends) in enumerate(zip(operations, pairwise(values), strict=True))
    ]
    inner, width = _width(operations[0])[0], _width(operations[-1])[1]
    adds = any(isinstance(operation, AddResidual) for operation in operations)
    session = make_session(
        [node for part in parts for node in part.nodes],
        [_rows("x", inner), *([_rows("residual", width)] if adds else [])],
        [_rows("y", width)],
        [numpy_helper.from_array(array, name) for part in parts for name, array in part.constants.items()],
        {name: array for part in parts for name, array in part.packed.items()},
    )

    graph = SessionGraph(session, width)
    # A session's first run allocates what it keeps. After the tensors of many rows that would leave a hole in the heap
    # for every product: of 12 layers of bert-large, 256 rows, 150 MiB in int8 and 60 in float32.
    graph(np.zeros((1, inner), np.float32), residual=np.zeros((1, width), np.float32) if adds else None)
    return graph


@dataclass(frozen=True, slots=True, eq=False)
class SessionGraph:
    """A graph of one session, whose rows are so wide."""

    session: Session
    width: int

    def __call__(self, x: Array, out: Array | None = None, residual: Array | None = None) -> Array:
        """Compute."""
        y = np.empty((x.shape[0], self.width), np.float32) if out is None else out
        if y.size:
            self.session.run({"x": x} if residual is None else {"x": x, "residual": residual}, {"y": y})
        return y

    def bound(
        self, x: Array, out: Array, residual: Array | None = None, known: Known | None = None
    ) -> Callable[[], object]:
        """Return a call."""
        return self.session.bound({"x": x} if residual is None else {"x": x, "residual": residual}, {"y": out}, known)


def _width(operation: Operation) -> tuple[int, int]:
    """Return the columns that an operation takes and gives."""
    if isinstance(operation, Linear):
        inner, width = operation.weight.shape if operation.bias is None else operation.weight.shape[::-1]
        return inner, width
    return operation.bias.size, operation.bias.size


def _nodes(operation: Operation, linear: MakeLinear, x: str, y: str, prefix: str) -> Nodes:
    """Return the nodes from x to y of one operation."""
    if isinstance(operation, Linear):
        return linear(operation, x, y, prefix)
    weight, bias, sum_of = f"{prefix}w", f"{prefix}b", f"{prefix}sum"
    if isinstance(operation, Norm):
        node = helper.make_node("LayerNormalization", [x, weight, bias], [y], axis=-1, epsilon=operation.eps)
        return Nodes([node], {weight: operation.weight, bias: operation.bias}, {})
    if isinstance(operation, AddBias):
        last = y if operation.activation == "identity" else sum_of
        add = helper.make_node("Add", [x, bias], [last])
        return Nodes([add, *activate(operation.activation, sum_of, y)], {bias: operation.bias}, {})
    nodes = [helper.make_node("Add", [x, "residual"], [sum_of]), helper.make_node("Add", [sum_of, bias], [y])]
    return Nodes(nodes, {bias: operation.bias}, {})


def linear_nodes(operation: Linear, x: str, y: str, prefix: str) -> Nodes:
    """Return a product in float32 as nodes."""
    w, b, h = f"{prefix}w", f"{prefix}b", f"{prefix}h"
    bias = {} if operation.bias is None else {b: operation.bias}
    last = y if operation.activation == "identity" else h
    gemm = helper.make_node("Gemm", [x, w, *bias], [last], transB=int(operation.bias is not None))
    return Nodes([gemm, *activate(operation.activation, h, y)], bias, {w: operation.weight})


def activate(activation: str, h: str, y: str) -> list[NodeProto]:
    """Return the node from h to y that applies an activation; none for the identity."""
    if activation == "identity":
        return []
    operator, domain = ACTIVATIONS[activation]
    return [helper.make_node(operator, [h], [y], domain=domain)]


def attend(
    q: Array, k: Array, v: Array, pieces: Iterable[tuple[slice, slice]], head_dim: int, *, out: Array | None = None
) -> Array:
    """Return softmax(q kᵀ / √d) v for every head and request; arguments as in `numpy_kernels.attend`."""
    context = np.empty(q.shape, np.float32) if out is None else out
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


class Session:
    """A session of onnxruntime, and where its inputs and outputs lie: a run binds those that lie elsewhere than before.

    A small product took 13 us with a new binding each time, where the session itself, bound before, takes 4.
    """

    def __init__(self, session: onnxruntime.InferenceSession, values: Sequence[onnxruntime.OrtValue] = ()) -> None:
        import onnxruntime

        self._session, self._values = session, values  # constants that it reads where they are
        self._value_of = onnxruntime.OrtValue.ortvalue_from_numpy
        self.inputs: Sequence[str] = [value.name for value in session.get_inputs()]
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

    def bound(
        self, inputs: Mapping[str, Numbers], outputs: Mapping[str, Numbers], known: Known | None = None,
        batch: tuple[int, ...] = (),
    ) -> Bound:  # fmt: skip
        """Return a call that computes these arrays of those; all are contiguous. `batch` goes before every shape.

        What it takes of an array, 3 us to make, is taken from `known`: binding that takes 0.3.
        """
        binding, known = self._session.io_binding(), {} if known is None else known
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, self._value(array, known, batch))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, self._value(array, known, batch))
        call = Bound(self._session.run_with_iobinding, binding)
        call.held = (inputs, outputs, self._values)
        return call

    def _value(self, array: Numbers, known: Known, batch: tuple[int, ...]) -> Any:
        """Return what a session takes of an array, which is not copied."""
        if id(array) not in known:
            assert array.flags.c_contiguous
            known[id(array)] = array, self._value_of(array.reshape(*batch, *array.shape))
        return known[id(array)][1]

    def _bind(self, bind: Callable[..., None], name: str, array: Numbers, batch: tuple[int, ...]) -> None:
        place = (array.ctypes.data, array.shape)
        if self._bound.get(name) != place:
            bind(name, "cpu", 0, array.dtype, (*batch, *array.shape), place[0])
            self._bound[name] = place


class Bound(partial[None]):
    """A session with its arrays, which stay where they are: a call costs 5 us beside what it computes.

    `held` is what the session reads and writes, and does not own.
    """

    held: tuple[object, ...]


FLOAT32 = Backend(partial(make_graph, linear=linear_nodes), attend, attend_part, cast)


@cache
def _attention(heads: int) -> Session:
    """Make a graph of one fused operator, which keeps no scores [heads, rows, keys]."""
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain=CONTRIBUTED, num_heads=heads)
    rows = {"q": "rows", "k": "keys", "v": "keys", "y": "rows"}
    q, k, v, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, of, "width"]) for n, of in rows.items())
    return make_session([node], [q, k, v], [y])


@cache
def _partial_attention(heads: int, head_dim: int) -> Session:
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
    return make_session(nodes, inputs, [_rows("y", width), _rows("l", heads)], constants)


@cache
def _caster(to_half: bool) -> Session:
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT16)
    source, target = kinds if to_half else kinds[::-1]
    x, y = (helper.make_tensor_value_info(name, kind, ["n"]) for name, kind in (("x", source), ("y", target)))
    return make_session([helper.make_node("Cast", ["x"], ["y"], to=target)], [x], [y])


def make_session(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Sequence[TensorProto] = (),
    packed: Mapping[str, Numbers] | None = None,
    *,
    opset: int = 18,
    passes_memory_on: bool = False,
    shares_constants: bool = False,
) -> Session:
    """Make a session ready to run.

    Parameters
    ----------
    packed
        Constants that are not copied into the graph.
    opset
        ONNX's version.
    passes_memory_on
        Whether what lies between its nodes comes from memory that all such sessions use in turn. Else each gives back
        what it took: right for few nodes.
    shares_constants
        Whether `packed` stay where they are, for other sessions, too. Else they are copied, and on x86 laid out anew,
        by which convolutions are 1.25 times as fast: 16 sessions with the same 13 MiB took 400 MiB, and so take 44.
    """
    import onnxruntime

    external = {} if packed is None else packed
    constants = [*constants, *(_external(name, array) for name, array in external.items())]
    graph = helper.make_graph(nodes, "share", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIBUTED, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = omp_threads() or 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would eat a CPU quota
    if passes_memory_on:
        _share_memory()
        options.add_session_config_entry("session.use_env_allocators", "1")
    else:
        options.enable_cpu_mem_arena = False  # one arena a session would hold what all sessions need only in turn
        options.enable_mem_pattern = False
    if int8_overflows():
        options.add_session_config_entry("session.x64quantprecision", "1")
    if any(node.op_type == "MatMulNBits" for node in nodes):
        # On a Cortex-A76 its int4 product rounds activations by whole rows: of two layers 2048 wide the error was
        # 3.3e-2; by blocks of 32, as x86 and int8 have it, 1.9e-2.
        options.add_session_config_entry("mlas.disable_kleidiai", "1")
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in external.values()]
    if external:
        options.add_external_initializers([*external], values)
    disabled = ["Pad_Fusion"]
    if shares_constants:
        disabled.append("NchwcTransformer")
        for name, value in zip(external, values, strict=True):
            options.add_initializer(name, value)
    # onnxruntime 1.31 takes zeros that are padded before a MaxPool for the pool's own padding.
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
    )
    if shares_constants:
        give_back()
        return Session(session, values)
    return Session(session)


@cache
def _share_memory() -> None:
    """Make the memory that sessions use in turn."""
    import onnxruntime

    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(place, None)


def _rows(name: str, width: int, rows: str = "rows") -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width])


def _external(name: str, array: Numbers) -> TensorProto:
    """Describe a constant that the session takes from memory instead of from the graph, which would be a copy."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", name), ("offset", "0"), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor
