"""The layers of a model in PyTorch, which only benchmarks ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from launch.single.command import LayersProgram, LayerWeights
from solver.base.arrays import Array
from solver.base.errors import HeptiError
from solver.model.spec import ModelSpec, encoder_blocks

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "tanh": torch.tanh,
}


def prepare(spec: ModelSpec, layers: Sequence[LayerWeights], precision: str) -> LayersProgram:
    """Return the program [S, H] -> [S, H]."""
    if precision != "float32":
        raise HeptiError(f"torch runs in float32 here, not in {precision}: take onnxruntime")
    # As torch keeps weights: [out, in].
    tensors = [{name: torch.from_numpy(value.T.copy()) for name, value in w.items()} for w in layers]
    (own_attention, own_mlp), stream = encoder_blocks(spec), spec.blocks[-1].stream
    H, A, eps = spec.hidden, own_attention.heads, stream.eps
    activation = ACTIVATIONS[own_mlp.activation]

    def attention(x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
        qkv = functional.linear(x, w["qkv"], w["qkv_bias"]).view(-1, 3, A, H // A)
        q, k, v = qkv.permute(1, 2, 0, 3).unsqueeze(1)  # each [1, A, S, d]
        context = functional.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).reshape(-1, H)
        return functional.linear(context, w["out"], w["out_bias"])

    def mlp(x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.linear(activation(functional.linear(x, w["up"], w["up_bias"])), w["down"], w["down_bias"])

    def norm(x: torch.Tensor, w: dict[str, torch.Tensor], name: str) -> torch.Tensor:
        return functional.layer_norm(x, (H,), w[name], w[f"{name}_bias"], eps)

    def run(array: Array) -> Array:
        x = torch.from_numpy(array)
        with torch.inference_mode():
            for w in tensors:
                if stream.pre_norms:
                    x = x + attention(norm(x, w, "attention_norm"), w)
                    x = x + mlp(norm(x, w, "mlp_norm"), w)
                else:
                    x = norm(x + attention(x, w), w, "attention_norm")
                    x = norm(x + mlp(x, w), w, "mlp_norm")
        result: Array = x.numpy()
        return result

    return run
