"""Products of blocks with a minimum: those of int4 or int8, and of every block its sum times its minimum."""

import numpy as np
import pytest

from hepti_mpi.program.share import Share
from solver.model.decoder import decoder_tensors
from solver.model.kinds.weight import PRECISIONS
from solver.plan.decoder_plan import whole_on
from solver.schedule.decoders.passes import DecoderPasses
from tests.kit.decoders import small_model
from tests.kit.in_memory import take_all
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
        share = Share(DecoderPasses(model, whole_on(model, ("one",), 0, context=32, precision="int4m")), 0)
        take_all(share.lacking(), weights)
        x = random.standard_normal((1, 5, hidden), np.float32)
        mlp, head = (
            run.runs[0] for key, run in share.graphs.items() if key[-1][0] in ("layers/0/mlp/down", "head/logits")
        )

        def run(graph, width, name):
            """Return what a graph makes of the stream, to which nothing is added."""
            out = np.empty((1, 5, width), np.float32)
            x_name, s_name = graph[1].inputs
            graph[1].run({x_name: x, s_name: np.zeros_like(x)}, {name: out})
            return out[0]

        part = run(mlp, hidden, "layers/0/mlp")
        logits = run(head, model.vocab, "head/logits")

        def tensor(leaf):
            return weights.read(f"layers/0/mlp/{leaf}")

        expected = feed(model.layers[0][1], tensor, norm(model, tensor, "norm", x[0]), model.norm_eps)
        of_words = norm(model, weights.read, "final_norm", x[0]) @ weights.read(model.head).T

    assert np.abs(part - expected).max() < 0.02 * np.abs(expected).max()
    assert np.abs(logits - of_words).max() < 0.02 * np.abs(of_words).max()
    assert (head[0].size, PRECISIONS["int4m"].of_words.bits) == (model.vocab, 8)
