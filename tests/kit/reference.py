"""The oracle: a transformer encoder on one page of numpy, in float64, sharing no code with the product's computing.

S rows, H hidden, F feed-forward width, A heads, d head width, V vocabulary, C channels. Tensors are called and lie as
`solver.model.spec.tensor_shapes` says: query, key, value and up as [out, in], attention output and down as [in, out].
"""

import math
from pathlib import Path

import h5py
import numpy as np
from scipy.special import erf

from solver.model.spec import ModelSpec, TextInput, tensor_shapes


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x):
    return np.maximum(x, 0)


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu, "tanh": np.tanh, "identity": lambda x: x}


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, weight, bias, eps):
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


def bucket(distance, exact=8, farthest=128):  # of MPNet's 32 buckets, 16 for keys after a row
    far = np.abs(distance)
    large = exact + np.log(np.maximum(far, 1) / exact) / math.log(farthest / exact) * exact
    return np.where(far < exact, far, np.minimum(large, 15).astype(int)) + 16 * (distance > 0)


def attention(x, w, heads):  # [S, H] -> [S, H]
    S, H = x.shape
    q, k, v = (x @ w[f"{name}/weight"].T + w[f"{name}/bias"] for name in ("query", "key", "value"))
    q, k, v = (y.reshape(S, heads, H // heads).transpose(1, 0, 2) for y in (q, k, v))  # [A, S, d]
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(H // heads)
    if "relative" in w:
        places = np.arange(S)
        scores = scores + w["relative"].reshape(heads, -1)[:, bucket(places[None] - places[:, None])]
    context = softmax(scores) @ v
    return context.transpose(1, 0, 2).reshape(S, H) @ w["output/weight"] + w["output/bias"]


def mlp(x, w, activation):  # [S, H] -> [S, H]
    return activation(x @ w["up/weight"].T + w["up/bias"]) @ w["down/weight"] + w["down/bias"]


def embed_text(ids, w):  # [S] -> [S, H]
    x = w["word"][ids] + w["position"][: len(ids)]
    return x + w["type"][0] if "type" in w else x


def embed_image(pixels, w, patch):  # [C, h, w] -> [S, H]
    channels, height, width = pixels.shape
    down, across = height // patch, width // patch
    tiles = pixels.reshape(channels, down, patch, across, patch).transpose(1, 3, 0, 2, 4)
    rows = tiles.reshape(down * across, channels * patch**2) @ w["patch/weight"].T + w["patch/bias"]
    return np.concatenate([w["prefix"], rows]) + w["position"]


BLOCKS = {
    "attention": lambda x, w, kind: attention(x, w, kind.heads),
    "mlp": lambda x, w, kind: mlp(x, w, ACTIVATIONS[kind.activation]),
}


def layer(x, w, blocks):  # [S, H] -> [S, H]
    for block in blocks:
        own, compute = under(w, block.name), BLOCKS[block.name]
        norm = own["norm/weight"], own["norm/bias"], block.stream.eps
        if block.stream.pre_norms:
            x = x + compute(layer_norm(x, *norm), own, block.kind)
        else:
            x = layer_norm(x + compute(x, own, block.kind), *norm)
    return x


def decoupled_layer(x, w, blocks, parts):  # [S, H] -> [S, H], each sub-block by itself on its H / N_div columns
    chunks = np.split(x, parts, axis=1)
    return np.hstack([layer(chunk, under(w, str(part)), blocks) for part, chunk in enumerate(chunks)])


def forward(spec, tensors, request):
    """Return the last hidden state [S, H] float32 of token ids [S] or of preprocessed pixels [C, h, w]."""
    w = under(tensors, "embeddings")
    if isinstance(spec.input, TextInput):
        x = embed_text(np.asarray(request), w)
    else:
        x = embed_image(np.asarray(request, float), w, spec.input.patch)
    if spec.embedding_norm:
        x = layer_norm(x, w["norm/weight"], w["norm/bias"], spec.norm_eps)
    if "project/weight" in w:
        x = x @ w["project/weight"].T + w["project/bias"]
    for number in range(spec.layers):
        run = spec.run(number)
        w = under(tensors, f"layers/{number}")
        x = layer(x, w, run.blocks) if run.parts == 1 else decoupled_layer(x, w, run.blocks, run.parts)
    if spec.final_norm:
        x = layer_norm(x, **under(tensors, "final_norm"), eps=spec.norm_eps)
    return x.astype(np.float32)


def head(spec, tensors, hidden):
    """Return {"embedding": [H]} or, where there is a classifier, {"logits": [labels]} of one request, float32."""
    x = hidden.astype(float)  # [S, H]
    pool = {
        "cls": lambda: x[0],
        "lasttoken": lambda: x[-1],
        "mean": lambda: x.mean(axis=0),
        "others": lambda: x[1:].mean(axis=0),
        "mean_sqrt_len": lambda: x.sum(axis=0) / math.sqrt(len(x)),
        "max": lambda: x.max(axis=0),
    }
    pooled = np.concatenate([pool[name]() for name in spec.pooling.split("+")])
    vectors = [pooled] if spec.classifier_rows == 1 else list(x[: spec.classifier_rows])
    if spec.dense:
        dense = under(tensors, "dense")
        vectors = [ACTIVATIONS[spec.dense](dense["weight"] @ v + dense["bias"]) for v in vectors]
    if spec.labels:
        classifier = under(tensors, "classifier")
        logits = classifier["weight"] @ np.concatenate(vectors) + classifier["bias"]
        return {"logits": logits.astype(np.float32)}
    (v,) = vectors
    return {"embedding": (v / np.linalg.norm(v) if spec.normalize else v).astype(np.float32)}


def under(tensors, prefix):
    """Return the tensors below a prefix, without it, in float64."""
    return {
        name.removeprefix(prefix + "/"): np.asarray(value, float)
        for name, value in tensors.items()
        if name.startswith(prefix + "/")
    }


def load(path):
    """Read a weights file: its spec and all its tensors by name."""
    with h5py.File(Path(path)) as file:
        assert file.attrs["format"] in ("hepti-weights/1", b"hepti-weights/1")
        spec = ModelSpec.from_json(file.attrs["model"])  # text or bytes
        return spec, {name: file[name][()] for name in tensor_shapes(spec)}
