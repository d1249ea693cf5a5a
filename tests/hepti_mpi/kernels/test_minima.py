"""Products of blocks with a minimum: those of int4 or int8, and of every block its sum times its minimum."""

import numpy as np
import pytest

from hepti_mpi.decoding.share import DecoderShare
from solver.model.decoder import PRECISIONS, decoder_tensors
from solver.plan.decoder_plan import whole_on
from tests.kit.decoders import small_model
from weights.decoders.file import DecoderFile, DecoderWriter
from weights.decoders.forward import feed, norm


@pytest.mark.parametrize(("hidden", "ffn"), [(64, 96), (40, 70)])
def test_an_mlp_is_that_of_its_numbers(tmp_path, hidden, ffn):
    """Widths of whole blocks, and others; activations are rounded to int8 by the kernel."""
    model, random = small_model(layers=1, hidden=hidden, ffn=ffn, d=32, heads=2), np.random.default_rng(0)
    with DecoderWriter(tmp_path / "m.h5", model, "test", "int4m") as writer:
        for name, weight in decoder_tensors(model).items():
            numbers = random.standard_normal(weight.shape, np.float32) * 0.2
            writer.write(name, 0, numbers + np.float32(0.3 if weight.summed is not None else 1))
    with DecoderFile(tmp_path / "m.h5") as weights:
        share = DecoderShare(model, whole_on(model, ("one",), 0, context=32, precision="int4m"), 0, weights)
        x = random.standard_normal((1, 5, hidden), np.float32)
        outputs = {"h": np.empty_like(x), "part": np.empty_like(x)}
        half = share.half(0, 1)
        half.session.run({"x": x, "s": np.zeros_like(x)}, outputs)

        def tensor(leaf):
            return weights.read(f"layers/0/mlp/{leaf}")

        expected = feed(model.layers[0].mlp, tensor, norm(model, tensor, "norm", x[0]))
        ((words, head),) = share.heads
        logits = np.empty((1, 5, model.vocab), np.float32)
        head.run({"x": x, "s": np.zeros_like(x), "chosen": np.arange(5)}, {"logits": logits})
        of_words = norm(model, weights.read, "final_norm", x[0]) @ weights.read(model.head).T

    assert np.abs(outputs["part"][0] - expected).max() < 0.02 * np.abs(expected).max()
    assert np.abs(logits[0] - of_words).max() < 0.02 * np.abs(of_words).max()
    assert (words.size, PRECISIONS["int4m"].of_words.bits) == (model.vocab, 8)
