"""What parts of a language model are timed with: numbers like a model's, shares that are quick."""

import numpy as np
import pytest

from hepti_mpi.measure import random_decoder
from hepti_mpi.measure.random_decoder import RandomDecoder
from solver.cluster.decoder_curves import DecoderPart
from solver.model.kinds.attention import CACHES
from solver.model.kinds.weight import PRECISIONS
from tests import sweeps
from tests.kit.decoders import MODELS


@pytest.mark.parametrize(("precision", "cache"), sweeps.pairs(PRECISIONS, CACHES))
def test_no_number_is_too_small_to_be_normal_or_none(precision, cache):
    """Arithmetic on such numbers takes a hundred times as long on some processors."""
    graphs = RandomDecoder(MODELS["qwen3"], precision)
    session = graphs._computes(DecoderPart.ATTENTION, 2, cache)
    held = {}
    bound = session.bound
    found = []

    def kept(inputs, outputs, known):
        held.update(outputs)
        return bound(inputs, outputs, known)

    session.bound = kept
    for rows, behind in ((1, 0), (5, 64)):
        graphs.call(DecoderPart.ATTENTION, 2, rows, behind, cache)()
        found += [np.abs(rows).max() for name, rows in held.items() if name.startswith("layers/")]

    assert len(found) == 4
    assert all(0.01 < largest < 100 for largest in found)


def test_shares_are_at_least_two_and_no_larger_than_is_quick(monkeypatch):
    model = MODELS["one-kv-head"]
    graphs = RandomDecoder(model, "float32")

    assert graphs.sizes(DecoderPart.ATTENTION) == [5, 10]
    monkeypatch.setitem(random_decoder.LARGEST_BYTES, DecoderPart.MLP, graphs.bytes_of(DecoderPart.MLP, 64))
    assert graphs.sizes(DecoderPart.MLP) == [32, 64]
