"""Published architectures at their real sizes, by name."""

from __future__ import annotations

import re
from dataclasses import replace

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.model.spec import ImageInput, ModelSpec, TextInput, encoder, encoder_widths, with_layers

MOST_LAYERS = 1000  # of a named architecture: nothing deeper was published (DeepNet, arXiv 2203.00555)
DECOUPLED_NAMES = "with decoupled layers NAME-decoupled, or NAME-decoupled-8x4 for 8 groups and 4 sub-blocks"


def named_model(name: str, layers: int | None = None) -> ModelSpec:
    """Return the spec of a well-known architecture, with another layer count if asked.

    NAME-decoupled is the same with two of every three layers decoupled into 4 sub-blocks, the least that was published
    for bert-base and bert-large; NAME-decoupled-8x2 has 8 groups, and decoupled layers of 2 sub-blocks.

    Raises
    ------
    HeptiError
        If the name is unknown, the layers are absurdly many, or cannot be decoupled so.
    """
    if layers is not None and not 1 <= layers <= MOST_LAYERS:
        raise HeptiError(f"--layers is {layers}, must be at least 1 and at most {MOST_LAYERS}")
    if (found := re.fullmatch(r"(.+)-decoupled(?:-(\d+)x(\d+))?", name)) is not None:
        base, groups, sub_blocks = found.groups()
        return decoupled(named_model(base, layers), *((int(groups), int(sub_blocks)) if groups else ()))
    if name not in NAMED_MODELS:
        raise HeptiError(f"unknown model {name}{did_you_mean(name, (*sorted(NAMED_MODELS), DECOUPLED_NAMES))}")
    spec = NAMED_MODELS[name]
    return spec if layers is None else with_layers(spec, layers)


def decoupled(spec: ModelSpec, groups: int | None = None, sub_blocks: int = 4) -> ModelSpec:
    """Return the decoupled model beside one of original layers; by default one of three layers stays original.

    Raises
    ------
    HeptiError
        If the model is decoupled, or its layers do not divide so.
    """
    if spec.groups:
        raise HeptiError(f"{spec.name} is decoupled already")
    if groups is None:
        groups = max(1, spec.layers // 3)
        name = f"{spec.name}-decoupled"
    else:
        name = f"{spec.name}-decoupled-{groups}x{sub_blocks}"
    widths = encoder_widths(spec) | {"groups": groups, "sub_blocks": sub_blocks}
    return replace(spec, name=name, runs=encoder(name=name, input=spec.input, **widths).runs)


_BERT_TEXT = TextInput(vocab=30522, positions=512, max_rows=512, token_types=2)
_VIT_IMAGE = ImageInput(height=224, width=224, patch=16)


def _bert(name: str, hidden: int, layers: int) -> ModelSpec:
    return encoder(name, hidden, 4 * hidden, hidden // 64, layers, input=_BERT_TEXT, dense="tanh", dense_width=hidden)


def _roberta(name: str, hidden: int, layers: int) -> ModelSpec:
    source = TextInput(vocab=50265, positions=512, max_rows=512, token_types=1)
    return encoder(
        name, hidden, 4 * hidden, hidden // 64, layers, input=source, norm_eps=1e-5, dense="tanh", dense_width=hidden
    )


def _vit(name: str, hidden: int, layers: int) -> ModelSpec:
    return encoder(
        name, hidden, 4 * hidden, hidden // 64, layers, input=_VIT_IMAGE, norm="pre", norm_eps=1e-12,
        embedding_norm=False, final_norm=True, dense="tanh", dense_width=hidden,
    )  # fmt: skip


# Published architectures at their real sizes.
NAMED_MODELS = {
    spec.name: spec
    for spec in (
        _bert("bert-base", 768, 12),
        _bert("bert-large", 1024, 24),
        _roberta("roberta-base", 768, 12),
        _roberta("roberta-large", 1024, 24),
        encoder("distilbert", 768, 3072, 12, 6, input=replace(_BERT_TEXT, token_types=0)),
        encoder("minilm-l6", 384, 1536, 12, 6, input=replace(_BERT_TEXT, max_rows=256), pooling="mean", normalize=True),
        _vit("vit-base", 768, 12),
        _vit("vit-large", 1024, 24),
    )
}
