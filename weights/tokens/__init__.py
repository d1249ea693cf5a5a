"""Tokenizers of checkpoints: all of their files, as transformers reads them, made one tokenizer.json."""
