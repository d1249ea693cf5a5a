"""One rank against one onnxruntime session that holds all layers, and against torch: bert-large layers, interleaved.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m tests.hepti_mpi.kernels.bench_kernels [--rows 256] [--layers 2]

Prints milliseconds per layer (median, quartiles), and the speed of the session over each (more than one: faster).
What a layer of ours costs beside its kernels prints `bench_overhead`.
"""

import argparse
import statistics
import time
from functools import partial

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional

from hepti_mpi.comm import group as comm
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels.backends import backend
from solver.base.environment import omp_threads
from solver.model.named import named_model
from solver.plan.plan import block_by_rows, blockwise_plan
from tests.kit.encoders import tensors_of
from tests.kit.in_memory import layers_of

FUSED = "com.microsoft"


def rank(spec, tensors, computes):
    """Return x -> the layers' result, as one rank of the engine computes it."""
    plan = blockwise_plan(spec, ("pi-0",), partial(block_by_rows, shares=(1.0,)))
    group = comm.world()
    stack = Stack(spec, plan, layers_of(tensors.__getitem__, spec, plan, group, computes), group, computes)
    return lambda x: stack.run(Batch.of_lengths([len(x)]), x, count=True)


def session(spec, tensors):
    """Return x -> the layers' result, as one session with the fused operators of onnxruntime computes it."""
    nodes, constants, x = [], [], "x"

    def constant(name, array):
        constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(operator, inputs, out, **attributes):
        nodes.append(helper.make_node(operator, inputs, [out], **attributes))
        return out

    for number in range(spec.layers):
        at = f"layers/{number}/"

        def linear(x, name, out, at=at):
            weight = tensors[f"{at}{name}/weight"]
            weight = weight if name in ("attention/output", "mlp/down") else weight.T
            w = constant(f"{out}_w", weight)
            return node("Gemm", [x, w, constant(f"{out}_b", tensors[f"{at}{name}/bias"])], out)

        def norm(y, x, block, out, at=at):
            scale = [constant(f"{out}_{part}", tensors[f"{at}{block}/norm/{part}"]) for part in ("weight", "bias")]
            return node("SkipLayerNormalization", [y, x, *scale], out, domain=FUSED, epsilon=spec.norm_eps)

        deep = constant(f"{at}deep", np.array([0], np.int64))
        qkv = [node("Unsqueeze", [linear(x, f"attention/{n}", f"{at}{n}"), deep], f"{at}{n}3")
               for n in ("query", "key", "value")]  # fmt: skip
        attended = node("MultiHeadAttention", qkv, f"{at}context3", domain=FUSED, num_heads=spec.blocks[0].kind.heads)
        context = node("Squeeze", [attended, deep], f"{at}context")
        a = norm(linear(context, "attention/output", f"{at}a"), x, "attention", f"{at}an")
        up = node("Gelu", [linear(a, "mlp/up", f"{at}up")], f"{at}gelu", domain=FUSED)
        x = norm(linear(up, "mlp/down", f"{at}down"), a, "mlp", f"{at}mn")

    def value(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", spec.hidden])

    graph = helper.make_graph(nodes, "layers", [value("x")], [value(x)], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = omp_threads() or 1
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    whole = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda rows: whole.run(None, {"x": rows})[0]


def eager(spec, tensors):
    """Return x -> the layers' result, as torch computes it step by step."""
    torch.set_num_threads(omp_threads() or 1)
    heads = spec.blocks[0].kind.heads
    turned = ("attention/output/weight", "mlp/down/weight")
    held = {name: torch.from_numpy(t.T.copy() if name.endswith(turned) else t) for name, t in tensors.items()}

    @torch.inference_mode()
    def run(rows):
        x = torch.from_numpy(rows)
        for number in range(spec.layers):
            w = {name.split("/", 2)[2]: t for name, t in held.items() if name.startswith(f"layers/{number}/")}

            def linear(x, name, w=w):
                return functional.linear(x, w[f"{name}/weight"], w[f"{name}/bias"])

            def norm(x, block, w=w):
                shape = (spec.hidden,)
                return functional.layer_norm(
                    x, shape, w[f"{block}/norm/weight"], w[f"{block}/norm/bias"], spec.norm_eps
                )

            q, k, v = (
                linear(x, f"attention/{n}").view(1, -1, heads, spec.hidden // heads).transpose(1, 2)
                for n in ("query", "key", "value")
            )
            context = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            a = norm(linear(context, "attention/output") + x, "attention")
            x = norm(linear(functional.gelu(linear(a, "mlp/up")), "mlp/down") + a, "mlp")
        return x.numpy()

    return run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=40)
    options = parser.parse_args()
    spec = named_model("bert-large", options.layers)
    tensors = {name: array for name, array in tensors_of(spec).items() if name.startswith("layers/")}
    runs = {
        "one session": session(spec, tensors),
        "onnxruntime": rank(spec, tensors, backend("onnxruntime")),
        "int8": rank(spec, tensors, backend("onnxruntime", "int8")),
        "numpy": rank(spec, tensors, backend("numpy")),
        "torch": eager(spec, tensors),
    }
    x = np.random.default_rng(0).standard_normal((options.rows, spec.hidden), np.float32)
    expected = runs["one session"](x)
    for name, run in runs.items():
        print(f"{name:12} differs by at most {np.abs(run(x) - expected).max():.1e}")
    seconds = {name: [] for name in runs}
    for _ in range(options.runs):
        for name, run in runs.items():
            started = time.perf_counter()
            run(x)
            seconds[name].append(1e3 * (time.perf_counter() - started) / spec.layers)
    first = statistics.median(seconds["one session"])
    for name, each in seconds.items():
        low, median, high = statistics.quantiles(each, n=4)
        print(f"{name:12} {median:7.2f} ms a layer ({low:.2f} - {high:.2f}), {first / median:.3f} x one session")


if __name__ == "__main__":
    main()
