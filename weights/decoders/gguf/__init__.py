"""GGUF files of language models: the container, its settings, its tokenizer."""

from weights.decoders.gguf.checkpoint import GgufCheckpoint, open_gguf

__all__ = ["GgufCheckpoint", "open_gguf"]
