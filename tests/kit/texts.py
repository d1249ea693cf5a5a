"""Small tokenizers of both ways: bytes as letters (GPT-2, Llama 3, Qwen), and pieces with a byte fallback (Llama 2)."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPECIAL = ["<s>", "</s>", "<|user|>"]


def of_bytes():
    """Ids 0 to 2 are special; every byte has a token, `the` and ` the` have their own."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    words = [*SPECIAL, *letters, *("".join(merge) for merge in merges)]
    made = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return made


def of_pieces():
    """Ids 0 to 2 are special, 3 is unknown, then 256 bytes; a space in front of every text, as Llama 2 has it."""
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    letters = ["▁", *map(chr, range(ord("a"), ord("z") + 1))]
    words = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *map("".join, merges)]
    made = Tokenizer(
        models.BPE(
            {word: number for number, word in enumerate(words)}, merges, unk_token="<unk>", byte_fallback=True,
            fuse_unk=True,
        )
    )  # fmt: skip
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return made


TOKENIZERS = {"bytes": of_bytes, "pieces": of_pieces}
