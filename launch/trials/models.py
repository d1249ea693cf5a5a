"""The two models of a trial, a language model and an encoder, as a person names them, and requests to both."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

from launch.compare.model import BenchDecoder, BenchModel, bench_decoder, bench_model
from launch.trials.asking import BenchQuestion
from solver.base.errors import HeptiError
from solver.model.spec import TextInput


@dataclass(frozen=True, slots=True)
class TwoModels:
    """A language model and an encoder of texts."""

    decoder: BenchDecoder
    encoder: BenchModel

    @property
    def paths(self) -> tuple[Path, Path]:
        """Their files."""
        return self.decoder.path, self.encoder.path

    def questions(self, count: int, rng: random.Random, *, most: int, tokens: int) -> list[BenchQuestion]:
        """Return requests of 4 to `most` random tokens: answers of so many `tokens`, and embeddings, in turn."""
        assert isinstance(self.encoder.spec.input, TextInput)
        vocabulary = self.decoder.model.vocab, self.encoder.spec.input.vocab
        found = []
        for number in range(count):
            text = [rng.randrange(vocabulary[number % 2]) for _ in range(rng.randint(4, most))]
            if number % 2:
                found.append(BenchQuestion("/v1/embeddings", {"model": self.encoder.path.stem, "input": text}))
            else:
                body = {
                    "model": self.decoder.path.stem, "prompt": text, "max_tokens": tokens, "temperature": 0,
                    "ignore_eos": True, "stream": True, "logprobs": 0,
                }  # fmt: skip
                found.append(BenchQuestion("/v1/completions", body))
        return found


def add_models(parser: argparse.ArgumentParser, decoder_layers: int, encoder_layers: int) -> None:
    """Add which models, and on which lab; named ones have so many layers."""
    parser.set_defaults(decoder_layers=decoder_layers, encoder_layers=encoder_layers)
    # By its GFLOP/s, which are those of vectors, a Pi 4 gets a tenth of a core: Python and ssh are slower then.
    parser.add_argument("--cluster", default="pi5x4", help="file of a lab, or a ready one (default: %(default)s)")
    text = f"a language model, float32: nothing is nearly equal there (default: %(default)s, layers: {decoder_layers})"
    parser.add_argument("--model", default="smollm2-135m", metavar="NAME|FILE", help=text)
    text = f"an encoder of texts (default: %(default)s, layers: {encoder_layers})"
    parser.add_argument("--encoder", default="bert-base", metavar="NAME|FILE", help=text)


def read_models(options: argparse.Namespace) -> TwoModels:
    """Return the models that are asked for, made where they are not there yet.

    Raises
    ------
    HeptiError
        If there is none of a name, or the encoder reads images.
    """

    def layers(word: str, usual: int) -> int | None:
        return None if word.endswith(".h5") else usual

    decoder = bench_decoder(options.model, layers(options.model, options.decoder_layers), "float32")
    encoder = bench_model(options.encoder, layers(options.encoder, options.encoder_layers))
    if not isinstance(encoder.spec.input, TextInput):
        raise HeptiError(f"--encoder {options.encoder} reads images, here one of texts is needed")
    return TwoModels(decoder, encoder)
