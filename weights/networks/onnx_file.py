"""An ONNX file as a folded graph: constants are constants, the batch is 1, every shape is a number.

The folding is onnxruntime's (constants, batch normalisations into convolutions, paddings into what follows), at the
level that leaves standard operators only. The one address of onnxruntime in this package.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter
import onnxruntime
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from solver.base.errors import HeptiError, explained
from weights.networks import onnx_quantised, onnx_rewrites
from weights.networks.onnx_rewrites import Rewriter

STANDARD = ("", "ai.onnx")  # both are names of ONNX's own domain
OLDEST_OPSET, USUAL_OPSET = 13, 17  # what is older than the first becomes the second
# Of the file format: since the first, weights are no inputs; what came after the last is of types that no
# convolutional network has.
OLDEST_IR, NEWEST_IR = 4, 10
INLINED = "_inlfunc_"  # begins the names that onnxruntime gives there
PIXELS = (1, 3, 4)  # how many channels an image can have
# onnxruntime 1.31 takes zeros in front of a MaxPool for its padding, which every number beats: ours they do not.
WRONG = ["Pad_Fusion"]

Constant = NDArray[Any]


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node as the file has it.

    Parameters
    ----------
    inputs, outputs
        "" where one is left out.
    attributes
        Numbers, texts, and lists of them; whatever else as ONNX's own objects.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A folded graph.

    Parameters
    ----------
    shapes, dtypes
        Of every value whose shape is known, the batch included.
    constants
        By name.
    bytes_in
        Whether the network takes pixels as bytes.
    notes
        What is to be said of how it is computed.
    """

    name: str
    input: str
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, np.dtype[Any]]
    constants: Mapping[str, Constant]
    opset: int
    bytes_in: bool = False
    notes: tuple[str, ...] = ()


# What onnx and our own reading raise where names, kinds and numbers do not belong together.
DAMAGE = (ValueError, RuntimeError, TypeError, LookupError)


def read_graph(path: Path, size: tuple[int, int] | None = None) -> OnnxGraph:
    """Read and fold an ONNX file.

    Parameters
    ----------
    size
        Height and width of the image, where the file leaves them open.

    Raises
    ------
    HeptiError
        If it is no ONNX, incomplete, too new, or of operators, inputs or sizes that cannot be computed.
    """
    model = _load(path)
    with explained(f"{path} is damaged", DAMAGE):
        if len(model.functions):
            model = onnx.inliner.inline_local_functions(model)
        _without_inputs_that_are_weights(model)
        bytes_in = _fix_input(path, model, size)
        if onnx_quantised.is_quantised(model):
            model = _newer(path, model)
        notes = _rewrite(path, model, bytes_in=bytes_in)
        _check_operators(path, model)
        model = _fold(path, model)
        if any(name.startswith(INLINED) for node in model.graph.node for name in node.output):
            model = _fold(path, model)  # constants of functions that onnxruntime wrote out
    if _opset(model) < OLDEST_OPSET:
        model = _newer(path, model)
        with explained(f"{path} is damaged", DAMAGE):
            model = _fold(path, model)  # what is newer has shapes that are computed
    with explained(f"{path}: shapes do not fit together", onnx.shape_inference.InferenceError):
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    with explained(f"{path} is damaged", DAMAGE):
        return replace(_graph(path, model), bytes_in=bytes_in, notes=notes)


def _without_inputs_that_are_weights(model: onnx.ModelProto) -> None:
    """Take weights out of the inputs, where files before IR 4 had to name them: only then are they constant."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = min(max(model.ir_version, OLDEST_IR), NEWEST_IR)


def _opset(model: onnx.ModelProto) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in STANDARD), default=0)


def _newer(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of a recent opset."""
    opset = _opset(model)
    if opset >= OLDEST_OPSET:
        return model
    try:
        model = onnx.version_converter.convert_version(model, USUAL_OPSET)
    except Exception as error:  # of onnx, whose errors here have no common kind
        raise HeptiError(f"{path} is of opset {opset}, export it with opset {USUAL_OPSET}: {_line(error)}") from error
    if opset < 11:
        _place_pixels(model)
    return model


def _rewrite(path: Path, model: onnx.ModelProto, *, bytes_in: bool) -> tuple[str, ...]:
    """Write quantised operators and normalisations with simpler ones; return what is to be said of that."""
    image = model.graph.input[0].name
    quantised = onnx_quantised.is_quantised(model)
    rules = {**onnx_rewrites.RULES, **onnx_quantised.FUSED}
    if quantised:
        rules |= {**onnx_quantised.RULES, **onnx_quantised.BETWEEN}
    if not (bytes_in or any(node.op_type in {rule.rpartition(".")[2] for rule in rules} for node in model.graph.node)):
        return ()  # a copy of all weights less
    write = Rewriter(path, model, [image] if bytes_in else [])
    write.run(rules)
    for value in model.graph.output:
        if value.name in write.whole:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    if not quantised:
        return ()
    inexact = f", but sums in {write.rounded[0]} may pass 2^24 and are rounded" if write.rounded else ""
    return (f"it is quantised: its whole numbers are computed exactly, as float32{inexact}",)


def _load(path: Path) -> onnx.ModelProto:
    with explained(f"cannot read {path}", OSError):
        data = path.read_bytes()
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise HeptiError(f"{path} is no ONNX file, or cut short") from error
    if not (model.graph.node and model.opset_import):
        raise HeptiError(f"{path} is no ONNX file: it has no graph")
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
            if not (path.parent / location).is_file():
                raise HeptiError(f"{path} keeps {tensor.name} in the file {location}, which is not beside it")
    with explained(f"{path}: its external data are damaged", (OSError, ValueError, onnx.checker.ValidationError)):
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
    return model


def _check_operators(path: Path, model: onnx.ModelProto) -> None:
    """Refuse operators that ONNX does not have."""
    opset, newest = _opset(model), onnx.defs.onnx_opset_version()
    if opset > newest:
        raise HeptiError(f"{path} is of opset {opset}, the installed onnx knows up to {newest}: export it with that")
    for node in model.graph.node:
        where = f"{path}: node {node.name or node.output[0]}"
        if node.domain not in STANDARD:
            raise HeptiError(f"{where} is {node.op_type} of domain {node.domain}, only ONNX's own operators are known")
        if not onnx.defs.has(node.op_type):
            raise HeptiError(f"{where} is {node.op_type}, an operator that ONNX does not have")


def _fix_input(path: Path, model: onnx.ModelProto, size: tuple[int, int] | None) -> bool:
    """Set the batch to 1 and open sizes to what was asked for; nothing else is known of any shape.

    An image [H, W, C] becomes one [C, H, W], which is turned first. Return whether pixels are bytes, which become
    float32, too.
    """
    inputs = list(model.graph.input)
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs) or "none"
        raise HeptiError(f"{path} has {len(inputs)} inputs ({names}), a network of one image has one")
    tensor = inputs[0].type.tensor_type
    kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else None
    if kind not in (np.float32, np.uint8):
        raise HeptiError(f"{path}: input {inputs[0].name} is {kind}, must be float32 or uint8")
    dims = list(tensor.shape.dim)
    if len(dims) != 4:
        raise HeptiError(f"{path}: input {inputs[0].name} has {len(dims)} dimensions, must be [1, C, H, W]")
    batch = dims[0].dim_value
    if batch > 1:
        raise HeptiError(f"{path} is for batches of {batch}, export it for a batch of 1 or of any size")
    channels_last = _channels_are_last(model, [dim.dim_value for dim in dims])
    channels, *sides = (dims[3], dims[1], dims[2]) if channels_last else dims[1:]
    if channels.dim_value < 1:
        raise HeptiError(f"{path}: input {inputs[0].name} does not say how many channels it has")
    lengths = []
    for axis, name in ((0, "height"), (1, "width")):
        # Some exporters write -1 where a size is open.
        known, wanted = max(sides[axis].dim_value, 0), size and size[axis]
        if not (known or wanted):
            raise HeptiError(f"{path} leaves the {name} of its input open: give it with --size HxW")
        if wanted and known not in (0, wanted):
            raise HeptiError(f"{path} is for images of {name} {known}, --size says {wanted}")
        lengths.append(known or wanted)
    tensor.elem_type = onnx.TensorProto.FLOAT
    for dim, length in zip(dims, (1, channels.dim_value, *lengths), strict=True):
        dim.dim_value = length
    if channels_last:
        _turn_first(model)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return bool(kind == np.uint8)


def _channels_are_last(model: onnx.ModelProto, dims: Sequence[int]) -> bool:
    """Return whether an image is [H, W, C]: by its numbers, or because it is turned first, whatever they are."""
    image = model.graph.input[0].name
    turned = [entry for node in model.graph.node if image in node.input for entry in node.attribute]
    if dims[3] in PIXELS and dims[1] not in PIXELS:
        return True
    return dims[3] > 0 and dims[1] not in PIXELS and any(list(entry.ints) == [0, 3, 1, 2] for entry in turned)


def _turn_first(model: onnx.ModelProto) -> None:
    """Let an image [C, H, W] be turned first, for a graph that takes [H, W, C]."""
    names = {name for node in model.graph.node for name in (*node.input, *node.output)}
    image = model.graph.input[0]
    turned, image.name = (
        image.name,
        next(name for name in ("image", *map("image{}".format, range(99)), "") if name not in names),
    )
    node = helper.make_node("Transpose", [image.name], [turned], f"{turned}/turned", perm=[0, 2, 3, 1])
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([node, *rest])


def _fold(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        folded = os.path.join(folder, "folded.onnx")  # noqa: PTH118 - onnxruntime takes text
        options.optimized_model_filepath = folded
        try:
            onnxruntime.InferenceSession(
                model.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=WRONG,
                enable_fallback=0,  # onnxruntime would print of an error, and try again in the same way
            )
        except Exception as error:  # of onnxruntime, which has a dozen kinds without a common one
            text = str(error)
            if newest := re.search(r"till opset (\d+)", text):
                raise HeptiError(
                    f"{path} is of opset {_opset(model)}, the installed onnxruntime knows up to {newest[1]}: "
                    "export it with that"
                ) from error
            raise HeptiError(f"{path} cannot be computed: {_reason(text)}") from error
        result = onnx.load(folded)
    for node in result.graph.node:
        if node.domain not in STANDARD:
            raise HeptiError(f"{path}: onnxruntime folded {node.name} into {node.op_type} of domain {node.domain}")
    standard = [entry for entry in result.opset_import if entry.domain in STANDARD]
    del result.opset_import[:]
    result.opset_import.extend(standard)
    return result


def _place_pixels(model: onnx.ModelProto) -> None:
    """Say of enlargements what was the only way before opset 11, and is not the usual one since."""
    for node in model.graph.node:
        if node.op_type == "Resize":
            mode = [attribute for attribute in node.attribute if attribute.name == "mode"]
            del node.attribute[:]
            node.attribute.extend(mode)
            node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(helper.make_attribute("nearest_mode", "floor"))


def _line(error: Exception) -> str:
    """Return the first line of what an error says."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _reason(text: str) -> str:
    """Return what onnxruntime says, without where in its source it says so."""
    return " ".join(re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+:\d+ .*?\) ", "", text).split())


def _graph(path: Path, model: onnx.ModelProto) -> OnnxGraph:
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for tensor in model.graph.sparse_initializer:
        raise HeptiError(f"{path}: {tensor.values.name} is sparse, export it dense")
    nodes = []
    for node in model.graph.node:
        attributes = {attribute.name: _plain(helper.get_attribute_value(attribute)) for attribute in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            constants[node.output[0]] = numpy_helper.to_array(attributes["value"])
            continue
        name = node.name or next(filter(None, node.output))
        nodes.append(OnnxNode(name, node.op_type, tuple(node.input), tuple(node.output), attributes))
    nodes = _with_equal_constants_once(nodes, constants, {value.name for value in model.graph.output})
    shapes, dtypes = {}, {}
    for name, tensor in _values(model):
        if tensor.elem_type:
            dtypes[name] = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    entry = next(value.name for value in model.graph.input if value.name not in constants)
    return OnnxGraph(
        name=path.stem,
        input=entry,
        outputs=tuple(value.name for value in model.graph.output),
        nodes=tuple(nodes),
        shapes=shapes,
        dtypes=dtypes,
        constants=constants,
        opset=max(entry.version for entry in model.opset_import),
    )


def _with_equal_constants_once(
    nodes: Sequence[OnnxNode], constants: Mapping[str, Constant], outputs: Container[str]
) -> list[OnnxNode]:
    """Return nodes that name equal constants alike: of one that nodes share folding makes one each."""
    first: dict[tuple[object, ...], str] = {}
    same = {}
    for name, array in constants.items():
        if array.size > 1 and name not in outputs:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            same[name] = first.setdefault((array.dtype, array.shape, hashlib.sha256(data.data).digest()), name)
    return [replace(node, inputs=tuple(same.get(name, name) for name in node.inputs)) for node in nodes]


def _values(model: onnx.ModelProto) -> Iterator[tuple[str, Any]]:
    graph = model.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        yield value.name, value.type.tensor_type


def _plain(value: Any) -> Any:
    """Return an attribute as JSON has it, if it is of that kind."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str | int | float | onnx.TensorProto | onnx.GraphProto):
        return value
    try:
        return [_plain(entry) for entry in value]
    except TypeError:
        return value
