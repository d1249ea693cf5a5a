"""Random checkpoints of every family as transformers saves them, and what transformers computes from them.

Every parameter is random, norms and biases included, at a scale that keeps hidden states and attention scores O(1):
a swapped, transposed or forgotten tensor shows.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers as hf
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = "the small board at home splits a model over its slow network and it is warm tonight"
IMAGE = (32, 48)  # height, width
LABELS = ("calm", "breeze", "storm", "rain", "snow")


def text(cls, config_class, shape, vocab, positions, image, patch, **settings):
    return cls(config_class(vocab_size=vocab, max_position_embeddings=positions, **shape, **settings))


def distilbert(cls, shape, **lengths):
    """Give the shape in DistilBERT's own words."""
    words = {
        "hidden_size": "dim", "intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads", "hidden_act": "activation",
    }  # fmt: skip
    return text(cls, hf.DistilBertConfig, {words.get(key, key): value for key, value in shape.items()}, **lengths)


def roberta(cls, config_class, shape, positions, **lengths):
    """RoBERTa counts positions from padding_idx + 1 = 2."""
    return text(cls, config_class, shape, positions=positions + 2, type_vocab_size=1, layer_norm_eps=1e-5, **lengths)


def vision(cls, config_class, shape, vocab, positions, image, patch):
    return cls(config_class(image_size=list(image), patch_size=patch, **shape))


def electra(cls, shape, **lengths):
    """Words are narrower than the stream, as in its small model."""
    return text(cls, partial(hf.ElectraConfig, embedding_size=24), shape, **lengths)


def mpnet(cls, shape, positions, **lengths):
    """MPNet counts positions as RoBERTa does."""
    return text(cls, hf.MPNetConfig, shape, positions=positions + 2, **lengths)


def dinov2(cls, shape, vocab, positions, image, patch):
    """Positions are of another number of patches than the processor makes, as in all of its models."""
    settings = {key: value for key, value in shape.items() if key != "intermediate_size"}
    return cls(hf.Dinov2Config(image_size=5 * patch, patch_size=patch, mlp_ratio=2, **settings))


def without_pooler(cls):
    return partial(cls, add_pooling_layer=False)


FAMILIES = {
    "bert": partial(text, hf.BertModel, hf.BertConfig),
    "bert-no-pooler": partial(text, without_pooler(hf.BertModel), hf.BertConfig),
    "bert-classifier": partial(text, hf.BertForSequenceClassification, hf.BertConfig),
    "roberta": partial(roberta, hf.RobertaModel, hf.RobertaConfig),
    "roberta-classifier": partial(roberta, hf.RobertaForSequenceClassification, hf.RobertaConfig),
    "xlm-roberta": partial(roberta, hf.XLMRobertaModel, hf.XLMRobertaConfig),
    "xlm-roberta-classifier": partial(roberta, hf.XLMRobertaForSequenceClassification, hf.XLMRobertaConfig),
    "distilbert": partial(distilbert, hf.DistilBertModel),
    "distilbert-classifier": partial(distilbert, hf.DistilBertForSequenceClassification),
    "electra": partial(electra, hf.ElectraModel),
    "electra-classifier": partial(electra, hf.ElectraForSequenceClassification),
    "mpnet": partial(mpnet, hf.MPNetModel),
    "mpnet-classifier": partial(mpnet, hf.MPNetForSequenceClassification),
    # As all-MiniLM-L6-v2: the checkpoint has a pooler, and the recipe in modules.json does without it.
    "sentence": partial(text, hf.BertModel, hf.BertConfig),
    "sentence-roberta": partial(roberta, hf.XLMRobertaModel, hf.XLMRobertaConfig),
    "sentence-distilbert": partial(distilbert, hf.DistilBertModel),
    "vit": partial(vision, hf.ViTModel, hf.ViTConfig),
    "vit-no-pooler": partial(vision, without_pooler(hf.ViTModel), hf.ViTConfig),
    "vit-classifier": partial(vision, hf.ViTForImageClassification, hf.ViTConfig),
    "deit": partial(vision, hf.DeiTModel, hf.DeiTConfig),
    "deit-classifier": partial(vision, hf.DeiTForImageClassification, hf.DeiTConfig),
    "deit-teacher": partial(vision, hf.DeiTForImageClassificationWithTeacher, hf.DeiTConfig),
    "dinov2": partial(dinov2, hf.Dinov2Model),
    "dinov2-classifier": partial(dinov2, hf.Dinov2ForImageClassification),
}
XLM = tuple(family for family in FAMILIES if family.startswith("xlm"))  # which has pieces, not bytes
VISION = tuple(family for family in FAMILIES if family.startswith(("vit", "deit", "dinov2")))
CLASSIFIERS = tuple(family for family in FAMILIES if family.endswith(("-classifier", "-teacher")))


def make_checkpoint(
    family,
    folder,
    *,
    layers=3,
    hidden=40,
    heads=5,
    ffn=83,
    vocab=211,
    positions=64,
    image=IMAGE,
    patch=8,
    activation="gelu",
    labels=3,
    seed=0,
    shard="50GB",  # largest file, "100KB" makes a sharded index
    **recipe,  # of `write_sentence_files`
):
    """Save a seeded random checkpoint of `family` with its tokenizer or image settings; return the transformers model.

    At real sizes: ``layers=12, hidden=768, heads=12, ffn=3072, vocab=30522, positions=512`` and
    ``image=(224, 224), patch=16``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shape = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": ffn,
        "hidden_act": activation,
    }  # fmt: skip
    if family in CLASSIFIERS:
        shape["id2label"] = dict(enumerate(LABELS[:labels]))
    model = FAMILIES[family](shape=shape, vocab=vocab, positions=positions, image=image, patch=patch)
    randomize(model, seed)
    model.eval().set_attn_implementation("eager")
    model.save_pretrained(folder, max_shard_size=shard)
    if family in VISION:
        write_image_settings(family, folder, image)
    else:
        write_tokenizer(family, folder, positions)
    if family.startswith("sentence"):
        model.recipe = write_sentence_files(folder, hidden, positions, seed, **recipe)
    return model


@torch.no_grad()
def expected(model, family, request):
    """Return what transformers computes in float32 from token ids [S] or pixels [C, h, w], batch 1, no padding.

    `hidden` [S, H], and `embedding`, or `logits` and `scores` where there is a classifier.
    """
    batch = torch.as_tensor(np.asarray(request))[None]
    inputs = {"pixel_values": batch.float()} if family in VISION else {"input_ids": batch}
    base = model.base_model(**inputs)
    result = {"hidden": base.last_hidden_state[0]}
    if family in CLASSIFIERS:
        result["logits"] = logits = model(**inputs).logits[0]
        # As transformers' pipelines: one label alone is a yes or no.
        result["scores"] = logits.softmax(-1) if len(logits) > 1 else logits.sigmoid()
    elif family.startswith("sentence"):
        result["embedding"] = model.recipe(result["hidden"])
    else:
        pooled = getattr(base, "pooler_output", None)
        result["embedding"] = result["hidden"][0] if pooled is None else pooled[0]
    return {name: value.numpy() for name, value in result.items()}


def random_request(model, family, rows, seed=0):
    """Return random token ids [rows], or random pixels [C, h, w] where `rows` says nothing."""
    rng = np.random.default_rng(seed)
    if family in VISION:
        size = IMAGE if model.config.model_type == "dinov2" else model.config.image_size
        return rng.standard_normal((3, *size), np.float32)
    # Not the special tokens: RoBERTa counts positions by what is not padding.
    return rng.integers(5, model.config.vocab_size, rows)


def token_ids(folder, text, max_rows):
    """Return the ids of `text` with its special tokens, cut to `max_rows` as sentence-transformers cuts."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_rows)
    return tokenizer.encode(text).ids


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    norms = {id(module) for module in model.modules() if isinstance(module, torch.nn.LayerNorm)}
    with torch.no_grad():
        for module in model.modules():
            for name, value in module.named_parameters(recurse=False):
                noise = torch.randn(value.shape, generator=generator)
                if id(module) in norms:
                    value.copy_(0.2 * noise + (name == "weight"))
                elif isinstance(module, torch.nn.Linear | torch.nn.Conv2d) and name == "weight":
                    value.copy_(noise / (value.numel() / len(value)) ** 0.5)
                else:  # biases, embeddings, class tokens
                    value.copy_(0.3 * noise)


def write_tokenizer(family, folder, positions):
    """Write a small tokenizer.json of the family's kind: WordPiece, or RoBERTa's bytes."""
    if "roberta" in family:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=specials, show_progress=False)
        tokenizer.train_from_iterator([TEXT], trainer)
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
        padding = {"pad_id": 1, "pad_token": "<pad>"}
    else:
        letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?"
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
        vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces + TEXT.split()))}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.add_special_tokens(pieces[:5])
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        padding = {"pad_id": 0, "pad_token": "[PAD]"}
    # As published files often have it, all-MiniLM-L6-v2 for one: a length that is not the model's, and padding to it.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8, **padding)
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast"} if family in ("sentence-roberta", *XLM) else {}
    write_json(folder / "tokenizer_config.json", {"model_max_length": positions, **said})


def write_image_settings(family, folder, image):
    size = {"height": image[0], "width": image[1]}
    settings = {
        "do_resize": True, "size": size, "resample": 2, "do_rescale": True, "rescale_factor": 1 / 255,
        "do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "ViTImageProcessor",
    }  # fmt: skip
    if family.startswith("deit"):
        settings |= {
            "do_center_crop": True, "crop_size": size, "size": {name: length + 4 for name, length in size.items()},
            "resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
            "image_processor_type": "DeiTImageProcessor",
        }  # fmt: skip
    if family.startswith("dinov2"):
        settings |= {
            "do_center_crop": True, "crop_size": size, "size": {"shortest_edge": max(image)}, "resample": 3,
            "image_processor_type": "BitImageProcessor",
        }  # fmt: skip
    write_json(folder / "preprocessor_config.json", settings)


POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
POOLINGS = {
    "cls": lambda x: x[0],
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0).values,
    "mean_sqrt_len": lambda x: x.sum(0) / len(x) ** 0.5,
    "lasttoken": lambda x: x[-1],
}


def write_sentence_files(
    folder, hidden, positions, seed, *, pooling="mean", normalize=True, dense=0, max_rows=None, modern=False
):
    """Write what sentence-transformers puts beside a checkpoint; return the recipe [S, H] -> embedding.

    `dense` is the width of a dense layer (0: none); `modern` writes the pooling as sentence-transformers 5 and later.
    """
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if modern:
        mode = "mean_sqrt_len_tokens" if pooling == "mean_sqrt_len" else pooling
        settings = {"embedding_dimension": hidden, "pooling_mode": mode, "include_prompt": True}
    else:
        settings = {"word_embedding_dimension": hidden} | {key: name == pooling for name, key in POOLING_KEYS.items()}
    write_json(folder / "1_Pooling" / "config.json", settings)
    steps = [POOLINGS[pooling]]
    if dense:
        generator = torch.Generator().manual_seed(seed + 1)
        weight = torch.randn(dense, hidden, generator=generator) / hidden**0.5
        bias = 0.3 * torch.randn(dense, generator=generator)
        modules.append(("2_Dense", "Dense"))
        write_json(
            folder / "2_Dense" / "config.json",
            {"in_features": hidden, "out_features": dense, "bias": True,
             "activation_function": "torch.nn.modules.activation.Tanh"},
        )  # fmt: skip
        save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
        steps.append(lambda x: torch.tanh(weight @ x + bias))
    if normalize:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
        steps.append(lambda x: x / x.norm())
    write_json(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(modules)
        ],
    )
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": max_rows or positions // 2, "do_lower_case": False}
    )

    def recipe(x):
        for step in steps:
            x = step(x)
        return x

    return recipe


def write_json(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1))
