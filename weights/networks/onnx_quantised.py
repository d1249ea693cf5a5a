"""Quantised operators of ONNX, written with those of float32 that compute the same.

A quantised value becomes float32 that holds the same whole numbers: sums of products of such are exact up to 2^24, in
any order, and are scaled and rounded as onnxruntime does it with integers. So a quantised network has the very levels
that it has there; it is neither smaller nor faster than one that is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from solver.base.arrays import Numbers
from weights.networks.onnx_rewrites import Rewrite, Rewriter

LARGEST_EXACT = 1 << 24  # up to here float32 has all whole numbers
MICROSOFT = "com.microsoft."  # the domain of onnxruntime's own
_LEVELS = {np.dtype(kind): np.iinfo(kind) for kind in (np.int8, np.uint8, np.int16, np.uint16)}


def is_quantised(model: onnx.ModelProto) -> bool:
    """Return whether a model has quantised operators."""
    return any(node.op_type in {name.removeprefix(MICROSOFT) for name in RULES} for node in model.graph.node)


def _levels(write: Rewriter, node: onnx.NodeProto, zero: int, attribute: int = 0) -> tuple[float, float]:
    """Return the least and the largest level of a result, by its zero point, or by a type that an attribute names."""
    name = write.given(node, zero)
    kind = write.constants[name].dtype if name in write.constants else np.dtype(np.uint8)
    if not name and attribute:
        kind = onnx.helper.tensor_dtype_to_np_dtype(attribute)
    if kind not in _LEVELS:
        raise write.refusal(node, f"it quantises to {kind}, only 8 and 16 bits are known")
    return float(_LEVELS[kind].min), float(_LEVELS[kind].max)


def _along(write: Rewriter, node: onnx.NodeProto, array: Numbers, of: str, axis: int) -> Numbers:
    """Return scales or zero points so that they lie along an axis of a value."""
    if array.size == 1:
        return array.reshape(())
    rank = len(write.shapes.get(of) or write.constants.get(of, np.empty((1,) * 4)).shape)
    if array.ndim != 1:
        raise write.refusal(node, f"its scales are of shape {list(array.shape)}, blocks are known of constants only")
    return array.reshape([-1 if number == axis % rank else 1 for number in range(rank)])


def _zeros(write: Rewriter, node: onnx.NodeProto, number: int) -> Numbers:
    """Return zero points, 0 where they are left out."""
    name = write.given(node, number)
    return write.needed(node, number).astype(np.float32) if name else np.zeros((), np.float32)


def _shifted(write: Rewriter, value: str, zero: Numbers) -> str:
    """Write a value less its zero points."""
    return write.add("Sub", [value, write.number(zero, "zero")]) if zero.any() else value


def _in_levels(write: Rewriter, value: str, zero: Numbers | str, levels: tuple[float, float], output: str) -> None:
    """Write a value, which is in steps, as levels: rounded, shifted by its zero points, and within the levels."""
    value = write.add("Round", [value])
    if isinstance(zero, str) or zero.any():
        value = write.add("Add", [value, zero if isinstance(zero, str) else write.number(zero, "zero")])
    write.add("Clip", [value, write.number(levels[0], "least"), write.number(levels[1], "most")], output)
    write.whole.add(output)


def _dequantize(write: Rewriter, node: onnx.NodeProto) -> bool:
    """Write (x - zero) · scale; of constants as constants."""
    value, axis = node.input[0], int(write.attributes(node).get("axis", 1))
    if value in write.constants and write.given(node, 1) in write.constants:
        array, scale = write.constants[value].astype(np.float32), write.needed(node, 1).astype(np.float32)
        zero = _zeros(write, node, 2)
        block = int(write.attributes(node).get("block_size", 0))
        if block:
            length = array.shape[axis]
            scale, zero = (np.repeat(own, block, axis).take(range(length), axis) if own.ndim else own
                           for own in (scale, zero))  # fmt: skip
        else:
            scale, zero = (_along(write, node, own, value, axis) for own in (scale, zero))
        result = write.number((array - zero) * scale, "dequantised")
        write.add("Identity", [result], node.output[0])
        write.constants[node.output[0]] = write.constants[result]
        return True
    if write.given(node, 1) not in write.constants:  # what DynamicQuantizeLinear found
        if write.given(node, 2):
            value = write.add("Sub", [value, node.input[2]])
        write.add("Mul", [value, node.input[1]], node.output[0])
        return True
    if int(write.attributes(node).get("block_size", 0)):
        raise write.refusal(node, "blocks are known of constants only")
    scale, zero = (
        _along(write, node, own.astype(np.float32), value, axis)
        for own in (write.needed(node, 1), _zeros(write, node, 2))
    )
    write.add("Mul", [_shifted(write, value, zero), write.number(scale, "scale")], node.output[0])
    return True


def _quantize(write: Rewriter, node: onnx.NodeProto) -> bool:
    """Write x / scale as levels."""
    attributes = write.attributes(node)
    if int(attributes.get("block_size", 0)):
        raise write.refusal(node, "blocks are known of constants only")
    value, axis = node.input[0], int(attributes.get("axis", 1))
    scale, zero = (
        _along(write, node, own.astype(np.float32), value, axis)
        for own in (write.needed(node, 1), _zeros(write, node, 2))
    )
    levels = _levels(write, node, 2, int(attributes.get("output_dtype", 0)))
    steps = write.add("Div", [value, write.number(scale, "scale")])
    _in_levels(write, steps, zero, levels, node.output[0])
    return True


def _dynamic(write: Rewriter, node: onnx.NodeProto) -> bool:
    """Write a scale and a zero point that are found in the value itself: from its least to its largest number."""
    value, outputs = node.input[0], [*node.output]
    nothing, most = write.number(0.0, "nothing"), write.number(255.0, "most")
    low = write.add("Min", [write.add("ReduceMin", [value], keepdims=0), nothing])
    high = write.add("Max", [write.add("ReduceMax", [value], keepdims=0), nothing])
    steps = write.add("Div", [write.add("Sub", [high, low]), most])
    scale = write.add("Max", [steps, write.number(np.finfo(np.float32).tiny, "least")], outputs[1])
    first = write.add("Clip", [write.add("Div", [write.add("Neg", [low]), scale]), nothing, most])
    zero = write.add("Round", [first], outputs[2])
    _in_levels(write, write.add("Div", [value, scale]), zero, (0.0, 255.0), outputs[0])
    write.whole.add(zero)
    return True


def _check_sums(write: Rewriter, node: onnx.NodeProto, weight: Numbers, axes: tuple[int, ...], bias: Numbers) -> None:
    """Note a node whose sums of products may be too large for float32 to have all whole numbers."""
    largest = np.abs(weight).sum(axis=axes) * 255.0
    if largest.size and (largest + np.abs(bias)).max() > LARGEST_EXACT:
        write.rounded.append(node.name or node.output[0])


def _scales(left: Numbers, right: Numbers, result: Numbers) -> Numbers:
    """Return what sums of products are multiplied by, rounded as onnxruntime does it."""
    one, two, three = (own.astype(np.float32) for own in (left, right, result))
    return np.asarray(one * two / three, np.float32)


def _convolved(
    write: Rewriter, node: onnx.NodeProto, value: str, zero: Numbers, weight: Numbers, weight_zero: Numbers,
    bias: Numbers | None, output: str = "",
) -> str:  # fmt: skip
    """Write the sums of a convolution of whole numbers."""
    weight = weight.astype(np.float32) - weight_zero.astype(np.float32).reshape(-1, *[1] * (weight.ndim - 1))
    added = np.zeros(len(weight)) if bias is None else bias.astype(np.float64)
    _check_sums(write, node, weight, tuple(range(1, weight.ndim)), added)
    inputs = [_shifted(write, value, zero), write.number(weight, "weight")]
    inputs += [] if bias is None else [write.number(bias, "bias")]
    return write.add("Conv", inputs, output, **write.attributes(node))


def _qlinear_conv(write: Rewriter, node: onnx.NodeProto) -> bool:
    x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero = (write.needed(node, number) for number in range(1, 8))
    bias = write.needed(node, 8) if write.given(node, 8) else None
    sums = _convolved(write, node, node.input[0], x_zero.astype(np.float32), weight, w_zero, bias)
    scale = _scales(x_scale, w_scale, y_scale)
    spread = scale.reshape(-1, *[1] * (weight.ndim - 2)) if scale.size > 1 else scale.reshape(())
    steps = write.add("Mul", [sums, write.number(spread, "scale")])
    _in_levels(write, steps, y_zero.astype(np.float32), _levels(write, node, 7), node.output[0])
    return True


def _conv_integer(write: Rewriter, node: onnx.NodeProto) -> bool:
    weight, zero = write.needed(node, 1), _zero_of(write, node, 3)
    value = node.input[0]
    if (name := write.given(node, 2)) and name not in write.constants:
        value = write.add("Sub", [value, name])
        name = ""
    shift = write.constants[name].astype(np.float32) if name else np.zeros((), np.float32)
    _convolved(write, node, value, shift, weight, zero, None, node.output[0])
    write.whole.add(node.output[0])
    return True


def _zero_of(write: Rewriter, node: onnx.NodeProto, number: int) -> Numbers:
    """Return the zero points of weights, 0 where they are left out."""
    return write.needed(node, number) if write.given(node, number) else np.zeros(1, np.int8)


def _multiplied(
    write: Rewriter,
    node: onnx.NodeProto,
    value: str,
    zero: str,
    weight: Numbers,
    weight_zero: Numbers,
    output: str = "",
) -> str:
    """Write the sums of a product of whole numbers, the right one constant, [..., in, out]."""
    if zero in write.constants:
        value = _shifted(write, value, write.constants[zero].astype(np.float32))
    elif zero:
        value = write.add("Sub", [value, zero])
    weight = weight.astype(np.float32) - weight_zero.astype(np.float32)
    _check_sums(write, node, weight, (-2,), np.zeros(weight.shape[-1]))
    return write.add("MatMul", [value, write.number(weight, "weight")], output)


def _qlinear_matmul(write: Rewriter, node: onnx.NodeProto) -> bool:
    a_scale, b_scale, y_scale = (write.needed(node, number) for number in (1, 4, 6))
    sums = _multiplied(write, node, node.input[0], node.input[2], write.needed(node, 3), write.needed(node, 5))
    scale = _scales(a_scale, b_scale, y_scale)
    steps = write.add("Mul", [sums, write.number(scale if scale.size > 1 else scale.reshape(()), "scale")])
    zero = write.needed(node, 7).astype(np.float32)
    _in_levels(write, steps, zero, _levels(write, node, 7), node.output[0])
    return True


def _matmul_integer(write: Rewriter, node: onnx.NodeProto) -> bool:
    zero = write.given(node, 2)
    _multiplied(write, node, node.input[0], zero, write.needed(node, 1), _zero_of(write, node, 3), node.output[0])
    write.whole.add(node.output[0])
    return True


def _matmul_to_float(write: Rewriter, node: onnx.NodeProto) -> bool:
    """Write onnxruntime's product of a, b, their scales, zero points, and a bias."""
    scale = write.needed(node, 3).astype(np.float32)
    zero = write.given(node, 4)
    sums = _multiplied(write, node, node.input[0], zero, write.needed(node, 1), _zero_of(write, node, 5))
    both = write.add("Mul", [node.input[2], write.number(scale if scale.size > 1 else scale.reshape(()), "scale")])
    bias = write.given(node, 6)
    scaled = write.add("Mul", [sums, both], "" if bias else node.output[0])
    if bias:
        write.add("Add", [scaled, bias], node.output[0])
    return True


def _dynamic_matmul(write: Rewriter, node: onnx.NodeProto) -> bool:
    """Write onnxruntime's product that quantises its left side itself."""
    levels, scale, zero = (write.unique(f"{node.output[0]}/{role}") for role in ("levels", "scale", "zero"))
    _dynamic(write, onnx.helper.make_node("DynamicQuantizeLinear", [node.input[0]], [levels, scale, zero], node.name))
    names = [levels, node.input[1], scale, node.input[2], zero, write.given(node, 3), write.given(node, 4)]
    return _matmul_to_float(write, onnx.helper.make_node("MatMulIntegerToFloat", names, node.output, node.name))


def _qgemm(write: Rewriter, node: onnx.NodeProto) -> bool:
    attributes = write.attributes(node)
    if attributes.get("transA", 0):
        raise write.refusal(node, "its left side is turned")
    weight = write.needed(node, 3)
    weight, scale = weight.T if attributes.get("transB", 0) else weight, write.needed(node, 4)
    sums = _multiplied(write, node, node.input[0], node.input[2], weight, write.needed(node, 5))
    if write.given(node, 6):
        sums = write.add("Add", [sums, write.number(write.needed(node, 6), "bias")])
    own = np.float32(attributes.get("alpha", 1.0)) * write.needed(node, 1).astype(np.float32)
    result = write.needed(node, 7) if write.given(node, 7) else np.ones((), np.float32)
    by = _scales(own, scale, result)
    factor = write.number(by if by.size > 1 else by.reshape(()), "scale")
    if not write.given(node, 7):
        write.add("Mul", [sums, factor], node.output[0])
        return True
    zero = write.needed(node, 8).astype(np.float32)
    _in_levels(write, write.add("Mul", [sums, factor]), zero, _levels(write, node, 8), node.output[0])
    return True


def _real(write: Rewriter, node: onnx.NodeProto, number: int) -> str:
    """Write what the levels of an input mean, which are followed by their scale and zero point."""
    scale = write.needed(node, number + 1).astype(np.float32).reshape(())
    zero = _zeros(write, node, number + 2).reshape(())
    value = node.input[number]
    if value in write.constants:
        return write.number((write.constants[value].astype(np.float32) - zero) * scale, "dequantised")
    return write.add("Mul", [_shifted(write, value, zero), write.number(scale, "scale")])


def _result(write: Rewriter, node: onnx.NodeProto, value: str, scale: int) -> bool:
    """Write a value as a result's levels; its scale is an input, and its zero point the next."""
    steps = write.add("Div", [value, write.number(write.needed(node, scale).reshape(()), "scale")])
    zero = _zeros(write, node, scale + 1).reshape(())
    _in_levels(write, steps, zero, _levels(write, node, scale + 1), node.output[0])
    return True


def _of_two(op: str) -> Rewrite:
    def rule(write: Rewriter, node: onnx.NodeProto) -> bool:
        return _result(write, node, write.add(op, [_real(write, node, 0), _real(write, node, 3)]), 6)

    return rule


def _of_one(op: str, drop: Sequence[str] = ("channels_last", "opset")) -> Rewrite:
    def rule(write: Rewriter, node: onnx.NodeProto) -> bool:
        attributes = write.attributes(node)
        if attributes.get("channels_last", 0):
            raise write.refusal(node, "its channels are last")
        kept = {key: value for key, value in attributes.items() if key not in drop}
        return _result(write, node, write.add(op, [_real(write, node, 0)], **kept), 3)

    return rule


def _qlinear_concat(write: Rewriter, node: onnx.NodeProto) -> bool:
    """Write the concatenation of (value, scale, zero point) that follow the result's scale and zero point."""
    parts = [_real(write, node, number) for number in range(2, len(node.input), 3)]
    return _result(write, node, write.add("Concat", parts, **write.attributes(node)), 0)


def _fused(write: Rewriter, node: onnx.NodeProto) -> bool:
    """Write onnxruntime's convolution that ends with an activation."""
    attributes = write.attributes(node)
    activation = attributes.pop("activation", b"").decode()
    params = attributes.pop("activation_params", [])
    if len(node.input) < 2:
        return False
    if write.given(node, 3):
        raise write.refusal(node, "it adds a value")
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(activation, ())
    value = write.add("Conv", node.input, "" if activation else node.output[0], **attributes)
    if activation == "Clip":
        low, high = (write.number(number, "limit") for number in params)
        write.add("Clip", [value, low, high], node.output[0])
    elif activation:
        write.add(activation, [value], node.output[0], **dict(zip(names, params, strict=True)))
    return True


# A product between what is dequantised, and what is quantised again: with whole numbers, as onnxruntime computes it.


def _levels_of(write: Rewriter, name: str) -> onnx.NodeProto | None:
    """Return the node that dequantises a value, of one scale, or of a constant one an output channel."""
    maker = write.makers.get(name)
    if maker is None or maker.op_type != "DequantizeLinear" or any(n not in write.constants for n in maker.input[1:]):
        return None
    return None if write.attributes(maker).get("block_size", 0) else maker


def _quantised_next(write: Rewriter, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """Return the node that quantises a result, if nothing else needs it."""
    if write.users[node.output[0]] != 1 or node.output[0] not in write.followers:
        return None
    follower = write.followers[node.output[0]]
    known = follower.op_type == "QuantizeLinear" and all(name in write.constants for name in follower.input[1:])
    return follower if known and write.constants[follower.input[1]].size == 1 else None


def _between(write: Rewriter, node: onnx.NodeProto, bias: int) -> tuple[onnx.NodeProto, ...] | None:
    """Return what dequantises both sides of a product, what quantises its result, and what dequantises its bias."""
    left, right = (_levels_of(write, node.input[number]) for number in (0, 1))
    result = _quantised_next(write, node)
    if left is None or right is None or result is None or right.input[0] not in write.constants:
        return None
    if left.input[0] in write.constants or write.constants[left.input[1]].size > 1:
        return None
    if not write.given(node, bias):
        return left, right, result
    added = _levels_of(write, node.input[bias])
    if added is None or added.input[0] not in write.constants:
        return None
    products = write.constants[left.input[1]].astype(np.float32) * write.constants[right.input[1]]
    if not np.allclose(write.constants[added.input[1]], products, rtol=1e-5) or _zeros(write, added, 2).any():
        return None  # it is not of whole numbers beside the sums
    return left, right, result, added


def _conv_between(write: Rewriter, node: onnx.NodeProto) -> bool:
    found = _between(write, node, 2)
    if found is None:
        return False
    left, right, result, *added = found
    scale = write.constants[right.input[1]]
    if scale.size > 1 and int(write.attributes(right).get("axis", 1)) % write.constants[right.input[0]].ndim:
        return False
    names = [*_named(write, left, 3), *_named(write, right, 3), *_named(write, result, 3)[1:]]
    names += [own.input[0] for own in added]
    attributes = write.attributes(node)
    whole = onnx.helper.make_node("QLinearConv", names, result.output, node.name, **attributes)
    write.skipped.add(result.output[0])
    return _qlinear_conv(write, whole)


def _matmul_between(write: Rewriter, node: onnx.NodeProto) -> bool:
    found = _between(write, node, 2)
    if found is None or len(found) > 3:
        return False
    left, right, result = found
    weight = write.constants[right.input[0]]
    if write.constants[right.input[1]].size > 1 and int(write.attributes(right).get("axis", 1)) % weight.ndim != 1:
        return False
    if weight.ndim != 2:
        return False
    names = [*_named(write, left, 3), *_named(write, right, 3), *_named(write, result, 3)[1:]]
    write.skipped.add(result.output[0])
    return _qlinear_matmul(write, onnx.helper.make_node("QLinearMatMul", names, result.output, node.name))


def _gemm_between(write: Rewriter, node: onnx.NodeProto) -> bool:
    found, attributes = _between(write, node, 2), write.attributes(node)
    if found is None or attributes.get("transA", 0) or attributes.get("beta", 1.0) != 1:
        return False
    left, right, result, *added = found
    axis = int(write.attributes(right).get("axis", 1)) % 2
    if write.constants[right.input[1]].size > 1 and axis == (0 if not attributes.get("transB", 0) else 1):
        return False
    bias = added[0].input[0] if added else ""
    names = [*_named(write, left, 3), *_named(write, right, 3), bias, *_named(write, result, 3)[1:]]
    kept = {key: value for key, value in attributes.items() if key != "beta"}
    write.skipped.add(result.output[0])
    return _qgemm(write, onnx.helper.make_node("QGemm", names, result.output, node.name, **kept))


def _named(write: Rewriter, node: onnx.NodeProto, count: int) -> list[str]:
    """Return a node's inputs, a zero point of 0 where it is left out."""
    names = list(node.input)
    if len(names) < count or not names[2]:
        value = write.constants.get(node.input[0])
        kind: Any = np.uint8 if value is None else value.dtype
        names = [*names[:2], write.constant(np.zeros((), kind), "zero")]
    return names


RULES: Mapping[str, Rewrite] = {
    "DequantizeLinear": _dequantize, "QuantizeLinear": _quantize, "DynamicQuantizeLinear": _dynamic,
    "QLinearConv": _qlinear_conv, "ConvInteger": _conv_integer, "QLinearMatMul": _qlinear_matmul,
    "MatMulInteger": _matmul_integer, f"{MICROSOFT}DequantizeLinear": _dequantize,
    f"{MICROSOFT}QuantizeLinear": _quantize, f"{MICROSOFT}QLinearAdd": _of_two("Add"),
    f"{MICROSOFT}QLinearMul": _of_two("Mul"), f"{MICROSOFT}QLinearSigmoid": _of_one("Sigmoid"),
    f"{MICROSOFT}QLinearLeakyRelu": _of_one("LeakyRelu"), f"{MICROSOFT}QLinearSoftmax": _of_one("Softmax"),
    f"{MICROSOFT}QLinearAveragePool": _of_one("AveragePool"),
    f"{MICROSOFT}QLinearGlobalAveragePool": _of_one("GlobalAveragePool"),
    f"{MICROSOFT}QLinearConcat": _qlinear_concat, f"{MICROSOFT}QGemm": _qgemm,
    f"{MICROSOFT}MatMulIntegerToFloat": _matmul_to_float, f"{MICROSOFT}DynamicQuantizeMatMul": _dynamic_matmul,
}  # fmt: skip
# Of a quantised network these may be computed with whole numbers; onnxruntime's own are written with ONNX's.
BETWEEN: Mapping[str, Rewrite] = {"Conv": _conv_between, "MatMul": _matmul_between, "Gemm": _gemm_between}
FUSED: Mapping[str, Rewrite] = {f"{MICROSOFT}FusedConv": _fused}
