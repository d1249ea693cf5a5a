"""A tiny language model with a tokenizer and a chat template, and what transformers lets it say."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.kit.chat_templates import CHATML
from weights import cli as weights

TEXTS = (
    "the cat sleeps on the warm windowsill",
    "a small board and a little computer",
    "Once upon a time there was a board, 0123456789",
    "<|im_start|>user\nwhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
)
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
POSITIONS = 256
# A chat template that continues the same text whatever is said, or refuses.
REFUSES = "{% if messages[-1]['content'] == 'no' %}{{ raise_exception('I will not') }}{% endif %}<s>the cat"
REFUSED = "the chat template refuses this conversation: I will not"


@dataclass(frozen=True)
class Tiny:
    """A checkpoint, its weights file, and the same in transformers."""

    folder: Path
    path: Path
    model: Any
    tokenizer: Any

    def ids(self, asked):
        """Return the token ids of a text, of messages, or of themselves."""
        if isinstance(asked, str):
            return self.tokenizer(asked)["input_ids"]
        if isinstance(asked[0], dict):
            text = self.tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return asked

    def says(self, asked, tokens):
        """Return the likeliest ids after what is asked, whatever ends a text."""
        ids = torch.tensor([self.ids(asked)])
        with torch.no_grad():
            found = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, eos_token_id=None,
                pad_token_id=0,
            )  # fmt: skip
        return found[0, ids.shape[1] :].tolist()

    def text(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def make_tiny(folder, columns=96):
    """Make a checkpoint of a random Llama in a folder, and convert it; the folder's name is the model's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    # No bytes besides those of TEXTS: whatever such a model says is text.
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=list(SPECIAL), show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=made.get_vocab_size(), hidden_size=60, intermediate_size=columns, num_hidden_layers=3,
        num_attention_heads=5, num_key_value_heads=1, head_dim=12, max_position_embeddings=POSITIONS, bos_token_id=0,
        eos_token_id=[1, 3], initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight[: len(SPECIAL)] = 0  # it says none of these
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Tiny(folder, convert(folder), model, tokenizer)


def convert(folder, name="model.h5"):
    """Convert a checkpoint; return the weights file."""
    path = folder / name
    assert weights.main(["convert", str(folder), str(path)]) == 0
    return path


def with_files(tiny, folder, **files):
    """Return a weights file of the checkpoint with other texts beside its tensors; None: without."""
    copy = folder / "tiny"
    shutil.copytree(tiny.folder, copy, ignore=shutil.ignore_patterns("*.h5"))
    for name, content in files.items():
        path = copy / f"{name}.{'jinja' if name == 'chat_template' else 'json'}"
        if content is None:
            path.unlink()
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return convert(copy, folder / "other.h5")


def generate(tiny, *options, **by_name):
    """Return a command's words; a cluster of boards that are named."""
    cluster = () if "--plan" in options else ("--cluster", "pi4x4")
    return ("generate", "--model", by_name.get("path", tiny.path), *cluster, *options)
