"""What rounding loses, and the perplexity of a text."""

import math

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from solver.base.errors import HeptiError
from weights.decoders import forward
from weights.decoders import loss as losses
from weights.decoders.file import DecoderFile
from weights.decoders.loss import loss, random_tokens, text_tokens


@pytest.fixture
def words(tmp_path):
    """Return a tokenizer of 95 words, w0 to w94, and a function that writes a text."""
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(95)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    def write(text):
        path = tmp_path / "text.txt"
        path.write_text(text)
        return path

    return tokenizer.to_str(), write


def reader(tensors):
    return lambda name, rows=None: tensors[name] if rows is None else tensors[name][rows.slice]


class TestLoss:
    def test_is_nothing_of_the_same_numbers(self, odd_decoder, decoder_numbers):
        read = reader(decoder_numbers(odd_decoder))

        found = loss(odd_decoder, read, read, random_tokens(odd_decoder))

        assert (found.embedding, found.layers, found.logits) == (0, (0, 0, 0), 0)
        assert found.perplexities[0] == found.perplexities[1]

    def test_is_the_relative_error_of_streams_and_logits(
        self, odd_decoder, decoder_numbers, write_decoder, monkeypatch
    ):
        """Also where the head comes in several parts."""
        monkeypatch.setattr(forward, "WORDS", 40)
        tensors, tokens = decoder_numbers(odd_decoder), [5, 80, 3, 3, 89, 0]
        path = write_decoder(odd_decoder, tensors, precision="int4")

        with DecoderFile(path) as weights:
            found = loss(odd_decoder, reader(tensors), weights.read, tokens)
            pair = [forward.logits(odd_decoder, read, tokens) for read in (reader(tensors), weights.read)]
            streams = [forward.embed(odd_decoder, read, tokens) for read in (reader(tensors), weights.read)]

        assert found.embedding == pytest.approx(np.linalg.norm(streams[0] - streams[1]) / np.linalg.norm(streams[0]))
        assert found.logits == pytest.approx(np.linalg.norm(pair[0] - pair[1]) / np.linalg.norm(pair[0]), rel=1e-5)
        assert len(found.layers) == 3
        assert all(0 < error < 0.5 for error in found.layers)
        for logits, perplexity in zip(pair, found.perplexities, strict=True):
            likely = np.exp(logits[:-1].astype(float))
            likely = likely[range(5), tokens[1:]] / likely.sum(axis=1)
            assert perplexity == pytest.approx(math.exp(-np.log(likely).mean()), rel=1e-5)


class TestTextTokens:
    def test_begin_as_every_text_and_fit(self, odd_decoder, words):
        tokenizer, write = words

        tokens = text_tokens(odd_decoder, tokenizer, write("w5 w6 w7 " * 30))

        assert tokens[:4] == [odd_decoder.bos, 5, 6, 7]
        assert len(tokens) == odd_decoder.positions

    def test_are_not_too_many(self, odd_decoder, words, monkeypatch):
        monkeypatch.setattr(losses, "MOST_TOKENS", 10)

        assert len(text_tokens(odd_decoder, words[0], words[1]("w5 " * 30))) == 10

    @pytest.mark.parametrize(
        "text",
        ["", "w94 w3"],
    )
    def test_of_a_text_that_does_not_fit_are_refused(self, odd_decoder, words, text, kept):
        with pytest.raises(HeptiError) as raised:
            text_tokens(odd_decoder, words[0], words[1](text))
        kept(raised.value)

    def test_need_a_tokenizer_and_a_text(self, odd_decoder, words, tmp_path):
        with pytest.raises(HeptiError, match=r"needs the checkpoint's tokenizer\.json"):
            text_tokens(odd_decoder, None, words[1]("w5"))
        (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
        for name in ("bytes", "missing"):
            with pytest.raises(HeptiError, match=f"cannot read .*{name}"):
                text_tokens(odd_decoder, words[0], tmp_path / name)
