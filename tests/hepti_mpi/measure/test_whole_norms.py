"""Shares of random numbers run whatever a model's norms are, so that boards can be measured for it."""

import pytest

from hepti_mpi.measure.random_decoder import RandomDecoder
from solver.cluster.decoder_curves import DecoderPart
from tests import sweeps
from tests.kit.decoders import small_model


@pytest.mark.parametrize(
    ("precision", "kv_heads", "norms", "backend"),
    sweeps.cycled(8, ["float32", "int4m"], [1, 3], [{"whole_norms": True}, {}], ["onnxruntime", "numpy"]),
)
def test_every_part_of_every_size_runs(precision, kv_heads, norms, backend):
    model = small_model(
        heads=6, kv_heads=kv_heads, d=16, attention={"qk_norm": True, **norms}, pre_norms=not norms, post_norms=True
    )
    random = RandomDecoder(model, precision, backend)
    for part in DecoderPart:
        for size in random.sizes(part):
            random.call(part, size, 2)()
            assert random.bytes_of(part, size) > 0
