"""config.json of encoders: each key of the class of transformers is changed; it counts, does nothing, or is refused."""

import json
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from solver.base.errors import HeptiError
from tests.kit import reference
from tests.kit.checkpoints import CLASSIFIERS, VISION, make_checkpoint, random_request
from weights.convert.convert import convert

FAMILIES = ("bert", "roberta-classifier", "distilbert", "electra", "mpnet", "vit", "deit", "dinov2")
# What a changed setting does to the shapes of tensors is seen by all; others are changed to these values, or turned
# round, or made larger.
VALUES = {
    "hidden_act": ["relu", "gelu_new", "silu"], "activation": ["relu", "silu"], "layer_norm_eps": [0.1],
    "is_decoder": [True], "add_cross_attention": [True], "pad_token_id": [0, 3], "use_swiglu_ffn": [True],
    "position_embedding_type": ["relative_key"], "pooler_act": ["relu", "silu"], "qkv_bias": [False],
    "problem_type": ["regression", "multi_label_classification"], "num_attention_heads": [2], "n_heads": [2],
    "quantization_config": [{"quant_method": "x"}], "pruned_heads": [{"0": [1]}],
}  # fmt: skip
# What says where and how a model is loaded and saved.
NOT_OF_MODELS = ("architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "id2label", "label2id")


def changes(config):
    """Yield every key of a class and further values of it."""
    for key in sorted({*config.to_dict(), *VALUES} - {*NOT_OF_MODELS}):
        value = config.to_dict().get(key)
        if key in VALUES:
            yield from ((key, other) for other in VALUES[key])
        elif isinstance(value, bool):
            yield key, not value
        elif isinstance(value, int | float):
            yield key, value * 2 or 1
        elif value is None:
            yield key, 1


@torch.no_grad()
def theirs(folder, family, request):
    """Return what transformers computes of the changed checkpoint; None where it refuses it, or invents weights."""
    kind = AutoModelForSequenceClassification if family in CLASSIFIERS else AutoModel
    try:
        model, loaded = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
        if loaded["missing_keys"] or loaded.get("mismatched_keys"):
            return None
        batch = torch.as_tensor(np.asarray(request))[None]
        return model.eval().base_model(**{"pixel_values" if family in VISION else "input_ids": batch})[0][0].numpy()
    except Exception:
        return None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_changed_key_counts_or_is_refused(tmp_path, family):
    folder = tmp_path / "checkpoint"
    model = make_checkpoint(family, folder, heads=4, layers=2)
    request = random_request(model, family, 9)
    whole = json.loads((folder / "config.json").read_text())
    wrong = []
    for key, value in changes(AutoConfig.from_pretrained(folder)):
        (folder / "config.json").write_text(json.dumps({**whole, key: value}))
        wanted = theirs(folder, family, request)
        if wanted is None:
            continue
        try:
            convert(folder, tmp_path / "model.h5")
        except HeptiError:
            continue
        spec, tensors = reference.load(tmp_path / "model.h5")
        found = reference.forward(spec, tensors, request)
        if found.shape != wanted.shape or not np.allclose(found, wanted, atol=1e-4):
            wrong.append((key, value))

    assert wrong == []
