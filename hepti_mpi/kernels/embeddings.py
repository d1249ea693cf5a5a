"""What stands before and after the layers, on rank 0: embeddings and heads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hepti_mpi.kernels import numpy_kernels
from solver.base.arrays import Array
from solver.model.spec import ImageInput, ModelSpec

EndTensors = Mapping[str, Array]

LABELS = 5  # are told of a request, the likeliest, as of a network's image


def embed(spec: ModelSpec, tensors: EndTensors, content: Sequence[int] | Array, types: Sequence[int] = ()) -> Array:
    """Return what the first layer takes [rows, H], of token ids or pixels; of ids perhaps with their types."""
    if isinstance(spec.input, ImageInput):
        return _embed_image(spec, tensors, np.asarray(content, np.float32))
    return _embed_text(spec, tensors, np.asarray(content), types)


def _embed_text(spec: ModelSpec, tensors: EndTensors, ids: NDArray[np.int64], types: Sequence[int]) -> Array:
    """Return word + position + token type, 0 where there is none, normalised: token ids -> [rows, H]."""
    x: Array = tensors["embeddings/word"][ids]
    x += tensors["embeddings/position"][: len(ids)]
    if "embeddings/type" in tensors:
        x += tensors["embeddings/type"][np.asarray(types) if types else 0]
    if spec.embedding_norm:
        x = _norm(spec, tensors, "embeddings/norm", x)
    if "embeddings/project/weight" in tensors:
        x = numpy_kernels.linear(x, tensors["embeddings/project/weight"], tensors["embeddings/project/bias"])
    return x


def _embed_image(spec: ModelSpec, tensors: EndTensors, pixels: Array) -> Array:
    """Return class tokens and patches + positions: pixels [channels, height, width] -> [rows, H]."""
    assert isinstance(spec.input, ImageInput)
    patch = spec.input.patch
    channels, height, width = pixels.shape
    # The convolution of stride = kernel = patch is one GEMM over the patches, row by row.
    patches = pixels.reshape(channels, height // patch, patch, width // patch, patch)
    patches = patches.transpose(1, 3, 0, 2, 4).reshape(-1, channels * patch**2)
    rows = numpy_kernels.linear(patches, tensors["embeddings/patch/weight"], tensors["embeddings/patch/bias"])
    x = np.concatenate([tensors["embeddings/prefix"], rows])
    x += tensors["embeddings/position"]
    return _norm(spec, tensors, "embeddings/norm", x) if spec.embedding_norm else x


def last_hidden(spec: ModelSpec, tensors: EndTensors, x: Array) -> Array:
    """Return the last hidden state [rows, H] from what the last layer gives."""
    return _norm(spec, tensors, "final_norm", x) if spec.final_norm else x


def result(spec: ModelSpec, tensors: EndTensors, hidden: Array, *, pair: bool = False) -> dict[str, Any]:
    """Return what a request's last hidden state [rows, H] says: an embedding, or a classifier's label and scores.

    The score of a pair of texts, where there is one label, is that of sentence-transformers' CrossEncoder.
    """
    if not spec.labels:
        return {"embedding": embedding(spec, tensors, hidden).tolist()}
    outputs = logits(spec, tensors, hidden)
    scores = probabilities(outputs, spec.pair_scores if pair and len(spec.labels) == 1 else spec.scores)
    best = np.argsort(-outputs, kind="stable")[:LABELS]
    top = [{"label": spec.labels[number], "score": float(scores[number])} for number in best]
    return top[0] | {"top5": top, "scores": scores.tolist(), "logits": outputs.tolist()}


def embedding(spec: ModelSpec, tensors: EndTensors, hidden: Array) -> Array:
    """Return a request's embedding: pooled, after the dense layers, normalised and cut, as the spec says."""
    vector = _dense(spec, tensors, pool(spec.pooling, hidden)).copy()
    if spec.normalize:
        # sentence-transformers' Normalize divides by at least 1e-12.
        vector *= 1 / max(math.sqrt(float(vector @ vector)), 1e-12)
    return vector[: spec.first_columns or None]


def logits(spec: ModelSpec, tensors: EndTensors, hidden: Array) -> Array:
    """Return a classifier's outputs [labels]; it reads one row, or several side by side (DeiT with teacher)."""
    if spec.classifier_rows == 1:
        vectors = [pool(spec.pooling, hidden)]
    else:
        vectors = [hidden[row] for row in range(spec.classifier_rows)]
    features = np.concatenate([_dense(spec, tensors, vector) for vector in vectors])
    return numpy_kernels.linear(features[None], tensors["classifier/weight"], tensors["classifier/bias"]).reshape(-1)


def probabilities(outputs: Array, scores: str) -> Array:
    """Turn a classifier's outputs [labels] into scores, as transformers' pipelines do."""
    if scores == "softmax":
        return numpy_kernels.softmax(outputs[None].copy()).reshape(-1)
    return np.reciprocal(1 + np.exp(-outputs)) if scores == "sigmoid" else outputs


def pool(pooling: str, hidden: Array) -> Array:
    """Return one vector of a request's rows, by sentence-transformers' names, or the mean of all but the first."""
    return np.concatenate([_pool(one, hidden) for one in pooling.split("+")])


def _pool(pooling: str, hidden: Array) -> Array:
    rows = hidden.shape[0]
    vector: Array = {
        "cls": lambda: hidden[0],
        "lasttoken": lambda: hidden[-1],
        "max": lambda: hidden.max(axis=0),
        "mean": lambda: hidden.mean(axis=0),
        "others": lambda: hidden[1:].mean(axis=0),
        "mean_sqrt_len": lambda: hidden.sum(axis=0) * (1 / math.sqrt(rows)),
        "weightedmean": lambda: (np.arange(1, rows + 1, dtype=np.float32) @ hidden) * (2 / (rows * (rows + 1))),
    }[pooling]()
    return vector


def _dense(spec: ModelSpec, tensors: EndTensors, vector: Array) -> Array:
    activations = (spec.dense, *spec.more_dense) if spec.dense else ()
    for number, activation in enumerate(activations):
        name = f"dense/{number}" if number else "dense"
        y = numpy_kernels.linear(vector[None], tensors[f"{name}/weight"], tensors[f"{name}/bias"])
        vector = numpy_kernels.ACTIVATIONS[activation](y).reshape(-1)
    return vector


def _norm(spec: ModelSpec, tensors: EndTensors, name: str, x: Array) -> Array:
    return numpy_kernels.layer_norm(x, tensors[f"{name}/weight"], tensors[f"{name}/bias"], spec.norm_eps)
